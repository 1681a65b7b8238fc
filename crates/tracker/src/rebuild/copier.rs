//! Folds one partition into the new store, compares it with the source, and continues until a tracker takes it over.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kafleet_broker::{Partition, Watermarks};
use kafleet_runtime::Backoff;
use kafleet_runtime::error_text::single_line;
use kafleet_store::{Checkpoint, StoreError};

use super::verify::{self, Verification};
use super::{Job, RebuildError, RebuildEvent, Report};
use crate::consume::event_batches::EventBatch;
use crate::consume::poll_loop::{PartitionHandle, SeekRequest};
use crate::project::projection::Projection;

/// Interval of checkpoint reads in an idle partition.
const IDLE_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum restarts of a comparison after errors.
const MAX_COMPARISONS: u32 = 5;

/// Reason why a session ended.
pub(super) enum CopyEnd {
    Stopped,
    /// A tracker has claimed the partition.
    TakenOver,
    /// The checkpoint must be read again.
    Again(String),
    /// The whole rebuild must end.
    Over(String),
}

pub(super) struct Copier {
    pub(super) job: Arc<Job>,
    pub(super) number: u32,
    handle: PartitionHandle,
    /// Remainder of a batch that was folded in part.
    rest: Option<EventBatch>,
    /// This rebuild has claimed the partition.
    claimed: bool,
    compared: bool,
    comparisons: u32,
}

impl Copier {
    pub(super) fn new(job: Arc<Job>, handle: PartitionHandle) -> Self {
        let number = handle.number.unsigned_abs();
        Self { job, number, handle, rest: None, claimed: false, compared: false, comparisons: 0 }
    }

