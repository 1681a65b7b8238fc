//! The task of one events partition: applies batches of events to the store and restarts from the checkpoint on errors.
//!
//! It works in sessions. A session opens the writer of the partition, reads the checkpoint, asks the poll loop to read
//! from that offset, and folds batches. No error is repaired within a session: it ends with a reason ([`SessionEnd`]), and the
//! next one starts from the checkpoint in the store. The outbox relay, the upkeep and, in the first partition,
//! the scheduler are started by a session and end with it.
//!
//! Invariant: the checkpoint in the store is the only authority on which events have been folded. The memory of a
//! session (cached records, published entries) is discarded after a failed write, whose outcome may be unknown; if it
//! were kept, it could overwrite the work of another owner.
//!
//! Read next: `projection.rs` (one batch), `crates/store/src/redis/writer/mod.rs` (one write).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kafleet_broker::{Partition, Watermarks};
use kafleet_fleet::topics::TopicStatus;
use kafleet_model::projection::FOLD_VERSION;
use kafleet_runtime::error_text::single_line;
use kafleet_runtime::{Backoff, watch};
use kafleet_store::{Checkpoint, StoreError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::projection::Projection;
use crate::adaptive::AdaptiveLearner;
use crate::consume::event_batches::EventBatch;
use crate::consume::poll_loop::{PartitionHandle, SeekRequest};
use crate::is_stopped_within;
use crate::outbox::relay::{FoldProgress, OutboxRelay};
use crate::schedules::{OWNER_PARTITION, Schedules};
use crate::setup::TrackerSetup;
use crate::upkeep::integrity_check::{IntegrityCheck, Losses};
use crate::upkeep::stale_commands::StaleCommands;
use crate::upkeep::ticker::{PartitionUpkeep, TrackerShared};

/// Owner number of a tracker, as opposed to a rebuild.
const TRACKER_OWNER: u32 = 0;
/// Maximum number of retries when claiming a partition that a rebuild writes at the same time.
const MAX_CLAIMS: u32 = 100;
/// Wait before a partition that cannot be folded is opened again.
const STUCK_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of checkpoint reads over the readers' connection. In an idle partition they detect an unavailable store
/// or lost writes; in a busy one, batches written to a deposed master that readers do not use.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct PartitionTask {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: i32,
    batches: mpsc::Receiver<EventBatch>,
    seek_sender: mpsc::UnboundedSender<SeekRequest>,
    stop: CancellationToken,
    generation: u64,
    /// Offset of a record that cannot be folded; `None` once a later record was folded.
    stuck_at: Option<i64>,
    /// Reason of a data loss in the store, from its detection to the next successful open.
    lost: Option<String>,
    /// Set while the partition is folded from the beginning of the log.
    refold: Option<Refold>,
    integrity_check: IntegrityCheck,
    losses: Losses,
}

/// A fold from the beginning of the log: the partition is incomplete before it reaches `end`.
struct Refold {
    error: String,
    end: i64,
}

/// Reason why a session ended.
enum SessionEnd {
    /// The partition was released, or the tracker stops.
    Stopped,
    /// The checkpoint must be read again.
    Rewind { reason: &'static str, message: String },
    /// An operator must act.
    Stuck(String),
    /// The store has lost data: the partition must be emptied and projected again.
    Lost(String),
}

impl From<StoreError> for SessionEnd {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Conflict { .. } => Self::Rewind { reason: "fence", message },
            StoreError::Unavailable(_) => Self::Rewind { reason: "store", message },
            StoreError::Misconfigured(_) | StoreError::Invalid(_) => Self::Stuck(message),
            StoreError::Damaged(cause) | StoreError::Emptied(cause) => Self::Lost(cause),
        }
    }
}

