//! Waits for conditions.

use std::time::{Duration, Instant};

/// Deadline of a wait: patience for a busy machine, not a requirement.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Polls until the condition yields a value; panics with its description after [`DEADLINE`].
pub async fn wait_until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
