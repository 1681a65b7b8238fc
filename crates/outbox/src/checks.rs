//! Checks of submissions: the only place where the relay decides whether a row is a valid task.

use async_trait::async_trait;
use kafleet_api::{SubmissionError, Submissions};
use kafleet_documents::CreateTask;
use kafleet_model::task::{TaskSpec, Trace};

use crate::row::OutboxRow;

/// Checks of submissions: those of the API, or of a test.
#[async_trait]
pub trait RowChecks: Send + Sync + 'static {
    /// Turns a submission into a task to publish. Delays count from `now_ms`, in epoch milliseconds.
    async fn check(&self, input: CreateTask, trace: Option<&Trace>, now_ms: i64) -> Result<TaskSpec, SubmissionError>;
}

#[async_trait]
impl RowChecks for Submissions {
    async fn check(&self, input: CreateTask, trace: Option<&Trace>, now_ms: i64) -> Result<TaskSpec, SubmissionError> {
        Self::check(self, input, trace, now_ms).await
    }
}

/// Checks a row. Its delay and its expiry count from its insertion, but not from a time in the future.
pub async fn check_row(checks: &dyn RowChecks, row: &OutboxRow, now_ms: i64) -> Result<TaskSpec, SubmissionError> {
    let submission = row.submission().map_err(SubmissionError::Invalid)?;
    let from_ms = row.created_at_ms.min(now_ms);
    checks.check(submission.input, submission.trace.as_ref(), from_ms).await
}
