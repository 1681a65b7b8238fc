//! Batches: tasks of one type that a handler takes in one call, and what becomes of a call that fails as a whole.
//!
//! In: tasks that may start, with times and sizes, and failed calls. Out: groups of tasks, each for one call. Nothing here reads a
//! clock: the worker passes milliseconds of a monotonic one.
//!
//! Invariant: an item that is added leaves once, in a group or by [`forming::BatchForming::extract`].

pub mod forming;
pub mod halving;
pub mod setting;
#[cfg(test)]
mod tests;
