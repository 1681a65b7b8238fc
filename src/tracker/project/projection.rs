//! The fold of one events partition into its store: batches of events in; records, indexes and the fence out, in one step.
//!
//! Where the log passes a border of time and something is due by it, the batch is cut: what lies before is applied, then
//! what is due is dealt with (finished trees are removed in bounded steps), then the fold goes on. So what the store holds
//! at a fence depends on the log alone.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::tree_gc::TreeGc;
use crate::model::event::Event;
use crate::model::projection::changes::Changes;
use crate::model::projection::{Expired, FOLD_VERSION, Place, WorkingSet};
use crate::model::record::TaskRecord;
use crate::model::retention::time_step;
use crate::model::task::id::TaskId;
use crate::store::{Checkpoint, Index, PartitionWriter, Store, StoreError};

/// Tasks looked at in one step when their time has come.
const STEP: usize = 500;

/// An event and where it was logged.
pub struct Logged {
    pub event: Event,
    pub offset: i64,
    /// When the broker got it, epoch milliseconds.
    pub timestamp_ms: i64,
}

/// What a batch has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Something new is due or to be done.
    pub news: bool,
    /// Records of finished trees that were removed.
    pub removed: u64,
    /// Tasks given up and trees ended for their age.
    pub expired: u64,
}

pub struct Projection {
    store: Arc<dyn Store>,
    writer: Box<dyn PartitionWriter>,
    partition: u32,
    working_set: WorkingSet,
    fence: Option<Checkpoint>,
    log_time_ms: i64,
    /// By log time nothing is due before it, as far as the store knew when it was last looked at.
    head_ms: i64,
    brought: Brought,
    /// Who writes: a tracker (0), or a rebuild of the store.
    rebuild: u32,
    /// [`Checkpoint::complete_at`].
    complete_at: i64,
}

impl Projection {
    /// Goes on where the store is. After an error it is of no use any more.
    pub async fn open(store: Arc<dyn Store>, partition: u32) -> Result<Self, StoreError> {
        let (mut writer, fence) = store.open(partition).await?;
        let lifetimes = writer.lifetimes().await?.unwrap_or_default();
        let working_set = WorkingSet::resume(fence.map_or(0, |fence| fence.kept_bytes), lifetimes);
        let log_time_ms = fence.map_or(0, |fence| fence.log_time_ms);
        let (brought, complete_at) = (Brought::default(), fence.map_or(0, |fence| fence.complete_at));
        Ok(Self {
            store,
            writer,
            partition,
            working_set,
            fence,
            log_time_ms,
            head_ms: i64::MIN,
            brought,
            rebuild: 0,
            complete_at,
        })
    }

    /// Begins a partition that holds nothing yet, which is complete at this place of the log.
    pub fn begin(&mut self, complete_at: i64) {
        self.complete_at = complete_at;
    }

    pub fn partition(&self) -> u32 {
        self.partition
    }

    pub fn fence(&self) -> Option<Checkpoint> {
        self.fence
    }

    /// Makes the partition a tracker's (0) or a rebuild's by writing so into the fence; whoever had it before can write no
    /// more. Where nothing is folded yet the fence begins at `first`.
    pub async fn claim(&mut self, rebuild: u32, first: i64) -> Result<(), StoreError> {
        self.rebuild = rebuild;
        self.apply(self.fence.map_or(first, |fence| fence.offset)).await
    }

    /// The writer, for checks between two batches.
    pub fn writer(&mut self) -> &mut dyn PartitionWriter {
        &mut *self.writer
    }

    /// Marks the partition as damaged in the store, so that nobody goes on from there.
    pub async fn condemn(&mut self, fault: String) -> StoreError {
        match self.writer.condemn().await {
            Ok(()) => StoreError::Damaged(fault),
            Err(error) => error,
        }
    }

    pub fn working_set(&mut self) -> &mut WorkingSet {
        &mut self.working_set
    }

