//! Tasks whose effects must wait: for Kafka, for a time, or for workers to pass a cancel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_model::outbox::{Effect, EffectKind, withdrawal_cause};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_store::Entry;
use tokio::time::Instant;

use super::withdrawals::{CancelProgress, Withdrawals};

/// Minimum deferral of an effect that waits for Kafka, so that others are published meanwhile.
const MIN_DEFERRAL: Duration = Duration::from_secs(3);
/// Deferral per deferred task, which bounds the rate of repeated attempts.
const DEFERRAL_PER_TASK: Duration = Duration::from_millis(20);

/// Deferred effects of one events partition.
pub(super) struct Deferrals {
    withdrawals: Arc<Withdrawals>,
    /// Deferred tasks with their turn, and the end of the deferral.
    until: HashMap<(TaskId, i64), Instant>,
}

impl Deferrals {
    pub(super) fn new(withdrawals: Arc<Withdrawals>) -> Self {
        Self { withdrawals, until: HashMap::new() }
    }

    /// Number of deferred tasks.
    pub(super) fn len(&self) -> usize {
        self.until.len() + self.withdrawals.len()
    }

    /// Selects the tasks to plan now. Excludes deferred tasks, and limits those with only the withdrawal of a cancel
    /// left to the number that can be published.
    pub(super) fn ready(
        &self,
        entries: &[Entry],
        is_published: impl Fn(&TaskId, &str) -> bool,
        limit: usize,
    ) -> Vec<TaskId> {
        let mut withdrawn = 0;
        let is_ready = |entry: &&Entry| {
            let key = (entry.id.clone(), entry.seen_ms);
            if self.until.contains_key(&key) {
                return false;
            }
            let Some(cause) = withdrawal_cause(entry.seen_ms) else { return true };
            match self.withdrawals.progress(&key) {
                Some(CancelProgress::Waiting) => false,
                Some(CancelProgress::Passed) => {
                    withdrawn += 1;
                    withdrawn <= limit
                }
                None => {
                    !is_published(&entry.id, &Effect { cause, kind: EffectKind::WithdrawCancel { due_ms: 0 } }.id())
                }
            }
        };
        entries.iter().filter(is_ready).map(|entry| entry.id.clone()).collect()
    }

    /// Drops ended deferrals, and cancels without pending effects.
    pub(super) fn retain_only(&mut self, entries: &[Entry]) {
        self.withdrawals.retain_only(entries);
        self.until.retain(|_, until| *until > Instant::now());
    }

    /// Defers a task that has no other effects than the deferred ones. The withdrawal of a cancel has a turn of its
    /// own and does not count.
    pub(super) fn defer(&mut self, id: &TaskId, task: &TaskRecord) {
        let others =
            task.effects.iter().filter(|effect| !matches!(effect.kind, EffectKind::WithdrawCancel { .. })).count();
        if let 0 | 1 = others {
            let wait = MIN_DEFERRAL.max(DEFERRAL_PER_TASK.saturating_mul(self.until.len() as u32));
            self.defer_for(id, task, wait);
        }
    }

    /// Defers a task for this time, at most for [`MIN_DEFERRAL`].
    pub(super) fn defer_until(&mut self, id: &TaskId, task: &TaskRecord, wait: Duration) {
        self.defer_for(id, task, wait.min(MIN_DEFERRAL));
    }

    fn defer_for(&mut self, id: &TaskId, task: &TaskRecord, wait: Duration) {
        if let Some(turn) = task.turn() {
            self.until.insert((id.clone(), turn), Instant::now() + wait);
        }
    }

    /// Returns true, once, if workers have passed the cancel of a task. Otherwise requests its progress.
    pub(super) fn take_passed(&self, id: &TaskId, task: &TaskRecord) -> bool {
        let Some(key) = task.turn().map(|turn| (id.clone(), turn)) else { return false };
        match self.withdrawals.progress(&key) {
            Some(CancelProgress::Passed) => self.withdrawals.forget(&key),
            Some(CancelProgress::Waiting) => return false,
            None => {
                self.withdrawals.request(key);
                return false;
            }
        }
        true
    }
}
