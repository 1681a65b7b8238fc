//! Checks of submissions: the only place where the relay decides whether a row is a valid task.

use async_trait::async_trait;
use kafleet_documents::CreateTask;
use kafleet_model::task::{TaskSpec, Trace};

use crate::row::OutboxRow;

/// Checks of submissions, which are those of the API.
#[async_trait]
pub trait RowChecks: Send + Sync + 'static {
    /// Turns a submission into a task to publish. Delays count from `now_ms`, in epoch milliseconds.
    async fn check(&self, input: CreateTask, trace: Option<&Trace>, now_ms: i64) -> Result<TaskSpec, CheckError>;
}

/// Reason why a submission does not become a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The submission is invalid: repeating it fails again.
    #[error("{0}")]
    Invalid(String),
    /// It could not be checked now.
    #[error("{0}")]
    Unavailable(String),
}

/// Checks a row. Its delay and its expiry count from its insertion, but not from a time in the future.
pub async fn check_row(checks: &dyn RowChecks, row: &OutboxRow, now_ms: i64) -> Result<TaskSpec, CheckError> {
    let submission = row.submission().map_err(CheckError::Invalid)?;
    let from_ms = row.created_at_ms.min(now_ms);
    checks.check(submission.input, submission.trace.as_ref(), from_ms).await
}
