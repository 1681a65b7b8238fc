//! Params of a continuation: as submitted, or joined with the results of the preceding tasks.

use kafleet_model::encode_error::EncodeError;
use kafleet_model::json::RawJson;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup;
use kafleet_model::task::continuation::{Continuation, Ended, Joined, MAX_JOINED_BYTES, number_of};
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index, StoreError};

use crate::error::Unpublishable;
use crate::setup::TrackerSetup;

/// Records per read; each may have a result of several hundred KiB.
const READ_RECORDS: usize = 64;

/// Builds the params. The inner error is permanent, the outer one transient.
pub(crate) async fn params(
    setup: &TrackerSetup,
    number: u32,
    id: &TaskId,
    task_record: &TaskRecord,
    continuation: &Continuation,
) -> Result<Result<RawJson, Unpublishable>, StoreError> {
    if !continuation.with_results {
        return Ok(encoded(&continuation.params));
    }
    // The parent's rolled-up state waits for its continuations, so use the state without them.
    let settled = rollup::settled_state(task_record.own, &task_record.tree.below, task_record.definition.tolerated());
    let task = Ended { state: settled, ..ended(id.clone(), task_record) };
    let mut joined = Joined { params: continuation.params.clone(), task, results: Vec::new() };
    let (mut after, mut bytes) = (None::<Entry>, size(&joined));
    // The children by their places among each other.
    let mut results: Vec<(u32, Ended)> = Vec::new();
    loop {
        let page = setup.store.page(number, &Index::Children(id.clone()), after.as_ref(), READ_RECORDS).await;
        let page = page?;
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let tasks = setup.store.task_records(number, &ids).await?;
        for (child, child_record) in ids.into_iter().zip(tasks) {
            let Some(child_record) = child_record
                .filter(|child_record| child_record.run >= task_record.run && number_of(child.segment()).is_none())
            else {
                continue;
            };
            let child_result = ended(child, &child_record);
            bytes += size(&child_result) + 1;
            if bytes > MAX_JOINED_BYTES {
                return Ok(Err(too_large(id, results.len())));
            }
            results.push((place_of(&child_record), child_result));
        }
        after = page.last().cloned();
        if page.len() < READ_RECORDS {
            // Stable: children without a place keep the order in which they were first seen.
            results.sort_by_key(|(index, _)| *index);
            joined.results = results.into_iter().map(|(_, result)| result).collect();
            return Ok(encoded(&joined));
        }
    }
}

/// Place of a child among its siblings; those without one come last.
fn place_of(child: &TaskRecord) -> u32 {
    child.definition.policy.as_ref().and_then(|policy| policy.rules.index).unwrap_or(u32::MAX)
}

fn ended(id: TaskId, task: &TaskRecord) -> Ended {
    let (output, error) = (task.outcome.output.clone(), task.outcome.error.clone());
    Ended { id, task_type: task.task_type.clone(), state: task.state, output, error }
}

fn size(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

fn encoded(params: &impl serde::Serialize) -> Result<RawJson, Unpublishable> {
    RawJson::of(params).map_err(|error| EncodeError::from(error).into())
}

fn too_large(parent: &TaskId, fitting: usize) -> Unpublishable {
    Unpublishable::ResultsTooLarge { parent: parent.clone(), limit_mib: MAX_JOINED_BYTES >> 20, fitting }
}