    /// Folds a batch; `next` is the place behind it.
    pub async fn fold(&mut self, events: &[Logged], next: i64) -> Result<Brought, StoreError> {
        self.brought = Brought::default();
        self.load(events).await?;
        for (n, logged) in events.iter().enumerate() {
            let log_time_ms = logged.timestamp_ms.max(self.log_time_ms);
            let passed = time_step(log_time_ms);
            if passed > time_step(self.log_time_ms) && (self.head_ms <= passed || self.working_set.may_be_old(passed)) {
                self.apply(logged.offset).await?;
                self.expire(Place { offset: logged.offset, log_time_ms: passed }).await?;
                self.load(&events[n..]).await?;
            }
            if let Some(told) = logged.event.lifetimes.as_deref().filter(|told| self.working_set.changes_tree_age(told)) {
                self.apply(logged.offset).await?;
                self.set_tree_age(told.max_tree_age_ms, logged.offset).await?;
                self.load(&events[n..]).await?;
            }
            self.log_time_ms = log_time_ms;
            self.working_set.fold(&logged.event, Place { offset: logged.offset, log_time_ms });
        }
        self.apply(next).await?;
        Ok(self.brought)
    }

    async fn load(&mut self, events: &[Logged]) -> Result<(), StoreError> {
        let missing = self.working_set.missing(events.iter().map(|logged| &logged.event));
        self.load_nodes(missing).await
    }

    async fn load_nodes(&mut self, mut missing: Vec<TaskId>) -> Result<(), StoreError> {
        while !missing.is_empty() {
            let found = self.writer.nodes(&missing).await?;
            if let Some(fault) = orphan(&missing, &found) {
                return Err(self.condemn(fault).await);
            }
            missing.into_iter().zip(found).for_each(|(id, node)| self.working_set.load(id, node));
            missing = self.working_set.wanted();
        }
        Ok(())
    }

    /// Writes what has changed, and the fence.
    async fn apply(&mut self, next: i64) -> Result<(), StoreError> {
        let changes = self.working_set.take_changes();
        let to = self.fence_at(next);
        if changes.is_empty() && self.fence == Some(to) {
            return Ok(());
        }
        self.brought.news |= changes.concerns_outbox();
        self.write(&changes, next).await
    }

    fn fence_at(&self, offset: i64) -> Checkpoint {
        let (log_time_ms, kept_bytes) = (self.log_time_ms, self.working_set.kept_bytes());
        Checkpoint {
            offset,
            version: FOLD_VERSION,
            log_time_ms,
            kept_bytes,
            rebuild: self.rebuild,
            complete_at: self.complete_at,
        }
    }

    /// Deals with everything whose time has come at a border. Begun again after a crash, it goes on.
    async fn expire(&mut self, place: Place) -> Result<(), StoreError> {
        let open = self.end_old(place).await?;
        let done = self.remove_old(place).await?;
        self.head_ms = open.min(done);
        self.working_set.clear_due();
        Ok(())
    }

    /// Ends trees that have been open for too long, and gives up what nobody announces. Returns when the next is due.
    async fn end_old(&mut self, place: Place) -> Result<i64, StoreError> {
        loop {
            let mut due = self.store.page(self.partition, &Index::Ages, None, STEP).await?;
            let later = due.iter().position(|entry| entry.seen_ms > place.log_time_ms);
            let head_ms = later.map_or(i64::MAX, |at| due[at].seen_ms);
            due.truncate(later.unwrap_or(due.len()));
            if due.is_empty() {
                self.is_what_was_read().await?;
                return Ok(head_ms);
            }
            let ids: Vec<TaskId> = due.into_iter().map(|entry| entry.id).collect();
            let changed = self.look_at(&ids, place, Expired::Changed).await?.len() as u64;
            self.is_what_was_read().await?;
            if changed == 0 {
                return Err(StoreError::Invalid(format!(
                    "the index of what is due by age in partition {} does not fit its records: something else has written there",
                    self.partition
                )));
            }
            self.brought.expired += changed;
            self.apply(place.offset).await?;
        }
    }

