//! Read consistency. The store lags behind the log by the events not yet projected. A read can request the inclusion
//! of a position, and a task is reported as not found only after the projection has reached the end of the log at the
//! time of the request. [`super::coverage`] distinguishes a store that lags or has lost data from one that is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use kafleet_broker::Watermarks;
use kafleet_model::record::TaskRecord;
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_model::trace::Sampler;
use kafleet_store::Checkpoint;
use tokio::time::Instant;

use super::coverage::{Gap, GapKind, is_sampled, take_first_sample};
use super::mask::Masks;
use super::reads::{JudgedRecords, Reads, judged_records};
use crate::backends::not_visible_yet;
use crate::http::problem::{ApiError, Code};

/// Maximum wait for a requested position.
pub(crate) const AFTER_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum wait for the projection when a task is not found: clients often read a task right after creating it.
const UNKNOWN_DEADLINE: Duration = Duration::from_secs(3);

/// Task record with the offset up to which its partition was projected.
#[derive(Clone, Debug)]
pub struct TaskView {
    pub id: TaskId,
    pub partition: u32,
    /// Checkpoint of the partition, read before the record; the record may be newer.
    pub checkpoint: Checkpoint,
    pub record: TaskRecord,
    /// The task, or one of its ancestors, belongs to an earlier run of its parent.
    pub superseded: bool,
    /// Decides about the task's trace.
    pub sampler: Sampler,
    /// Masks of types, by which its document is made.
    pub masks: Masks,
}

impl TaskView {
    /// Returns the offset of the last event that the record includes, up to which a child of this task has seen requests;
    /// `None` if it includes none.
    pub(crate) fn asof(&self) -> Option<i64> {
        Some(self.checkpoint.offset - 1).filter(|offset| *offset >= 0)
    }

    /// Returns the position of the last event included in the record.
    pub(crate) fn position(&self) -> Position {
        let partition = i32::try_from(self.partition).unwrap_or(i32::MAX);
        Position { partition, offset: self.asof().unwrap_or(0) }
    }
}

/// Result of waiting for the projection.
pub enum ReachedOffset {
    Yes,
    /// The projection has only reached this offset; `None` if it has not started.
    Not(Option<i64>),
}

/// Hint for tasks that are not found.
const GONE: &str = "check the id; finished trees are removed after the `retention` of their type, by default \
                    `topics.record_retention`";

impl Reads {
    /// Reads the current record of a task, if there is one. Fails if the store has lost data of the task's partition,
    /// or lacks the task and does not cover the partition: the task may exist nevertheless.
    pub async fn read(&self, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
        let partition = self.topology.partition_of(id);
        let (mut tasks, mut gap) = read_judged(self, partition, std::slice::from_ref(id)).await?;
        if gap.is_none() && tasks.iter().all(Option::is_none) && !is_sampled(self) {
            take_first_sample(self).await;
            (tasks, gap) = read_judged(self, partition, std::slice::from_ref(id)).await?;
        }
        let task = tasks.into_iter().next().flatten();
        match gap {
            Some(gap) if task.is_none() || gap.kind == GapKind::Lost => Err(gap.into()),
            _ => Ok(task),
        }
    }

    /// Reads the current record of a task like [`Self::read`], but waits until the store covers the task's partition.
    pub(crate) async fn read_covered(&self, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
        match self.read(id).await {
            Err(error) if error.is(Code::NotVisibleYet) => self.find_optional(id).await,
            read => read,
        }
    }

