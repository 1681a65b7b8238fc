//! The pure core: what a task, an event and a tree are, and how events become states.
//!
//! Nothing in this folder waits, reads a clock, draws a random number or touches the outside world, so it cannot fail
//! for reasons of its own: the same code runs under Redis, in memory, in property tests and in simulation.
//!
//! Reading order: [`id`] → [`duration`] → [`state`] → [`task`] (the record on a task topic) → [`event`] (the record on
//! the events topic) → [`node`] (what the store keeps) → [`then`] (what follows) → [`action`] and [`told`] (who is told) → [`outbox`] (what is due or to be done) → [`rollup`] → [`fold`] → [`retry`] and [`offsets`] (the worker's
//! arithmetic).

pub mod action;
pub mod age;
pub mod attachment;
pub mod changes;
pub mod dead;
pub mod duration;
pub mod event;
pub mod fold;
pub mod hash;
pub mod id;
pub mod json;
pub mod log;
pub mod node;
pub mod offsets;
pub mod outbox;
pub mod partition;
pub mod patch;
pub mod retry;
pub mod rollup;
pub mod schedule;
pub mod state;
pub mod task;
pub mod then;
pub mod told;
