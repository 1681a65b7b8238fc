//! All trees, newest first, each in depth-first order.

use std::collections::VecDeque;

use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::read::merge::Merge;
use crate::read::reads::Reads;
use crate::read::tree_walk::{TreeWalk, may_have_children};

/// Roots read at a time.
const PAGE: usize = 100;

/// Cursor over all trees. Its positions consist of the id of a task and the time at which the task's root was first
/// seen.
pub(super) struct AllTrees<'a> {
    reads: &'a Reads,
    roots: Merge<'a>,
    /// Roots that have been read but not visited.
    ahead: VecDeque<(Entry, Option<TaskView>)>,
    /// Current tree, and the time at which its root was first seen.
    tree: Option<(i64, TreeWalk<'a>)>,
}

impl<'a> AllTrees<'a> {
    /// Starts after the task `after`, or after its whole tree if the tree has been removed. `after` may also be the end
    /// of a time range, which names no task.
    pub(super) async fn new(reads: &'a Reads, after: Option<Entry>) -> Result<Self, ApiError> {
        let root = after.as_ref().and_then(|after| TaskId::parse(after.id.root()).ok());
        let mut tree = None;
        if let (Some(after), Some(root)) = (&after, &root)
            && let Some(top) = read_present(reads, root).await?
        {
            match TreeWalk::new(reads, top, Some(after.clone())).await {
                Ok(tree_walk) => tree = Some((after.seen_ms, tree_walk)),
                // The task of the cursor has been removed meanwhile, with the rest of its tree.
                Err(error) if error.is(Code::BadCursor) => {}
                Err(error) => return Err(error),
            }
        }
        let behind = after.and_then(|after| Some(Entry { seen_ms: after.seen_ms, id: root? }));
        Ok(Self { reads, roots: Merge::new(reads, vec![Index::Roots], behind, PAGE), ahead: VecDeque::new(), tree })
    }

    pub(super) async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut tasks = Vec::with_capacity(limit);
        while tasks.len() < limit {
            if let Some((seen_ms, tree_walk)) = &mut self.tree {
                let (seen_ms, some) = (*seen_ms, tree_walk.next(limit - tasks.len()).await?);
                if some.is_empty() {
                    self.tree = None;
                }
                tasks.extend(some.into_iter().map(|(entry, task)| (Entry { seen_ms, ..entry }, task)));
                continue;
            }
            if self.ahead.is_empty() {
                self.ahead = self.roots.next(PAGE).await?.into();
            }
            match self.ahead.pop_front() {
                None => break,
                Some((entry, Some(root))) if may_have_children(&root) => {
                    self.tree = Some((entry.seen_ms, TreeWalk::new(self.reads, root, None).await?));
                }
                Some(alone) => tasks.push(alone),
            }
        }
        Ok(tasks)
    }
}

/// Reads a record for a list, which reports the partitions that the store does not cover.
async fn read_present(reads: &Reads, id: &TaskId) -> Result<Option<TaskView>, ApiError> {
    let tasks = reads.read_many(reads.topology.partition_of(id), std::slice::from_ref(id)).await?;
    Ok(tasks.into_iter().next().flatten())
}
