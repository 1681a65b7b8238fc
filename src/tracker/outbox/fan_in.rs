//! Params of a continuation: as submitted, or joined with the results of the preceding tasks.

use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::record::rollup;
use crate::model::task::continuation::{Continuation, Ended, Joined, MAX_JOINED_BYTES, number_of};
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index};
use crate::tracker::setup::TrackerSetup;

/// Records per read; each may have a result of several hundred KiB.
const STEP: usize = 64;

/// Builds the params. The inner error is permanent, the outer one transient.
pub(crate) async fn params(
    setup: &TrackerSetup,
    number: u32,
    id: &TaskId,
    node: &TaskRecord,
    continuation: &Continuation,
) -> Result<Result<RawJson, String>, String> {
    if !continuation.with_results {
        return Ok(RawJson::of(&continuation.params).map_err(|why| why.to_string()));
    }
    // The parent's rolled-up state waits for its continuations, so use the state without them.
    let settled = rollup::settled(node.own, &node.tree.below, node.definition.tolerated());
    let task = Ended { state: settled, ..ended(id.clone(), node) };
    let mut joined = Joined { params: continuation.params.clone(), task, results: Vec::new() };
    let (mut after, mut bytes) = (None::<Entry>, size(&joined));
    loop {
        let page = setup.store.page(number, &Index::Children(id.clone()), after.as_ref(), STEP).await;
        let page = page.map_err(|error| error.to_string())?;
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let nodes = setup.store.nodes(number, &ids).await.map_err(|error| error.to_string())?;
        for (child, found) in ids.into_iter().zip(nodes) {
            let Some(found) = found.filter(|found| found.run >= node.run && number_of(child.segment()).is_none())
            else {
                continue;
            };
            let child_result = ended(child, &found);
            bytes += size(&child_result) + 1;
            if bytes > MAX_JOINED_BYTES {
                return Ok(Err(too_large(id, joined.results.len())));
            }
            joined.results.push(child_result);
        }
        after = page.last().cloned();
        if page.len() < STEP {
            return Ok(RawJson::of(&joined).map_err(|why| why.to_string()));
        }
    }
}

fn ended(id: TaskId, node: &TaskRecord) -> Ended {
    let (output, error) = (node.outcome.output.clone(), node.outcome.error.clone());
    Ended { id, task_type: node.task_type.clone(), state: node.state, output, error }
}

fn size(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

fn too_large(id: &TaskId, fitting: usize) -> String {
    format!(
        "the results of the children of `{id}` exceed {} MiB in total: {fitting} of them fit (hint: return links from the children, or omit `with_results` and read `GET /v1/tasks/{id}/children`)",
        MAX_JOINED_BYTES >> 20
    )
}