    /// Reads the records of tasks of one partition, in order. A task that the store lacks may exist nevertheless:
    /// callers report [`Self::incomplete`] partitions.
    pub async fn read_many(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, ApiError> {
        Ok(read_judged(self, partition, ids).await?.0)
    }

    /// Reads the record of a task that must exist.
    pub(crate) async fn find(&self, id: &TaskId, after: Option<Position>) -> Result<TaskView, ApiError> {
        self.wait_for_position(after).await?;
        let not_found = || ApiError::new(Code::NotFound, format!("there is no task `{id}`")).hint(GONE);
        self.find_optional(id).await?.ok_or_else(not_found)
    }

    /// Reads the record of a task, if there is one. Fails if the projection lags, because the task may exist
    /// nevertheless.
    pub(crate) async fn find_optional(&self, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
        match self.read(id).await {
            Ok(Some(task)) => return Ok(Some(task)),
            Err(error) if !error.is(Code::NotVisibleYet) => return Err(error),
            Ok(None) | Err(_) => {}
        }
        let lag = self.lag_at_end(self.topology.partition_of(id)).await?;
        match (self.read(id).await?, lag) {
            (None, Some(lag)) => Err(lag),
            (task, _) => Ok(task),
        }
    }

    /// Reads tasks of any partition. Also returns the ids of those that do not exist. Fails if the projection lags
    /// where a task is missing, because it may exist nevertheless.
    pub(crate) async fn find_many(&self, ids: &[TaskId]) -> Result<(Vec<TaskView>, Vec<TaskId>), ApiError> {
        let (mut tasks, missing) = read_all(self, ids).await?;
        let partitions: BTreeSet<u32> = missing.iter().map(|id| self.topology.partition_of(id)).collect();
        let lag = |partition| async move { Ok::<_, ApiError>((partition, self.lag_at_end(partition).await?)) };
        let mut lags = try_join_all(partitions.into_iter().map(lag)).await?;
        let (late, missing) = read_all(self, &missing).await?;
        tasks.extend(late);
        lags.retain(|(partition, _)| missing.iter().any(|id| self.topology.partition_of(id) == *partition));
        match lags.into_iter().find_map(|(_, lag)| lag) {
            Some(lag) => Err(lag),
            None => Ok((tasks, missing)),
        }
    }

    /// Waits until the events up to a position have been projected.
    pub(crate) async fn wait_for_position(&self, after: Option<Position>) -> Result<(), ApiError> {
        let Some(after) = after else { return Ok(()) };
        let partition = u32::try_from(after.partition).unwrap_or_default();
        let target = after.offset.saturating_add(1);
        match self.wait_until_projected(partition, target, AFTER_DEADLINE).await? {
            ReachedOffset::Yes => Ok(()),
            ReachedOffset::Not(projected) => Err(not_visible_yet(partition, projected.unwrap_or_default(), target)),
        }
    }

    /// Waits until the event at `position` has been projected. Returns the task, and true if the event had no effect.
    /// `event_name` names the event in error messages.
    pub(crate) async fn await_outcome(
        &self,
        task: &TaskView,
        position: Position,
        event_name: &str,
    ) -> Result<(TaskView, bool), ApiError> {
        let later = |error: ApiError| {
            error.hint(format!(
                "{event_name} has been written at {position} and will take effect: do not repeat it, read the task with \
                 `?after={position}`"
            ))
        };
        let target = position.offset + 1;
        if let ReachedOffset::Not(projected) =
            self.wait_until_projected(task.partition, target, AFTER_DEADLINE).await.map_err(later)?
        {
            return Err(later(not_visible_yet(task.partition, projected.unwrap_or_default(), target)));
        }
        let not_found = || ApiError::new(Code::NotFound, format!("the record of `{}` is no longer retained", task.id));
        // The store may have lost the record since then, until it is projected again.
        let updated = self.find_optional(&task.id).await.map_err(later)?.ok_or_else(not_found)?;
        let ignored = updated
            .record
            .history
            .entries
            .iter()
            .rev()
            .find(|entry| entry.offset == position.offset)
            .is_some_and(|entry| entry.ignored);
        Ok((updated, ignored))
    }

    /// Waits until the projection of a partition has reached `target`.
    pub async fn wait_until_projected(
        &self,
        partition: u32,
        target: i64,
        within: Duration,
    ) -> Result<ReachedOffset, ApiError> {
        let end = Instant::now() + within;
        loop {
            let projected = self.checkpoint(partition).await?.map(|checkpoint| checkpoint.offset);
            if projected.unwrap_or_default() >= target {
                return Ok(ReachedOffset::Yes);
            }
            let woken = tokio::time::timeout_at(end, self.notices.projected(partition, target)).await;
            if woken.is_err() || self.shutdown.is_draining() {
                return Ok(ReachedOffset::Not(projected));
            }
        }
    }

    /// Waits up to [`UNKNOWN_DEADLINE`] until the projection has reached the current end of a partition. Returns the
    /// error to respond with if it has not.
    pub(crate) async fn lag_at_end(&self, partition: u32) -> Result<Option<ApiError>, ApiError> {
        let Watermarks { low: first, high: end } = self.event_ends(partition, UNKNOWN_DEADLINE).await?;
        // An empty partition needs no projection.
        if first == end {
            return Ok(None);
        }
        let projected = match self.wait_until_projected(partition, end, UNKNOWN_DEADLINE).await? {
            ReachedOffset::Yes => {
                self.coverage.wait_until_settled(partition).await;
                return Ok(None);
            }
            ReachedOffset::Not(projected) => projected.unwrap_or(first).max(first),
        };
        // Transaction markers and aborted records at the end are invisible: the projection may have stopped just
        // before them.
        let events = self.events(partition);
        let read = self.broker.with_deadline(UNKNOWN_DEADLINE).first_visible(&events, projected).await;
        // If this cannot be determined, assume that the projection lags.
        let passed = read.is_ok_and(|read| read.offset >= end);
        Ok((!passed).then(|| not_visible_yet(partition, projected, end)))
    }
}

async fn read_judged(
    reads: &Reads,
    partition: u32,
    ids: &[TaskId],
) -> Result<(Vec<Option<TaskView>>, Option<Gap>), ApiError> {
    if ids.is_empty() {
        return Ok((Vec::new(), None));
    }
    let mut all_ids = ids.to_vec();
    let mut ancestors: Vec<TaskId> = ids.iter().flat_map(parent_ids).collect();
    ancestors.sort();
    ancestors.dedup();
    all_ids.extend(ancestors.iter().cloned());
    let JudgedRecords { checkpoint, mut records, gap } = judged_records(reads, partition, &all_ids).await?;
    let checkpoint = checkpoint.unwrap_or_default();
    let ancestor_records = records.split_off(ids.len());
    let run_of = |id: &str| {
        let index = ancestors.binary_search_by(|ancestor| ancestor.as_str().cmp(id)).ok()?;
        ancestor_records.get(index)?.as_ref().map(|above| above.run)
    };
    let sampler = reads.sampler;
    let tasks = ids.iter().zip(records).map(|(id, record)| {
        let record = record?;
        let superseded = is_superseded(record.run, id.ancestors().map(run_of));
        Some(TaskView {
            id: id.clone(),
            partition,
            checkpoint,
            record,
            superseded,
            sampler,
            masks: reads.masks.clone(),
        })
    });
    Ok((tasks.collect(), gap))
}

/// Reads the current records of tasks, and returns the ids of those without one.
async fn read_all(reads: &Reads, ids: &[TaskId]) -> Result<(Vec<TaskView>, Vec<TaskId>), ApiError> {
    let mut by_partition = BTreeMap::<u32, Vec<TaskId>>::new();
    for id in ids {
        by_partition.entry(reads.topology.partition_of(id)).or_default().push(id.clone());
    }
    let read = |(partition, ids): (u32, Vec<TaskId>)| async move { reads.read_many(partition, &ids).await };
    let tasks: Vec<TaskView> =
        try_join_all(by_partition.into_iter().map(read)).await?.into_iter().flatten().flatten().collect();
    let missing = ids.iter().filter(|id| tasks.iter().all(|task| task.id != **id)).cloned().collect();
    Ok((tasks, missing))
}

/// Ids of all ancestors, nearest first.
fn parent_ids(id: &TaskId) -> impl Iterator<Item = TaskId> {
    std::iter::successors(id.parent_id(), TaskId::parent_id)
}

/// Whether a task, or one of its ancestors, belongs to an earlier run of its parent. `above` are the runs of the
/// ancestors, nearest first; `None` for unknown ones.
fn is_superseded(run: u32, mut above: impl Iterator<Item = Option<u32>>) -> bool {
    let mut below = Some(run);
    above.any(|run| std::mem::replace(&mut below, run).zip(run).is_some_and(|(below, above)| below < above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_is_superseded_with_any_ancestor() {
        let cases: [(u32, &[Option<u32>], bool); 7] = [
            (1, &[], false),
            (1, &[Some(1)], false),
            (3, &[Some(2), Some(1)], false),
            (1, &[Some(2)], true),
            (1, &[Some(1), Some(2)], true),
            (2, &[Some(1), Some(1), Some(2)], true),
            (1, &[None, Some(2)], false),
        ];
        for (run, above, expected) in cases {
            assert_eq!(is_superseded(run, above.iter().copied()), expected, "run {run} below {above:?}");
        }
    }
}
