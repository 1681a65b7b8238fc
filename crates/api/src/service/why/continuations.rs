//! Continuations of an ended task that did not start.

use kafleet_documents::{Finding, Reason};
use kafleet_model::task::continuation::{Continuation, MAX_CONTINUATIONS, On, segment};
use kafleet_model::task::id::TaskId;

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::state::Api;

/// Names the continuations of an ended task that its outcome has not started.
pub(super) async fn explain_unstarted(api: &Api, task: &TaskView) -> Result<Option<Finding>, ApiError> {
    let numbered = task.record.continuations().enumerate().take(MAX_CONTINUATIONS);
    let continuations: Vec<(TaskId, &Continuation)> =
        numbered.filter_map(|(n, then)| Some((task.id.child(&segment(n)).ok()?, then))).collect();
    if continuations.is_empty() {
        return Ok(None);
    }
    let ids: Vec<TaskId> = continuations.iter().map(|(id, _)| id.clone()).collect();
    let started = api.reads.read_many(task.partition, &ids).await?;
    let unstarted: Vec<String> = continuations
        .iter()
        .zip(started)
        .filter(|(_, child)| child.as_ref().is_none_or(|child| child.superseded))
        .map(|((id, then), _)| text(id, then))
        .collect();
    Ok((!unstarted.is_empty())
        .then(|| Finding::new(Reason::ContinuationNotStarted, format!("not started: {}", unstarted.join("; ")))))
}

fn text(id: &TaskId, then: &Continuation) -> String {
    let segment = id.as_str().rsplit(':').next().unwrap_or_default();
    let starts = match then.on {
        On::Succeeded => "starts only if the task and its children succeed",
        On::Failed => "starts only if the task or a child of it fails",
        On::Ended => "starts when the task and its children have ended",
    };
    format!("the continuation `{segment}` (`{}`), which {starts}", then.task_type)
}
