//! API tests over HTTP: the real server on a real port, with the in-memory broker and store, and the real tracker
//! where a test needs projection.

mod atomic_batch;
mod batch;
pub mod bulk;
mod bulk_redrive;
mod cancels;
pub mod client;
mod control;
mod create;
mod dead_letter_resolution;
pub mod dead_letters;
mod declared_types;
mod doors;
mod emptied_store;
pub mod fixture;
mod hooks;
mod later_runs;
mod leases;
pub mod lists;
mod logs;
mod operations;
mod patch;
mod problems;
mod queries;
mod reads;
mod reload;
mod reports;
mod schedules;
mod search;
mod statistics;
mod unacknowledged;
mod watches;
pub mod why;
mod why_ends;
