//! Recovery from offsets outside the log, from gaps in the log, and from failed consumers.

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet_broker::{BrokerError, Partition, StartOffset};
use kafleet_model::event::InterruptionReason;
use kafleet_runtime::Backoff;
use tokio::time::Instant;

use super::deps::{CALL_DEADLINE, GroupDeps, NOT_JOINED};
use super::partition::PartitionState;
use super::type_consumer::TypeTable;
use super::{GroupConsumer, RETRY_INTERVAL, TypeConsumer};
use crate::dispatch::Command;

/// First and longest wait before a failed consumer is recreated.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Length of a turn of the loop while there is no consumer.
const TURN_INTERVAL: Duration = Duration::from_millis(20);
/// Minimum time between two failures after which the backoff starts again from its first wait.
const PROBATION: Duration = Duration::from_secs(60);
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// Minimum interval of the check for gaps, such as transaction markers, at the end of a partition.
const GAP_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time per partition until the next check: with hundreds of types, librdkafka searches a long list for each.
const GAP_CHECK_PER_PARTITION: Duration = Duration::from_millis(3);

/// Schedule of the attempts to recreate a failed consumer.
pub(super) struct Recreation {
    /// Time of the next try; `None` while the consumer works.
    next_try: Option<Instant>,
    backoff: Backoff,
    last_failure: Option<Instant>,
}

impl Recreation {
    pub(super) fn new() -> Self {
        Self { next_try: None, backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT), last_failure: None }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.next_try.is_some()
    }

    fn schedule(&mut self, now: Instant) {
        if self.last_failure.is_none_or(|last| now.duration_since(last) > PROBATION) {
            self.backoff.reset();
        }
        self.last_failure = Some(now);
        self.next_try = Some(now + self.backoff.next_wait());
    }
}

/// Partitions whose next offset is outside their log. The client reports each of them once, so the recovery is
/// retried until the partition is read again.
#[derive(Default)]
pub(super) struct OutOfRange {
    partitions: BTreeSet<Partition>,
    retry_at: Option<Instant>,
}

impl OutOfRange {
    pub(super) fn add(&mut self, partition: Partition) {
        self.partitions.insert(partition);
        self.retry_at = None;
    }
}

/// Periodic check for offsets that hold no records.
pub(super) struct GapCheck {
    next: Instant,
}

impl GapCheck {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() }
    }

    /// Advances partitions over offsets without records, so that the group's lag is zero when everything is complete.
    pub(super) fn skip_gaps(&mut self, deps: &mut GroupDeps, types: &mut TypeTable, now: Instant) {
        if now < self.next {
            return;
        }
        let partitions = types.iter().flat_map(|type_consumer| type_consumer.partitions.iter()).count();
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        self.next = now + GAP_CHECK_INTERVAL.max(GAP_CHECK_PER_PARTITION.saturating_mul(partitions));
        let Ok(positions) = deps.consumer.positions() else { return };
        for (partition, offset) in positions {
            let Some(type_consumer) = types.of_topic_mut(&partition.topic) else { continue };
            if let Some(state) = type_consumer.partitions.reading_mut(partition.index)
                && offset > state.next_offset()
            {
                state.skip_to(offset);
                type_consumer.set_busy();
            }
        }
    }
}

impl GroupConsumer {
    pub(super) fn recover_out_of_range(&mut self, now: Instant) {
        if self.out_of_range.partitions.is_empty() || self.out_of_range.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.out_of_range.retry_at = Some(now + RETRY_INTERVAL);
        for partition in std::mem::take(&mut self.out_of_range.partitions) {
            let Err(error) = self.recover_partition(&partition) else { continue };
            self.deps.log_error(&error);
            let Partition { topic, index } = &partition;
            let message = format!(
                "partition {index} of `{topic}` is not read: its offset is outside its log and cannot be reset yet"
            );
            if let Some(type_consumer) = self.types.of_topic_mut(topic) {
                type_consumer.deps.set_partition_health(*index, format!("{message}: {error}"));
            }
            self.out_of_range.partitions.insert(partition);
        }
    }

