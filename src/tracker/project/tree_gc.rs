//! Removal of finished trees from the leaves up, in steps of bounded size. Repeated after a crash, it finds the
//! remaining records below the roots.

use std::collections::VecDeque;

use crate::model::record::TaskRecord;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index, Store, StoreError};

/// Records per step, and children per read.
const STEP: usize = 500;

pub(crate) struct TreeGc {
    /// Path from the roots to the current level: at most as many as an id has levels.
    levels: Vec<Level>,
}

struct Level {
    /// Removed after its children.
    parent: Option<(TaskId, TaskRecord)>,
    nodes: VecDeque<(TaskId, TaskRecord)>,
    /// Last child read, if more may follow.
    last: Option<Entry>,
}

impl TreeGc {
    pub(crate) async fn of(roots: Vec<TaskId>, store: &dyn Store, partition: u32) -> Result<Self, StoreError> {
        let found = store.nodes(partition, &roots).await?;
        let nodes = roots.into_iter().zip(found).filter_map(|(id, node)| Some((id, node?))).collect();
        Ok(Self { levels: vec![Level { parent: None, nodes, last: None }] })
    }

    /// Returns the next records to remove, in order; `None` at the end.
    pub(crate) async fn step(
        &mut self,
        store: &dyn Store,
        partition: u32,
    ) -> Result<Option<Vec<(TaskId, TaskRecord)>>, StoreError> {
        let mut removed = Vec::new();
        while removed.len() < STEP
            && let Some(level) = self.levels.last_mut()
        {
            match (level.nodes.pop_front(), level.last.take()) {
                (Some((id, node)), last) => {
                    level.last = last;
                    if node.tree.has_below {
                        self.levels.push(Level::below(id, node, store, partition).await?);
                    } else {
                        removed.push((id, node));
                    }
                }
                (None, Some(last)) => level.read(Some(&last), store, partition).await?,
                (None, None) => removed.extend(self.levels.pop().and_then(|level| level.parent)),
            }
        }
        Ok((!removed.is_empty()).then_some(removed))
    }
}

impl Level {
    async fn below(id: TaskId, node: TaskRecord, store: &dyn Store, partition: u32) -> Result<Self, StoreError> {
        let mut level = Self { parent: Some((id, node)), nodes: VecDeque::new(), last: None };
        level.read(None, store, partition).await?;
        Ok(level)
    }

    async fn read(&mut self, after: Option<&Entry>, store: &dyn Store, partition: u32) -> Result<(), StoreError> {
        let Some((parent, _)) = &self.parent else { return Ok(()) };
        let page = store.page(partition, &Index::Children(parent.clone()), after, STEP).await?;
        self.last = page.last().filter(|_| page.len() == STEP).cloned();
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let found = store.nodes(partition, &ids).await?;
        // Remove index entries without a record too.
        let node = |(entry, node): (Entry, Option<TaskRecord>)| {
            (entry.id, node.unwrap_or_else(|| TaskRecord::expected(1, entry.seen_ms)))
        };
        self.nodes = page.into_iter().zip(found).map(node).collect();
        Ok(())
    }
}
