//! Folds the log into another store while the first one serves, and follows it there until trackers take it over.
//!
//! One `copier` per partition folds as a tracker's folder does, and does nothing else: no timer is fired, no effect
//! published, nothing written to Kafka. Who may write is decided by the fence, as among trackers: a rebuild puts its number
//! into it, a tracker that takes the partition over puts that out, and whoever finds the fence changed stops. A later
//! rebuild has a higher number and so ends an earlier one.
//!
//! When a partition has come to the end that the log had, it is compared with the source (`verify`), piece by piece: the
//! piece is read at the source together with its fence, the copy is folded to exactly that place, and read. So both are as
//! of one fence, while both go on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::TrackerSetup;
use super::consume::poll_loop::PollLoop;
use crate::broker::{ConsumerSpec, Partition};
use crate::runtime::{self, Shutdown, blocking};
use crate::store::Store;
use crate::store::inspect::Inspect;
use copier::Copier;

mod copier;
mod preflight;
mod verify;

pub use preflight::preflight;

/// Bytes of events that may lie prefetched in the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// How often the ends of the log are looked at.
const MEASURE: Duration = Duration::from_secs(1);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How long the folding may take to end.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// What a rebuild needs.
pub struct Rebuild {
    /// As a tracker's; its store is the one to be filled.
    pub tracker: Arc<TrackerSetup>,
    /// The one that serves.
    pub source: Arc<dyn Store>,
    /// Both, to be compared: the source and the copy.
    pub compare: Option<(Arc<dyn Inspect>, Arc<dyn Inspect>)>,
    /// Go on although the log has lost the beginning of trees that the source shows.
    pub partial: bool,
    /// Follow the log until trackers have taken all partitions over; else end when everything is compared.
    pub follow: bool,
}

/// What was found before anything is written.
pub struct RebuildPlan {
    /// The number of this rebuild.
    pub number: u32,
    /// What there is to do, by partition; those of trackers are left out.
    pub partitions: Vec<Task>,
    /// Partitions that trackers have taken over already.
    pub taken: BTreeSet<u32>,
    /// An earlier rebuild has begun: this one goes on.
    pub resumed: bool,
    /// Why the copy cannot be compared with the source.
    pub incomparable: Option<String>,
    /// Trees that the source shows and whose beginning the log has lost.
    pub partial_trees: u64,
}

/// A partition to fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub number: u32,
    /// Where the folding begins.
    pub from: i64,
    /// The log's end when it was looked at.
    pub end: i64,
}

/// What became of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildEvent {
    Verified(Verified),
    /// It was not compared, or not to the end, and why.
    Unverified {
        partition: u32,
        why: String,
    },
    /// The copy is not what the source is.
    Differs {
        partition: u32,
        differences: Vec<Difference>,
    },
    /// A tracker folds it in the new store now.
    TakenOver {
        partition: u32,
    },
    /// All partitions have come to their end and were compared or could not be: the switch may begin.
    Ready,
}

/// A partition that is the same in both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub partition: u32,
    /// The fences at which the first and the last piece was compared.
    pub fences: (i64, i64),
    pub keys: u64,
    /// Over all that was compared, in any order.
    pub digest: u128,
}

/// A key with different contents at equal fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: String,
    pub fence: i64,
    pub source: String,
    pub copy: String,
}

/// How a rebuild ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Trackers have all partitions.
    TakenOver,
    /// Everything is folded, and compared as far as that was possible.
    Complete,
    /// Told to stop before that.
    Stopped,
    /// Something differs.
    Different,
}

/// Why there is no rebuild, or no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The stores, or the log, are not such that it could be done.
    #[error("{0}")]
    Unfit(String),
    /// Something does not answer.
    #[error("{0}")]
    Unavailable(String),
}

/// How far it is; for whoever shows it.
#[derive(Default)]
pub struct RebuildProgress {
    parts: Vec<Part>,
    /// Keys compared so far.
    pub compared: AtomicU64,
}

#[derive(Default)]
struct Part {
    from: AtomicI64,
    folded: AtomicI64,
    end: AtomicI64,
}

impl RebuildProgress {
    fn of(plan: &RebuildPlan) -> Self {
        let part = |task: &Task| Part { from: task.from.into(), folded: task.from.into(), end: task.end.into() };
        Self { parts: plan.partitions.iter().map(part).collect(), compared: AtomicU64::new(0) }
    }

    /// Places of the log passed by this process, and how many there are to pass, as far as is known.
    pub fn places(&self) -> (u64, u64) {
        let over = |upto: fn(&Part) -> &AtomicI64| -> i64 {
            self.parts.iter().map(|part| (upto(part).load(Relaxed) - part.from.load(Relaxed)).max(0)).sum()
        };
        let passed = over(|part| &part.folded);
        (passed.unsigned_abs(), over(|part| &part.end).max(passed).unsigned_abs())
    }
}

/// What the copiers share.
struct Job {
    setup: Rebuild,
    plan: RebuildPlan,
    progress: Arc<RebuildProgress>,
    reports: mpsc::UnboundedSender<Report>,
}

/// What a copier says; a few for each partition.
enum Report {
    RebuildEvent(RebuildEvent),
    /// The whole rebuild has to end.
    Over(Refusal),
}

