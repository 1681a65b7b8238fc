//! Descendants of a task that explain its state, found by a bounded number of reads.

use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};

use super::consistency::TaskView;
use super::reads::Reads;
use crate::http::problem::ApiError;

/// Children read at a time.
const PAGE: usize = 200;

/// Reads of the descendants of a task that end after a number of tasks.
pub(crate) struct Inspection<'a> {
    reads: &'a Reads,
    /// Partition of the tree.
    partition: u32,
    /// Maximum number of tasks that are inspected.
    max: usize,
    /// Number of tasks that were inspected.
    pub inspected: usize,
}

impl<'a> Inspection<'a> {
    pub(crate) const fn new(reads: &'a Reads, partition: u32, max: usize) -> Self {
        Self { reads, partition, max, inspected: 0 }
    }

    /// Reads pages of children until `enough` are in a selected state.
    pub(crate) async fn children(
        &mut self,
        parent: &TaskId,
        enough: usize,
        is_selected: impl Fn(State) -> bool,
    ) -> Result<Vec<TaskView>, ApiError> {
        let (index, mut after, mut some) = (Index::Children(parent.clone()), None::<Entry>, Vec::new());
        while self.inspected < self.max && some.len() < enough {
            let entries = self.reads.page(self.partition, &index, after.as_ref(), PAGE).await?;
            let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
            self.inspected += ids.len();
            let read = self.reads.read_many(self.partition, &ids).await?.into_iter().flatten();
            some.extend(read.filter(|child| !child.superseded && is_selected(child.record.state)));
            if entries.len() < PAGE {
                break;
            }
            after = entries.into_iter().next_back();
        }
        Ok(some)
    }

    /// Descends from a task to the descendant that has a selected state by itself, and so decided that of the others. If there
    /// is none among the inspected tasks, returns the deepest one that has such a state through a task below it.
    pub(crate) async fn deciding_descendant(
        &mut self,
        top: &TaskId,
        is_selected: impl Fn(State) -> bool,
    ) -> Result<Option<TaskView>, ApiError> {
        let (mut parent, mut deepest) = (top.clone(), None);
        while let Some(child) = self.children(&parent, 1, &is_selected).await?.into_iter().next() {
            parent = child.id.clone();
            let has_decided = is_selected(child.record.own);
            deepest = Some(child);
            if has_decided {
                break;
            }
        }
        Ok(deepest)
    }
}
