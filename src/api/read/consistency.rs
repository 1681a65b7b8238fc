//! How new an answer is. The store lags behind the log by what is not folded yet; a read can ask to include a position,
//! and "there is no such task" is said only once everything that was in the log on arrival is folded.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::Api;
use crate::api::backends::behind;
use crate::api::http::problem::{ApiError, Code};
use crate::broker::Watermarks;
use crate::model::record::TaskRecord;
use crate::model::task::Position;
use crate::model::task::id::TaskId;
use crate::store::Checkpoint;

/// How long a read waits for the position it names.
pub const AFTER_DEADLINE: Duration = Duration::from_secs(5);
/// How long a read of an unknown id waits for the fold: whoever has just created a task asks for it next.
const UNKNOWN_DEADLINE: Duration = Duration::from_secs(3);

/// A task as the store has it.
#[derive(Clone, Debug)]
pub struct TaskView {
    pub id: TaskId,
    pub partition: u32,
    /// Up to where the partition was folded, or further.
    pub fence: Checkpoint,
    pub node: TaskRecord,
    /// Its run is below its parent's.
    pub superseded: bool,
}

impl TaskView {
    /// Position of the last event that the record includes.
    pub fn position(&self) -> Position {
        let partition = i32::try_from(self.partition).unwrap_or(i32::MAX);
        Position { partition, offset: (self.fence.offset - 1).max(0) }
    }
}

/// Where waiting for the fold has led.
pub enum ReachedOffset {
    Yes,
    /// It is folded only up to here; None: not at all.
    Not(Option<i64>),
}

/// What a record that is not there may come from.
const GONE: &str =
    "check the id; finished trees are removed after their type's `retention`, by default `topics.record_retention`";

impl Api {
    /// The record of a task, if it has one, as it is now.
    pub async fn look(&self, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
        let found = self.look_many(self.publisher.partition_of(id), std::slice::from_ref(id)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// The records of tasks of one partition, in order.
    pub async fn look_many(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, ApiError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        // The fence first: the records may only be newer than it says.
        let fence = self.fence(partition).await?.unwrap_or_default();
        let mut wanted = ids.to_vec();
        let mut parents: Vec<TaskId> = ids.iter().filter_map(TaskId::parent_id).collect();
        parents.sort();
        parents.dedup();
        wanted.extend(parents.iter().cloned());
        let mut nodes = self.nodes(partition, &wanted).await?;
        let above = nodes.split_off(ids.len());
        let run_of = |id: &TaskId| {
            let place = parents.binary_search(&id.parent_id()?).ok()?;
            Some(above.get(place)?.as_ref()?.run)
        };
        let found = ids.iter().zip(nodes).map(|(id, node)| {
            let node = node?;
            let superseded = run_of(id).is_some_and(|run| node.run < run);
            Some(TaskView { id: id.clone(), partition, fence, node, superseded })
        });
        Ok(found.collect())
    }

    /// The record of a task that must be there.
    pub async fn find(&self, id: &TaskId, after: Option<Position>) -> Result<TaskView, ApiError> {
        self.include(after).await?;
        let gone = || ApiError::new(Code::NotFound, format!("there is no task `{id}`")).hint(GONE);
        self.find_any(id).await?.ok_or_else(gone)
    }

    /// The record of a task, if it has one: a store that is behind, or was lost and is folded anew, does not say that.
    pub async fn find_any(&self, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
        if let Some(found) = self.look(id).await? {
            return Ok(Some(found));
        }
        let lag = self.pass_end(self.publisher.partition_of(id)).await?;
        match (self.look(id).await?, lag) {
            (None, Some(lag)) => Err(lag),
            (found, _) => Ok(found),
        }
    }

    /// Waits until everything up to a position is folded.
    pub async fn include(&self, after: Option<Position>) -> Result<(), ApiError> {
        let Some(after) = after else { return Ok(()) };
        let partition = u32::try_from(after.partition).unwrap_or_default();
        let target = after.offset.saturating_add(1);
        match self.reach(partition, target, AFTER_DEADLINE).await? {
            ReachedOffset::Yes => Ok(()),
            ReachedOffset::Not(folded) => Err(behind(partition, folded.unwrap_or_default(), target)),
        }
    }

    /// A task once an event about it is folded, and whether the fold did not act on that event. `what` names it where it
    /// takes too long.
    pub async fn verdict(&self, task: &TaskView, position: Position, what: &str) -> Result<(TaskView, bool), ApiError> {
        let later = |refusal: ApiError| {
            refusal.hint(format!(
                "{what} is written at {position} and will be folded: do not repeat it, read the task with `?after={position}`"
            ))
        };
        let target = position.offset + 1;
        if let ReachedOffset::Not(folded) = self.reach(task.partition, target, AFTER_DEADLINE).await.map_err(later)? {
            return Err(later(behind(task.partition, folded.unwrap_or_default(), target)));
        }
        let gone = || ApiError::new(Code::NotFound, format!("the record of `{}` is no longer kept", task.id));
        let found = self.look(&task.id).await.map_err(later)?.ok_or_else(gone)?;
        let ignored =
            found.node.history.iter().rev().find(|entry| entry.offset == position.offset).is_some_and(|entry| entry.ignored);
        Ok((found, ignored))
    }

    /// Waits until the partition is folded to `target`.
    pub async fn reach(&self, partition: u32, target: i64, within: Duration) -> Result<ReachedOffset, ApiError> {
        let end = Instant::now() + within;
        loop {
            let folded = self.fence(partition).await?.map(|fence| fence.offset);
            if folded.unwrap_or_default() >= target {
                return Ok(ReachedOffset::Yes);
            }
            let woken = tokio::time::timeout_at(end, self.hub.folded(partition, target)).await;
            if woken.is_err() || self.shutdown.is_draining() {
                return Ok(ReachedOffset::Not(folded));
            }
        }
    }

    /// Waits a little until the partition is folded to its present end. Returns the lag if it is not.
    async fn pass_end(&self, partition: u32) -> Result<Option<ApiError>, ApiError> {
        let Watermarks { first, end } = self.event_ends(partition, UNKNOWN_DEADLINE).await?;
        // A partition that holds nothing needs no fold.
        if first == end {
            return Ok(None);
        }
        let folded = match self.reach(partition, end, UNKNOWN_DEADLINE).await? {
            ReachedOffset::Yes => return Ok(None),
            ReachedOffset::Not(folded) => folded.unwrap_or(first).max(first),
        };
        // What ends a transaction, or was given up with one, is for no reader: the fold can stand just before it.
        let events = self.events(partition);
        let look = self.broker.with_deadline(UNKNOWN_DEADLINE).first_visible(&events, folded).await;
        // Where nobody can say, it is behind.
        let passed = look.is_ok_and(|look| look.place >= end);
        Ok((!passed).then(|| behind(partition, folded, end)))
    }
}
