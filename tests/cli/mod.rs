//! The command line: the built binary, its output and its exit codes.

mod app_deaths;
mod app_test;
mod apps;
mod atomic;
mod attach;
mod benchmarks;
pub mod client;
mod daily;
mod declared_types;
mod demo;
mod empty;
mod external;
mod follow;
mod init;
mod manual;
mod offline;
mod operate;
mod reload;
pub mod run;
mod runbook;
mod schedules;
mod secrets;
mod services;
mod watch;
