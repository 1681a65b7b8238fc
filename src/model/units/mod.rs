//! Durations and sizes as people write them.

pub(crate) mod bytes;
pub mod duration;
