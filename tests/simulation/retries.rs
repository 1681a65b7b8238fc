//! Retries of failed tasks: every task that had failed when the retry was requested must run again. The failed tasks
//! are found by folding the log one event at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafleet::model::event::{Event, Payload};
use kafleet::model::record::TaskRecord;
use kafleet::model::task::id::TaskId;
use kafleet::store::{Store, memory};
use kafleet::tracker::project::projection::Projection;

use crate::fleet::Fleet;
use crate::tree_oracle::{is_failure, within};
use crate::verdict::{Records, logged};

/// Failed runs at the time of a retry; none of them may be the last run of its task.
type Runs = BTreeSet<(String, u32)>;

pub async fn judge(fleet: &Fleet, records: &Records, violations: &mut Vec<String>) {
    if fleet.requests.retried.get() && fleet.scenario.retention_ms == 0 {
        for number in 0..fleet.scenario.events_partitions {
            for (id, run) in retried_runs(fleet, number).await {
                let Some(node) = records.get(&id) else { continue };
                if node.run <= run && !is_superseded(records, &id, node) {
                    violations.push(format!("run {run} of `{id}` failed, was to be retried, and is its last run"));
                }
            }
        }
    }
}

async fn retried_runs(fleet: &Fleet, number: u32) -> Runs {
    let mut all = Runs::new();
    let log = logged(fleet, number);
    let is_of_failed = |event: &Event| matches!(event.payload, Payload::RetryRequested { only_failed: true, .. });
    if !log.iter().any(|logged| is_of_failed(&logged.event)) {
        return all;
    }
    let store = memory::MemoryStore::default();
    let mut projection = Projection::open(Arc::new(store.clone()), number).await.unwrap();
    for logged in log {
        let event = &logged.event;
        if is_of_failed(event) {
            let nodes = tree(fleet, &store, number, event.id.as_str()).await;
            if nodes.get(event.id.as_str()).is_some_and(|top| top.run == event.run && top.state.is_terminal()) {
                all.extend(failed(&nodes));
            }
        }
        projection.fold(std::slice::from_ref(&logged), logged.offset + 1).await.unwrap();
    }
    all
}

/// Records of a subtree.
async fn tree(fleet: &Fleet, store: &memory::MemoryStore, number: u32, top: &str) -> Records {
    let ids: Vec<TaskId> =
        fleet.scripted_tasks.keys().filter(|id| within(id, top)).map(|id| TaskId::parse(id).unwrap()).collect();
    let nodes = store.nodes(number, &ids).await.unwrap();
    ids.iter().zip(nodes).filter_map(|(id, node)| Some((id.to_string(), node?))).collect()
}

/// Failed tasks that count, without those below another failed task, which may or may not create them again.
fn failed(nodes: &Records) -> Runs {
    let fails = |node: &TaskRecord| is_failure(node.own) && node.definition.announced && !node.is_external();
    let failed = nodes.iter().filter(|(id, node)| fails(node) && !is_superseded(nodes, id, node));
    let failed: BTreeSet<(String, u32)> = failed.map(|(id, node)| (id.clone(), node.run)).collect();
    let below_another = |id: &str| failed.iter().any(|(other, _)| other != id && within(id, other));
    failed.iter().filter(|(id, _)| !below_another(id)).cloned().collect()
}

/// Whether an ancestor was started again without creating the task again.
fn is_superseded(records: &Records, id: &str, node: &TaskRecord) -> bool {
    records.iter().any(|(above, other)| within(id, above) && other.run > node.run)
}
