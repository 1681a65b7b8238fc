//! Continuations of an ended task that did not start.

use kafleet_documents::{Finding, Reason, UnstartedContinuation};

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::continuations::unstarted;
use crate::state::Api;

/// Names the continuations of an ended task that its outcome has not started.
pub(super) async fn explain_unstarted(api: &Api, task: &TaskView) -> Result<Option<Finding>, ApiError> {
    let unstarted = unstarted(&api.reads, task.partition, &[task]).await?;
    let texts: Vec<String> = unstarted.into_iter().flatten().map(|continuation| text(&continuation)).collect();
    Ok((!texts.is_empty())
        .then(|| Finding::new(Reason::ContinuationNotStarted, format!("not started: {}", texts.join("; ")))))
}

fn text(continuation: &UnstartedContinuation) -> String {
    let UnstartedContinuation { task_type, .. } = continuation;
    format!("the continuation `{}` (`{task_type}`), which {}", continuation.segment(), continuation.condition())
}