    fn recover_partition(&mut self, partition: &Partition) -> Result<(), BrokerError> {
        let Some(type_consumer) = self.types.of_topic_mut(&partition.topic) else { return Ok(()) };
        // A revoked partition is not read any more.
        let Some(next) = type_consumer.partitions.reading_mut(partition.index).map(|state| state.next_offset()) else {
            return Ok(());
        };
        type_consumer.set_busy();
        let ends = self.deps.broker.watermarks(partition, CALL_DEADLINE)?;
        if next > ends.high {
            let reason = format!("offset {next} is beyond the log's end {}", ends.high);
            type_consumer.refuse_recreated(&mut self.deps, partition, &reason);
            // An operator may already have chosen its start offset.
            self.control_recheck_at = Some(Instant::now());
            return Ok(());
        }
        self.deps.consumer.assign(&[(partition.clone(), StartOffset::At(next.max(ends.low)))])?;
        let lost = ends.low - next;
        if lost > 0 {
            // The next commit is past the removed offsets. Trackers conclude from it that no worker has these tasks.
            if let Some(state) = type_consumer.partitions.get_mut(partition.index) {
                state.skip_to(ends.low);
            }
            tracing::error!(%partition, offsets = lost, "retention has removed tasks that no worker had started; continuing at the log's start");
        }
        type_consumer.deps.clear_partition_health(partition.index);
        Ok(())
    }

    /// Gives up a consumer after a fatal error: its partitions are lost, and nothing can be committed.
    pub(super) fn fail_consumer(&mut self, error: &BrokerError) {
        let group = &self.deps.group;
        let message = "the consumer has failed and will be recreated";
        tracing::error!(%group, %error, "{message}");
        let states = self.types.iter().flat_map(|type_consumer| type_consumer.partitions.iter());
        let owned: Vec<Partition> = states.map(|state| state.partition.clone()).collect();
        self.lose_partitions(&owned);
        self.types.iter_mut().for_each(|type_consumer| type_consumer.backpressure.reset());
        self.forget_pending(|_| true);
        self.deps.set_health(format!("{message}: {error}"));
        self.committer.reset();
        self.recreation.schedule(Instant::now());
    }

    /// Runs one turn of the loop without a consumer. Returns false if the worker stops.
    pub(super) async fn recreate_consumer(&mut self, now: Instant) -> bool {
        self.take_completions();
        if self.stopping {
            return false;
        }
        if self.recreation.next_try.is_some_and(|next_try| now < next_try) {
            kafleet_runtime::pause_thread(TURN_INTERVAL).await;
            return true;
        }
        match self.deps.broker.consumer(&self.deps.spec) {
            Ok(consumer) => {
                std::mem::replace(&mut self.deps.consumer, consumer).close(CLOSE_DEADLINE);
                self.recreation.next_try = None;
                self.deps.set_health(NOT_JOINED);
            }
            Err(error) => {
                self.deps.log_error(&error);
                self.recreation.schedule(now);
            }
        }
        true
    }
}

impl TypeConsumer {
    /// Refuses a partition of a topic that was probably recreated. Its offsets then identify other records, so its
    /// running tasks are cancelled and their results are ignored.
    fn refuse_recreated(&mut self, deps: &mut GroupDeps, partition: &Partition, reason: &str) {
        self.deps.report_refused(partition, &format!("{reason}: was the topic recreated?"));
        if let Some(state) = self.partitions.remove(partition.index) {
            let reason = InterruptionReason::PartitionLost;
            self.deps.command(Command::CancelAssignment { assignment_id: state.assignment_id, reason });
            // A new id: late completions of the old assignment must not be applied to this one.
            let assignment_id = self.partitions.free_assignment_id();
            self.partitions.insert(PartitionState::refused(partition.clone(), assignment_id));
        }
        deps.pause(std::slice::from_ref(partition), true);
    }
}
