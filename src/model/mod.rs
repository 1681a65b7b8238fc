//! The pure core: what a task, an event and a tree are, and how events become states.
//!
//! Nothing in this folder waits, reads a clock, draws a random number or touches the outside world, so it cannot fail
//! for reasons of its own: the same code runs under Redis, in memory, in property tests and in simulation.
//!
//! Reading order: [`id`] → [`duration`] → [`state`] → [`task`] (the record on a task topic) → [`event`] (the record on
//! the events topic) → [`node`] (what the store keeps) → [`then`] (what follows) → [`action`] and [`told`] (who is told) → [`outbox`] (what is due or to be done) → [`rollup`] → [`fold`] → [`retry`] and [`offsets`] (the worker's
//! arithmetic).

pub mod event;
pub mod json;
pub mod offsets;
pub mod outbox;
pub mod projection;
pub mod record;
pub mod retention;
pub mod retry;
pub mod schedule;
pub mod task;
pub mod units;
