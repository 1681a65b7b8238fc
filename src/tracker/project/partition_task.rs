//! Folds one events partition into the store: batches of events in, records, indexes and the fence out, in one step.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::projection::Projection;
use crate::broker::Partition;
use crate::model::projection::FOLD_VERSION;
use crate::runtime::{self, Backoff, blocking};
use crate::store::{Checkpoint, StoreError};
use crate::topics::Standing;
use crate::tracker::TrackerSetup;
use crate::tracker::consume::event_batches::Batch;
use crate::tracker::consume::poll_loop::{PartitionHandle, SeekRequest};
use crate::tracker::outbox::relay::{Folded, OutboxRelay};
use crate::tracker::schedules::{OWNER, Schedules};
use crate::tracker::upkeep::stale_cancels::StaleCancels;
use crate::tracker::upkeep::store_audit::{Losses, StoreAudit};
use crate::tracker::upkeep::ticker::{PartitionUpkeep, TrackerShared};

/// Who claims a partition: no rebuild.
const TRACKER: u32 = 0;
/// How often that is tried at once, between two batches of a rebuild.
const TAKE_OVERS: u32 = 100;
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How often a partition that cannot go on looks whether it can.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How often the fence is looked at as readers see it. In an idle partition no batch comes that would show that the store is
/// away or has lost what was folded; in a busy one batches may go to a server that readers do not see: a deposed master that
/// nobody could tell so.
const LOOK: Duration = Duration::from_secs(1);

pub struct PartitionTask {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: i32,
    batches: mpsc::Receiver<Batch>,
    asking: mpsc::UnboundedSender<SeekRequest>,
    stop: CancellationToken,
    generation: u64,
    /// Where the record lies that cannot be folded; None once something behind it was.
    stuck_at: Option<i64>,
    /// What the store has lost, until the partition is emptied.
    lost: Option<String>,
    /// The partition is folded from the beginning of the log.
    anew: Option<Anew>,
    audit: StoreAudit,
    losses: Losses,
}

/// A partition that is folded from the beginning: what it shows is not whole before the fold has come to where the log ended.
struct Anew {
    why: String,
    end: i64,
}

