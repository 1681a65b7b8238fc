//! How an attempt can end other than well.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The kind of a failure for want of time, also of a service that did not answer in time.
pub const TIMEOUT: &str = "timeout";
/// The kind of [`Failure::unsuccessful`].
pub const UNSUCCESSFUL: &str = "unsuccessful";
/// The kind of a failure to reach a service: no connection, or one that broke.
pub(super) const UNREACHABLE: &str = "unreachable";

/// What a handler returns.
pub type TaskResult<T> = Result<T, Failure>;

/// Why an attempt did not succeed, and what is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub then: Fail,
    pub message: String,
    /// Stable word for programs (`ErrorInfo::kind`).
    pub kind: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fail {
    /// Try again, after the backoff of the type or after this time.
    Retry { after: Option<Duration> },
    /// The task has failed; another attempt is of no use.
    Final,
    /// Failed, and kept as a dead letter for redrive.
    Dead,
    /// The attempt stopped because it was told to.
    Cancelled,
}

impl Failure {
    pub fn retry(message: impl Into<String>) -> Self {
        Self { then: Fail::Retry { after: None }, message: message.into(), kind: "error".into() }
    }

    pub fn retry_after(message: impl Into<String>, after: Duration) -> Self {
        Self { then: Fail::Retry { after: Some(after) }, message: message.into(), kind: "error".into() }
    }

    pub fn fail(message: impl Into<String>) -> Self {
        Self { then: Fail::Final, message: message.into(), kind: "error".into() }
    }

    /// The work is done, and without success: another attempt would end the same way.
    pub fn unsuccessful(message: impl Into<String>) -> Self {
        Self::fail(message).of_kind(UNSUCCESSFUL)
    }

    /// A service gave no answer: `timeout` where its time was over, else `unreachable`. Another attempt may get one.
    pub(super) fn unanswered(message: impl Into<String>, timed_out: bool) -> Self {
        Self::retry(message).of_kind(if timed_out { TIMEOUT } else { UNREACHABLE })
    }

    pub fn dead(message: impl Into<String>) -> Self {
        Self { then: Fail::Dead, message: message.into(), kind: "error".into() }
    }

    pub fn cancelled() -> Self {
        Self { then: Fail::Cancelled, message: "Job was cancelled.".into(), kind: "cancelled".into() }
    }

    /// With a stable word for programs; the default is `error`.
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: kind.into(), ..self }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Says of an error whether another attempt is worth it: `….retry()?` or `….fail()?`.
pub trait OrFail<T> {
    fn retry(self) -> TaskResult<T>;
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

/// The start of what somebody else has written, for a message: at most so many characters, none of
/// them a control character but the line break.
pub(super) fn excerpt(bytes: &[u8], max_chars: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(max_chars * 4)]);
    let mut excerpt: String =
        text.trim().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).take(max_chars).collect();
    if text.trim().chars().count() > max_chars || bytes.len() > max_chars * 4 {
        excerpt.push('…');
    }
    excerpt
}
