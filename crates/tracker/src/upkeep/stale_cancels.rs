//! Withdraws cancels that have outlived their trees. Runs in the tracker that owns events partition 0. Such a cancel had to
//! wait for workers longer than its tree's records are retained, or its API server stopped while publishing it.
//! Nothing else would remove it, and every worker would read it forever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use kafleet_broker::BrokerError;
use kafleet_fleet::control::{Cancel, ControlKey, ControlNotRead, ControlState, ControlWatch, delete, follow_control};
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::{Checkpoint, StoreError};
use tokio_util::sync::CancellationToken;

use super::ticker::{STEP_RECORDS, TrackerShared};
use crate::error::TrackerError;
use crate::setup::{READ_DEADLINE, TrackerSetup};

/// Kafka removes whole segments by their newest record, so records may exceed the retention by the span of a segment
/// (the default of `segment.ms`).
const SEGMENT_MS: i64 = 7 * 24 * 3_600_000;
/// Ticks between two runs; a failed run is repeated after one tick.
const TICKS_BETWEEN_RUNS: u32 = 60;

pub(crate) struct StaleCancels {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    stop: CancellationToken,
}

impl StaleCancels {
    pub(crate) fn new(setup: Arc<TrackerSetup>, shared: Arc<TrackerShared>, stop: CancellationToken) -> Self {
        Self { setup, shared, stop }
    }

    /// Runs until the session of the partition task ends.
    pub(crate) async fn run(self) {
        let tick = Duration::from(self.setup.config.tick);
        let work = async {
            let mut wait = tick;
            loop {
                tokio::time::sleep(wait).await;
                wait = match self.withdraw_stale().await {
                    Ok(()) => tick.saturating_mul(TICKS_BETWEEN_RUNS),
                    Err(error) => {
                        tracing::debug!(reason = %error, "cannot determine which cancels have outlived their trees; retrying");
                        tick
                    }
                };
            }
        };
        self.stop.run_until_cancelled(work).await;
    }

    async fn withdraw_stale(&self) -> Result<(), TrackerError> {
        for (number, cancels) in self.cancels().await? {
            let Some(checkpoint) = self.checkpoint(number).await? else { continue };
            let old: Vec<TaskId> =
                cancels.into_iter().filter(|(_, cancel)| self.is_old(cancel, &checkpoint)).map(|(id, _)| id).collect();
            for ids in old.chunks(STEP_RECORDS) {
                let tasks = self.setup.store.task_records(number, ids).await?;
                // A store that has lost writes may lack the tree.
                if self.checkpoint(number).await?.is_none_or(|now| now.offset < checkpoint.offset) {
                    return Err(TrackerError::LostWrites);
                }
                let missing = ids.iter().zip(tasks).filter(|(_, task)| task.is_none()).map(|(id, _)| id);
                self.withdraw(missing).await?;
            }
        }
        Ok(())
    }

    async fn withdraw(&self, ids: impl Iterator<Item = &TaskId>) -> Result<(), TrackerError> {
        let producer = self.shared.producer(&self.setup).await?;
        let withdrawn = ids.map(|id| async move {
            delete(producer, &self.setup.topology.names, &ControlKey::Cancel(id.to_string())).await?;
            tracing::info!(task = %id, "withdrew a cancel that has outlived its tree");
            Ok::<_, BrokerError>(())
        });
        try_join_all(withdrawn).await?;
        Ok(())
    }

    /// Reads all cancels on the control topic, grouped by the events partition of the tree.
    async fn cancels(&self) -> Result<BTreeMap<u32, Vec<(TaskId, Cancel)>>, ControlNotRead> {
        let control = ControlWatch::new(ControlState::default());
        let _follower = follow_control(control.clone(), self.setup.broker.clone(), &self.setup.topology.names, None);
        control.wait_until_read_within(READ_DEADLINE, &self.setup.topology.names).await?;
        let mut all: BTreeMap<u32, Vec<(TaskId, Cancel)>> = BTreeMap::new();
        for (id, cancel) in control.state().cancels() {
            if let Ok(id) = TaskId::parse(id) {
                let number = self.setup.topology.partition_of(&id);
                all.entry(number).or_default().push((id, cancel.clone()));
            }
        }
        Ok(all)
    }

    async fn checkpoint(&self, number: u32) -> Result<Option<Checkpoint>, StoreError> {
        Ok(self.setup.store.checkpoints(&[number]).await?.pop().flatten())
    }

    /// Returns true if the projection has passed the cancel and Kafka no longer retains any task to which it could apply.
    fn is_old(&self, cancel: &Cancel, checkpoint: &Checkpoint) -> bool {
        let is_projected = cancel.at_ms > 0 && checkpoint.offset > cancel.asof;
        let retained_ms = self.setup.task_retention.as_i64().saturating_add(SEGMENT_MS);
        is_projected && now_ms().saturating_sub(cancel.at_ms) > retained_ms
    }
}
