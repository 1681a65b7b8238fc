//! Durations and sizes in their text form.

pub(crate) mod bytes;
pub mod duration;
