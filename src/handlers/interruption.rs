//! Reasons for which an attempt is asked to stop, or ends without an outcome.

use std::sync::OnceLock;

use serde::Serialize;

/// Cause of a cancelled attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The task was cancelled.
    Cancelled,
    /// The timeout is over.
    Timeout,
    /// The attempt showed no activity for `stall_timeout`.
    Stalled,
    /// The worker stops, or has lost the partition.
    Shutdown,
}

/// Repetition of an attempt that ended without an outcome, through no fault of its own. It keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The attempt was not sent to a process, which had ended meanwhile. It runs again like any other.
    Unsent,
    /// The attempt runs again like any other.
    Shared,
    /// The attempt runs again without others in its process: it may have caused the death of the process.
    Alone,
}

/// Interruption of an attempt: the cause of a cancellation, and the request to repeat it.
#[derive(Debug, Default)]
pub struct Interruption {
    cancel_reason: OnceLock<CancelReason>,
    restart: OnceLock<Restart>,
}

impl Interruption {
    /// Sets the cause of a cancellation that follows; the first cause is kept.
    pub fn set_cancel_reason(&self, reason: CancelReason) {
        let _ = self.cancel_reason.set(reason);
    }

    /// Returns the cause of the cancellation.
    pub fn cancel_reason(&self) -> CancelReason {
        self.cancel_reason.get().copied().unwrap_or(CancelReason::Shutdown)
    }

    /// Requests a repetition of the attempt, whose answer does not count.
    pub fn request_restart(&self, restart: Restart) {
        let _ = self.restart.set(restart);
    }

    /// Returns the requested repetition.
    pub fn restart(&self) -> Option<Restart> {
        self.restart.get().copied()
    }
}
