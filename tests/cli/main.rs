//! The command line: the built binary, its output and its exit codes.

mod atomic;
mod client;
mod demo;
mod empty;
mod external;
mod follow;
mod manual;
mod offline;
mod operate;
#[path = "../redis/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the store's tests use more of it")]
mod redis;
mod run;
mod schedules;
mod services;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test crate uses a part of it")]
mod support;
mod watch;
