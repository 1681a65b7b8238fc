//! The projection of one events partition: applies batches of events to records, indexes and the checkpoint atomically.
//!
//! A batch is folded in memory (`crates/model/src/projection/`) after the records it needs have been read, and written with
//! one call of the writer. When log time crosses a time step and something is due by then, the batch is split: the
//! events before are applied, due trees are expired or removed in bounded steps, then the fold continues.
//!
//! Invariant: the contents of the store at a checkpoint depend on the log alone, not on where batches begin and end.
//! `kafleet rebuild` compares a copy with its source at equal checkpoints, byte by byte; it would report differences
//! that are none.
//!
//! Read next: `crates/model/src/projection/working_set.rs`, then `tree_gc.rs` (removal of large trees).

use std::sync::Arc;

use kafleet_model::event::{Event, Payload};
use kafleet_model::projection::changes::Changes;
use kafleet_model::projection::{ExpiryOutcome, FOLD_VERSION, LogPosition, WorkingSet};
use kafleet_model::record::TaskRecord;
use kafleet_model::retention::time_step;
use kafleet_model::statistics::Statistics;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::AskVerdict;
use kafleet_store::{Checkpoint, Index, PartitionWriter, Store, StoreError};
use rustc_hash::FxHashSet;

use super::tree_gc::TreeGc;

/// Maximum tasks per expiry step.
const EXPIRY_STEP_TASKS: usize = 500;

/// An event with its offset.
pub struct LoggedEvent {
    pub event: Event,
    pub offset: i64,
    /// Broker append time, epoch milliseconds.
    pub timestamp_ms: i64,
}

/// Outcome of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldOutcome {
    /// Timers or effects were added.
    pub has_new_work: bool,
    /// Records removed with finished trees.
    pub removed: u64,
    /// Expected tasks expired and trees ended because of their age.
    pub expired: u64,
    /// Second tasks with the id of another.
    pub id_conflicts: u64,
}

pub struct Projection {
    store: Arc<dyn Store>,
    writer: Box<dyn PartitionWriter>,
    partition: u32,
    working_set: WorkingSet,
    checkpoint: Option<Checkpoint>,
    log_time_ms: i64,
    /// Earliest log time at which something is due, as of the last read of the indexes.
    next_due_ms: i64,
    outcome: FoldOutcome,
    /// Owner of the partition: 0 for a tracker, otherwise the number of a rebuild.
    rebuild: u32,
    /// [`Checkpoint::complete_at`].
    complete_at: i64,
}

impl Projection {
    /// Opens the partition at the store's checkpoint. Must be dropped after an error.
    pub async fn open(store: Arc<dyn Store>, partition: u32) -> Result<Self, StoreError> {
        let (mut writer, checkpoint) = store.open(partition).await?;
        let lifetimes = writer.lifetimes().await?.unwrap_or_default();
        let began = checkpoint.map_or(0, |checkpoint| checkpoint.offset);
        let statistics = Statistics::resume(writer.statistics().await?, began);
        let deferred_bytes = checkpoint.map_or(0, |checkpoint| checkpoint.deferred_bytes);
        let working_set = WorkingSet::resume(deferred_bytes, lifetimes, statistics);
        let log_time_ms = checkpoint.map_or(0, |checkpoint| checkpoint.log_time_ms);
        let (outcome, complete_at) =
            (FoldOutcome::default(), checkpoint.map_or(0, |checkpoint| checkpoint.complete_at));
        Ok(Self {
            store,
            writer,
            partition,
            working_set,
            checkpoint,
            log_time_ms,
            next_due_ms: i64::MIN,
            outcome,
            rebuild: 0,
            complete_at,
        })
    }

    /// Starts an empty partition at `first`, which is complete once it is folded up to `complete_at`.
    pub fn begin_empty(&mut self, first: i64, complete_at: i64) {
        self.complete_at = complete_at;
        self.working_set.begin_statistics(first);
    }

