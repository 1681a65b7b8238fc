//! Reads the events topic and hands each partition's events to its task in bounded batches.

pub(crate) mod event_batches;
pub(crate) mod poll_loop;
