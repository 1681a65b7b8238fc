//! Continuations of ended tasks that their outcome has not started.

use kafleet_documents::UnstartedContinuation;
use kafleet_model::task::continuation::{MAX_CONTINUATIONS, segment};
use kafleet_model::task::id::TaskId;

use super::consistency::TaskView;
use super::reads::Reads;
use crate::http::problem::ApiError;

/// Ids read at a time.
const BATCH: usize = 1_000;

/// Returns the continuations of each task that do not exist, or that belong to an earlier run. The tasks are of one partition; one
/// that has not ended has none.
pub(crate) async fn unstarted(
    reads: &Reads,
    partition: u32,
    tasks: &[&TaskView],
) -> Result<Vec<Vec<UnstartedContinuation>>, ApiError> {
    let possible: Vec<(usize, TaskId, UnstartedContinuation)> =
        tasks.iter().enumerate().flat_map(|(n, task)| continuations_of(n, task)).collect();
    let mut of_tasks = vec![Vec::new(); tasks.len()];
    for batch in possible.chunks(BATCH) {
        let ids: Vec<TaskId> = batch.iter().map(|(_, id, _)| id.clone()).collect();
        let started = reads.read_many(partition, &ids).await?;
        for ((n, _, continuation), child) in batch.iter().zip(started) {
            if child.is_none_or(|child| child.superseded) {
                of_tasks[*n].push(continuation.clone());
            }
        }
    }
    Ok(of_tasks)
}

/// Continuations that the outcome of a task, the `n`th of a list, could have started.
fn continuations_of(n: usize, task: &TaskView) -> Vec<(usize, TaskId, UnstartedContinuation)> {
    if !task.record.state.is_terminal() {
        return Vec::new();
    }
    let numbered = task.record.continuations().enumerate().take(MAX_CONTINUATIONS);
    let of_number = |(number, then): (usize, &kafleet_model::task::continuation::Continuation)| {
        let id = task.id.child(&segment(number)).ok()?;
        let document = UnstartedContinuation { id: id.to_string(), task_type: then.task_type.to_string(), on: then.on };
        Some((n, id, document))
    };
    numbered.filter_map(of_number).collect()
}