/// Why a fold ended.
enum End {
    /// The partition was given back, or the tracker stops.
    Stopped,
    /// Read the fence again and go on from there.
    Rewind { reason: &'static str, told: String },
    /// Nothing can be done until somebody acts.
    Stuck(String),
    /// The store does not hold what was written to it: fold the partition anew.
    Damaged(String),
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        let told = error.to_string();
        match error {
            StoreError::Conflict { .. } => Self::Rewind { reason: "fence", told },
            StoreError::Unavailable(_) => Self::Rewind { reason: "store", told },
            StoreError::Misconfigured(_) | StoreError::Invalid(_) => Self::Stuck(told),
            StoreError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl PartitionTask {
    pub fn new(setup: Arc<TrackerSetup>, shared: Arc<TrackerShared>, post: PartitionHandle) -> Self {
        let PartitionHandle { number, batches, asking, stop, generation } = post;
        let (stuck_at, lost, anew) = (None, None, None);
        let (audit, losses) = (StoreAudit::default(), Losses::default());
        Self { setup, shared, number, batches, asking, stop, generation, stuck_at, lost, anew, audit, losses }
    }

    /// Folds until the partition is given back. Whatever goes wrong, it begins again at the store's own fence.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let end = tokio::select! {
                biased;
                () = stop.cancelled() => End::Stopped,
                end = self.session(&mut backoff) => end,
            };
            let wait = match end {
                End::Stopped => break,
                End::Rewind { reason, told } => {
                    tracing::warn!(partition = self.number, reason = %told, "reading the fence again");
                    self.setup.metrics.rewinds.with_label_values(&[self.number.to_string().as_str(), reason]).inc();
                    self.setup.health.set(&self.part(), told);
                    backoff.next_wait()
                }
                End::Damaged(why) => self.note_loss(why, &mut backoff),
                End::Stuck(told) => {
                    tracing::error!(partition = self.number, reason = %told, "the partition is not folded");
                    self.setup.health.set(&self.part(), told);
                    LOOK_AGAIN
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.setup.health.clear(&self.part());
    }

    /// Returns how long to wait before the partition is opened, which empties it.
    fn note_loss(&mut self, why: String, backoff: &mut Backoff) -> Duration {
        let partition = self.number.to_string();
        tracing::error!(partition, reason = %why, "the store has lost records: the partition is emptied and folded anew");
        self.setup.metrics.store_losses.with_label_values(&[&*partition]).inc();
        let told = format!("the store has lost records ({why}); the partition is folded anew");
        self.setup.health.set(&self.part(), told.as_str());
        self.lost = Some(told);
        backoff.next_wait()
    }

    /// The fold from the beginning of the log that this session begins, or that an earlier one, also of another tracker, has
    /// begun and not completed. The log ends at `end`.
    fn anew_from(&mut self, fence: Option<Checkpoint>, end: i64) -> Option<Anew> {
        let known = self.lost.take().or(self.anew.take().map(|anew| anew.why));
        match fence {
            None => {
                let why = known.unwrap_or_else(|| "the store holds nothing of the partition yet".to_owned());
                Some(Anew { why, end })
            }
            Some(fence) if fence.offset < fence.complete_at => {
                let why = known.unwrap_or_else(|| "the partition is folded from the beginning of the log".to_owned());
                Some(Anew { why, end: fence.complete_at })
            }
            Some(_) => None,
        }
    }

    /// From one reading of the fence to the next.
    async fn session(&mut self, backoff: &mut Backoff) -> End {
        match AssertUnwindSafe(self.fold(backoff)).catch_unwind().await {
            Ok(Err(end)) => end,
            Ok(Ok(never)) => match never {},
            Err(_) => panicked(),
        }
    }

    async fn fold(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, End> {
        let partition = u32::try_from(self.number).map_err(|_| End::Stopped)?;
        let mut folding = Projection::open(self.setup.store.clone(), partition).await?;
        self.check_topics().await?;
        let (mut start, end) = self.check_fence(folding.fence()).await?;
        if folding.fence().is_none() {
            folding.begin(end);
        }
        self.anew = self.anew_from(folding.fence(), end);
        if folding.fence().is_some_and(|fence| fence.rebuild > 0) {
            folding = self.take_over(partition, start).await?;
            start = folding.fence().map_or(start, |fence| fence.offset);
        }
        folding.writer().check().await?;
        self.generation += 1;
        let ask = SeekRequest { partition: self.number, generation: self.generation, offset: start };
        self.asking.send(ask).map_err(|_| End::Stopped)?;
        tracing::info!(partition = self.number, offset = start, "folding from here");
        if self.stuck_at != Some(start) {
            self.report_place(start);
        }
        // It ends with this session, and the next one's fences it.
        let (folded, news) = watch::channel(Folded { offset: start, news: 0 });
        let (session_stop, keeper_news) = (self.stop.child_token(), news.clone());
        runtime::spawn(OutboxRelay::new(self.setup.clone(), self.shared.clone(), partition, news, session_stop.clone()).run());
        runtime::spawn(
            PartitionUpkeep::new(self.setup.clone(), self.shared.clone(), partition, keeper_news, session_stop.clone()).run(),
        );
        if partition == OWNER {
            runtime::spawn(Schedules::new(self.setup.clone(), session_stop.clone()).run());
            runtime::spawn(StaleCancels::new(self.setup.clone(), self.shared.clone(), session_stop.clone()).run());
        }
        let _session = session_stop.drop_guard();
        self.follow(folding, (start, end), folded, backoff).await
    }

    /// Folds what comes, from `start`, and checks the store in between. The log ended at `end` when the session began.
    async fn follow(
        &mut self,
        mut folding: Projection,
        (start, end): (i64, i64),
        folded: watch::Sender<Folded>,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, End> {
        let (mut next_look, mut next_audit) = (Instant::now() + LOOK, Instant::now());
        loop {
            if Instant::now() >= next_look {
                self.look_at_fence(folding.partition(), folding.fence()).await?;
                self.check_topics().await?;
                next_look = Instant::now() + LOOK;
            }
            if Instant::now() >= next_audit {
                self.audit(&mut folding, end).await?;
                next_audit = Instant::now() + self.setup.config.audit_interval.into();
            }
            let batch = match tokio::time::timeout_at(next_look.min(next_audit), self.batches.recv()).await {
                Ok(Some(batch)) => batch,
                Ok(None) => return Err(End::Stopped),
                Err(_) => continue,
            };
            if batch.generation != self.generation {
                continue;
            }
            let fence = folding.fence();
            if batch.next > fence.map_or(start, |fence| fence.offset) || fence.is_none() {
                let news = self.fold_batch(&mut folding, &batch).await?;
                folded.send_modify(|folded| *folded = Folded { offset: batch.next, news: folded.news + u64::from(news) });
            }
            if let Some(why) = batch.stop {
                self.stuck_at = folding.fence().map(|fence| fence.offset);
                return Err(End::Stuck(why));
            }
            self.stuck_at = None;
            self.report_place(batch.next);
            backoff.reset();
            folding.working_set().shrink(self.setup.config.cache_records);
        }
    }

    /// Whether the store still holds what was written. Records are compared only behind `end`: an earlier session may have
    /// ended in the middle of removing a tree, and what made it do so lies before.
    async fn audit(&mut self, folding: &mut Projection, end: i64) -> Result<(), End> {
        folding.writer().check().await?;
        if folding.fence().is_none_or(|fence| fence.offset < end) || self.losses.is_paused() {
            return Ok(());
        }
        let mut fault = folding.writer().sums().await?;
        if fault.is_none() {
            let compared = self.audit.step(folding.writer()).await?;
            self.setup.metrics.audited.with_label_values(&[&*self.number.to_string()]).inc_by(compared.records);
            fault = compared.fault;
        }
        let Some(fault) = fault else { return Ok(()) };
        if self.losses.add(&fault) {
            return Err(folding.condemn(fault).await.into());
        }
        tracing::error!(
            partition = self.number,
            reason = %fault,
            "the store differs in the same way each time that it is folded anew: a defect of this build, or somebody deletes the same key; leaving it for an hour"
        );
        Ok(())
    }

    /// The events topic may be folded.
    async fn check_topics(&self) -> Result<(), End> {
        match self.shared.topics().await {
            Standing::Fit => Ok(()),
            Standing::Unfit(told) => Err(End::Stuck(told)),
            Standing::Unknown(told) => Err(End::Rewind { reason: "broker", told }),
        }
    }

    /// Ready, unless the partition is folded from the beginning and has not come to the end yet.
    fn report_place(&mut self, place: i64) {
        if let Some(anew) = self.anew.take_if(|anew| place >= anew.end) {
            tracing::info!(partition = self.number, offset = anew.end, "folded from the beginning of the log");
        }
        match &self.anew {
            Some(Anew { why, end }) => self.setup.health.set(&self.part(), format!("{why}: at offset {place} of {end}")),
            None => self.setup.health.clear(&self.part()),
        }
    }

    /// Makes the partition this tracker's, which a rebuild folds: in between its batches.
    async fn take_over(&self, partition: u32, start: i64) -> Result<Projection, End> {
        let mut tries = 0;
        loop {
            let mut folding = Projection::open(self.setup.store.clone(), partition).await?;
            match folding.claim(TRACKER, start).await {
                Err(StoreError::Conflict { .. }) if tries < TAKE_OVERS => tries += 1,
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    tracing::info!(partition, "taken over from the rebuild of this store");
                    return Ok(folding);
                }
            }
        }
    }

    /// Says whether something new is due or to be done.
    async fn fold_batch(&self, folding: &mut Projection, batch: &Batch) -> Result<bool, End> {
        let began = Instant::now();
        let brought = match AssertUnwindSafe(folding.fold(&batch.events, batch.next)).catch_unwind().await {
            Ok(brought) => brought?,
            Err(_) => return Err(self.after_panic(folding.partition(), folding.fence()).await),
        };
        let (label, metrics) = (self.number.to_string(), &self.setup.metrics);
        metrics.fold_batch.with_label_values(&[&label]).observe(batch.events.len() as f64);
        metrics.fold_time.with_label_values(&[&label]).observe(began.elapsed().as_secs_f64());
        metrics.removed.with_label_values(&[&label]).inc_by(brought.removed);
        metrics.aged.with_label_values(&[&label]).inc_by(brought.expired);
        Ok(brought.news)
    }

    /// Records read while the store went to another state do not fit each other. The fence would have refused what came of
    /// them; where a check of the fold was faster the reason is the same.
    async fn after_panic(&self, partition: u32, left: Option<Checkpoint>) -> End {
        self.look_at_fence(partition, left).await.err().unwrap_or_else(panicked)
    }

    /// The store still is where this folder left it.
    async fn look_at_fence(&self, partition: u32, left: Option<Checkpoint>) -> Result<(), End> {
        let found = self.setup.store.fences(&[partition]).await?.pop().flatten();
        if found == left { Ok(()) } else { Err(StoreError::Conflict { found }.into()) }
    }

    /// Where to begin, and where the log ends now. A fence that does not fit this build or this log stops the partition:
    /// guessing would lose events.
    async fn check_fence(&self, found: Option<Checkpoint>) -> Result<(i64, i64), End> {
        let partition = Partition::new(self.setup.names.events(), self.number);
        let (broker, at) = (self.setup.broker.clone(), partition.clone());
        let ends = blocking(move || broker.ends(&at, CALL_DEADLINE)).await.map_err(End::Stuck)?;
        let ends = ends.map_err(|error| End::Rewind { reason: "broker", told: error.to_string() })?;
        let Some(fence) = found else { return Ok((ends.first, ends.end)) };
        if fence.version > FOLD_VERSION {
            let told = format!(
                "the store was folded by version {} and this build has {FOLD_VERSION}: upgrade trackers first",
                fence.version
            );
            return Err(End::Stuck(told));
        }
        if fence.version < FOLD_VERSION {
            let told = format!(
                "the store was folded by version {}, older than this build's {FOLD_VERSION}: fold into an empty store",
                fence.version
            );
            return Err(End::Stuck(told));
        }
        if fence.offset < ends.first || fence.offset > ends.end {
            let told = format!(
                "the store is folded up to offset {} of {partition}, but the log holds {} to {}: was the topic made anew, or has retention removed what was not folded? (hint: fold into an empty store)",
                fence.offset, ends.first, ends.end
            );
            return Err(End::Stuck(told));
        }
        Ok((fence.offset, ends.end))
    }

    fn part(&self) -> String {
        format!("events partition {}", self.number)
    }
}

fn panicked() -> End {
    End::Stuck("folding panicked: a defect of this build; its log says where".into())
}
