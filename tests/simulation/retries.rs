//! Who asks for what has failed below a task to be started again gets all of it: what had failed by then is found by folding
//! the log one event at a time, with an eye on the states alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafleet::model::event::Kind;
use kafleet::model::record::TaskRecord;
use kafleet::model::task::id::TaskId;
use kafleet::store::{Store, memory};
use kafleet::tracker::project::projection::Projection;

use crate::family::{is_failure, within};
use crate::fleet::Fleet;
use crate::verdict::{Records, logged};

/// The runs of tasks as they were when they were to be started again; none of them may be the last.
type Runs = BTreeSet<(String, u32)>;

pub async fn judge(fleet: &Fleet, records: &Records, wrong: &mut Vec<String>) {
    if fleet.retried.get() && fleet.story.kept_ms == 0 {
        for number in 0..fleet.story.events_partitions {
            for (id, run) in asked_for(fleet, number).await {
                let Some(node) = records.get(&id) else { continue };
                if node.run <= run && !is_superseded(records, &id, node) {
                    wrong.push(format!("run {run} of `{id}` had failed, was to be started again, and is its last"));
                }
            }
        }
    }
}

async fn asked_for(fleet: &Fleet, number: u32) -> Runs {
    let mut all = Runs::new();
    let log = logged(fleet, number);
    if !log.iter().any(|logged| logged.event.only_failed) {
        return all;
    }
    let store = memory::Memory::default();
    let mut folding = Projection::open(Arc::new(store.clone()), number).await.unwrap();
    for logged in log {
        let event = &logged.event;
        if event.kind == Kind::RetryRequested && event.only_failed {
            let nodes = tree(fleet, &store, number, event.id.as_str()).await;
            if nodes.get(event.id.as_str()).is_some_and(|top| top.run == event.run && top.state.is_terminal()) {
                all.extend(failed(&nodes));
            }
        }
        folding.fold(std::slice::from_ref(&logged), logged.offset + 1).await.unwrap();
    }
    all
}

/// A task and everything that is known below it.
async fn tree(fleet: &Fleet, store: &memory::Memory, number: u32, top: &str) -> Records {
    let ids: Vec<TaskId> = fleet.parts.keys().filter(|id| within(id, top)).map(|id| TaskId::parse(id).unwrap()).collect();
    let nodes = store.nodes(number, &ids).await.unwrap();
    ids.iter().zip(nodes).filter_map(|(id, node)| Some((id.to_string(), node?))).collect()
}

/// What counts and has failed itself; what is below another one of these may come again with that, or not.
fn failed(nodes: &Records) -> Runs {
    let fails = |node: &TaskRecord| is_failure(node.own) && node.announced && !node.is_external();
    let failed = nodes.iter().filter(|(id, node)| fails(node) && !is_superseded(nodes, id, node));
    let failed: BTreeSet<(String, u32)> = failed.map(|(id, node)| (id.clone(), node.run)).collect();
    let below_another = |id: &str| failed.iter().any(|(other, _)| other != id && within(id, other));
    failed.iter().filter(|(id, _)| !below_another(id)).cloned().collect()
}

/// Something above it was started again and has not made it again.
fn is_superseded(records: &Records, id: &str, node: &TaskRecord) -> bool {
    records.iter().any(|(above, other)| within(id, above) && other.run > node.run)
}
