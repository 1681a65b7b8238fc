//! Waits for conditions.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Deadline of a wait: patience for a busy machine, not a requirement.
pub const DEADLINE: Duration = Duration::from_secs(300);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Result of a check: `true`, `Some` and `Ok` end the wait; an `Err` is shown at its deadline.
pub trait Check {
    type Value;

    fn passed(self) -> Result<Self::Value, String>;
}

impl Check for bool {
    type Value = ();

    fn passed(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(String::new)
    }
}

impl<T> Check for Option<T> {
    type Value = T;

    fn passed(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Debug> Check for Result<T, E> {
    type Value = T;

    fn passed(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

/// Polls until the condition holds or yields a value; panics with its description after [`DEADLINE`].
pub async fn eventually<C: Check>(subject: &str, mut condition: impl AsyncFnMut() -> C) -> C::Value {
    let end = Instant::now() + DEADLINE;
    loop {
        match condition().await.passed() {
            Ok(value) => return value,
            Err(last) => assert!(Instant::now() < end, "not within {DEADLINE:?}: {subject} {last}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits like [`eventually`], on this thread.
#[track_caller]
pub fn eventually_blocking<C: Check>(subject: &str, mut condition: impl FnMut() -> C) -> C::Value {
    let end = Instant::now() + DEADLINE;
    loop {
        match condition().passed() {
            Ok(value) => return value,
            Err(last) => assert!(Instant::now() < end, "not within {DEADLINE:?}: {subject} {last}"),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
