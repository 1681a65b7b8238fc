//! The pure core: the definitions of tasks, events and trees, and the projection of events into task records.
//!
//! Nothing in this folder does IO, waits, reads a clock or draws a random number. The same code therefore runs against
//! Redis, in memory, in property tests and in the simulation, and always gives the same result.
//!
//! Reading order: [`task::id`] → [`units`] → [`record::state`] → [`task`] (the record on a task topic) → [`event`] (the
//! record on the events topic) → [`record`] (the task record in the store) → [`task::continuation`] and [`task::action`]
//! (follow-up tasks and notifications) → [`outbox`] (timers and effects) → [`record::rollup`] → [`projection`] →
//! [`retry`] and [`offsets`] (the worker's arithmetic).

pub mod encode_error;
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
