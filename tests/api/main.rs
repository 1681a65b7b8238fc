//! The api as its clients see it: the real server on a real port, over the in-memory broker and store, with the real
//! tracker folding where a test wants it.

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

mod batch;
mod cancels;
mod changes;
mod create;
mod dead;
mod doubles;
mod harness;
mod leases;
mod letters;
mod lists;
mod logs;
mod operate;
mod orders;
mod reads;
mod refusals;
mod reports;
mod runs;
mod schedules;
mod search;
mod together;
mod unacknowledged;
mod watches;
mod why;
