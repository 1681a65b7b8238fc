//! Route table: source of the router and of the OpenAPI description.

mod bulk;
mod dead_letters;
mod errors;
mod fleet;
pub(crate) mod route;
mod schedules;
mod statistics;
mod system;
mod tasks;

use route::Route;

/// Returns all routes.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    [
        tasks::ROUTES,
        bulk::ROUTES,
        fleet::ROUTES,
        dead_letters::ROUTES,
        system::ROUTES,
        schedules::ROUTES,
        statistics::ROUTES,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests;
