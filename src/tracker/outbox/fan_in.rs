//! The params of a continuation: as they were written, or with the results of the tasks that it follows.

use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::record::rollup;
use crate::model::task::continuation::{Continuation, Ended, Joined, MAX_JOINED_BYTES, number_of};
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index};
use crate::tracker::TrackerSetup;

/// Records read at a time: each may have a result of some hundred KiB.
const STEP: usize = 64;

/// Err: the params cannot be made, for good; the outer one: not now.
pub async fn params(
    setup: &TrackerSetup,
    number: u32,
    id: &TaskId,
    node: &TaskRecord,
    then: &Continuation,
) -> Result<Result<RawJson, String>, String> {
    if !then.with_results {
        return Ok(RawJson::of(&then.params).map_err(|why| why.to_string()));
    }
    // Since it is followed it waits for what follows.
    let settled = rollup::settled(node.own, &node.below, node.tolerated());
    let task = Ended { state: settled, ..ended(id.clone(), node) };
    let mut joined = Joined { params: then.params.clone(), task, results: Vec::new() };
    let (mut after, mut bytes) = (None::<Entry>, size(&joined));
    loop {
        let page = setup.store.page(number, &Index::Children(id.clone()), after.as_ref(), STEP).await;
        let page = page.map_err(|error| error.to_string())?;
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let nodes = setup.store.nodes(number, &ids).await.map_err(|error| error.to_string())?;
        for (child, found) in ids.into_iter().zip(nodes) {
            let Some(found) = found.filter(|found| found.run >= node.run && number_of(child.segment()).is_none()) else {
                continue;
            };
            let one = ended(child, &found);
            bytes += size(&one) + 1;
            if bytes > MAX_JOINED_BYTES {
                return Ok(Err(too_large(id, joined.results.len())));
            }
            joined.results.push(one);
        }
        after = page.last().cloned();
        if page.len() < STEP {
            return Ok(RawJson::of(&joined).map_err(|why| why.to_string()));
        }
    }
}

fn ended(id: TaskId, node: &TaskRecord) -> Ended {
    let (output, error) = (node.output.clone(), node.error.clone());
    Ended { id, task_type: node.task_type.clone(), state: node.state, output, error }
}

fn size(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

fn too_large(id: &TaskId, fitting: usize) -> String {
    format!(
        "the results of the children of `{id}` have more than {} MiB together: {fitting} of them would fit (hint: let the children return links, or leave `with_results` out and read `GET /v1/tasks/{id}/children`)",
        MAX_JOINED_BYTES >> 20
    )
}
