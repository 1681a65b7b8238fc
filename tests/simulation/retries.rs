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
                let Some(task_record) = records.get(&id) else { continue };
                if task_record.run <= run && !is_superseded(records, &id, task_record) {
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
            let task_records = tree(fleet, &store, number, event.id.as_str()).await;
            if task_records.get(event.id.as_str()).is_some_and(|top| top.run == event.run && top.state.is_terminal()) {
                all.extend(failed(&task_records));
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
    let task_records = store.task_records(number, &ids).await.unwrap();
    ids.iter().zip(task_records).filter_map(|(id, task_record)| Some((id.to_string(), task_record?))).collect()
}

/// Failed tasks that count, without those below another failed task, which may or may not create them again.
fn failed(task_records: &Records) -> Runs {
    let fails = |task_record: &TaskRecord| {
        is_failure(task_record.own) && task_record.definition.announced && !task_record.is_external()
    };
    let failed = task_records
        .iter()
        .filter(|(id, task_record)| fails(task_record) && !is_superseded(task_records, id, task_record));
    let failed: BTreeSet<(String, u32)> = failed.map(|(id, task_record)| (id.clone(), task_record.run)).collect();
    let below_another = |id: &str| failed.iter().any(|(other, _)| other != id && within(id, other));
    failed.iter().filter(|(id, _)| !below_another(id)).cloned().collect()
}

/// Whether an ancestor was started again without creating the task again.
fn is_superseded(records: &Records, id: &str, task_record: &TaskRecord) -> bool {
    records.iter().any(|(above, other)| within(id, above) && other.run > task_record.run)
}
