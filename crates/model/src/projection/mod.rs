//! Projection of events into task records, the fold: a pure function of the log.
//!
//! A [`WorkingSet`] holds the records that a batch of events needs: the tasks of the events and all their ancestors,
//! which follow from the ids. Each event changes the record of its own task, and then the records above it, because the
//! state of a parent depends on its children. Out come [`Changes`](changes::Changes): records, index entries, counters
//! and log lines, which the store applies in one atomic step together with the checkpoint. Work that remains to be
//! done, such as a release, a continuation or a callback, is stored in the record as a timer or an effect; the outbox
//! of the tracker publishes it.
//!
//! Invariant: all decisions derive from events, offsets and append times. Projecting a log again, in other batches and
//! at another time, gives the same records. Without it a rebuilt store would differ from the lost one, and the outbox
//! would publish other tasks than before.
//!
//! Read next: `step.rs` (one event on the record of its own task), `state_machine.rs`, then `fold.rs` (consequences in
//! the tree).

use std::sync::atomic::AtomicI64;

use crate::retention::Lifetimes;
use crate::task::id::TaskId;

pub use expiry::ExpiryOutcome;
pub use indexed_fields::IndexedFields;
pub use step::CONFLICT;
pub use unique_keys::{CLEAR_ACTION, UniqueKeys};
pub use working_set::WorkingSet;

mod attachments;
pub mod audit;
pub mod changes;
mod child_failures;
mod continuations;
mod deferred_record;
mod diff;
mod expiry;
mod fold;
mod history;
mod indexed_fields;
mod interruptions;
mod load_set;
mod notifications;
mod records;
mod refresh;
mod reports;
mod requests;
mod state_machine;
mod step;
mod step_outcome;
mod tally;
#[cfg(test)]
mod tests;
mod unique;
mod unique_keys;
mod working_set;

/// Version of the projection and of the stored formats. A store written by a higher version is left alone.
pub const FOLD_VERSION: u32 = 20;

/// Position of an event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub offset: i64,
    /// The highest append time seen in the partition, epoch milliseconds.
    pub log_time_ms: i64,
}

/// Effect of an event on the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    /// Recorded in the history without any change: a duplicate, an event of an older run, a report after the end.
    Ignored,
    /// Ignored: the task has no record and the kind does not create one, or the run is out of range.
    NoRecord,
}

/// Event that causes a change.
#[derive(Clone, Copy)]
struct Cause<'a> {
    id: &'a TaskId,
    at_ms: i64,
    position: LogPosition,
    ages: &'a Ages,
}

/// Lifetimes in force, and earliest expiry among the changed records.
struct Ages {
    lifetimes: Lifetimes,
    /// Earliest expiry by log time among records changed since [`WorkingSet::clear_due`].
    soonest_ms: AtomicI64,
}

impl Ages {
    fn new(lifetimes: Lifetimes, soonest_ms: i64) -> Self {
        Self { lifetimes, soonest_ms: soonest_ms.into() }
    }
}
