//! Removal of finished trees from the leaves up, in steps of bounded size. Repeated after a crash, it finds the
//! remaining records below the roots.

use std::collections::VecDeque;

use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index, Store, StoreError};

/// Records per step, and children per read.
const STEP_RECORDS: usize = 500;

pub(crate) struct TreeGc {
    /// Path from the roots to the current level: at most as many as an id has levels.
    levels: Vec<GcLevel>,
}

struct GcLevel {
    /// Removed after its children.
    parent: Option<(TaskId, TaskRecord)>,
    tasks: VecDeque<(TaskId, TaskRecord)>,
    /// Last child read, if more may follow.
    last: Option<Entry>,
}

impl TreeGc {
    pub(crate) async fn of(roots: Vec<TaskId>, store: &dyn Store, partition: u32) -> Result<Self, StoreError> {
        let records = store.task_records(partition, &roots).await?;
        let tasks = roots.into_iter().zip(records).filter_map(|(id, task)| Some((id, task?))).collect();
        Ok(Self { levels: vec![GcLevel { parent: None, tasks, last: None }] })
    }

    /// Returns the next records to remove, in order; `None` at the end.
    pub(crate) async fn step(
        &mut self,
        store: &dyn Store,
        partition: u32,
    ) -> Result<Option<Vec<(TaskId, TaskRecord)>>, StoreError> {
        let mut removed = Vec::new();
        while removed.len() < STEP_RECORDS
            && let Some(level) = self.levels.last_mut()
        {
            match (level.tasks.pop_front(), level.last.take()) {
                (Some((id, task)), last) => {
                    level.last = last;
                    if task.tree.has_below {
                        self.levels.push(GcLevel::below(id, task, store, partition).await?);
                    } else {
                        removed.push((id, task));
                    }
                }
                (None, Some(last)) => level.read(Some(&last), store, partition).await?,
                (None, None) => removed.extend(self.levels.pop().and_then(|level| level.parent)),
            }
        }
        Ok((!removed.is_empty()).then_some(removed))
    }
}

impl GcLevel {
    async fn below(id: TaskId, task: TaskRecord, store: &dyn Store, partition: u32) -> Result<Self, StoreError> {
        let mut level = Self { parent: Some((id, task)), tasks: VecDeque::new(), last: None };
        level.read(None, store, partition).await?;
        Ok(level)
    }

    async fn read(&mut self, after: Option<&Entry>, store: &dyn Store, partition: u32) -> Result<(), StoreError> {
        let Some((parent, _)) = &self.parent else { return Ok(()) };
        let page = store.page(partition, &Index::Children(parent.clone()), after, STEP_RECORDS).await?;
        self.last = page.last().filter(|_| page.len() == STEP_RECORDS).cloned();
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let records = store.task_records(partition, &ids).await?;
        // Remove index entries without a record too.
        let task = |(entry, task): (Entry, Option<TaskRecord>)| {
            (entry.id, task.unwrap_or_else(|| TaskRecord::expected(1, entry.seen_ms)))
        };
        self.tasks = page.into_iter().zip(records).map(task).collect();
        Ok(())
    }
}
