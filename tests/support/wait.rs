//! Waits for conditions.

use std::time::{Duration, Instant};

/// Deadline of a wait: patience for a busy machine, not a requirement.
pub const DEADLINE: Duration = Duration::from_secs(300);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Result of a check: `true` and `Some` end the wait.
pub trait Check {
    type Value;

    fn value(self) -> Option<Self::Value>;
}

impl Check for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Check for Option<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

/// Polls until the condition holds or yields a value; panics with its description after [`DEADLINE`].
pub async fn eventually<C: Check>(what: &str, mut condition: impl AsyncFnMut() -> C) -> C::Value {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition().await.value() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Like [`eventually`], on this thread.
#[track_caller]
pub fn eventually_blocking<C: Check>(what: &str, mut condition: impl FnMut() -> C) -> C::Value {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition().value() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub use self::{
    eventually as until, eventually as wait_until, eventually_blocking as block_until,
    eventually_blocking as wait_blocking,
};
