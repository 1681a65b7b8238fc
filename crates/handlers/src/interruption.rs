//! Reason for stopping an attempt, and repetition of an attempt whose process has ended.

use std::sync::OnceLock;

use serde::Serialize;

/// Reason why an attempt is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The task was cancelled.
    Cancelled,
    /// The attempt exceeded its timeout.
    Timeout,
    /// The attempt showed no activity for `stall_timeout`.
    Stalled,
    /// The worker is stopping, or no longer owns the partition of the task.
    Shutdown,
}

/// Kind of the repetition of an attempt that has no outcome, because its process ended or its batch failed. The attempt keeps its
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The attempt was not sent: the process had ended or was taking no more attempts. Not counted as a restart.
    Unsent,
    /// The process of the attempt died so soon after its start that the app is to blame. Not counted as a restart.
    Blameless,
    /// The attempt may share its next process with other attempts.
    Shared,
    /// The attempt runs without other attempts in its next process: it may have caused the end of the last one.
    Alone,
    /// The call of the attempt's batch failed as a whole, and runs again in parts. Not counted as a restart.
    Split,
}

/// Interruption of an attempt: the reason for its cancellation, and the request to run it again.
#[derive(Debug, Default)]
pub struct Interruption {
    cancel_reason: OnceLock<CancelReason>,
    restart: OnceLock<Restart>,
}

impl Interruption {
    /// Sets the reason; call this before cancelling the attempt. The first reason is kept.
    pub fn set_cancel_reason(&self, reason: CancelReason) {
        let _ = self.cancel_reason.set(reason);
    }

    /// Returns why the attempt was cancelled; `Shutdown` if no reason was set.
    pub fn cancel_reason(&self) -> CancelReason {
        self.cancel_reason.get().copied().unwrap_or(CancelReason::Shutdown)
    }

    /// Requests that the attempt be run again; the first request is kept. Its answer counts only if the limit of
    /// restarts is reached.
    pub fn request_restart(&self, restart: Restart) {
        let _ = self.restart.set(restart);
    }

    /// Returns how the attempt is to be run again, if that was requested.
    pub fn restart(&self) -> Option<Restart> {
        self.restart.get().copied()
    }
}
