//! Fixtures shared by the test crates.

pub mod services;
pub mod wait;
