//! Coverage of the log by the store. A store that was emptied, restored from an old copy, or has no tracker lacks tasks that
//! exist. For each events partition this module decides whether what the store lacks does not exist, or is not projected
//! yet. All reads of the API ask it; none concludes from an empty store by itself.
//!
//! A partition has *lost data* if its checkpoint is missing, lower than a checkpoint read before, or below the end of an
//! incomplete projection from the beginning of the log. It *lags* if it does not include what the log contained
//! [`COVERAGE_GRACE`] ago, or at the start of this process. Both are decided in memory: the end of the log is sampled in the
//! background, and checkpoints come with the records.

use std::collections::VecDeque;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition};
use kafleet_store::{Checkpoint, RESERVATION_TTL};
use kafleet_telemetry::Metrics;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::reads::Reads;
use crate::backends::KAFKA_DEADLINE;
use crate::http::problem::{ApiError, Code};

/// Interval of samples of the end of the log.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait of a request for the first sample.
const FIRST_SAMPLE_DEADLINE: Duration = Duration::from_secs(1);
/// Time within which events are expected in the store. A reservation must outlive it: until then it is what prevents a
/// second task under one id.
const COVERAGE_GRACE: Duration = Duration::from_secs(30);
const _: () = assert!(COVERAGE_GRACE.as_secs() + 2 * SAMPLE_INTERVAL.as_secs() + 30 < RESERVATION_TTL.as_secs());
/// Time after the discovery of a loss in which tasks may still be published whose reservations were lost with the store.
/// Requests that publish reserve their ids again within this time.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Coverage of each events partition, as far as this process knows.
pub(crate) struct Coverage {
    partitions: Vec<Mutex<KnownCoverage>>,
    /// Set by the first sample of the log.
    sampled: OnceCell<()>,
}

#[derive(Default)]
struct KnownCoverage {
    /// Highest offset up to which the store was projected.
    projected: i64,
    /// [`Checkpoint::complete_at`] of the last checkpoint read: another one means that the projection began again.
    complete_at: Option<i64>,
    /// Ends of the log with the times at which they were sampled, oldest first, less than [`COVERAGE_GRACE`] ago.
    ends: VecDeque<(Instant, i64)>,
    /// Offset that the store must include now.
    required: i64,
    /// Time at which a loss was noticed, until [`SETTLE_TIME`] after its repair.
    lost_at: Option<Instant>,
}

/// State of a partition before it is read. Concurrent reads may return their checkpoints in another order.
#[derive(Clone, Copy)]
pub(crate) struct Baseline {
    partition: u32,
    floor: i64,
}

/// Reason why an events partition of the store is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub partition: u32,
    projected: i64,
    needed: i64,
    pub kind: GapKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapKind {
    /// The store has lost data of the partition: also records that it has may be outdated.
    Lost,
    /// The projection is too far behind.
    Lagging,
    /// The partition is complete again, but tasks without a reservation may still be published.
    Settling,
}

impl Gap {
    /// Whether the store lacks events of the partition.
    fn is_incomplete(&self) -> bool {
        self.kind != GapKind::Settling
    }
}

impl From<Gap> for ApiError {
    fn from(Gap { partition, projected, needed, kind }: Gap) -> Self {
        let (error, hint) = match kind {
            GapKind::Lost => (
                format!(
                    "the store has lost events partition {partition}, which is projected again: at offset {projected} of \
                     {needed}"
                ),
                "retry; nothing is lost, because the store is a projection of the log",
            ),
            GapKind::Lagging => (
                format!(
                    "events partition {partition} is projected up to offset {projected}; {needed} was due {} s after it \
                     was written",
                    COVERAGE_GRACE.as_secs()
                ),
                "retry; if it persists, check that trackers are running (`/readyz` of the trackers)",
            ),
            GapKind::Settling => (
                format!("events partition {partition} has just been projected again after a loss of the store"),
                "retry",
            ),
        };
        Self::new(Code::NotVisibleYet, error).hint(hint)
    }
}

