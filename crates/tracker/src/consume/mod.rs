//! Reads the events topic and passes the events of each partition to its task in bounded batches.

pub(crate) mod event_batches;
pub(crate) mod poll_loop;