    pub(super) async fn run(mut self) {
        let stop = self.handle.stop.clone();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let end = tokio::select! {
                biased;
                () = stop.cancelled() => CopyEnd::Stopped,
                end = self.session() => end,
            };
            match end {
                CopyEnd::Stopped => return,
                CopyEnd::TakenOver => return self.taken_over(),
                CopyEnd::Over(error) => return self.report(Report::Over(RebuildError::Unsuitable(error))),
                CopyEnd::Again(error) => {
                    tracing::warn!(
                        partition = self.number,
                        error = single_line(&error),
                        "rebuild of a partition interrupted; continuing from its checkpoint"
                    );
                    let wait = backoff.next_wait();
                    tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(wait) => {} }
                }
            }
        }
    }

    fn taken_over(&mut self) {
        if !self.compared {
            let error = "a tracker took it over before it was compared".to_owned();
            self.report(Report::RebuildEvent(RebuildEvent::Unverified { partition: self.number, error }));
        }
        self.report(Report::RebuildEvent(RebuildEvent::TakenOver { partition: self.number }));
    }

    fn report(&self, report: Report) {
        // The receiver is dropped when the rebuild ends.
        let _ = self.job.reports.send(report);
    }

    /// Runs from one read of the checkpoint to the next.
    async fn session(&mut self) -> CopyEnd {
        match self.fold().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn fold(&mut self) -> Result<std::convert::Infallible, CopyEnd> {
        let (first, store) = (self.watermarks().await?.low, self.job.setup.tracker.store.clone());
        let mut projection = Projection::open(store, self.number).await.map_err(|error| self.end_of(error))?;
        self.check_owner(projection.checkpoint())?;
        projection.claim(self.job.plan.number, first).await.map_err(|error| self.end_of(error))?;
        self.claimed = true;
        let start = projection.checkpoint().map_or(first, |checkpoint| checkpoint.offset);
        self.handle.generation += 1;
        self.rest = None;
        let request = SeekRequest { partition: self.handle.number, generation: self.handle.generation, offset: start };
        self.handle.seek_sender.send(request).map_err(|_| CopyEnd::Stopped)?;
        loop {
            if !self.compared && projection.checkpoint().is_some_and(|checkpoint| checkpoint.offset >= self.goal()) {
                self.compare(&mut projection).await?;
            }
            self.advance(&mut projection, None).await?;
        }
    }

    /// End of the log at the start of the rebuild.
    fn goal(&self) -> i64 {
        let task = self.job.plan.partitions.iter().find(|task| task.number == self.number);
        task.map_or(0, |task| task.end)
    }

    /// Checks the owner of the partition.
    fn check_owner(&self, current: Option<Checkpoint>) -> Result<(), CopyEnd> {
        match current {
            Some(Checkpoint { rebuild: 0, .. }) => Err(CopyEnd::TakenOver),
            Some(checkpoint)
                if checkpoint.rebuild > self.job.plan.number
                    || (checkpoint.rebuild == self.job.plan.number && !self.claimed) =>
            {
                Err(CopyEnd::Over(
                    "another rebuild into this store was started: this one ends, the other one continues".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn end_of(&self, error: StoreError) -> CopyEnd {
        let message = error.to_string();
        match error {
            StoreError::Conflict { stored } => self.check_owner(stored).err().unwrap_or(CopyEnd::Again(message)),
            StoreError::Unavailable(_) | StoreError::Damaged(_) | StoreError::Emptied(_) => CopyEnd::Again(message),
            StoreError::Misconfigured(_) | StoreError::Invalid(_) => CopyEnd::Over(message),
        }
    }

    pub(super) async fn watermarks(&self) -> Result<Watermarks, CopyEnd> {
        let setup = &self.job.setup.tracker;
        let partition = Partition::new(setup.topology.names.events(), self.handle.number);
        setup.broker.client().watermarks(&partition).await.map_err(|error| CopyEnd::Again(error.to_string()))
    }

    /// Folds the next batch, at most up to `until`.
    pub(super) async fn advance(&mut self, projection: &mut Projection, until: Option<i64>) -> Result<(), CopyEnd> {
        let Some(batch) = self.next_batch(projection.checkpoint()).await? else { return Ok(()) };
        let (batch, rest) = split(batch, until);
        self.rest = rest;
        let checkpoint = projection.checkpoint().map_or(0, |checkpoint| checkpoint.offset);
        if batch.next > checkpoint {
            projection.fold(&batch.events, batch.next).await.map_err(|error| self.end_of(error))?;
            self.record_progress(batch.next);
        }
        if let Some(reason) = batch.stop {
            return Err(CopyEnd::Over(format!("partition {}: {reason}", self.number)));
        }
        projection.working_set().shrink(self.job.setup.tracker.config.cache_records);
        Ok(())
    }

    /// Returns `None` if no events arrived and this rebuild still owns the checkpoint.
    async fn next_batch(&mut self, left: Option<Checkpoint>) -> Result<Option<EventBatch>, CopyEnd> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        match tokio::time::timeout(IDLE_READ_INTERVAL, self.handle.batches.recv()).await {
            Ok(Some(batch)) => Ok((batch.generation == self.handle.generation).then_some(batch)),
            Ok(None) => Err(CopyEnd::Stopped),
            Err(_) => {
                let checkpoints = self.job.setup.tracker.store.checkpoints(&[self.number]).await;
                let checkpoint = checkpoints.map_err(|error| self.end_of(error))?.pop().flatten();
                if checkpoint == left {
                    Ok(None)
                } else {
                    Err(self.end_of(StoreError::Conflict { stored: checkpoint }))
                }
            }
        }
    }

    fn record_progress(&self, folded: i64) {
        let index = self.job.plan.partitions.iter().position(|task| task.number == self.number);
        if let Some(part) = index.and_then(|index| self.job.progress.parts.get(index)) {
            part.folded.fetch_max(folded, Relaxed);
        }
    }

    async fn compare(&mut self, projection: &mut Projection) -> Result<(), CopyEnd> {
        let partition = self.number;
        let message = match verify::verify(self, projection).await {
            Ok(Verification::Same(verified)) => RebuildEvent::Verified(verified),
            Ok(Verification::Different(differences)) => RebuildEvent::Differs { partition, differences },
            Ok(Verification::Unknown(error)) => RebuildEvent::Unverified { partition, error },
            Err(CopyEnd::Again(error)) if self.comparisons >= MAX_COMPARISONS => {
                RebuildEvent::Unverified { partition, error }
            }
            Err(CopyEnd::Again(error)) => {
                self.comparisons += 1;
                return Err(CopyEnd::Again(error));
            }
            Err(end) => return Err(end),
        };
        self.compared = true;
        self.report(Report::RebuildEvent(message));
        Ok(())
    }
}

/// Splits a batch at an offset.
fn split(mut batch: EventBatch, until: Option<i64>) -> (EventBatch, Option<EventBatch>) {
    let Some(until) = until.filter(|until| *until < batch.next) else { return (batch, None) };
    let at = batch.events.partition_point(|logged| logged.offset < until);
    let events = batch.events.split_off(at);
    let rest = EventBatch { generation: batch.generation, events, next: batch.next, stop: batch.stop.take() };
    (EventBatch { next: until, ..batch }, Some(rest))
}
