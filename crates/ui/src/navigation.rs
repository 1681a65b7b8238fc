//! Counts in the navigation: errors of the last hour, and unresolved dead letters.

use std::sync::Arc;
use std::time::Duration;

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::failures::errors_since;
use kafleet_api::read::recent::Recent;
use kafleet_api::service::context::RequestContext;
use kafleet_api::service::dead_letters::letter_counts;
use kafleet_runtime::now_ms;
use tokio::time::timeout;

use super::live::Live;

/// Lifetime of the counts.
const LIFETIME: Duration = Duration::from_secs(30);
/// Maximum wait of a page for newer counts.
const COUNTS_DEADLINE: Duration = Duration::from_millis(50);
/// Age of errors that are counted.
const HOUR_MS: i64 = 3_600_000;

/// Counts that the pages of a process share.
pub(super) struct SharedCounts(Recent<NavigationCounts>);

impl Default for SharedCounts {
    fn default() -> Self {
        Self(Recent::new(LIFETIME, |_| size_of::<NavigationCounts>()))
    }
}

/// Counts; `None` while they are not known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NavigationCounts {
    /// Kinds of errors, by type, that have ended a task in the last hour.
    pub errors: Option<usize>,
    /// Unresolved dead letters.
    pub letters: Option<u64>,
    /// There are more letters than were counted.
    pub more_letters: bool,
}

impl NavigationCounts {
    /// Number of what needs attention: errors of the last hour and dead letters.
    pub(super) fn trouble(self) -> u64 {
        self.errors.unwrap_or_default() as u64 + self.letters.unwrap_or_default()
    }
}

/// Returns the counts, or the last ones if newer ones take long.
pub(super) async fn counts(live: Arc<Live>, context: RequestContext) -> NavigationCounts {
    let earlier = live.counted.0.last("");
    // Counts that are not awaited any more are finished for the next page.
    let read = kafleet_runtime::spawn(async move { live.counted.0.get(Some(String::new()), read(context)).await });
    let newest = timeout(COUNTS_DEADLINE, read).await.ok().and_then(Result::ok).and_then(Result::ok);
    newest.or(earlier).map(|counts: Arc<NavigationCounts>| *counts).unwrap_or_default()
}

async fn read(RequestContext { api, .. }: RequestContext) -> Result<NavigationCounts, ApiError> {
    let errors = errors_since(&api.reads, now_ms() - HOUR_MS);
    let (errors, letters) = tokio::join!(errors, letter_counts(&api, None));
    Ok(NavigationCounts {
        errors: errors.ok(),
        letters: letters.as_ref().ok().map(|letters| letters.letters),
        more_letters: letters.is_ok_and(|letters| letters.is_cut),
    })
}
