//! Route table: source of the router and of the OpenAPI description.

use std::sync::LazyLock;

mod bulk;
mod dead_letters;
mod fleet;
pub(crate) mod route;
mod schedules;
mod statistics;
pub(crate) mod system;
mod task_query;
pub(crate) mod tasks;

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
    ];
    groups.into_iter().flatten().collect()
});

/// Returns all routes.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter()
}

#[cfg(test)]
mod tests;
