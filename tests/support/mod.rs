//! Fixtures shared by the tests.

#[macro_use]
mod through;

pub mod oracle;
pub mod processes;
pub mod properties;
pub mod redis;
pub mod services;
pub mod topics;
pub mod wait;
