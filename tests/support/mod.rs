//! Fixtures shared by the tests.

pub mod faults;
pub mod http;
pub mod names;
pub mod oracle;
pub mod processes;
pub mod properties;
pub mod records;
pub mod redis;
pub mod services;
pub mod topics;
pub mod wait;