    /// Marks the partition as incomplete below `end`, as if a tracker had begun to fold it from the beginning.
    pub fn set_incomplete(&mut self, end: i64) {
        self.complete_at = self.complete_at.max(end);
    }

    pub fn partition(&self) -> u32 {
        self.partition
    }

    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.checkpoint
    }

    /// Claims the partition for a tracker (0) or a rebuild by writing the checkpoint, which fences the previous
    /// owner. An empty partition starts at `first`.
    pub async fn claim(&mut self, rebuild: u32, first: i64) -> Result<(), StoreError> {
        self.rebuild = rebuild;
        if self.checkpoint.is_none() {
            self.working_set.begin_statistics(first);
        }
        self.apply(self.checkpoint.map_or(first, |checkpoint| checkpoint.offset)).await
    }

    /// Access to the writer, for checks between two batches.
    pub fn writer(&mut self) -> &mut dyn PartitionWriter {
        &mut *self.writer
    }

    /// Marks the partition as damaged in the store, so that no writer continues from its checkpoint.
    pub async fn mark_damaged(&mut self, fault: String) -> StoreError {
        match self.writer.mark_damaged(&fault).await {
            Ok(()) => StoreError::Damaged(fault),
            Err(error) => error,
        }
    }

    pub fn working_set(&mut self) -> &mut WorkingSet {
        &mut self.working_set
    }

    /// Folds a batch; `next` is the offset after it.
    pub async fn fold(&mut self, events: &[LoggedEvent], next: i64) -> Result<FoldOutcome, StoreError> {
        self.outcome = FoldOutcome::default();
        // Those of the batch before: a rebuild does not count them.
        self.take_verdicts();
        self.load(events).await?;
        for (n, logged) in events.iter().enumerate() {
            let log_time_ms = logged.timestamp_ms.max(self.log_time_ms);
            let passed = time_step(log_time_ms);
            if passed > time_step(self.log_time_ms)
                && (self.next_due_ms <= passed || self.working_set.may_have_expired(passed))
            {
                self.apply(logged.offset).await?;
                self.expire(LogPosition { offset: logged.offset, log_time_ms: passed }).await?;
                self.load(&events[n..]).await?;
            }
            if let Payload::Settings { lifetimes: Some(lifetimes) } = &logged.event.payload
                && self.working_set.changes_tree_age(lifetimes)
            {
                self.apply(logged.offset).await?;
                self.set_tree_age(lifetimes.max_tree_age_ms, logged.offset).await?;
                self.load(&events[n..]).await?;
            }
            self.log_time_ms = log_time_ms;
            self.working_set.fold(&logged.event, LogPosition { offset: logged.offset, log_time_ms })?;
        }
        self.apply(next).await?;
        self.outcome.id_conflicts = self.working_set.take_id_conflicts();
        Ok(self.outcome)
    }

    /// Takes the verdicts of the last batch about asks of unique tasks, with their types.
    pub fn take_verdicts(&mut self) -> Vec<(Arc<str>, AskVerdict)> {
        self.working_set.keys().take_verdicts()
    }

    async fn load(&mut self, events: &[LoggedEvent]) -> Result<(), StoreError> {
        let tags = self.working_set.keys().missing(events.iter().map(|logged| &logged.event));
        self.load_keys(tags).await?;
        let missing = self.working_set.missing(events.iter().map(|logged| &logged.event));
        self.load_records(missing).await?;
        let of_keys = self.working_set.missing_records();
        self.load_records(self.working_set.missing_of(&of_keys)).await
    }

    /// Reads the states of keys of unique tasks. The tasks that they name are among the missing records then.
    async fn load_keys(&mut self, tags: Vec<String>) -> Result<(), StoreError> {
        if tags.is_empty() {
            return Ok(());
        }
        let states = self.writer.unique_keys(&tags).await?;
        tags.into_iter().zip(states).for_each(|(tag, state)| self.working_set.keys().load(&tag, state));
        Ok(())
    }

    async fn load_records(&mut self, mut missing: Vec<TaskId>) -> Result<(), StoreError> {
        while !missing.is_empty() {
            let stored = self.writer.task_records(&missing).await?;
            if let Some(fault) = orphan(&missing, &stored) {
                return Err(self.mark_damaged(fault).await);
            }
            missing.into_iter().zip(stored).for_each(|(id, task)| self.working_set.load(id, task));
            missing = self.working_set.missing_records();
        }
        Ok(())
    }

    /// Writes the changed records and the checkpoint.
    async fn apply(&mut self, next: i64) -> Result<(), StoreError> {
        let changes = self.working_set.take_changes()?;
        let to = self.checkpoint_at(next);
        if changes.is_empty() && self.checkpoint == Some(to) {
            return Ok(());
        }
        self.outcome.has_new_work |= changes.concerns_outbox();
        self.write(&changes, next).await
    }

    fn checkpoint_at(&self, offset: i64) -> Checkpoint {
        let (log_time_ms, deferred_bytes) = (self.log_time_ms, self.working_set.deferred_bytes());
        Checkpoint {
            offset,
            version: FOLD_VERSION,
            log_time_ms,
            deferred_bytes,
            rebuild: self.rebuild,
            complete_at: self.complete_at,
        }
    }

    /// Processes everything due at a time step. Idempotent: repeated after a crash, it continues.
    async fn expire(&mut self, position: LogPosition) -> Result<(), StoreError> {
        let open = self.expire_open(position).await?;
        let done = self.remove_finished(position).await?;
        self.next_due_ms = open.min(done);
        self.working_set.clear_due();
        Ok(())
    }

    /// Ends trees that have been open for too long and expires unannounced tasks. Returns the time of the next due
    /// entry.
    async fn expire_open(&mut self, position: LogPosition) -> Result<i64, StoreError> {
        loop {
            let mut due = self.store.page(self.partition, &Index::Ages, None, EXPIRY_STEP_TASKS).await?;
            let later = due.iter().position(|entry| entry.seen_ms > position.log_time_ms);
            let next_due_ms = later.map_or(i64::MAX, |at| due[at].seen_ms);
            due.truncate(later.unwrap_or(due.len()));
            if due.is_empty() {
                self.verify_checkpoint().await?;
                return Ok(next_due_ms);
            }
            let ids: Vec<TaskId> = due.into_iter().map(|entry| entry.id).collect();
            let changed = self.expire_tasks(&ids, position, ExpiryOutcome::Changed).await?.len() as u64;
            self.verify_checkpoint().await?;
            if changed == 0 {
                return Err(contradiction(self.partition));
            }
            self.outcome.expired += changed;
            self.apply(position.offset).await?;
            // Everything may be due at once, as after the maximum age was lowered.
            if later.is_none() {
                self.working_set.shrink(EXPIRY_STEP_TASKS);
            }
        }
    }

    /// Updates the expiry of open trees. Written before the event that changes it; repeated after a crash, it
    /// continues.
    async fn set_tree_age(&mut self, max_tree_age_ms: i64, offset: i64) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.page(self.partition, &Index::Ages, after.as_ref(), EXPIRY_STEP_TASKS).await?;
            let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
            self.load_records(self.working_set.missing_of(&ids)).await?;
            ids.iter().for_each(|id| self.working_set.set_tree_age(id, max_tree_age_ms));
            self.verify_checkpoint().await?;
            self.apply(offset).await?;
            self.working_set.shrink(EXPIRY_STEP_TASKS);
            if page.len() < EXPIRY_STEP_TASKS {
                return Ok(());
            }
            after = page.last().cloned();
        }
    }

    /// Indexes are read over another connection than the writer's, which after a failover may lead to another server
    /// with other contents for a while. Decisions based on them require equal checkpoints, at which all stores have
    /// equal contents.
    async fn verify_checkpoint(&mut self) -> Result<(), StoreError> {
        let stored = self.store.checkpoints(&[self.partition]).await?.pop().flatten();
        if stored == self.checkpoint { Ok(()) } else { Err(StoreError::Conflict { stored }) }
    }

    /// Removes finished trees. Returns the time at which the next are due.
    async fn remove_finished(&mut self, position: LogPosition) -> Result<i64, StoreError> {
        loop {
            // Entries are dropped from the front of the list, so they are read over the same connection.
            let due = self.writer.done(EXPIRY_STEP_TASKS).await?;
            let Some(due_ms) = due.first().map(|entry| entry.seen_ms) else { return Ok(i64::MAX) };
            if due_ms > position.log_time_ms {
                return Ok(due_ms);
            }
            let count = due.len();
            let mut ids: Vec<TaskId> = due.into_iter().map(|entry| entry.id).collect();
            // A root that was retried and has finished again is listed twice.
            ids.sort();
            ids.dedup();
            let finished = self.expire_tasks(&ids, position, ExpiryOutcome::Remove).await?;
            self.remove_trees(finished, position).await?;
            self.verify_checkpoint().await?;
            self.write(&Changes { done_with: Some((due_ms, count)), ..Changes::default() }, position.offset).await?;
            if count >= EXPIRY_STEP_TASKS {
                self.working_set.shrink(EXPIRY_STEP_TASKS);
            }
        }
    }

    /// Expires tasks and returns those with the given outcome.
    async fn expire_tasks(
        &mut self,
        ids: &[TaskId],
        position: LogPosition,
        outcome: ExpiryOutcome,
    ) -> Result<Vec<TaskId>, StoreError> {
        let tags = self.working_set.keys().missing_of(ids);
        self.load_keys(tags).await?;
        self.load_records(self.working_set.missing_of(ids)).await?;
        let of_keys = self.working_set.missing_records();
        self.load_records(self.working_set.missing_of(&of_keys)).await?;
        Ok(ids.iter().filter(|id| self.working_set.expire(id, position) == outcome).cloned().collect())
    }

    async fn write(&mut self, changes: &Changes, offset: i64) -> Result<(), StoreError> {
        let to = self.checkpoint_at(offset);
        self.writer.apply(changes, self.checkpoint, to).await?;
        self.checkpoint = Some(to);
        Ok(())
    }

    async fn remove_trees(&mut self, roots: Vec<TaskId>, position: LogPosition) -> Result<(), StoreError> {
        let mut remove_trees = TreeGc::of(roots, &*self.store, self.partition).await?;
        while let Some(missing) = remove_trees.step(&*self.store, self.partition).await? {
            self.verify_checkpoint().await?;
            self.outcome.removed += missing.len() as u64;
            let tags = self.working_set.keys().missing_of(missing.iter().map(|(id, _)| id));
            self.load_keys(tags).await?;
            let changes = self.working_set.remove(missing, position.log_time_ms)?;
            self.write(&changes, position.offset).await?;
        }
        Ok(())
    }
}

fn contradiction(partition: u32) -> StoreError {
    StoreError::Invalid(format!(
        "the index of expiry times in partition {partition} contradicts its records: another application has written to it"
    ))
}

/// Finds a record whose parent is missing. The ancestors of a record are requested with it or loaded already.
fn orphan(ids: &[TaskId], records: &[Option<TaskRecord>]) -> Option<String> {
    let missing: FxHashSet<&TaskId> =
        ids.iter().zip(records).filter(|(_, task)| task.is_none()).map(|(id, _)| id).collect();
    if missing.is_empty() {
        return None;
    }
    let existing = ids.iter().zip(records).filter(|(_, task)| task.is_some());
    let orphaned =
        existing.filter_map(|(id, _)| Some((id, id.parent_id()?))).find(|(_, parent)| missing.contains(parent));
    orphaned.map(|(id, parent)| format!("the record of `{parent}` is missing but its child `{id}` exists"))
}
