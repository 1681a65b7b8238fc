//! Attempts and waits that the incomplete tasks of a partition have used, as far as commits have them.

use kafleet_broker::Partition;
use kafleet_model::offsets::{Metadata, PendingRetries};

use crate::completions::RecordedRetry;
use crate::decode::Input;

/// Retries of one assignment, for the metadata of its commits.
#[derive(Default)]
pub(crate) struct RetryLog {
    pub pending: PendingRetries,
    /// Sequence number of the last recorded retry, and of the last one in a commit.
    recorded: u64,
    committing: u64,
}

impl RetryLog {
    /// Continues with the retries of the owner before.
    pub(crate) fn resume_from(pending: PendingRetries) -> Self {
        Self { pending, ..Self::default() }
    }

    /// Sets what a delivered task has used in the worker before.
    pub(crate) fn resume(&self, input: &mut Input) {
        if let Some(retry) = self.pending.get(input.offset())
            && let Input::Task(in_flight) = input
        {
            in_flight.resume(retry);
        }
    }

    /// Records the attempts and waits that the task at an offset has used.
    pub(crate) fn record(&mut self, offset: i64, recorded: &RecordedRetry) {
        self.pending.insert(offset, recorded.retry);
        self.recorded = recorded.sequence;
    }

    /// Forgets a task that is complete.
    pub(crate) fn complete(&mut self, offset: i64) {
        if !self.pending.is_empty() {
            self.pending.remove(offset);
        }
    }

    /// Forgets the tasks below the watermark, such as those that Kafka's retention has removed.
    pub(crate) fn complete_below(&mut self, watermark: i64) {
        if !self.pending.is_empty() {
            self.pending.remove_below(watermark);
        }
    }

    /// Returns whether a commit is due soon, because the next attempts of tasks wait for it.
    pub(crate) fn is_uncommitted(&self) -> bool {
        self.recorded > self.committing
    }

    /// Registers a commit. Returns the sequence number of the last retry that is new in it; 0: there is none.
    pub(crate) fn begin_commit(&mut self) -> u64 {
        let new = if self.is_uncommitted() { self.recorded } else { 0 };
        self.committing = self.recorded;
        new
    }

    /// Registers a failed commit, which has to be repeated.
    pub(crate) fn commit_failed(&mut self) {
        self.committing = 0;
    }

    /// Reports tasks whose attempts are counted from their records again with the next owner, because the metadata of the
    /// last commit has no room for them.
    pub(crate) fn report_forgotten(&self, partition: &Partition, watermark: i64, metadata: &str) {
        if self.pending.is_empty() {
            return;
        }
        let kept = Metadata::decode(watermark, metadata).map_or(0, |metadata| metadata.retries.len());
        let tasks = self.pending.len().saturating_sub(kept);
        if tasks > 0 {
            let message = "too many tasks wait for a retry: the attempts of some are counted from their records again";
            tracing::warn!(%partition, tasks, "{message}");
        }
    }
}
