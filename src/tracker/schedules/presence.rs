//! What the store knows of tasks that schedules have made.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::table::Entry;
use crate::broker::Partition;
use crate::model::record::TaskRecord;
use crate::model::task::id::TaskId;
use crate::model::task::partition::partition_of;
use crate::runtime::blocking;
use crate::tracker::TrackerSetup;

const CALL_DEADLINE: Duration = Duration::from_secs(10);

pub fn partition(setup: &TrackerSetup, id: &TaskId) -> u32 {
    partition_of(id.root().as_bytes(), setup.events_partitions)
}

/// Whether the task that a schedule has started last has not ended. One that the store does not know has not been folded
/// yet, or has been removed long after its end.
pub async fn runs(setup: &Arc<TrackerSetup>, entry: &mut Entry) -> Result<bool, String> {
    let Some(id) = entry.state.last.as_ref().and_then(|last| TaskId::parse(&last.task).ok()) else { return Ok(false) };
    let at = partition(setup, &id);
    if let Some(found) = node(setup, at, &id).await? {
        entry.sought = None;
        return Ok(!found.state.is_terminal());
    }
    let end = match &entry.sought {
        Some((sought, end)) if *sought == id => *end,
        _ => end_of(setup, at).await?,
    };
    entry.sought = Some((id.clone(), end));
    if !is_folded(setup, &[(at, end)]).await? {
        return Ok(true);
    }
    // Once more: it may have been folded between the two answers.
    Ok(node(setup, at, &id).await?.is_some_and(|found| !found.state.is_terminal()))
}

async fn node(setup: &Arc<TrackerSetup>, at: u32, id: &TaskId) -> Result<Option<TaskRecord>, String> {
    let found = setup.store.nodes(at, std::slice::from_ref(id)).await.map_err(|error| error.to_string())?;
    Ok(found.into_iter().next().flatten())
}

/// Where an events partition ends now.
pub async fn end_of(setup: &Arc<TrackerSetup>, at: u32) -> Result<i64, String> {
    let (broker, events) = (setup.broker.clone(), Partition::new(setup.names.events(), at as i32));
    let ends = blocking(move || broker.ends(&events, CALL_DEADLINE)).await?;
    ends.map(|ends| ends.end).map_err(|error| error.to_string())
}

/// Whether these partitions are folded to these places.
pub async fn is_folded(setup: &Arc<TrackerSetup>, ends: &[(u32, i64)]) -> Result<bool, String> {
    let partitions: Vec<u32> = ends.iter().map(|(at, _)| *at).collect();
    let fences = setup.store.fences(&partitions).await.map_err(|error| error.to_string())?;
    Ok(fences.iter().zip(ends).all(|(fence, (_, end))| fence.map_or(0, |fence| fence.offset) >= *end))
}

/// Which of these tasks there are.
pub async fn known(setup: &Arc<TrackerSetup>, ids: &[TaskId]) -> Result<HashSet<TaskId>, String> {
    let mut by_partition = BTreeMap::<u32, Vec<TaskId>>::new();
    ids.iter().for_each(|id| by_partition.entry(partition(setup, id)).or_default().push(id.clone()));
    let mut known = HashSet::new();
    for (at, ids) in by_partition {
        let nodes = setup.store.nodes(at, &ids).await.map_err(|error| error.to_string())?;
        known.extend(ids.into_iter().zip(nodes).filter(|(_, node)| node.is_some()).map(|(id, _)| id));
    }
    Ok(known)
}

/// The partitions of these tasks, and where each ends now.
pub async fn ends_of(setup: &Arc<TrackerSetup>, ids: &[TaskId]) -> Result<Vec<(u32, i64)>, String> {
    let partitions: BTreeSet<u32> = ids.iter().map(|id| partition(setup, id)).collect();
    let mut ends = Vec::with_capacity(partitions.len());
    for at in partitions {
        ends.push((at, end_of(setup, at).await?));
    }
    Ok(ends)
}
