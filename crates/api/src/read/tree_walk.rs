//! Depth-first traversal of a tree: parents before children, siblings oldest first. The cursor is the last task
//! returned; its ancestors follow from its id, so a traversal can resume from there.

use std::collections::VecDeque;

use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};

use super::consistency::TaskView;
use crate::http::problem::{ApiError, Code};
use crate::read::reads::Reads;

/// Children read at a time.
const PAGE: usize = 200;

pub(crate) struct TreeWalk<'a> {
    reads: &'a Reads,
    partition: u32,
    /// Top of the tree, until it has been returned.
    top: Option<TaskView>,
    /// Levels whose children have not all been returned, from the top down.
    levels: Vec<TreeLevel>,
}

struct TreeLevel {
    parent: TaskId,
    after: Option<Entry>,
    ahead: VecDeque<(Entry, TaskView)>,
    exhausted: bool,
}

impl TreeLevel {
    fn new(parent: TaskId, after: Option<Entry>) -> Self {
        Self { parent, after, ahead: VecDeque::new(), exhausted: false }
    }
}

impl<'a> TreeWalk<'a> {
    pub(crate) async fn new(reads: &'a Reads, top: TaskView, after: Option<Entry>) -> Result<Self, ApiError> {
        let mut walk = Self { reads, partition: top.partition, top: None, levels: Vec::new() };
        match after {
            None => walk.top = Some(top),
            Some(after) => walk.resume(&top.id, &after.id).await?,
        }
        Ok(walk)
    }

    /// Returns at most `limit` further tasks. An empty result marks the end.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut tasks = Vec::with_capacity(limit);
        if let Some(top) = self.top.take() {
            let entry = Entry { seen_ms: top.record.times.seen_ms, id: top.id.clone() };
            self.emit(entry, top, &mut tasks);
        }
        while tasks.len() < limit {
            let Some(level) = self.levels.last_mut() else { break };
            if level.ahead.is_empty() && !level.exhausted {
                fill(self.reads, self.partition, level).await?;
            }
            match level.ahead.pop_front() {
                Some((entry, task)) => self.emit(entry, task, &mut tasks),
                None if level.exhausted => drop(self.levels.pop()),
                None => {}
            }
        }
        Ok(tasks)
    }

    fn emit(&mut self, entry: Entry, task: TaskView, tasks: &mut Vec<(Entry, Option<TaskView>)>) {
        if may_have_children(&task) {
            self.levels.push(TreeLevel::new(task.id.clone(), None));
        }
        tasks.push((entry, Some(task)));
    }

    /// Positions the traversal after a task below the top.
    async fn resume(&mut self, top: &TaskId, last: &TaskId) -> Result<(), ApiError> {
        if !last.is_within(top.as_str()) {
            return Err(ApiError::new(
                Code::BadCursor,
                format!("`cursor` belongs to another list than that of `{top}`"),
            ));
        }
        let mut path: Vec<TaskId> = std::iter::successors(Some(last.clone()), |id| id.parent_id())
            .take_while(|id| id.is_within(top.as_str()))
            .collect();
        path.reverse();
        let tasks = self.reads.read_many(self.partition, &path).await?;
        for (step, task) in path.iter().zip(tasks).skip(1) {
            let gone =
                || ApiError::new(Code::BadCursor, format!("the task `{step}` of `cursor` is no longer retained"));
            let entry = Entry { seen_ms: task.ok_or_else(gone)?.record.times.seen_ms, id: step.clone() };
            self.levels.extend(step.parent_id().map(|parent| TreeLevel::new(parent, Some(entry))));
        }
        self.levels.push(TreeLevel::new(last.clone(), None));
        Ok(())
    }
}

/// Whether a task may have children. Children of earlier runs are not counted, so a task past its first run may have
/// some.
pub(crate) fn may_have_children(task: &TaskView) -> bool {
    !task.record.tree.below.is_empty() || task.record.run > 1
}

async fn fill(reads: &Reads, partition: u32, level: &mut TreeLevel) -> Result<(), ApiError> {
    let entries = reads.page(partition, &Index::Children(level.parent.clone()), level.after.as_ref(), PAGE).await?;
    level.exhausted = entries.len() < PAGE;
    level.after = entries.last().cloned().or(level.after.take());
    let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
    let tasks = reads.read_many(partition, &ids).await?;
    level.ahead = entries.into_iter().zip(tasks).filter_map(|(entry, task)| Some((entry, task?))).collect();
    Ok(())
}
