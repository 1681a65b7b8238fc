//! Refreshes: requests of open tabs for the `<main>` of their page. They are served in turn, share renderings, and their
//! responses name the time of the next one.

use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::response::Response;
use kafleet_api::http::problem::{ApiError, Code};

use super::Page;
use super::cache::SharedMain;
use super::parts::times::clock_text;
use super::serve::{ShellParts, rendered_page, respond, show};
use super::visit::{PAGE_DEADLINE, Visit};

/// Interval of the refreshes of a tab without a stream.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Factor by which the wait for a turn extends the interval.
const INTERVAL_FACTOR: u32 = 4;

/// Answers a refresh. Those that share a rendering do not wait for a turn.
pub(super) async fn answer(visit: &Visit, page: &Page, shell: &ShellParts, head: &Parts) -> Response {
    let live = &visit.live;
    let key = format!("{} {} {}", visit.view.role.name(), visit.view.zone.name, shell.path);
    let render = async { rendered_page(visit, page, show(visit, page).await) };
    let shared = live.shared.find_or_add(key, live.last_change(&shell.topic), |now| live.refreshes.reserve(now));
    let wait = shared.as_ref().map_or(PAGE_DEADLINE, SharedMain::wait);
    let main = match shared {
        Some(shared) => shared.get(render).await,
        None => {
            let error = ApiError::new(Code::Overloaded, "too many open pages ask for updates");
            rendered_page(visit, page, Err(error.hint("the page is refreshed later"))).map(Into::into)
        }
    };
    let mut response = main.map_or_else(|response| *response, |main| respond(visit, shell, head, &main));
    let again = POLL_INTERVAL + wait * INTERVAL_FACTOR;
    let headers = response.headers_mut();
    headers.insert("kafleet-again", HeaderValue::from(again.as_millis() as u64));
    for (name, value) in [("kafleet-icon", shell.icon(visit)), ("kafleet-time", clock_text(visit.view.now_ms))] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    response
}