impl Coverage {
    pub(crate) fn new(partitions: u32) -> Self {
        Self { partitions: (0..partitions).map(|_| Mutex::default()).collect(), sampled: OnceCell::new() }
    }

    /// Call before reading the partition. `noticed`: offset of its last change notice.
    pub(crate) fn baseline(&self, partition: u32, noticed: i64) -> Baseline {
        let floor = self.coverage_of(partition).map_or(0, |coverage| {
            let coverage = &mut *coverage.lock();
            coverage.projected = coverage.projected.max(noticed);
            coverage.projected
        });
        Baseline { partition, floor }
    }

    /// Decides about a partition by the checkpoint that was read with or after the data.
    pub(crate) fn judge(&self, baseline: Baseline, checkpoint: Option<Checkpoint>) -> Option<Gap> {
        let coverage = &mut *self.coverage_of(baseline.partition)?.lock();
        coverage.judge(baseline, checkpoint, Instant::now())
    }

    /// Waits until tasks whose reservations were lost with the store have been published or reserved again.
    pub(crate) async fn wait_until_settled(&self, partition: u32) {
        let lost_at = self.coverage_of(partition).and_then(|coverage| coverage.lock().lost_at);
        if let Some(lost_at) = lost_at {
            tokio::time::sleep_until(lost_at + SETTLE_TIME).await;
        }
    }

    fn coverage_of(&self, partition: u32) -> Option<&Mutex<KnownCoverage>> {
        self.partitions.get(partition as usize)
    }
}

impl KnownCoverage {
    fn judge(&mut self, baseline: Baseline, checkpoint: Option<Checkpoint>, now: Instant) -> Option<Gap> {
        let projected = checkpoint.map_or(0, |checkpoint| checkpoint.offset);
        let complete_at = checkpoint.map_or(0, |checkpoint| checkpoint.complete_at);
        // A floor that was lowered meanwhile belongs to a log that has been cut.
        let floor = baseline.floor.min(self.projected);
        let has_begun_again = checkpoint.is_some() && self.complete_at.is_some_and(|earlier| earlier != complete_at);
        if checkpoint.is_some() {
            self.complete_at = Some(complete_at);
        }
        let gap = |needed, kind| Some(Gap { partition: baseline.partition, projected, needed, kind });
        let is_lost = projected < floor.max(complete_at) || (checkpoint.is_none() && self.required > 0);
        if is_lost || has_begun_again {
            self.lost_at.get_or_insert(now);
        }
        if is_lost {
            return gap(floor.max(complete_at).max(self.required), GapKind::Lost);
        }
        self.projected = self.projected.max(projected);
        if projected < self.required {
            return gap(self.required, GapKind::Lagging);
        }
        if self.lost_at.is_some_and(|lost_at| now < lost_at + SETTLE_TIME) {
            return gap(self.required, GapKind::Settling);
        }
        self.lost_at = None;
        None
    }

    /// Takes a sample of the log. `projected` was the highest offset known before the sample.
    fn sample(&mut self, (start, end): (i64, i64), projected: i64, is_first: bool, now: Instant) {
        if end < projected || start == end {
            // The log was cut or is empty: what was projected before does not concern it.
            (self.projected, self.required) = (0, 0);
            self.ends.clear();
            return;
        }
        if is_first {
            self.required = end;
        }
        self.ends.push_back((now, end));
        while self.ends.front().is_some_and(|(at, _)| now.duration_since(*at) >= COVERAGE_GRACE) {
            self.required = self.ends.pop_front().map_or(self.required, |(_, end)| end);
        }
    }
}

impl Reads {
    /// Lists the events partitions that the store does not cover. Call after reading the data.
    pub async fn incomplete(&self) -> Result<Vec<u32>, ApiError> {
        let gaps = gaps(self, &self.partitions()).await?;
        Ok(gaps.into_iter().filter(Gap::is_incomplete).map(|gap| gap.partition).collect())
    }

