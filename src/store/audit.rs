//! Whether the store still holds what the fold has written: keys may be evicted, expire, or be deleted by others.
//!
//! Whoever writes to a partition compares, between two batches, what its indexes, records and counters say of each other.
//! All of it changes in one step with the fence, so that at every fence they agree, and a difference means that keys are gone.

use crate::model::projection::Placed;
use crate::model::projection::changes::{Changes, Entry, Index};
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;

/// The indexes whose sizes are counted beside them.
pub const SIZED: [Index; 4] = [Index::Roots, Index::Timers, Index::Effects, Index::Ages];

/// Sizes that are kept apart from what they count, to compare with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Entries, in the order of [`SIZED`].
    pub entries: [i64; SIZED.len()],
    /// Tasks in all counters.
    pub tasks: i64,
}

impl Sizes {
    /// What a batch adds.
    pub fn of(changes: &Changes) -> Self {
        let mut sizes = Self { tasks: changes.counts.iter().map(|(_, _, change)| change).sum(), ..Self::default() };
        for (entries, step) in [(&changes.added, 1), (&changes.removed, -1)] {
            for (index, _) in entries {
                if let Some(place) = SIZED.iter().position(|sized| sized == index) {
                    sizes.entries[place] += step;
                }
            }
        }
        sizes
    }
}

/// A task that an index names, and what lies beside its record, at one fence.
#[derive(Clone, Debug)]
pub struct Audited {
    pub entry: Entry,
    /// None: there is no record.
    pub node: Option<TaskRecord>,
    /// Entries in the index of its children.
    pub children: u64,
    /// What the indexes of timers, effects and ages say of it.
    pub timer: Option<i64>,
    pub effect: Option<i64>,
    pub age: Option<i64>,
    /// Whether its kept record, its log and its attachments are there.
    pub has_kept: bool,
    pub has_log: bool,
    pub has_attachments: bool,
    /// The record is to expire.
    pub expires: bool,
}

/// Some entries of an index, in its stored order.
#[derive(Clone, Debug, Default)]
pub struct AuditPage {
    pub tasks: Vec<Audited>,
    /// Entries follow.
    pub more: bool,
}

impl Audited {
    /// What is missing or differs; None if all is as it was written.
    pub fn fault(&self) -> Option<String> {
        let id = &self.entry.id;
        let Some(node) = &self.node else { return Some(format!("the record of `{id}` is missing, which an index names")) };
        let placed = Placed::of(node);
        let counted = children_of(&node.below).0.total();
        let wrong = if self.expires {
            "has an expiry that kafleet has not set".to_owned()
        } else if self.children < counted.max(u64::from(node.has_below)) {
            format!("has {counted} children, and the index of its children holds {}", self.children)
        } else if (self.timer, self.effect, self.age) != (placed.timer, placed.effect, placed.age) {
            "is not in the indexes of what is due as it says".to_owned()
        } else if placed.kept != self.has_kept {
            "waits for its time, and what is to be published then is missing, or the reverse".to_owned()
        } else if node.log_lines > 0 && !self.has_log {
            "has log lines, and its log is missing".to_owned()
        } else if !node.attachments.is_empty() && !self.has_attachments {
            "has attachments, and they are missing".to_owned()
        } else {
            return None;
        };
        Some(format!("the record of `{id}` {wrong}"))
    }
}
