//! Waits for conditions.

use std::time::{Duration, Instant};

/// Deadline of a wait: patience for a busy machine, not a requirement.
pub const DEADLINE: Duration = Duration::from_secs(300);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until the condition holds; panics with its description after [`DEADLINE`].
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls until the condition yields a value; panics with its description after [`DEADLINE`].
pub async fn wait_until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls on this thread until the condition holds; panics with its description after [`DEADLINE`].
#[track_caller]
pub fn block_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_blocking(what, || condition().then_some(()));
}

/// Polls on this thread until the condition yields a value; panics with its description after [`DEADLINE`].
#[track_caller]
pub fn wait_blocking<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
