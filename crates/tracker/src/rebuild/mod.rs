//! Rebuild: folds the log into another store while the first one serves, and follows it until trackers take over.
//!
//! One `copier` per partition folds as a tracker does, but publishes nothing. The owner of a partition is recorded in
//! its checkpoint: a rebuild writes its number there, a tracker that takes over writes 0, and any process that finds
//! the checkpoint changed stops. A later rebuild has a higher number and thus ends an earlier one.
//!
//! When a partition reaches the end that the log had at the start, it is compared with the source (`verify`) piece by
//! piece: the piece is read at the source with its checkpoint, the copy is folded up to exactly that offset and read.
//! Both are thus compared at equal checkpoints while both continue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kafleet_broker::{Consumer, ConsumerSpec, Partition};
use kafleet_runtime::Shutdown;
use kafleet_store::Store;
use kafleet_store::inspect::Inspect;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::consume::poll_loop::PollLoop;
use super::setup::TrackerSetup;
use copier::Copier;

mod copier;
mod preflight;
mod verify;

pub use preflight::preflight;

/// Maximum bytes of events prefetched by the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// Interval of reading the ends of the log.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Deadline for the copiers to stop.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// Settings of a rebuild.
pub struct Rebuild {
    /// Setup of a tracker for the store to be filled.
    pub tracker: Arc<TrackerSetup>,
    /// Store that serves readers now.
    pub source: Arc<dyn Store>,
    /// Raw access to the source and the copy, for comparing them.
    pub compare: Option<(Arc<dyn Inspect>, Arc<dyn Inspect>)>,
    /// Continue even if the log has lost the beginning of trees that the source contains.
    pub partial: bool,
    /// Follow the log until trackers have taken over all partitions; otherwise end when everything is compared.
    pub follow: bool,
}

/// Findings of the preflight, made before anything is written.
pub struct RebuildPlan {
    /// Number of this rebuild.
    pub number: u32,
    /// Partitions to fold, without those owned by trackers.
    pub partitions: Vec<PartitionRange>,
    /// Partitions that trackers have already taken over.
    pub taken: BTreeSet<u32>,
    /// True if this rebuild continues an earlier one.
    pub resumed: bool,
    /// Reason why the copy cannot be compared with the source.
    pub incomparable: Option<String>,
    /// Number of trees in the source whose beginning the log has lost.
    pub partial_trees: u64,
}

/// A partition to fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRange {
    pub number: u32,
    /// Offset at which folding starts.
    pub from: i64,
    /// End of the log at the preflight.
    pub end: i64,
}

/// Result for a partition, or for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildEvent {
    Verified(VerifiedPartition),
    /// The comparison was not made or not completed.
    Unverified {
        partition: u32,
        error: String,
    },
    /// The copy differs from the source.
    Differs {
        partition: u32,
        differences: Vec<Difference>,
    },
    /// A tracker folds the partition in the new store now.
    TakenOver {
        partition: u32,
    },
    /// All partitions have reached their end and were compared as far as possible: readers can be switched over.
    Ready,
}

/// A partition with equal contents in both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPartition {
    pub partition: u32,
    /// Checkpoint offsets of the first and the last compared piece.
    pub checkpoints: (i64, i64),
    pub keys: u64,
    /// Order-independent digest of the compared contents.
    pub digest: u128,
}

/// A key with different contents at equal checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: String,
    pub checkpoint: i64,
    pub source: String,
    pub copy: String,
}

/// Outcome of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Trackers have taken over all partitions.
    TakenOver,
    /// Everything is folded, and compared as far as possible.
    Complete,
    /// Stopped on request before completion.
    Stopped,
    /// The stores differ.
    Different,
}

/// Reason why a rebuild cannot start or continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// The stores or the log do not allow a rebuild.
    #[error("{0}")]
    Unsuitable(String),
    /// A service is unavailable.
    #[error("{0}")]
    Unavailable(String),
}

/// Progress of a rebuild, for display.
#[derive(Default)]
pub struct RebuildProgress {
    parts: Vec<PartitionProgress>,
    /// Keys compared so far.
    pub compared: AtomicU64,
}

#[derive(Default)]
struct PartitionProgress {
    from: AtomicI64,
    folded: AtomicI64,
    end: AtomicI64,
}

impl RebuildProgress {
    fn of(plan: &RebuildPlan) -> Self {
        let part = |task: &PartitionRange| PartitionProgress {
            from: task.from.into(),
            folded: task.from.into(),
            end: task.end.into(),
        };
        Self { parts: plan.partitions.iter().map(part).collect(), compared: AtomicU64::new(0) }
    }

    /// Returns the offsets passed by this process, and the total to pass as far as known.
    pub fn offsets(&self) -> (u64, u64) {
        let over = |upto: fn(&PartitionProgress) -> &AtomicI64| -> i64 {
            self.parts.iter().map(|part| (upto(part).load(Relaxed) - part.from.load(Relaxed)).max(0)).sum()
        };
        let passed = over(|part| &part.folded);
        (passed.unsigned_abs(), over(|part| &part.end).max(passed).unsigned_abs())
    }
}

/// State shared by the copiers.
struct Job {
    setup: Rebuild,
    plan: RebuildPlan,
    progress: Arc<RebuildProgress>,
    reports: mpsc::UnboundedSender<Report>,
}

/// Message of a copier; a few per partition.
enum Report {
    RebuildEvent(RebuildEvent),
    /// The whole rebuild must end.
    Over(RebuildError),
}

