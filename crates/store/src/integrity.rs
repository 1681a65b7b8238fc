//! Integrity checks of a partition: finds keys that were evicted, expired or deleted by another client.
//!
//! Between two batches the writer compares indexes, records and counters. They all change atomically with the
//! checkpoint, so they agree at every checkpoint, and a difference means that keys were lost.

use kafleet_model::projection::IndexedFields;
use kafleet_model::projection::changes::{Changes, Entry, Index};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::children_of;
use kafleet_model::record::state::State;

/// Indexes whose sizes are tracked separately.
pub const SIZED: [Index; 4] = [Index::Roots, Index::Timers, Index::Effects, Index::Ages];

/// Expected sizes of indexes and counters, stored separately so that they can be compared with the actual sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Entries per index, in the order of [`SIZED`].
    pub entries: [i64; SIZED.len()],
    /// Sum of all counters.
    pub tasks: i64,
    /// Open tasks by the statistics: opened, less ended and dropped.
    pub open: i64,
    /// Tasks in [`Index::Failed`], which are in two each: by error and by kind.
    pub failed: i64,
}

/// Largest groups of failed tasks per type whose sizes are compared.
pub const COMPARED_GROUPS: usize = 200;

/// Returns true if tasks in this state are open: their own state is pending.
pub fn is_open(state: State) -> bool {
    !state.is_terminal() && state != State::WaitingForChildren
}

impl Sizes {
    /// Changes in size made by a batch.
    pub fn of(changes: &Changes) -> Self {
        let mut sizes = Self {
            tasks: changes.counts.iter().map(|(_, _, change)| change).sum(),
            open: changes.statistics.open,
            failed: changes.errors.iter().map(|(_, _, change)| change).sum(),
            ..Self::default()
        };
        for (entries, step) in [(&changes.added, 1), (&changes.removed, -1)] {
            for (index, _) in entries {
                if let Some(number) = SIZED.iter().position(|sized| sized == index) {
                    sizes.entries[number] += step;
                }
            }
        }
        sizes
    }
}

/// Task of an index: its entry and the presence of its related keys, as of one checkpoint.
#[derive(Clone, Debug)]
pub struct IndexedTask {
    pub entry: Entry,
    /// `None` if the record is missing.
    pub task: Option<TaskRecord>,
    /// Entries in the index of the task's children.
    pub children: u64,
    /// Scores of the task in the timer, effect and age indexes.
    pub timer: Option<i64>,
    pub effect: Option<i64>,
    pub age: Option<i64>,
    /// Presence of the task's deferred record, log and attachments.
    pub has_deferred: bool,
    pub has_log: bool,
    pub has_attachments: bool,
    /// The record has a TTL, which kafleet never sets.
    pub expires: bool,
}

/// A page of an index in its stored order.
#[derive(Clone, Debug, Default)]
pub struct IntegrityPage {
    pub tasks: Vec<IndexedTask>,
    /// Further entries follow.
    pub more: bool,
}

impl IndexedTask {
    /// Describes the first inconsistency, or `None` if the task's keys are consistent.
    pub fn fault(&self) -> Option<String> {
        let id = &self.entry.id;
        let Some(task) = &self.task else {
            return Some(format!("the record of `{id}` is missing, but an index contains it"));
        };
        let placed = IndexedFields::of(task);
        let counted = children_of(&task.tree.below).0.total();
        let wrong = if self.expires {
            "has a TTL that kafleet has not set".to_owned()
        } else if self.children < counted.max(u64::from(task.tree.has_below)) {
            format!("has {counted} children, and the index of its children holds {}", self.children)
        } else if (self.timer, self.effect, self.age) != (placed.timer, placed.effect, placed.age) {
            "disagrees with the timer, effect and age indexes".to_owned()
        } else if placed.has_deferred != self.has_deferred {
            "disagrees with its deferred record, which is missing or left over".to_owned()
        } else if task.log.lines > 0 && !self.has_log {
            "has log lines, but its log is missing".to_owned()
        } else if !task.attachments.is_empty() && !self.has_attachments {
            "has attachments, but they are missing".to_owned()
        } else {
            return None;
        };
        Some(format!("the record of `{id}` {wrong}"))
    }
}