    /// Fails if the store does not cover an events partition; `None`: any of them. Call after reading the data.
    pub(crate) async fn check_covered(&self, partition: Option<u32>) -> Result<(), ApiError> {
        let partitions = partition.map_or_else(|| self.partitions(), |partition| vec![partition]);
        let gap = gaps(self, &partitions).await?.into_iter().find(Gap::is_incomplete);
        gap.map_or(Ok(()), |gap| Err(gap.into()))
    }
}

/// Call before reading a partition, and judge it by its checkpoint after that.
pub(super) fn baseline(reads: &Reads, partition: u32) -> Baseline {
    reads.coverage.baseline(partition, reads.notices.last_offset(partition))
}

async fn gaps(reads: &Reads, partitions: &[u32]) -> Result<Vec<Gap>, ApiError> {
    take_first_sample(reads).await;
    let baselines: Vec<Baseline> = partitions.iter().map(|partition| baseline(reads, *partition)).collect();
    let checkpoints = reads.checkpoints(partitions).await?;
    let judged =
        baselines.into_iter().zip(checkpoints).map(|(baseline, checkpoint)| reads.coverage.judge(baseline, checkpoint));
    Ok(judged.flatten().collect())
}

pub(super) fn is_sampled(reads: &Reads) -> bool {
    reads.coverage.sampled.initialized()
}

/// Takes the first sample of the log, unless it was taken. Without an answer of Kafka only losses are noticed.
pub(super) async fn take_first_sample(reads: &Reads) {
    if is_sampled(reads) {
        return;
    }
    let first = reads.coverage.sampled.get_or_try_init(|| async { sample(reads, true).await });
    match tokio::time::timeout(FIRST_SAMPLE_DEADLINE, first).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(?error, "cannot read the ends of the events topic"),
        Err(_) => tracing::debug!("Kafka has not returned the ends of the events topic in time"),
    }
}

/// Samples the ends of the log.
async fn sample(reads: &Reads, is_first: bool) -> Result<(), ApiError> {
    let partitions = reads.partitions();
    let topic: Vec<Partition> = partitions.iter().map(|partition| reads.events(*partition)).collect();
    let projected: Vec<i64> = partitions.iter().map(|partition| baseline(reads, *partition).floor).collect();
    let read = move |broker: &dyn Broker, deadline: Duration| {
        let (starts, ends) = (broker.start_offsets(&topic, deadline)?, broker.end_offsets(&topic, deadline)?);
        Ok::<_, BrokerError>(starts.into_iter().zip(ends).collect::<Vec<_>>())
    };
    let sampled = reads.broker.with_deadline(KAFKA_DEADLINE).call(read).await?;
    let now = Instant::now();
    for ((coverage, sampled), projected) in reads.coverage.partitions.iter().zip(sampled).zip(projected) {
        if let (Some(start), Some(end)) = sampled {
            coverage.lock().sample((start, end), projected, is_first, now);
        }
    }
    skip_invisible(reads).await
}

/// Lowers the required offsets of partitions that lack only transaction markers and aborted records.
async fn skip_invisible(reads: &Reads) -> Result<(), ApiError> {
    let checkpoints = reads.checkpoints(&reads.partitions()).await?;
    for ((partition, coverage), checkpoint) in (0..).zip(&reads.coverage.partitions).zip(checkpoints) {
        let required = coverage.lock().required;
        let Some(offset) = checkpoint.map(|checkpoint| checkpoint.offset).filter(|offset| *offset < required) else {
            continue;
        };
        let events = reads.events(partition);
        let probe = reads.broker.with_deadline(KAFKA_DEADLINE).first_visible(&events, offset).await?;
        if probe.offset >= required {
            let coverage = &mut *coverage.lock();
            coverage.required = coverage.required.min(offset);
        }
    }
    Ok(())
}

/// Samples the log, and reports partitions that the store does not cover, until the guard is dropped.
pub(crate) fn sample_log(reads: Reads, metrics: Metrics) -> DropGuard {
    kafleet_runtime::spawn_guarded(async move {
        let mut reported = Vec::new();
        loop {
            take_first_sample(&reads).await;
            match reads.incomplete().await {
                Ok(incomplete) => {
                    metrics.http.incomplete.set(i64::try_from(incomplete.len()).unwrap_or(i64::MAX));
                    report(&incomplete, &reported);
                    reported = incomplete;
                }
                Err(error) => tracing::debug!(?error, "cannot compare the store with the log"),
            }
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            if let Err(error) = sample(&reads, false).await {
                tracing::debug!(?error, "cannot read the ends of the events topic");
            }
        }
    })
}

