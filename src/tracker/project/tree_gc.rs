//! Finished trees, taken apart from below in steps that the store can take in one go. Begun again after a crash, what is
//! left is found below the roots.

use std::collections::VecDeque;

use crate::model::record::TaskRecord;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index, Store, StoreError};

/// Records of one step, and children read at a time.
const STEP: usize = 500;

pub struct TreeGc {
    /// From the roots down to where it is: at most as many as ids have levels.
    levels: Vec<Level>,
}

struct Level {
    /// What lies below it goes before it.
    parent: Option<(TaskId, TaskRecord)>,
    nodes: VecDeque<(TaskId, TaskRecord)>,
    /// The last child read, where there may be more.
    last: Option<Entry>,
}

impl TreeGc {
    pub async fn of(roots: Vec<TaskId>, store: &dyn Store, partition: u32) -> Result<Self, StoreError> {
        let found = store.nodes(partition, &roots).await?;
        let nodes = roots.into_iter().zip(found).filter_map(|(id, node)| Some((id, node?))).collect();
        Ok(Self { levels: vec![Level { parent: None, nodes, last: None }] })
    }

    /// The next records to remove, in this order; None at the end.
    pub async fn step(&mut self, store: &dyn Store, partition: u32) -> Result<Option<Vec<(TaskId, TaskRecord)>>, StoreError> {
        let mut gone = Vec::new();
        while gone.len() < STEP
            && let Some(level) = self.levels.last_mut()
        {
            match (level.nodes.pop_front(), level.last.take()) {
                (Some((id, node)), last) => {
                    level.last = last;
                    if node.has_below {
                        self.levels.push(Level::below(id, node, store, partition).await?);
                    } else {
                        gone.push((id, node));
                    }
                }
                (None, Some(last)) => level.read(Some(&last), store, partition).await?,
                (None, None) => gone.extend(self.levels.pop().and_then(|level| level.parent)),
            }
        }
        Ok((!gone.is_empty()).then_some(gone))
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
        // Without a record there is still its place in the index.
        let node = |(entry, node): (Entry, Option<TaskRecord>)| {
            (entry.id, node.unwrap_or_else(|| TaskRecord::expected(1, entry.seen_ms)))
        };
        self.nodes = page.into_iter().zip(found).map(node).collect();
        Ok(())
    }
}