impl PartitionTask {
    pub(crate) fn new(setup: Arc<TrackerSetup>, shared: Arc<TrackerShared>, handle: PartitionHandle) -> Self {
        let PartitionHandle { number, batches, seek_sender, stop, generation } = handle;
        let (stuck_at, lost, refold) = (None, None, None);
        let (integrity_check, losses) = (IntegrityCheck::default(), Losses::default());
        Self {
            setup,
            shared,
            number,
            batches,
            seek_sender,
            stop,
            generation,
            stuck_at,
            lost,
            refold,
            integrity_check,
            losses,
        }
    }

    /// Runs until the partition is released. After any error it resumes at the store's checkpoint.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        self.setup.metrics.tracker.begin_partition(&self.number.to_string());
        loop {
            let end = tokio::select! {
                biased;
                () = stop.cancelled() => SessionEnd::Stopped,
                end = self.session(&mut backoff) => end,
            };
            let wait = match end {
                SessionEnd::Stopped => break,
                SessionEnd::Rewind { reason, message } => self.record_rewind(reason, message, &mut backoff),
                SessionEnd::Lost(error) => self.record_loss(error, &mut backoff),
                SessionEnd::Stuck(message) => self.record_stuck(message),
            };
            if is_stopped_within(wait, &stop).await {
                break;
            }
        }
        self.setup.health.clear(&self.health_part());
    }

    /// Reports that the session ended; returns the wait before the next.
    fn record_rewind(&self, reason: &str, message: String, backoff: &mut Backoff) -> Duration {
        tracing::warn!(
            partition = self.number,
            reason = single_line(&message),
            "projection interrupted; resuming from the checkpoint in the store"
        );
        let number = self.number.to_string();
        self.setup.metrics.tracker.rewinds.with_label_values(&[number.as_str(), reason]).inc();
        self.setup.health.set(&self.health_part(), message);
        backoff.next_wait()
    }

    /// Reports that the partition cannot be projected; returns the wait before the next attempt.
    fn record_stuck(&self, message: String) -> Duration {
        let reason = single_line(&message);
        tracing::error!(partition = self.number, reason, "the partition cannot be projected");
        self.setup.health.set(&self.health_part(), message);
        STUCK_RETRY_INTERVAL
    }

    /// Records a loss and returns the wait before the partition is opened again. A loss is reported twice: when it is
    /// found, possibly by another task or process, and when the partition is emptied.
    fn record_loss(&mut self, error: String, backoff: &mut Backoff) -> Duration {
        if self.lost.is_some() {
            return backoff.next_wait();
        }
        let partition = self.number.to_string();
        tracing::error!(
            partition,
            reason = %error,
            "the store has lost records; the partition is projected again from the beginning of the log"
        );
        self.setup.metrics.tracker.store_losses.with_label_values(&[&*partition]).inc();
        let message = format!("the store has lost records ({error}); the partition is projected again");
        self.setup.health.set(&self.health_part(), message.as_str());
        self.lost = Some(message);
        backoff.next_wait()
    }

    /// Determines whether this session folds from the beginning of the log up to `end`, or completes such a fold of
    /// an earlier session, possibly of another tracker.
    fn refold_from(&mut self, checkpoint: Option<Checkpoint>, end: i64) -> Option<Refold> {
        let known_reason = self.lost.take().or(self.refold.take().map(|refold| refold.error));
        match checkpoint {
            None => {
                let error = known_reason.unwrap_or_else(|| "the store is empty for this partition".to_owned());
                Some(Refold { error, end })
            }
            Some(checkpoint) if checkpoint.offset < checkpoint.complete_at => {
                let error = known_reason
                    .unwrap_or_else(|| "the partition is projected from the beginning of the log".to_owned());
                Some(Refold { error, end: checkpoint.complete_at })
            }
            Some(_) => None,
        }
    }

    /// Runs one session: reads the checkpoint, seeks the consumer to it and folds batches until an error or a stop.
    async fn session(&mut self, backoff: &mut Backoff) -> SessionEnd {
        match AssertUnwindSafe(self.fold(backoff)).catch_unwind().await {
            Ok(Err(end)) => end,
            Ok(Ok(never)) => match never {},
            Err(_) => panicked(),
        }
    }

    async fn fold(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, SessionEnd> {
        let partition = u32::try_from(self.number).map_err(|_| SessionEnd::Stopped)?;
        let mut projection = Projection::open(self.setup.store.clone(), partition).await?;
        self.check_topics().await?;
        let (mut start, end) = self.verify_writer(projection.checkpoint()).await?;
        if projection.checkpoint().is_none() {
            projection.begin_empty(start, end);
        }
        if projection.checkpoint().is_some_and(|checkpoint| checkpoint.rebuild > 0) {
            projection = self.take_over(partition, (start, end)).await?;
            start = projection.checkpoint().map_or(start, |checkpoint| checkpoint.offset);
        }
        self.refold = self.refold_from(projection.checkpoint(), end);
        projection.writer().check().await?;
        self.generation += 1;
        let request = SeekRequest { partition: self.number, generation: self.generation, offset: start };
        self.seek_sender.send(request).map_err(|_| SessionEnd::Stopped)?;
        tracing::info!(partition = self.number, offset = start, "projection starts");
        if self.stuck_at != Some(start) {
            self.report_offset(start);
        }
        let folded = watch::Sender::new(FoldProgress { offset: start, news: 0 });
        let session_stop = self.stop.child_token();
        self.spawn_session_tasks(partition, &folded, &session_stop);
        let _session = session_stop.drop_guard();
        self.fold_batches(projection, (start, end), folded, backoff).await
    }

    /// Starts the tasks that end with this session; the next session's producers fence theirs.
    fn spawn_session_tasks(&self, partition: u32, folded: &watch::Sender<FoldProgress>, stop: &CancellationToken) {
        let (setup, shared) = (&self.setup, &self.shared);
        let upkeep_folded = folded.subscribe();
        let relay = OutboxRelay::new(setup.clone(), shared.clone(), partition, folded.subscribe(), stop.clone());
        kafleet_runtime::spawn(relay.run());
        let upkeep = PartitionUpkeep::new(setup.clone(), shared.clone(), partition, upkeep_folded, stop.clone());
        kafleet_runtime::spawn(upkeep.run());
        if partition == OWNER_PARTITION {
            kafleet_runtime::spawn(Schedules::new(setup.clone(), stop.clone()).run());
            kafleet_runtime::spawn(StaleCommands::new(setup.clone(), shared.clone(), stop.clone()).run());
            kafleet_runtime::spawn(AdaptiveLearner::new(setup.clone(), shared.clone(), stop.clone()).run());
        }
    }

    /// Folds batches from `start` and checks the store in between. `end` is the end of the log at the start of the
    /// session.
    async fn fold_batches(
        &mut self,
        mut projection: Projection,
        (start, end): (i64, i64),
        folded: watch::Sender<FoldProgress>,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, SessionEnd> {
        let (mut next_check, mut next_integrity_check) = (Instant::now() + CHECKPOINT_INTERVAL, Instant::now());
        loop {
            if Instant::now() >= next_check {
                self.verify_checkpoint(projection.partition(), projection.checkpoint()).await?;
                self.check_topics().await?;
                next_check = Instant::now() + CHECKPOINT_INTERVAL;
            }
            if Instant::now() >= next_integrity_check {
                self.check_integrity(&mut projection, end).await?;
                next_integrity_check = Instant::now() + self.setup.config.integrity_check_interval.into();
            }
            let batch = match tokio::time::timeout_at(next_check.min(next_integrity_check), self.batches.recv()).await {
                Ok(Some(batch)) => batch,
                Ok(None) => return Err(SessionEnd::Stopped),
                Err(_) => continue,
            };
            if batch.generation != self.generation {
                continue;
            }
            let checkpoint = projection.checkpoint();
            if batch.next > checkpoint.map_or(start, |checkpoint| checkpoint.offset) || checkpoint.is_none() {
                let news = self.fold_batch(&mut projection, &batch).await?;
                folded.send_modify(|folded| {
                    *folded = FoldProgress { offset: batch.next, news: folded.news + u64::from(news) }
                });
            }
            if let Some(error) = batch.stop {
                self.stuck_at = projection.checkpoint().map(|checkpoint| checkpoint.offset);
                return Err(SessionEnd::Stuck(error));
            }
            self.stuck_at = None;
            self.report_offset(batch.next);
            backoff.reset();
            projection.working_set().shrink(self.setup.config.cache_records);
        }
    }

    /// Checks the consistency of the store. Records are compared only once the fold has passed `end`: an earlier
    /// session may have stopped in the middle of removing a tree, for a reason that lies before `end`.
    async fn check_integrity(&mut self, projection: &mut Projection, end: i64) -> Result<(), SessionEnd> {
        projection.writer().check().await?;
        if projection.checkpoint().is_none_or(|checkpoint| checkpoint.offset < end) || self.losses.is_paused() {
            return Ok(());
        }
        let Some(fault) = self.find_fault(projection).await? else { return Ok(()) };
        if self.losses.record(&fault) {
            return Err(projection.mark_damaged(fault).await.into());
        }
        tracing::error!(
            partition = self.number,
            reason = %fault,
            "the store differs in the same way after each projection: a defect of this build, or another client deletes the same key; checks are paused for an hour"
        );
        Ok(())
    }

    /// Verifies the totals and compares the next records.
    async fn find_fault(&mut self, projection: &mut Projection) -> Result<Option<String>, StoreError> {
        let fault = projection.writer().verify_totals().await?;
        if fault.is_some() {
            return Ok(fault);
        }
        let compared = self.integrity_check.step(projection.writer()).await?;
        self.setup
            .metrics
            .tracker
            .integrity_checked
            .with_label_values(&[&*self.number.to_string()])
            .inc_by(compared.records);
        Ok(compared.fault)
    }

    /// Checks that the configuration of the events topic is suitable.
    async fn check_topics(&self) -> Result<(), SessionEnd> {
        match self.shared.topics().await {
            TopicStatus::Fit => Ok(()),
            TopicStatus::Unsuitable(message) => Err(SessionEnd::Stuck(message)),
            TopicStatus::Unknown(message) => Err(SessionEnd::Rewind { reason: "broker", message }),
        }
    }

    /// Reports readiness: not ready while a fold from the beginning is incomplete.
    fn report_offset(&mut self, offset: i64) {
        if let Some(refold) = self.refold.take_if(|refold| offset >= refold.end) {
            tracing::info!(
                partition = self.number,
                offset = refold.end,
                "projection from the beginning of the log is complete"
            );
        }
        match &self.refold {
            Some(Refold { error, end }) => {
                self.setup.health.set(&self.health_part(), format!("{error}: at offset {offset} of {end}"));
            }
            None => self.setup.health.clear(&self.health_part()),
        }
    }

    /// Claims a partition that a rebuild writes, between two of its batches.
    async fn take_over(&self, partition: u32, (start, end): (i64, i64)) -> Result<Projection, SessionEnd> {
        let mut tries = 0;
        loop {
            let mut projection = Projection::open(self.setup.store.clone(), partition).await?;
            projection.set_incomplete(end);
            match projection.claim(TRACKER_OWNER, start).await {
                Err(StoreError::Conflict { .. }) if tries < MAX_CLAIMS => tries += 1,
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    tracing::info!(partition, "partition taken over from the rebuild of this store");
                    return Ok(projection);
                }
            }
        }
    }

    /// Folds a batch. Returns whether timers or effects were added.
    async fn fold_batch(&self, projection: &mut Projection, batch: &EventBatch) -> Result<bool, SessionEnd> {
        let began = Instant::now();
        let outcome = match AssertUnwindSafe(projection.fold(&batch.events, batch.next)).catch_unwind().await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(self.after_panic(projection.partition(), projection.checkpoint()).await),
        };
        let (label, metrics) = (self.number.to_string(), &self.setup.metrics);
        metrics.tracker.fold_batch.with_label_values(&[&label]).observe(batch.events.len() as f64);
        metrics.tracker.fold_time.with_label_values(&[&label]).observe(began.elapsed().as_secs_f64());
        metrics.tracker.removed.with_label_values(&[&label]).inc_by(outcome.removed);
        metrics.tracker.aged.with_label_values(&[&label]).inc_by(outcome.expired);
        metrics.tracker.id_conflicts.with_label_values(&[&label]).inc_by(outcome.id_conflicts);
        for (task_type, verdict) in projection.take_verdicts() {
            metrics.tasks.unique.with_label_values(&[&*task_type, verdict.name()]).inc();
        }
        Ok(outcome.has_new_work)
    }

    /// Explains a panic. Records read while the store changed are inconsistent and can trip an assertion of the fold
    /// before the checkpoint rejects the batch; the cause is the same.
    async fn after_panic(&self, partition: u32, written: Option<Checkpoint>) -> SessionEnd {
        self.verify_checkpoint(partition, written).await.err().unwrap_or_else(panicked)
    }

    /// Checks that the store's checkpoint is still the one written by this task.
    async fn verify_checkpoint(&self, partition: u32, written: Option<Checkpoint>) -> Result<(), SessionEnd> {
        let checkpoint = self.setup.store.checkpoints(&[partition]).await?.pop().flatten();
        if checkpoint == written { Ok(()) } else { Err(StoreError::Conflict { stored: checkpoint }.into()) }
    }

    /// Returns the start offset and the current end of the log. A checkpoint that does not match this build or this
    /// log stops the partition, because guessing could lose events.
    async fn verify_writer(&self, stored: Option<Checkpoint>) -> Result<(i64, i64), SessionEnd> {
        let partition = Partition::new(self.setup.topology.names.events(), self.number);
        let ends = self.setup.broker.client().watermarks(&partition).await;
        let ends = ends.map_err(|error| SessionEnd::Rewind { reason: "broker", message: error.to_string() })?;
        let Some(checkpoint) = stored else { return Ok((ends.low, ends.high)) };
        match mismatch(&checkpoint, &partition, ends) {
            Some(message) => Err(SessionEnd::Stuck(message)),
            None => Ok((checkpoint.offset, ends.high)),
        }
    }

    fn health_part(&self) -> String {
        format!("events partition {}", self.number)
    }
}

/// Returns the reason why a checkpoint does not match this build or this log.
fn mismatch(checkpoint: &Checkpoint, partition: &Partition, ends: Watermarks) -> Option<String> {
    let Checkpoint { version, offset, .. } = checkpoint;
    if *version > FOLD_VERSION {
        return Some(format!(
            "the store has fold version {version}, newer than this build's {FOLD_VERSION}\n\n\
             hint: upgrade this tracker, or use a store of this build's fold version"
        ));
    }
    if *version < FOLD_VERSION {
        return Some(format!(
            "the store has fold version {version}, older than this build's {FOLD_VERSION}\n\nhint: project into another, empty database: `kafleet rebuild --into URL` fills it while the old one serves"
        ));
    }
    let is_outside = *offset < ends.low || *offset > ends.high;
    is_outside.then(|| {
        format!(
            "the store is projected up to offset {offset} of {partition}, but the log holds {} to {}: was the topic recreated, or did retention remove events before they were projected?\n\nhint: check that `[redis]` and the prefix are those of this fleet; if so, let trackers project into another, empty database",
            ends.low, ends.high
        )
    })
}

fn panicked() -> SessionEnd {
    SessionEnd::Stuck("the projection panicked: this is a bug in this build; see the log of this tracker".into())
}
