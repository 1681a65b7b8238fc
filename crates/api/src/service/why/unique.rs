//! Explanation of a unique task that is kept.

use kafleet_documents::{Finding, Reason};
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::reads::unique_key;
use crate::state::Api;

/// Names the open task for whose end a kept one waits, and the time from which it may start.
pub(super) async fn explain(api: &Api, task: &TaskView) -> Result<Finding, ApiError> {
    let key = match task.id.tag() {
        Some(tag) => unique_key(&api.reads, tag).await?,
        None => None,
    };
    let open = key.as_ref().and_then(|key| key.open.first()).and_then(|open| TaskId::parse(open).ok());
    let due = task.record.times.due_ms.filter(|due_ms| *due_ms > now_ms());
    let due = due.map(|due_ms| format!(", and not before {}", time_text(due_ms)));
    let waits = match &open {
        Some(open) => format!("it waits for the end of `{open}`, the open task of its key"),
        None => "it waits for the open task of its key, which has just ended".to_owned(),
    };
    let message = format!("the task is unique: {waits}{}", due.unwrap_or_default());
    let finding = Finding::new(Reason::UniqueWaits, message);
    Ok(open.iter().fold(finding, Finding::about))
}
