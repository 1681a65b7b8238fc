//! Withdraws commands about tasks that have outlived their purpose: cancels whose trees are gone, and starts of tasks that
//! have started. Runs in the tracker that owns events partition 0. Such a cancel had to wait for workers longer than its
//! tree's records are retained, or its API server stopped while publishing it; a start is left to this. Nothing else would
//! remove them, and every worker would read them forever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use kafleet_broker::BrokerError;
use kafleet_fleet::control::{
    Cancel, ControlKey, ControlNotRead, ControlState, ControlWatch, StartNow, delete, follow_control,
};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::start::NextStart;
use kafleet_runtime::now_ms;
use kafleet_store::{Checkpoint, StoreError};
use tokio_util::sync::CancellationToken;

use super::ticker::{STEP_RECORDS, TrackerShared};
use crate::error::TrackerError;
use crate::setup::{READ_DEADLINE, TrackerSetup};

/// Kafka removes whole segments by their newest record, so records may exceed the retention by the span of a segment
/// (the default of `segment.ms`).
const SEGMENT_MS: i64 = 7 * 24 * 3_600_000;
/// Time for which a start stays after its request: a worker that takes the task over meanwhile ends the same wait again.
const START_KEPT_MS: i64 = 3_600_000;
/// Ticks between two runs; a failed run is repeated after one tick.
const TICKS_BETWEEN_RUNS: u32 = 60;

pub(crate) struct StaleCommands {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    stop: CancellationToken,
}

impl StaleCommands {
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
                        tracing::debug!(reason = %error, "cannot determine which commands have outlived their purpose; retrying");
                        tick
                    }
                };
            }
        };
        self.stop.run_until_cancelled(work).await;
    }

    async fn withdraw_stale(&self) -> Result<(), TrackerError> {
        for (number, commands) in self.commands().await? {
            let Some(checkpoint) = self.checkpoint(number).await? else { continue };
            let is_old = |(_, command): &(TaskId, TaskCommand)| self.is_old(command, &checkpoint);
            let old: Vec<(TaskId, TaskCommand)> = commands.into_iter().filter(is_old).collect();
            for step in old.chunks(STEP_RECORDS) {
                let ids: Vec<TaskId> = step.iter().map(|(id, _)| id.clone()).collect();
                let tasks = self.setup.store.task_records(number, &ids).await?;
                // A store that has lost writes may lack the tree.
                if self.checkpoint(number).await?.is_none_or(|now| now.offset < checkpoint.offset) {
                    return Err(TrackerError::LostWrites);
                }
                let over = step.iter().zip(tasks).filter(|((_, command), task)| command.is_over(task.as_ref()));
                self.withdraw(over.map(|((id, command), _)| command.key(id))).await?;
            }
        }
        Ok(())
    }

    async fn withdraw(&self, keys: impl Iterator<Item = ControlKey>) -> Result<(), TrackerError> {
        let producer = self.shared.producer(&self.setup).await?;
        let withdrawn = keys.map(|key| async move {
            delete(producer, &self.setup.topology.names, &key).await?;
            tracing::info!(%key, "withdrew a command that has outlived its purpose");
            Ok::<_, BrokerError>(())
        });
        try_join_all(withdrawn).await?;
        Ok(())
    }

    /// Reads all cancels and starts on the control topic, grouped by the events partition of the tree.
    async fn commands(&self) -> Result<BTreeMap<u32, Vec<(TaskId, TaskCommand)>>, ControlNotRead> {
        let control = ControlWatch::new(ControlState::default());
        let _follower = follow_control(control.clone(), self.setup.broker.clone(), &self.setup.topology.names, None);
        control.wait_until_read_within(READ_DEADLINE, &self.setup.topology.names).await?;
        let state = control.state();
        let cancels = state.cancels().map(|(id, cancel)| (id, TaskCommand::Cancel(cancel.clone())));
        let starts = state.starts().map(|(id, start)| (id, TaskCommand::Start(start.clone())));
        let mut all: BTreeMap<u32, Vec<(TaskId, TaskCommand)>> = BTreeMap::new();
        for (id, command) in cancels.chain(starts) {
            if let Ok(id) = TaskId::parse(id) {
                all.entry(self.setup.topology.partition_of(&id)).or_default().push((id, command));
            }
        }
        Ok(all)
    }

    async fn checkpoint(&self, number: u32) -> Result<Option<Checkpoint>, StoreError> {
        Ok(self.setup.store.checkpoints(&[number]).await?.pop().flatten())
    }

    /// Returns true if a command may have outlived its purpose: a cancel if the projection has passed it and Kafka no longer
    /// retains any task to which it could apply, a start after some time.
    fn is_old(&self, command: &TaskCommand, checkpoint: &Checkpoint) -> bool {
        let (at_ms, kept_ms) = match command {
            TaskCommand::Cancel(cancel) if checkpoint.offset <= cancel.asof => return false,
            TaskCommand::Cancel(cancel) => {
                (cancel.at_ms, self.setup.task_retention.as_i64().saturating_add(SEGMENT_MS))
            }
            TaskCommand::Start(start) => (start.at_ms, START_KEPT_MS),
        };
        at_ms > 0 && now_ms().saturating_sub(at_ms) > kept_ms
    }
}

/// Command about a task on the control topic.
enum TaskCommand {
    Cancel(Cancel),
    Start(StartNow),
}

impl TaskCommand {
    fn key(&self, id: &TaskId) -> ControlKey {
        match self {
            Self::Cancel(_) => ControlKey::Cancel(id.to_string()),
            Self::Start(_) => ControlKey::Start(id.to_string()),
        }
    }

    /// Returns true if an old command has no effect any more. `task`: record of its task, if the store has it.
    fn is_over(&self, task: Option<&TaskRecord>) -> bool {
        match self {
            Self::Cancel(_) => task.is_none(),
            Self::Start(start) => task.is_none_or(|task| NextStart::of(task) != Ok(start.next_start)),
        }
    }
}
