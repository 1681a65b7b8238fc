//! Goes round the records of a partition, a few at a time, and compares what is stored: index, record, children, timers.
//!
//! It runs between two batches of the folder that writes the partition, so nothing changes meanwhile. Its memory is bounded: per
//! level of a tree at most one page of parents waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::task::id::TaskId;
use crate::store::{Audited, Entry, Index, PartitionWriter, StoreError};

/// Records compared in one step.
const RECORDS: usize = 250;
/// Queries of one step.
const QUERIES: usize = 16;
/// Times in a row that a partition is folded anew for the same difference. More often, it is not the store that is wrong.
const REPEATS: u32 = 3;
/// For how long a partition is left alone then.
const PAUSE: Duration = Duration::from_secs(3_600);

/// The place in a round.
#[derive(Default)]
pub struct StoreAudit {
    /// Indexes still to be read, the next one last.
    ahead: Vec<Visit>,
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub struct Compared {
    pub records: u64,
    /// What is missing or differs.
    pub fault: Option<String>,
}

struct Visit {
    /// None: the roots.
    parent: Option<TaskId>,
    after: Option<Entry>,
}

/// The differences found lately.
#[derive(Default)]
pub struct Losses {
    last: String,
    repeated: u32,
    paused: Option<Instant>,
}

impl Losses {
    /// Records are not compared for now.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some_and(|since| since.elapsed() < PAUSE)
    }

    /// Takes note of a difference, and says whether to fold anew for it.
    pub fn add(&mut self, fault: &str) -> bool {
        let is_same = self.last == fault;
        self.repeated = if is_same { self.repeated + 1 } else { 1 };
        fault.clone_into(&mut self.last);
        let is_many = self.repeated > REPEATS;
        self.paused = is_many.then(Instant::now);
        !is_many
    }
}

impl StoreAudit {
    /// Compares some more records.
    pub async fn step(&mut self, writer: &mut dyn PartitionWriter) -> Result<Compared, StoreError> {
        let (mut left, mut compared) = (RECORDS, Compared::default());
        for _ in 0..QUERIES {
            let visit = self.ahead.pop().unwrap_or(Visit { parent: None, after: None });
            let index = visit.parent.clone().map_or(Index::Roots, Index::Children);
            let page = writer.audit(&index, visit.after.as_ref(), left).await?;
            compared.records += page.tasks.len() as u64;
            compared.fault = page.tasks.iter().find_map(Audited::fault);
            left = left.saturating_sub(page.tasks.len());
            if let Some(last) = page.tasks.last().filter(|_| page.more) {
                self.ahead.push(Visit { parent: visit.parent, after: Some(last.entry.clone()) });
            }
            let parents = page.tasks.into_iter().filter(|task| task.children > 0);
            self.ahead.extend(parents.map(|task| Visit { parent: Some(task.entry.id), after: None }));
            // The end of a round, or of this step.
            if compared.fault.is_some() || self.ahead.is_empty() || left == 0 {
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
    async fn same_difference_again_and_again_is_left_alone_for_a_while() {
        let mut losses = Losses::default();
        assert!(["a", "a", "b", "a", "a", "a"].iter().all(|fault| losses.add(fault)));
        assert!(!losses.add("a") && losses.is_paused());
        tokio::time::advance(PAUSE).await;
        assert!(!losses.is_paused(), "it is compared again");
        assert!(losses.add("b"));
    }
}
