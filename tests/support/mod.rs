//! Fixtures shared by the tests.

#[macro_use]
pub mod delegate;
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
