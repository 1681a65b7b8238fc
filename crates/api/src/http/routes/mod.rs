//! Route table: source of the router and of the OpenAPI description.
//!
//! A line names verb, path, summary and service. Its role, kinds of success and problem codes are those of the verb,
//! unless the line replaces or extends them. Body, query parameters and their problem codes come from the arguments of
//! the service, which are read from a request here and in `http/input.rs`. Most services are functions of
//! [`crate::service`].
//!
//! Invariant: a fixed segment of a path is never a valid value of a parameter in its place (`tests.rs`). Otherwise the
//! task, type or schedule of that name could not be reached.
//!
//! Read next: `route.rs` (a line), `tasks.rs` (the largest subject).

use std::sync::LazyLock;

mod bulk;
mod dead_letters;
mod export;
mod fleet;
pub(crate) mod route;
mod schedules;
mod statistics;
pub mod system;
mod task_query;
pub mod tasks;
mod unique;
mod views;

use route::Route;

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let groups = [
        tasks::all(),
        bulk::all(),
        fleet::all(),
        dead_letters::all(),
        system::all(),
        schedules::all(),
        statistics::all(),
        unique::all(),
        views::all(),
        export::all(),
    ];
    groups.into_iter().flatten().collect()
});

/// Returns all routes.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter()
}

#[cfg(test)]
mod tests;