/// A rebuild under way.
pub struct Running {
    pub progress: Arc<RebuildProgress>,
    job: Arc<Job>,
    reports: mpsc::UnboundedReceiver<Report>,
    shutdown: Shutdown,
    folding: tokio::sync::oneshot::Receiver<Result<(), crate::broker::BrokerError>>,
    measuring: tokio::task::JoinHandle<()>,
    /// Partitions that are compared, or cannot be.
    looked_at: BTreeSet<u32>,
    taken: BTreeSet<u32>,
    differs: bool,
    ready: bool,
}

/// Begins to fold.
pub async fn start(setup: Rebuild, plan: RebuildPlan) -> Result<Running, Refusal> {
    let (tracker, shutdown) = (setup.tracker.clone(), Shutdown::new());
    let broker = tracker.broker.clone();
    let spec = ConsumerSpec { prefetch_bytes: PREFETCH_BYTES, ..ConsumerSpec::default() };
    let consumer = blocking(move || broker.consumer(&spec)).await.map_err(Refusal::Unavailable)?;
    let consumer = consumer.map_err(|error| Refusal::Unavailable(format!("the consumer of events cannot be opened: {error}")))?;
    let (reporting, reports) = mpsc::unbounded_channel();
    let progress = Arc::new(RebuildProgress::of(&plan));
    let taken = plan.taken.clone();
    let job = Arc::new(Job { setup, plan, progress: progress.clone(), reports: reporting });
    let copying = job.clone();
    let fold = move |post| drop(runtime::spawn(Copier::new(copying.clone(), post).run()));
    let events: Arc<str> = tracker.names.events().into();
    let all = job.plan.partitions.iter().map(|task| Partition::new(events.clone(), task.number as i32)).collect();
    let reader = PollLoop::new(tracker, consumer, shutdown.clone(), Box::new(fold)).of(all);
    let folding = runtime::thread("kafleet-rebuild", reader.run())
        .map_err(|error| Refusal::Unavailable(format!("a thread for the poll loop cannot be started: {error}")))?;
    let measuring = runtime::spawn(measure(job.clone()));
    let (looked_at, differs, ready) = (BTreeSet::new(), false, false);
    Ok(Running { progress, job, reports, shutdown, folding, measuring, looked_at, taken, differs, ready })
}

impl Running {
    /// What happens next; None when it has ended. `stop` ends it.
    pub async fn next(&mut self, stop: &Shutdown) -> Result<Next, Refusal> {
        if self.looked_at.len() == self.job.plan.partitions.len() && !self.ready && !self.differs {
            self.ready = true;
            return Ok(Next::RebuildEvent(RebuildEvent::Ready));
        }
        if let Some(ending) = self.ending() {
            return self.end(ending).await;
        }
        let report = tokio::select! {
            report = self.reports.recv() => report,
            outcome = &mut self.folding => {
                let why = match outcome {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the poll loop ended by itself".to_owned(),
                };
                return Err(Refusal::Unavailable(format!("the log cannot be read any more: {why}")));
            }
            () = stop.drain.cancelled() => return self.end(Ending::Stopped).await,
        };
        match report {
            Some(Report::RebuildEvent(told)) => {
                self.note(&told);
                Ok(Next::RebuildEvent(told))
            }
            Some(Report::Over(refusal)) => {
                self.end(Ending::Stopped).await?;
                Err(refusal)
            }
            None => self.end(Ending::Stopped).await,
        }
    }

    fn note(&mut self, told: &RebuildEvent) {
        match told {
            RebuildEvent::Verified(Verified { partition, .. }) | RebuildEvent::Unverified { partition, .. } => {
                self.looked_at.insert(*partition);
            }
            RebuildEvent::Differs { partition, .. } => {
                self.looked_at.insert(*partition);
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
        let compared = self.looked_at.len() == all;
        match () {
            () if compared && self.differs => Some(Ending::Different),
            () if compared && self.taken.len() == all + self.job.plan.taken.len() => Some(Ending::TakenOver),
            () if compared && !self.job.setup.follow => Some(Ending::Complete),
            () => None,
        }
    }

    async fn end(&mut self, ending: Ending) -> Result<Next, Refusal> {
        self.shutdown.begin();
        self.measuring.abort();
        if !self.folding.is_terminated() {
            let _ = tokio::time::timeout(LEAVE_DEADLINE, &mut self.folding).await;
        }
        Ok(Next::Ended(ending))
    }
}

/// One step of a rebuild.
#[derive(Debug)]
pub enum Next {
    RebuildEvent(RebuildEvent),
    Ended(Ending),
}

/// Keeps the ends of the log up to date, for those who look at the progress, and the lag of the copy.
async fn measure(job: Arc<Job>) {
    let mut ticks = tokio::time::interval(MEASURE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let setup = &job.setup.tracker;
    let topic: Arc<str> = setup.names.events().into();
    loop {
        ticks.tick().await;
        for (task, part) in job.plan.partitions.iter().zip(&job.progress.parts) {
            let (broker, partition) = (setup.broker.clone(), Partition::new(topic.clone(), task.number as i32));
            let Ok(Ok(ends)) = blocking(move || broker.ends(&partition, CALL_DEADLINE)).await else { continue };
            part.end.fetch_max(ends.end, Relaxed);
            let lag = (ends.end - part.folded.load(Relaxed)).max(0);
            setup.metrics.lag.with_label_values(&[&*topic, &task.number.to_string()]).set(lag);
        }
    }
}
