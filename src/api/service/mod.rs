//! Everything that the API can do, as async functions of typed arguments: one file per subject.
//!
//! A service is independent of paths, status codes and HTML. The [routes](crate::api::http::routes) read its arguments from a
//! request and send its answer as JSON; the pages of the UI call the same functions and show the same values. Each takes a
//! [`Context`](context::Context): the state of the API, and the caller.
//!
//! Invariant: what a service refuses does not depend on who calls it: a value is checked by the type of an argument or by
//! the service itself, with an `ApiError` that names it.

pub(crate) mod attachments;
pub(crate) mod batch;
pub(crate) mod bulk;
pub(crate) mod cancel;
pub(crate) mod context;
pub(crate) mod create;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod operations;
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
