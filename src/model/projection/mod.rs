//! Projection of events into task records: a pure function of the log.
//!
//! A [`WorkingSet`] contains the records that a batch needs. Events are folded into it one by one; the resulting
//! [`Changes`](changes::Changes) are applied to the store together with the checkpoint. All decisions derive from the
//! log (events, offsets, append times), so that projecting it again gives the same result.

use std::sync::atomic::AtomicI64;

use crate::model::retention::Lifetimes;
use crate::model::task::id::TaskId;

pub use diff::IndexedFields;
pub use expiry::Expired;
pub use step::CONFLICT;
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
pub(crate) mod tests;
mod working_set;

/// Version of the projection and of the stored formats. A store written by a higher version is left alone.
pub const FOLD_VERSION: u32 = 16;

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
struct Change<'a> {
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
