//! API tests over HTTP: the real server on a real port, with the in-memory broker and store, and the real tracker
//! where a test needs projection.

mod atomic_batch;
mod batch;
mod cancels;
mod client;
mod control;
mod create;
mod dead_letter_resolution;
mod dead_letters;
mod faulty_backends;
mod fixture;
mod later_runs;
mod leases;
mod lists;
mod logs;
mod operations;
mod patch;
mod problems;
mod reads;
mod reports;
mod schedules;
mod search;
mod unacknowledged;
mod watches;
mod why;