/// A running rebuild.
pub struct Running {
    pub progress: Arc<RebuildProgress>,
    job: Arc<Job>,
    reports: mpsc::UnboundedReceiver<Report>,
    shutdown: Shutdown,
    projection: tokio::sync::oneshot::Receiver<Result<(), kafleet_broker::BrokerError>>,
    measuring: tokio::task::JoinHandle<()>,
    /// Partitions whose comparison has ended.
    compared_partitions: BTreeSet<u32>,
    taken: BTreeSet<u32>,
    differs: bool,
    ready: bool,
}

/// Starts folding.
pub async fn start(setup: Rebuild, plan: RebuildPlan) -> Result<Running, RebuildError> {
    let (tracker, shutdown) = (setup.tracker.clone(), Shutdown::new());
    let consumer = open_consumer(&tracker).await?;
    let (reporting, reports) = mpsc::unbounded_channel();
    let progress = Arc::new(RebuildProgress::of(&plan));
    let taken = plan.taken.clone();
    let job = Arc::new(Job { setup, plan, progress: progress.clone(), reports: reporting });
    let copying = job.clone();
    let fold = move |handle| drop(kafleet_runtime::spawn(Copier::new(copying.clone(), handle).run()));
    let events: Arc<str> = tracker.topology.names.events().into();
    let all = job.plan.partitions.iter().map(|task| Partition::new(events.clone(), task.number as i32)).collect();
    let reader = PollLoop::new(tracker, consumer, shutdown.clone(), Box::new(fold)).of(all);
    let projection = kafleet_runtime::thread("kafleet-rebuild", reader.run())
        .map_err(|error| RebuildError::Unavailable(format!("a thread for the poll loop cannot be started: {error}")))?;
    let measuring = kafleet_runtime::spawn(measure(job.clone()));
    let (compared_partitions, differs, ready) = (BTreeSet::new(), false, false);
    Ok(Running { progress, job, reports, shutdown, projection, measuring, compared_partitions, taken, differs, ready })
}

async fn open_consumer(tracker: &TrackerSetup) -> Result<Box<dyn Consumer>, RebuildError> {
    let spec = ConsumerSpec { prefetch_bytes: PREFETCH_BYTES, ..ConsumerSpec::default() };
    let opened = tracker.broker.client().consumer(spec).await;
    opened.map_err(|error| RebuildError::Unavailable(format!("the consumer of events cannot be opened: {error}")))
}

impl Running {
    /// Returns the next event, or the end of the rebuild. `stop` ends it.
    pub async fn next(&mut self, stop: &Shutdown) -> Result<Next, RebuildError> {
        if self.compared_partitions.len() == self.job.plan.partitions.len() && !self.ready && !self.differs {
            self.ready = true;
            return Ok(Next::RebuildEvent(RebuildEvent::Ready));
        }
        if let Some(ending) = self.ending() {
            return self.end(ending).await;
        }
        let report = tokio::select! {
            report = self.reports.recv() => report,
            outcome = &mut self.projection => {
                let reason = match outcome {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the poll loop ended by itself".to_owned(),
                };
                return Err(RebuildError::Unavailable(format!("reading the log failed: {reason}")));
            }
            () = stop.drain.cancelled() => return self.end(Ending::Stopped).await,
        };
        match report {
            Some(Report::RebuildEvent(message)) => {
                self.record_progress(&message);
                Ok(Next::RebuildEvent(message))
            }
            Some(Report::Over(refusal)) => {
                self.end(Ending::Stopped).await?;
                Err(refusal)
            }
            None => self.end(Ending::Stopped).await,
        }
    }

    fn record_progress(&mut self, message: &RebuildEvent) {
        match message {
            RebuildEvent::Verified(VerifiedPartition { partition, .. })
            | RebuildEvent::Unverified { partition, .. } => {
                self.compared_partitions.insert(*partition);
            }
            RebuildEvent::Differs { partition, .. } => {
                self.compared_partitions.insert(*partition);
                self.differs = true;
            }
            RebuildEvent::TakenOver { partition } => {
                self.taken.insert(*partition);
            }
            RebuildEvent::Ready => {}
        }
    }

    fn ending(&self) -> Option<Ending> {
        let all = self.job.plan.partitions.len();
        let compared = self.compared_partitions.len() == all;
        match () {
            () if compared && self.differs => Some(Ending::Different),
            () if compared && self.taken.len() == all + self.job.plan.taken.len() => Some(Ending::TakenOver),
            () if compared && !self.job.setup.follow => Some(Ending::Complete),
            () => None,
        }
    }

    async fn end(&mut self, ending: Ending) -> Result<Next, RebuildError> {
        self.shutdown.begin();
        self.measuring.abort();
        if !self.projection.is_terminated() {
            let _ = tokio::time::timeout(LEAVE_DEADLINE, &mut self.projection).await;
        }
        Ok(Next::Ended(ending))
    }
}

/// Progress of a rebuild: an event or its end.
#[derive(Debug)]
pub enum Next {
    RebuildEvent(RebuildEvent),
    Ended(Ending),
}

/// Updates the ends of the log for the progress display, and the lag of the copy.
async fn measure(job: Arc<Job>) {
    let mut ticks = tokio::time::interval(MEASURE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let setup = &job.setup.tracker;
    let topic: Arc<str> = setup.topology.names.events().into();
    loop {
        ticks.tick().await;
        for (task, part) in job.plan.partitions.iter().zip(&job.progress.parts) {
            let partition = Partition::new(topic.clone(), task.number as i32);
            let Ok(ends) = setup.broker.client().watermarks(&partition).await else { continue };
            part.end.fetch_max(ends.high, Relaxed);
            let lag = (ends.high - part.folded.load(Relaxed)).max(0);
            setup.metrics.lag.with_label_values(&[&*topic, &task.number.to_string()]).set(lag);
        }
    }
}
