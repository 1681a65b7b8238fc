//! Request handlers, one file per endpoint or group of endpoints.

pub(crate) mod attachments;
pub(crate) mod batch;
pub(crate) mod bulk;
pub(crate) mod cancel;
pub(crate) mod create;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod operations;
pub(crate) mod ops;
pub(crate) mod patch;
pub(crate) mod queue;
pub(crate) mod report;
pub(crate) mod retry;
pub(crate) mod schedules;
pub(crate) mod statistics;
pub(crate) mod suggestions;
pub(crate) mod task;
pub(crate) mod tree;
pub(crate) mod types;
pub(crate) mod watch;
pub(crate) mod watch_fleet;
pub(crate) mod why;
pub(crate) mod workers;
