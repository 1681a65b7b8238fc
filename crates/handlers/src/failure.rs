//! Failures of an attempt.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use super::ParamsError;

/// Failure kind of a timeout, including a service that did not respond in time.
pub const TIMEOUT: &str = "timeout";
/// Failure kind of an attempt whose process crashed.
pub const CRASHED: &str = "crashed";
/// Failure kind of [`Failure::unsuccessful`].
pub const UNSUCCESSFUL: &str = "unsuccessful";
/// Failure kind of a service that cannot be reached, directly or behind a gateway.
pub const UNREACHABLE: &str = "unreachable";
/// Failure kind of a service that is temporarily not available.
pub(super) const OVERLOADED: &str = "overloaded";
/// Failure kind of a service that limits the rate of requests.
pub const RATE_LIMITED: &str = "rate_limited";
/// Failure kind of one receiver of many that refuses a call for now (429 or 503). Neither the circuit nor an adaptive limit
/// of a type counts it, since it concerns the calls of that receiver alone.
pub const BUSY: &str = "busy";

/// Result of a handler.
pub type TaskResult<T> = Result<T, Failure>;

/// Error of an attempt, and the action to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Action to take.
    pub then: Fail,
    /// Reason for people: lower case, with the value, and what to do.
    pub message: String,
    /// Stable identifier for programs (`ErrorInfo::kind`).
    pub kind: Cow<'static, str>,
}

/// Action to take after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fail {
    /// Retry after the type's backoff, or after this delay.
    Retry {
        /// Wait before the next attempt. `None`: the type's backoff.
        after: Option<Duration>,
    },
    /// Run again later; the attempt is not counted.
    Wait {
        /// Time of the wait. `None`: the type's `min_backoff`, doubled with each wait up to 10 minutes.
        after: Option<Duration>,
    },
    /// The task fails; further attempts would fail too.
    Final,
    /// The task fails and is kept as a dead letter for redrive.
    Dead,
    /// The attempt stopped because of a cancellation.
    Cancelled,
}

impl Failure {
    /// Failure to be retried after the type's backoff, while it has retries left.
    pub fn retry(message: impl Into<String>) -> Self {
        Self { then: Fail::Retry { after: None }, message: message.into(), kind: "error".into() }
    }

    /// Failure to be retried after this delay, while the type has retries left.
    pub fn retry_after(message: impl Into<String>, after: Duration) -> Self {
        Self { then: Fail::Retry { after: Some(after) }, message: message.into(), kind: "error".into() }
    }

    /// End of an attempt that is not counted, because its reason lies outside of the task: the service that it needs
    /// limits the rate of requests, or is not available. The task runs again after this time or, without one, after the
    /// type's `min_backoff`, doubled with each wait up to 10 minutes. Once the type's `max_wait` has passed since the
    /// first wait of a run, waits count as attempts.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use kafleet::handlers::Failure;
    ///
    /// let busy = Failure::wait(Some(Duration::from_secs(20)), "the bureau accepts 10 requests a minute");
    /// # assert_eq!(busy.then, kafleet::handlers::Fail::Wait { after: Some(Duration::from_secs(20)) });
    /// ```
    pub fn wait(after: Option<Duration>, message: impl Into<String>) -> Self {
        Self { then: Fail::Wait { after }, message: message.into(), kind: "error".into() }
    }

    /// Final failure: no retry.
    pub fn fail(message: impl Into<String>) -> Self {
        Self { then: Fail::Final, message: message.into(), kind: "error".into() }
    }

    /// Failure of work that completed without success; a retry would end the same way.
    pub fn unsuccessful(message: impl Into<String>) -> Self {
        Self::fail(message).of_kind(UNSUCCESSFUL)
    }

    /// Failure of a service that did not respond: `timeout` or `unreachable`. Retried.
    pub(super) fn no_response(message: impl Into<String>, timed_out: bool) -> Self {
        Self::retry(message).of_kind(if timed_out { TIMEOUT } else { UNREACHABLE })
    }

    /// Failure of a service that responded with an error status. Waits do not count as attempts: 429, and 503 with
    /// `Retry-After`. `is_retryable`: a retry of the same request may succeed.
    pub(super) fn error_status(
        message: impl Into<String>,
        status: StatusCode,
        retry_after: Option<Duration>,
        is_retryable: bool,
    ) -> Self {
        let (then, kind) = match (status, retry_after) {
            (StatusCode::TOO_MANY_REQUESTS, after) => (Fail::Wait { after }, RATE_LIMITED),
            (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => (Fail::Wait { after: retry_after }, OVERLOADED),
            (StatusCode::SERVICE_UNAVAILABLE, None) => (Fail::Retry { after: None }, OVERLOADED),
            (StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT, after) => (Fail::Retry { after }, UNREACHABLE),
            (_, after) if is_retryable => (Fail::Retry { after }, "http_status"),
            _ => (Fail::Final, "http_status"),
        };
        Self { then, message: message.into(), kind: kind.into() }
    }

    /// Final failure whose task is kept as a dead letter, for a redrive after the cause is fixed.
    pub fn dead(message: impl Into<String>) -> Self {
        Self { then: Fail::Dead, message: message.into(), kind: "error".into() }
    }

    /// Failure of params that do not fit the type.
    #[doc(hidden)]
    pub fn of_params(error: &ParamsError) -> Self {
        Self::dead(error.to_string()).of_kind("schema")
    }

    /// End of an attempt after a request to stop. The task is cancelled, or repeated if only the worker stops.
    pub fn cancelled() -> Self {
        Self { then: Fail::Cancelled, message: "the attempt was cancelled".into(), kind: "cancelled".into() }
    }

    /// Sets the stable identifier for programs. Default: `error`.
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: kind.into(), ..self }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Converts an error to a failure, with or without a retry: `….retry()?` or `….fail()?`.
pub trait OrFail<T> {
    /// Converts the error to a failure that is retried after the type's backoff.
    ///
    /// # Errors
    /// The converted error.
    fn retry(self) -> TaskResult<T>;
    /// Converts the error to a final failure.
    ///
    /// # Errors
    /// The converted error.
    fn fail(self) -> TaskResult<T>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn retry(self) -> TaskResult<T> {
        self.map_err(|error| Failure::retry(format!("{error:#}")))
    }
    fn fail(self) -> TaskResult<T> {
        self.map_err(|error| Failure::fail(format!("{error:#}")))
    }
}

/// Returns the start of foreign text for a message: at most `max_chars` characters, without control characters except
/// line breaks.
pub fn excerpt(bytes: &[u8], max_chars: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(max_chars * 4)]);
    let mut excerpt: String =
        text.trim().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).take(max_chars).collect();
    if text.trim().chars().count() > max_chars || bytes.len() > max_chars * 4 {
        excerpt.push('…');
    }
    excerpt
}
