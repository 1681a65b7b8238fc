//! Reads the records of tasks to be released, from the store or from the events that brought them.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use kafleet_broker::BrokerError;
use kafleet_model::outbox::{RecordCopy, TimerKind};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_store::StoreError;

use super::original_record::deferred_in_log;
use crate::error::{TrackerError, Unpublishable};
use crate::setup::TrackerSetup;

/// Maximum number of concurrent reads from the events topic.
const MAX_READS: usize = 4;

/// Deferred record, or the reason why it cannot be published.
pub(super) type DeferredRecord = Result<RecordCopy, Unpublishable>;

/// Reads the records of the tasks to be released. Leaves out those that the store no longer has, and those that cannot
/// be read now. `events`: topic and partition of the tasks' events.
pub(super) async fn deferred_records(
    setup: &TrackerSetup,
    events: (&Arc<str>, u32),
    due: &[(TaskId, TaskRecord, TimerKind)],
) -> Result<HashMap<TaskId, DeferredRecord>, TrackerError> {
    let released = due.iter().filter(|(_, _, kind)| *kind == TimerKind::Release);
    let (in_log, stored): (Vec<_>, Vec<_>) = released.partition(|(_, task, _)| task.deferral.only_in_log);
    let in_log = in_log.into_iter().map(|(id, task, _)| (id.clone(), task.definition.record_event_offset)).collect();
    let stored: Vec<TaskId> = stored.into_iter().map(|(id, ..)| id.clone()).collect();
    let copies = setup.store.deferred(events.1, &stored).await?;
    let decoded = |bytes: Vec<u8>| RecordCopy::decode(&bytes).ok_or(Unpublishable::UnknownVersion);
    let copies_found = stored.into_iter().zip(copies).filter_map(|(id, copy)| Some((id, copy.map(decoded)?)));
    let mut records = copies_found.collect();
    drop_replaced(setup, events.1, due, &mut records).await?;
    read_in_log(setup, events, in_log, &mut records).await?;
    Ok(records)
}

/// Drops the stored records of unique tasks that may be those of a newer ask than the one with which the task was read. These
/// tasks are planned again.
async fn drop_replaced(
    setup: &TrackerSetup,
    partition: u32,
    due: &[(TaskId, TaskRecord, TimerKind)],
    records: &mut HashMap<TaskId, DeferredRecord>,
) -> Result<(), StoreError> {
    let read = due.iter().filter(|(id, task, _)| records.contains_key(id) && task.definition.is_unique());
    let (ids, offsets): (Vec<_>, Vec<_>) =
        read.map(|(id, task, _)| (id.clone(), task.definition.record_event_offset)).unzip();
    if ids.is_empty() {
        return Ok(());
    }
    let current = setup.store.task_records(partition, &ids).await?;
    for ((id, offset), task) in ids.iter().zip(offsets).zip(current) {
        // Offsets only grow: the record that was read between two equal ones is of that ask.
        if task.is_none_or(|task| task.definition.record_event_offset != offset) {
            records.remove(id);
        }
    }
    Ok(())
}

/// Reads records at these offsets of the events partition, up to the first that cannot be read now.
async fn read_in_log(
    setup: &TrackerSetup,
    events: (&Arc<str>, u32),
    in_log: Vec<(TaskId, Option<i64>)>,
    records: &mut HashMap<TaskId, DeferredRecord>,
) -> Result<(), BrokerError> {
    let read = |(id, offset)| deferred_in_log(setup, events, id, offset);
    let mut reads = stream::iter(in_log.into_iter().map(read)).buffered(MAX_READS);
    while let Some(read) = reads.next().await {
        match read {
            Ok((id, copy)) => drop(records.insert(id, copy.ok_or(Unpublishable::EventRemoved))),
            Err(error) if error.is_transient() => {
                tracing::warn!(partition = events.1, %error, "cannot read deferred records in events; retrying");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
