//! Cyclic integrity check of a partition's records: compares index, record, children and timers, some records per step.
//!
//! Runs between two batches of the partition task, so nothing changes meanwhile. Memory is bounded to one page of
//! parents per level of a tree.

use std::time::Duration;

use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index, IndexedTask, PartitionWriter, StoreError};
use tokio::time::Instant;

/// Records compared per step.
const STEP_RECORDS: usize = 250;
/// Queries per step.
const STEP_QUERIES: usize = 16;
/// Consecutive refolds of a partition for the same difference. Beyond that, the store is not the cause.
const MAX_REFOLDS: u32 = 3;
/// Time after which the check goes on then.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3_600);

/// Position within a cycle.
#[derive(Default)]
pub(crate) struct IntegrityCheck {
    /// Indexes still to read; the last one is next.
    pending: Vec<Visit>,
}

/// Result of a step.
#[derive(Debug, Default)]
pub(crate) struct ComparisonResult {
    pub records: u64,
    /// Description of a difference.
    pub fault: Option<String>,
}

struct Visit {
    /// `None` for the roots.
    parent: Option<TaskId>,
    after: Option<Entry>,
}

/// History of differences.
#[derive(Default)]
pub(crate) struct Losses {
    last: String,
    repeated: u32,
    paused: Option<Instant>,
}

impl Losses {
    /// Returns true while the check is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some_and(|since| since.elapsed() < RECHECK_INTERVAL)
    }

    /// Records a difference and returns whether to fold the partition again.
    pub(crate) fn record(&mut self, fault: &str) -> bool {
        let is_same = self.last == fault;
        self.repeated = if is_same { self.repeated + 1 } else { 1 };
        fault.clone_into(&mut self.last);
        let is_many = self.repeated > MAX_REFOLDS;
        self.paused = is_many.then(Instant::now);
        !is_many
    }
}

impl IntegrityCheck {
    /// Compares the next records.
    pub(crate) async fn step(&mut self, writer: &mut dyn PartitionWriter) -> Result<ComparisonResult, StoreError> {
        let (mut budget, mut compared) = (STEP_RECORDS, ComparisonResult::default());
        for _ in 0..STEP_QUERIES {
            let visit = self.pending.pop().unwrap_or(Visit { parent: None, after: None });
            let index = visit.parent.clone().map_or(Index::Roots, Index::Children);
            let page = writer.indexed_tasks(&index, visit.after.as_ref(), budget).await?;
            compared.records += page.tasks.len() as u64;
            compared.fault = page.tasks.iter().find_map(IndexedTask::fault);
            budget = budget.saturating_sub(page.tasks.len());
            if let Some(last) = page.tasks.last().filter(|_| page.more) {
                self.pending.push(Visit { parent: visit.parent, after: Some(last.entry.clone()) });
            }
            let parents = page.tasks.into_iter().filter(|task| task.children > 0);
            self.pending.extend(parents.map(|task| Visit { parent: Some(task.entry.id), after: None }));
            // End of a cycle, or of this step.
            if compared.fault.is_some() || self.pending.is_empty() || budget == 0 {
                break;
            }
        }
        Ok(compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_difference_pauses_the_check() {
        let mut losses = Losses::default();
        assert!(["a", "a", "b", "a", "a", "a"].iter().all(|fault| losses.record(fault)));
        assert!(!losses.record("a") && losses.is_paused());
        tokio::time::advance(RECHECK_INTERVAL).await;
        assert!(!losses.is_paused(), "the pause has ended");
        assert!(losses.record("b"));
    }
}
