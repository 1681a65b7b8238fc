//! Lookup of scheduled tasks in the store.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kafleet_broker::{BrokerError, Partition};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_store::StoreError;

use super::table::ScheduleEntry;
use crate::error::TrackerError;
use crate::setup::TrackerSetup;

/// Returns whether the task that a schedule started last is still open; `None` if more must be folded first. Until then
/// the store may show an ended task as open, or not at all, and a time skipped because of it would be lost.
pub(super) async fn is_running(
    setup: &Arc<TrackerSetup>,
    entry: &mut ScheduleEntry,
) -> Result<Option<bool>, TrackerError> {
    let Some(id) = entry.state.last.as_ref().and_then(|last| TaskId::parse(&last.task).ok()) else {
        return Ok(Some(false));
    };
    let at = setup.topology.partition_of(&id);
    if task_record(setup, at, &id).await?.is_some_and(|task| task.state.is_terminal()) {
        entry.pending_lookup = None;
        return Ok(Some(false));
    }
    let end = match &entry.pending_lookup {
        Some((pending_lookup, end)) if *pending_lookup == id => *end,
        _ => current_end(setup, at).await?,
    };
    // Read again: the task's end may have been folded in between. An unknown task was removed long after its end.
    let Some(task) = task_record_as_of(setup, at, &id, end).await? else {
        entry.pending_lookup = Some((id, end));
        return Ok(None);
    };
    entry.pending_lookup = None;
    Ok(Some(task.is_some_and(|task| !task.state.is_terminal())))
}

async fn task_record(setup: &Arc<TrackerSetup>, at: u32, id: &TaskId) -> Result<Option<TaskRecord>, StoreError> {
    let task = setup.store.task_records(at, std::slice::from_ref(id)).await?;
    Ok(task.into_iter().next().flatten())
}

/// Reads a record from a store that is folded up to this offset; the outer `None`: it is not, or has just lost data.
async fn task_record_as_of(
    setup: &Arc<TrackerSetup>,
    at: u32,
    id: &TaskId,
    end: i64,
) -> Result<Option<Option<TaskRecord>>, StoreError> {
    let (checkpoint, task) = setup.store.task_records_with_checkpoint(at, std::slice::from_ref(id)).await?;
    let is_folded = checkpoint.map_or(0, |checkpoint| checkpoint.offset) >= end;
    Ok(is_folded.then(|| task.into_iter().next().flatten()))
}

/// Current end of an events partition.
pub(super) async fn current_end(setup: &Arc<TrackerSetup>, at: u32) -> Result<i64, BrokerError> {
    let events = Partition::new(setup.topology.names.events(), at as i32);
    Ok(setup.broker.client().watermarks(&events).await?.high)
}

/// Returns whether these partitions are folded up to these offsets.
pub(super) async fn is_folded(setup: &Arc<TrackerSetup>, ends: &[(u32, i64)]) -> Result<bool, StoreError> {
    let partitions: Vec<u32> = ends.iter().map(|(at, _)| *at).collect();
    let checkpoints = setup.store.checkpoints(&partitions).await?;
    Ok(checkpoints
        .iter()
        .zip(ends)
        .all(|(checkpoint, (_, end))| checkpoint.map_or(0, |checkpoint| checkpoint.offset) >= *end))
}

/// Returns the existing tasks among these.
pub(super) async fn existing_tasks(setup: &Arc<TrackerSetup>, ids: &[TaskId]) -> Result<HashSet<TaskId>, StoreError> {
    let mut by_partition = BTreeMap::<u32, Vec<TaskId>>::new();
    ids.iter().for_each(|id| by_partition.entry(setup.topology.partition_of(id)).or_default().push(id.clone()));
    let mut existing = HashSet::new();
    for (at, ids) in by_partition {
        let tasks = setup.store.task_records(at, &ids).await?;
        existing.extend(ids.into_iter().zip(tasks).filter(|(_, task)| task.is_some()).map(|(id, _)| id));
    }
    Ok(existing)
}

/// Partitions of these tasks with their current ends.
pub(super) async fn current_ends(setup: &Arc<TrackerSetup>, ids: &[TaskId]) -> Result<Vec<(u32, i64)>, BrokerError> {
    let partitions: BTreeSet<u32> = ids.iter().map(|id| setup.topology.partition_of(id)).collect();
    let mut ends = Vec::with_capacity(partitions.len());
    for at in partitions {
        ends.push((at, current_end(setup, at).await?));
    }
    Ok(ends)
}
