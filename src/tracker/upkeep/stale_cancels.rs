//! Beside the first partition's folder: takes back cancels that have outlived their trees. A cancel that had to wait for
//! workers that stayed away longer than its tree's records, or whose api died as it told the workers, is nobody's any more,
//! and every worker would read it for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

use super::ticker::{STEP, TrackerShared};
use crate::broker::BrokerError;
use crate::control::{Cancel, ControlKey, ControlState, ControlWatch, keep, withdraw};
use crate::model::task::id::TaskId;
use crate::model::task::partition::partition_of;
use crate::runtime::now_ms;
use crate::store::Checkpoint;
use crate::tracker::{READ_DEADLINE, TrackerSetup};

/// Kafka removes whole segments, by the newest record of each; the oldest may be older by what a segment may span
/// (`segment.ms`, where nobody has set it).
const SEGMENT_MS: i64 = 7 * 24 * 3_600_000;
/// Ticks between two looks; after one that failed, a single one.
const TICKS: u32 = 60;

pub struct StaleCancels {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    stop: CancellationToken,
}

impl StaleCancels {
    pub fn new(setup: Arc<TrackerSetup>, shared: Arc<TrackerShared>, stop: CancellationToken) -> Self {
        Self { setup, shared, stop }
    }

    /// Until the folder's session ends.
    pub async fn run(self) {
        let tick = Duration::from(self.setup.config.tick);
        let looking = async {
            let mut rest = tick;
            loop {
                tokio::time::sleep(rest).await;
                rest = match self.take_back().await {
                    Ok(()) => tick.saturating_mul(TICKS),
                    Err(why) => {
                        tracing::debug!(reason = %why, "it could not be seen which cancels have outlived their trees; trying again");
                        tick
                    }
                };
            }
        };
        self.stop.run_until_cancelled(looking).await;
    }

    async fn take_back(&self) -> Result<(), String> {
        for (number, cancels) in self.cancels().await? {
            let Some(fence) = self.fence(number).await? else { continue };
            let old: Vec<TaskId> =
                cancels.into_iter().filter(|(_, cancel)| self.is_old(cancel, &fence)).map(|(id, _)| id).collect();
            for ids in old.chunks(STEP) {
                let nodes = self.setup.store.nodes(number, ids).await.map_err(|error| error.to_string())?;
                // A store that loses what was folded knows no tree.
                if self.fence(number).await?.is_none_or(|now| now.offset < fence.offset) {
                    return Err("the store has lost what was folded".to_owned());
                }
                let link = self.shared.link(&self.setup).await?;
                let gone = ids.iter().zip(nodes).filter(|(_, node)| node.is_none()).map(|(id, _)| async move {
                    withdraw(link, &self.setup.names, &ControlKey::Cancel(id.to_string())).await?;
                    tracing::info!(task = %id, "a cancel that has outlived its tree is taken back");
                    Ok::<_, BrokerError>(())
                });
                try_join_all(gone).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// All that workers are told of now, by the events partition of the tree.
    async fn cancels(&self) -> Result<BTreeMap<u32, Vec<(TaskId, Cancel)>>, String> {
        let board = ControlWatch::new(ControlState::default());
        let _reading = keep(board.clone(), self.setup.broker.clone(), &self.setup.names, None);
        board.whole_within(READ_DEADLINE, &self.setup.names).await?;
        let mut all: BTreeMap<u32, Vec<(TaskId, Cancel)>> = BTreeMap::new();
        for (id, cancel) in board.orders().cancels() {
            if let Ok(id) = TaskId::parse(id) {
                let number = partition_of(id.root().as_bytes(), self.setup.events_partitions);
                all.entry(number).or_default().push((id, cancel.clone()));
            }
        }
        Ok(all)
    }

    async fn fence(&self, number: u32) -> Result<Option<Checkpoint>, String> {
        Ok(self.setup.store.fences(&[number]).await.map_err(|error| error.to_string())?.pop().flatten())
    }

    /// The fold has been past it, and it is so old that Kafka keeps no task any more that it could mean.
    fn is_old(&self, cancel: &Cancel, fence: &Checkpoint) -> bool {
        let known = cancel.at_ms > 0 && fence.offset > cancel.asof;
        let kept_ms = self.setup.task_retention.as_i64().saturating_add(SEGMENT_MS);
        known && now_ms().saturating_sub(cancel.at_ms) > kept_ms
    }
}