/// Logs a change.
fn report(incomplete: &[u32], before: &[u32]) {
    match (incomplete, before) {
        (now, before) if now == before => {}
        ([], _) => tracing::info!("the store covers all events partitions again"),
        (partitions, _) => tracing::warn!(
            ?partitions,
            "the store does not cover these events partitions: it has lost data, or no tracker projects them; \
             answers that need them are 503 or `incomplete`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: i64, complete_at: i64) -> Option<Checkpoint> {
        Some(Checkpoint { offset, complete_at, ..Checkpoint::default() })
    }

    /// Kind of the gap with a checkpoint read now.
    fn kind(coverage: &mut KnownCoverage, checkpoint: Option<Checkpoint>, now: Instant) -> Option<GapKind> {
        let baseline = Baseline { partition: 0, floor: coverage.projected };
        coverage.judge(baseline, checkpoint, now).map(|gap| gap.kind)
    }

    #[test]
    fn loss_is_noticed_and_ends_after_the_projection_and_a_pause() {
        let (mut coverage, now) = (KnownCoverage::default(), Instant::now());
        coverage.sample((0, 0), 0, true, now);
        assert_eq!(kind(&mut coverage, None, now), None, "the log is empty");
        assert_eq!(kind(&mut coverage, at(50, 0), now), None);
        for lost in [None, at(0, 60), at(49, 0), at(59, 60)] {
            assert_eq!(kind(&mut coverage, lost, now), Some(GapKind::Lost), "{lost:?}");
        }
        assert_eq!(kind(&mut coverage, at(60, 60), now), Some(GapKind::Settling));
        assert_eq!(kind(&mut coverage, at(61, 60), now + SETTLE_TIME), None);
        assert_eq!(
            kind(&mut coverage, at(61, 61), now + SETTLE_TIME),
            Some(GapKind::Settling),
            "it was lost in between"
        );
    }

    #[test]
    fn late_answer_of_an_earlier_read_is_no_loss() {
        let (mut coverage, now) = (KnownCoverage::default(), Instant::now());
        let baseline = Baseline { partition: 0, floor: coverage.projected };
        assert_eq!(kind(&mut coverage, at(50, 0), now), None);
        assert_eq!(coverage.judge(baseline, at(40, 0), now), None);
    }

    #[test]
    fn events_are_expected_after_a_while_and_those_before_the_start_at_once() {
        let (mut coverage, now) = (KnownCoverage::default(), Instant::now());
        coverage.sample((0, 50), 0, true, now);
        assert_eq!(kind(&mut coverage, None, now), Some(GapKind::Lost));
        assert_eq!(kind(&mut coverage, at(49, 0), now), Some(GapKind::Lagging));
        coverage.lost_at = None;
        coverage.sample((0, 80), 0, false, now);
        assert_eq!(kind(&mut coverage, at(50, 0), now), None);
        coverage.sample((0, 90), 50, false, now + COVERAGE_GRACE);
        assert_eq!(kind(&mut coverage, at(79, 0), now), Some(GapKind::Lagging));
        assert_eq!(kind(&mut coverage, at(80, 0), now), None);
    }

    #[test]
    fn log_that_was_cut_or_emptied_requires_nothing() {
        for sample in [(0, 10), (50, 50)] {
            let (mut coverage, now) = (KnownCoverage::default(), Instant::now());
            coverage.sample((0, 50), 0, true, now);
            assert_eq!(kind(&mut coverage, at(50, 0), now), None);
            coverage.sample(sample, 50 + i64::from(sample.0 == 0), false, now);
            assert_eq!(kind(&mut coverage, None, now), None, "{sample:?}");
        }
    }
}
