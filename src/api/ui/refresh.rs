//! Refreshes: requests of open tabs for the `<main>` of their page. They are served in turn, share renderings, and their
//! responses name the time of the next one.

use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::response::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Page;
use super::cache::SharedMain;
use super::serve::{ShellParts, rendered_page, respond, show};
use super::visit::{PATIENCE, Visit};
use crate::api::http::auth::role_name;
use crate::api::http::problem::{ApiError, Code};

/// Time between two turns: 250 refreshes a second.
const TURN: Duration = Duration::from_millis(4);
/// Interval of the refreshes of a tab without a stream.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Factor by which the wait for a turn extends the interval.
const SLOWDOWN: u32 = 4;

/// Order of the refreshes of a process.
pub(super) struct Turns {
    next: Mutex<Instant>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }
}

impl Turns {
    /// Returns the wait until the turn of a new refresh. `None` if that is too long.
    fn take(&self, now: Instant) -> Option<Duration> {
        let mut next = self.next.lock();
        let turn = (*next).max(now);
        let wait = turn - now;
        if wait > PATIENCE {
            return None;
        }
        *next = turn + TURN;
        Some(wait)
    }
}

/// Answers a refresh. Those that share a rendering do not wait for a turn.
pub(super) async fn answer(visit: &Visit, page: &Page, shell: &ShellParts, head: &Parts) -> Response {
    let live = &visit.api.live;
    let key = format!("{} {}", role_name(visit.view.role), shell.path);
    let render = async { rendered_page(visit, show(visit, page).await) };
    let shared = live.shared.find_or_add(key, live.last_change(&shell.topic), |now| live.turns.take(now));
    let wait = shared.as_ref().map_or(PATIENCE, SharedMain::wait);
    let main = match shared {
        Some(shared) => shared.get(render).await,
        None => {
            let error = ApiError::new(Code::Overloaded, "too many open pages ask for updates");
            rendered_page(visit, Err(error.hint("the page is refreshed later"))).map(Into::into)
        }
    };
    let mut response = main.map_or_else(|response| *response, |main| respond(visit, shell, head, &main));
    let again = POLL_INTERVAL + wait * SLOWDOWN;
    response.headers_mut().insert("kafleet-again", HeaderValue::from(again.as_millis() as u64));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refreshes_are_refused_when_the_wait_for_a_turn_is_too_long() {
        let (turns, now) = (Turns::default(), Instant::now());
        let waits: Vec<_> = (0..502).map(|_| turns.take(now)).collect();
        assert_eq!((waits[0], waits[1]), (Some(Duration::ZERO), Some(TURN)));
        assert_eq!((waits[500], waits[501]), (Some(PATIENCE), None), "250 a second");
        assert_eq!(turns.take(now + PATIENCE * 2), Some(Duration::ZERO));
    }
}
