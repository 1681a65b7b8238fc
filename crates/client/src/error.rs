//! Errors of the client.

use std::sync::Arc;

use kafleet_documents::{Problem, Status};

/// Failure of a request, or of the task that it waited for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not the URL of an API.
    #[error("`{api}` is not the address of an API: {reason}")]
    Address {
        /// Address as given.
        api: String,
        /// Reason why it is invalid.
        reason: String,
    },
    /// The token has characters that a header must not have.
    #[error("the token has invalid characters")]
    Token,
    /// A name in the path of a request is `.` or `..`: URLs drop it.
    #[error("`{name}` cannot be a name: URLs drop it")]
    Name {
        /// Name as given.
        name: String,
    },
    /// The HTTP client cannot be set up, for example because there are no root certificates.
    #[error("the HTTP client cannot be set up: {0}")]
    Setup(String),
    /// The params of a task are not JSON.
    #[error("the params of the task are not JSON: {0}")]
    Params(Arc<serde_json::Error>),
    /// The API answered with a problem document, which is kept as received.
    #[error("{}", text(.0))]
    Problem(Box<Problem>),
    /// No connection, or it was lost before the answer was complete.
    #[error("the API at `{api}` cannot be reached: {reason}")]
    Unreachable {
        /// Address of the API.
        api: String,
        /// Cause, such as `connection refused`.
        reason: String,
    },
    /// No answer within the request's timeout.
    #[error("the API at `{api}` does not answer in time")]
    NoAnswer {
        /// Address of the API.
        api: String,
    },
    /// The answer is not that of a kafleet API: a proxy's page, or a document of an incompatible version.
    #[error("`{api}` answered, but it is not kafleet ({reason})")]
    Unexpected {
        /// Address of the API.
        api: String,
        /// HTTP status.
        status: u16,
        /// Request, and its answer.
        reason: String,
    },
    /// An event stream was lost too often, without a stable connection in between.
    #[error("the connection was lost {times} times in a row: {reason}")]
    Lost {
        /// Number of losses.
        times: u32,
        /// Cause of the last one.
        reason: String,
    },
    /// The record of a finished task has been removed (`topics.record_retention`).
    #[error("the record of task `{id}` has expired")]
    Expired {
        /// Id of the task.
        id: String,
    },
    /// The API ended a stream that has no end.
    #[error("the API ended the stream")]
    Ended,
    /// The task was still pending at the end of the wait. It continues to run.
    #[error("task `{id}` has not ended in time{}", last_state(.status.as_deref()))]
    Deadline {
        /// Id of the task.
        id: String,
        /// Last status received.
        status: Option<Box<Status>>,
    },
    /// The task ended without success: failed, cancelled or expired. Its status contains the reason.
    #[error("task `{}` ended as {}{}", .0.id, .0.state, reason(.0))]
    Task(Box<Status>),
    /// The result of the task is not of the expected type.
    #[error("the result of task `{id}` has an unexpected form: {source}")]
    Output {
        /// Id of the task.
        id: String,
        /// Difference.
        source: Arc<serde_json::Error>,
    },
}

impl Error {
    /// Returns the problem document, if the API answered with one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Returns the stable code of the problem document, such as `unknown_type`.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// Returns whether the same request may succeed later: the API, Kafka or the store is not available.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Lost { .. } => true,
            Self::Problem(problem) => is_temporary(problem),
            Self::Unexpected { status, .. } => is_temporary_status(*status),
            _ => false,
        }
    }

    /// Returns whether the API waits for events that its store does not contain yet.
    pub(crate) fn is_not_visible_yet(&self) -> bool {
        self.problem().is_some_and(|problem| problem.code == "not_visible_yet")
    }

    /// Returns whether there is no such task, type or parent.
    pub fn is_not_found(&self) -> bool {
        self.problem().is_some_and(|problem| problem.status == 404)
    }
}

/// Returns whether a request refused with this problem may succeed later.
pub(super) fn is_temporary(problem: &Problem) -> bool {
    is_temporary_status(problem.status)
}

fn is_temporary_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

fn text(problem: &Problem) -> String {
    let text = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
    let pointer = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty());
    let at = pointer.map(|pointer| format!(" (at `{pointer}`)")).unwrap_or_default();
    let hint = problem.hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{text}{at}{hint}")
}

fn last_state(status: Option<&Status>) -> String {
    status.map(|status| format!(": it is {}", status.state)).unwrap_or_default()
}

fn reason(status: &Status) -> String {
    status.error.as_ref().map(|error| format!(": {}", error.text())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16) -> Error {
        Error::Problem(Box::new(Problem {
            problem_type: "about:blank".into(),
            title: "Not found".into(),
            status,
            detail: "there is no task `x`".into(),
            code: "not_found".into(),
            hint: Some("write another id".into()),
            pointer: Some("/id".into()),
            span: None,
            existing: None,
        }))
    }

    #[test]
    fn problem_is_shown_with_pointer_and_hint() {
        assert_eq!(problem(404).to_string(), "there is no task `x` (at `/id`); write another id");
        assert_eq!(problem(404).code(), Some("not_found"));
    }

    #[test]
    fn unavailability_is_temporary() {
        for (status, temporary) in [(400, false), (404, false), (409, false), (422, false), (429, true), (503, true)] {
            assert_eq!(problem(status).is_temporary(), temporary, "{status}");
        }
        assert!(Error::NoAnswer { api: "x".into() }.is_temporary());
        assert!(!Error::Token.is_temporary());
    }
}
