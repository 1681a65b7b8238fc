//! The pure core: the definitions of tasks, events and trees, and the projection of events into task records.
//!
//! In: values that the other crates have read, as bytes, JSON or fields. Out: checked values, the bytes of records and
//! events, and the changes that a batch of events makes to task records. Checks of single values (names, times, sizes,
//! fields of a task) return the reason as text: it is written for people, no code decides by it, and callers add the
//! place, such as a header or a JSON pointer.
//!
//! Invariant: nothing in this crate does IO, waits, reads a clock or draws a random number. The same code therefore
//! runs against Redis, in memory, in property tests and in the simulation, and always gives the same result; otherwise
//! the store could not be filled again from the log, nor a failing seed repeated.
//!
//! Reading order: [`task::id`] → [`units`] → [`record::state`] → [`task`] (the record on a task topic) → [`event`] (the
//! record on the events topic) → [`record`] (the task record in the store) → [`task::continuation`] and
//! [`task::action`] (follow-up tasks and notifications) → [`outbox`] (timers and effects) → [`record::rollup`] →
//! [`projection`] → [`statistics`] (counted by the projection) → [`retry`], [`offsets`], [`fair_queue`] and [`backlog`] (the worker's arithmetic).
//! Read next: `task/id.rs`.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

// Unit tests share the events of the test kit, which name this crate.
#[cfg(test)]
extern crate self as kafleet_model;

#[doc(hidden)]
pub mod adaptive;
#[doc(hidden)]
pub mod backlog;
#[doc(hidden)]
pub mod batch;
#[doc(hidden)]
pub mod encode_error;
#[doc(hidden)]
pub mod error_fingerprint;
#[doc(hidden)]
pub mod event;
#[doc(hidden)]
pub mod fair_queue;
pub mod json;
#[doc(hidden)]
pub mod offsets;
#[doc(hidden)]
pub mod omit;
#[doc(hidden)]
pub mod outbox;
#[doc(hidden)]
pub mod projection;
#[doc(hidden)]
pub mod query;
#[doc(hidden)]
pub mod record;
#[doc(hidden)]
pub mod retention;
#[doc(hidden)]
pub mod retry;
#[doc(hidden)]
pub mod role;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod similar;
#[doc(hidden)]
pub mod statistics;
pub mod task;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod unique;
pub mod units;
#[doc(hidden)]
pub mod worker_status;
