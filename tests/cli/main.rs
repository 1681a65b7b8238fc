//! The command line as a user has it: the built binary, its output and its exit codes.

mod client;
mod demo;
mod empty;
mod external;
mod follow;
mod manual;
mod offline;
mod operate;
mod run;
mod schedules;
mod services;
mod together;
mod watching;