    /// Open trees are to end at another age. Written before the event that says so: begun again after a crash, it goes on.
    async fn set_tree_age(&mut self, max_tree_age_ms: i64, offset: i64) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.page(self.partition, &Index::Ages, after.as_ref(), STEP).await?;
            let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
            self.load_nodes(self.working_set.missing_of(&ids)).await?;
            ids.iter().for_each(|id| self.working_set.set_tree_age(id, max_tree_age_ms));
            self.is_what_was_read().await?;
            self.apply(offset).await?;
            self.working_set.shrink(STEP);
            if page.len() < STEP {
                return Ok(());
            }
            after = page.last().cloned();
        }
    }

    /// Indexes are read over another connection than the writer's. For a while after a failover that may lead to another
    /// server, with other contents: what is decided from them needs the same fence, at which all stores are the same.
    async fn is_what_was_read(&mut self) -> Result<(), StoreError> {
        let found = self.store.fences(&[self.partition]).await?.pop().flatten();
        if found == self.fence { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }

    /// Removes finished trees. Returns when the next are due.
    async fn remove_old(&mut self, place: Place) -> Result<i64, StoreError> {
        loop {
            // What is dropped from the front is what was read: so it is read where it is dropped.
            let due = self.writer.done(STEP).await?;
            let Some(due_ms) = due.first().map(|entry| entry.seen_ms) else { return Ok(i64::MAX) };
            if due_ms > place.log_time_ms {
                return Ok(due_ms);
            }
            let count = due.len();
            let mut ids: Vec<TaskId> = due.into_iter().map(|entry| entry.id).collect();
            // A root that was started again and has finished again is there twice.
            ids.sort();
            ids.dedup();
            let finished = self.look_at(&ids, place, Expired::Remove).await?;
            self.sweep(finished, place.offset).await?;
            self.is_what_was_read().await?;
            self.write(&Changes { done_with: Some((due_ms, count)), ..Changes::default() }, place.offset).await?;
        }
    }

    /// Those of which this becomes.
    async fn look_at(&mut self, ids: &[TaskId], place: Place, wanted: Expired) -> Result<Vec<TaskId>, StoreError> {
        self.load_nodes(self.working_set.missing_of(ids)).await?;
        Ok(ids.iter().filter(|id| self.working_set.expire(id, place) == wanted).cloned().collect())
    }

    async fn write(&mut self, changes: &Changes, offset: i64) -> Result<(), StoreError> {
        let to = self.fence_at(offset);
        self.writer.apply(changes, self.fence, to).await?;
        self.fence = Some(to);
        Ok(())
    }

    async fn sweep(&mut self, roots: Vec<TaskId>, offset: i64) -> Result<(), StoreError> {
        let mut sweep = TreeGc::of(roots, &*self.store, self.partition).await?;
        while let Some(gone) = sweep.step(&*self.store, self.partition).await? {
            self.is_what_was_read().await?;
            self.brought.removed += gone.len() as u64;
            let changes = self.working_set.remove(gone);
            self.write(&changes, offset).await?;
        }
        Ok(())
    }
}

/// A record whose parent has none. What is above a record is asked for with it, or at hand.
fn orphan(asked: &[TaskId], found: &[Option<TaskRecord>]) -> Option<String> {
    let gone: FxHashSet<&TaskId> = asked.iter().zip(found).filter(|(_, node)| node.is_none()).map(|(id, _)| id).collect();
    if gone.is_empty() {
        return None;
    }
    let there = asked.iter().zip(found).filter(|(_, node)| node.is_some());
    let lost = there.filter_map(|(id, _)| Some((id, id.parent_id()?))).find(|(_, parent)| gone.contains(parent));
    lost.map(|(id, parent)| format!("the record of `{parent}` is missing, and that of `{id}` below it is there"))
}
