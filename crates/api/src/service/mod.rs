//! Everything that the API can do, as async functions of typed arguments: one file per subject.
//!
//! A service is independent of paths, status codes and HTML. The [routes](crate::http::routes) read its arguments from a
//! request and send its answer as JSON; the pages of the UI call the same functions and show the same values. Each takes a
//! [`RequestContext`](context::RequestContext): the state of the API, and the caller.
//!
//! Invariant: what a service refuses does not depend on who calls it: a value is checked by the type of an argument or by
//! the service itself, with an `ApiError` that names it.

pub mod attachments;
pub mod batch;
pub mod bulk;
pub mod cancel;
pub mod context;
pub mod create;
pub mod dead_letters;
pub(crate) mod deliveries;
pub mod export;
pub mod flow;
pub mod kill_switch_preview;
pub mod kill_switches;
pub(crate) mod limit_change;
pub mod list;
pub mod log;
pub mod operations;
pub mod patch;
pub mod preview;
pub mod queue;
pub(crate) mod report;
pub mod retry;
pub mod schedule_previews;
pub mod schedules;
pub mod start;
pub mod statistics;
pub(crate) mod suggestions;
pub mod system;
pub mod task;
pub mod tree;
pub mod types;
pub mod unique;
pub mod views;
pub mod watch;
pub(crate) mod watch_fleet;
pub mod why;
pub mod workers;
