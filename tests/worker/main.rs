//! Workers as a user sees them: what they write to the events, results and dead-letter topics, and what their group has
//! committed. On the broker in memory; the core cases also on a real Kafka where `KAFLEET_TEST_KAFKA` is set, as
//! `tests/services run` does.

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

mod answers;
mod astray;
mod blocking;
mod children;
mod commits;
mod control;
mod faults;
mod fleet;
mod heartbeats;
mod kafka;
mod limits;
mod live_limits;
mod malformed;
mod notes;
mod order;
mod order_property;
mod policy;
mod rebalance;
mod recall;
mod removed;
mod replaced;
mod sabotage;
mod stopping;
mod tail;
mod threads;
#[path = "../topics/mod.rs"]
mod topics;
mod types;
