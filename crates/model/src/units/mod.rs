//! Durations, sizes, numbers and times in their text form, and rates.

pub mod bytes;
pub mod duration;
pub mod number;
pub mod rate;
pub mod time;
