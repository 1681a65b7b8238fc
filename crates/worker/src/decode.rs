//! Decodes records of a task topic into inputs: tasks, or invalid records.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Record, RecordRef};
use kafleet_config::{Names, TypePolicy};
use kafleet_handlers::context::{KeptHeaders, Restart};
use kafleet_model::offsets::PendingRetry;
use kafleet_model::retry::{RunProgress, Waits};
use kafleet_model::task::header;
use kafleet_model::task::limits::{Flaw, TaskLimits};
use kafleet_model::task::partition::partition_of;
use kafleet_model::task::start::NextStart;
use kafleet_model::task::{Policy, Position, ReceivedTask, RecordSource, Reject, TaskSpec, read_record};
use kafleet_runtime::now_ms;

use super::completions::DeliveryTag;
use super::key_check::KeyCheck;
use super::memory_budget::{Account, Charge, MemoryBudget};
use super::results::{Headers, correlation, kept_headers};
use super::spans::TaskTrace;
use super::unique::ForeignAsk;

/// Approximate memory that a task in flight costs beyond its record, in bytes.
const TASK_OVERHEAD_BYTES: usize = 512;

/// Input of a worker.
pub(super) enum Input {
    Task(Box<InFlight>),
    Invalid(Box<Invalid>),
}

/// A task in the worker, from its delivery to the acknowledgement of its terminal event.
pub(super) struct InFlight {
    pub task: TaskSpec,
    pub record: SourceRecord,
    pub tag: DeliveryTag,
    /// Memory charge, refunded on drop.
    pub _charge: Charge,
    /// Hash of the ordering key; 0 for unordered types.
    pub key: u64,
    /// Attempts and waits that the run has used, those of earlier workers included.
    pub progress: RunProgress,
    /// Time that the task has waited in this worker between attempts.
    pub waited: Duration,
    /// This worker has published an event of the task that contains its announcement.
    pub announced: bool,
    /// The task holds its ordering key; later tasks with the key wait.
    pub holds_key: bool,
    /// Hash of the key of a per-key rate limit; 0 if there was no such limit at delivery.
    pub rate_key: u64,
    /// The rate limit has already admitted the task.
    pub admitted: bool,
    /// Set if the task was in flight when workers crashed: it runs in quarantine.
    pub suspect: Option<Suspect>,
    /// Repetitions of the current attempt, which ended through no fault of its own.
    pub restarts: Restarts,
    /// The task runs in no batch: it was the only one left of a batch that failed as a whole.
    pub runs_alone: bool,
    /// Set once the task has used an attempt or a wait in this worker, or in the one before.
    pub retry: Option<Box<HeldRetry>>,
    /// Trace of the task, once an attempt has started in it.
    pub trace: Option<Box<TaskTrace>>,
}

/// Record of a task, without its fields.
pub(super) struct SourceRecord {
    pub position: Position,
    /// Timestamp, epoch milliseconds.
    pub timestamp_ms: i64,
    /// Attempts and waits that the run had used when the record was written.
    pub progress: RunProgress,
    /// The key differs from the task's id.
    pub has_own_key: bool,
    /// The record has headers unknown to kafleet, which are copied when the task is passed on.
    pub has_foreign_headers: bool,
    /// Headers to be copied to the result, if the task has one for other systems.
    pub correlation: Option<Headers>,
    /// Headers that the type keeps for its handler.
    pub kept_headers: Option<KeptHeaders>,
}

/// Task that may have crashed workers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Suspect {
    /// Child processes that crashed while running the task in quarantine.
    pub crashes: u8,
}

/// Repetitions of an attempt whose process has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restarts {
    pub number: u8,
    /// The attempt may have caused the death of a process of an app, and runs without others.
    pub is_alone: bool,
    /// The attempt has started in a batch that failed as a whole.
    pub is_split: bool,
}

impl Restarts {
    /// Returns whether another repetition is counted.
    pub(super) fn counts(restart: Restart) -> bool {
        !matches!(restart, Restart::Unsent | Restart::Blameless | Restart::Split)
    }

    /// Adds a repetition. One that is not counted changes nothing: an attempt that has to run alone still has to.
    pub(super) fn add(&mut self, restart: Restart) {
        if Self::counts(restart) {
            self.number += 1;
            self.is_alone = restart == Restart::Alone;
        }
        self.is_split |= restart == Restart::Split;
    }
}

/// Retry of a task that this worker keeps.
#[derive(Debug)]
pub(super) enum HeldRetry {
    /// The task has been taken over from another worker, with the start of its next attempt, epoch milliseconds.
    Resumed { due_ms: i64 },
    /// The used attempts and waits were recorded under this number. The next attempt waits for the commit.
    Recorded { sequence: u64, _counted: Arc<()> },
}

impl InFlight {
    /// Continues with the attempts and waits that the task had used in the previous owner of the partition.
    pub(super) fn resume(&mut self, retry: &PendingRetry) {
        let attempts = self.progress.attempts.max(retry.progress.attempts);
        self.progress = RunProgress { attempts, ..retry.progress };
        self.retry = Some(Box::new(HeldRetry::Resumed { due_ms: retry.due_ms }));
    }

    /// Next start of the task, by what its run has used.
    pub(super) fn next_start(&self) -> NextStart {
        let RunProgress { attempts, waits, .. } = self.progress;
        NextStart { run: self.task.run, attempts, waits: waits.number }
    }

    /// Ends the wait that the owner of the partition before has begun.
    pub(super) fn end_resumed_wait(&mut self) {
        if let Some(HeldRetry::Resumed { due_ms }) = self.retry.as_deref_mut() {
            *due_ms = 0;
        }
    }

    /// RunProgress for the copy of the record that the tracker keeps. It takes the number of attempts from the event.
    pub(super) fn progress_of_copy(&self) -> RunProgress {
        RunProgress { attempts: self.record.progress.attempts, ..self.progress }
    }

    /// Returns whether no attempt of this run has started yet, as far as this worker knows.
    pub(super) fn is_first_start(&self) -> bool {
        let before = &self.record.progress;
        let has_used = self.progress.attempts > before.attempts || self.progress.waits != before.waits;
        // An attempt that is repeated because its process died or its batch failed has started before.
        !has_used && self.restarts.number == 0 && !self.restarts.is_split
    }

    /// Time in the queue, in milliseconds: since the record was written, or since the task was to start at the earliest.
    pub(super) fn queued_ms(&self, now_ms: i64) -> i64 {
        let not_before_ms = self.task.policy.as_ref().and_then(|policy| policy.not_before_ms);
        now_ms.saturating_sub(self.record.timestamp_ms.max(not_before_ms.unwrap_or(i64::MIN)))
    }

    /// Hash of the key that a per-key rate limit applies to.
    pub(super) fn rate_key(&self) -> u64 {
        if self.rate_key != 0 { self.rate_key } else { key_hash(self.task.id.as_str().as_bytes()) }
    }
}

/// A record that is not a valid task.
pub(super) struct Invalid {
    pub record: Record,
    pub reject: Reject,
    pub tag: DeliveryTag,
    /// Memory charge, refunded on drop: when the dead letter is written.
    pub _charge: Charge,
}

impl Input {
    pub(super) fn offset(&self) -> i64 {
        match self {
            Self::Task(in_flight) => in_flight.record.position.offset,
            Self::Invalid(invalid) => invalid.record.offset,
        }
    }

    pub(super) fn tag(&self) -> DeliveryTag {
        match self {
            Self::Task(in_flight) => in_flight.tag,
            Self::Invalid(invalid) => invalid.tag,
        }
    }
}

/// Decoder of one task type's records.
pub(super) struct Decoder {
    pub task_type: Arc<str>,
    pub order: kafleet_config::Order,
    /// Limits of new tasks.
    pub limits: TaskLimits,
    /// Policy of the type.
    pub policy: TypePolicy,
    pub memory: Arc<MemoryBudget>,
    /// Index of the task type in the worker.
    pub type_index: usize,
    /// The type has a rate limit per key.
    pub has_rate_per_key: bool,
    /// The type has a results topic.
    pub publish_results: bool,
    /// Names of headers that are copied to results.
    pub correlation_headers: Arc<[String]>,
    /// Names of headers that are kept for the handler.
    pub keep_headers: Arc<[String]>,
    pub names: Names,
    pub key_check: KeyCheck,
}

/// The records of one poll, whose memory is charged together.
pub(super) struct PollBatch {
    /// A counter per batch: clones by the consumer and drops by the dispatcher do not contend on one.
    task_type: Arc<str>,
    account: Arc<Account>,
    bytes: usize,
}

impl Drop for PollBatch {
    fn drop(&mut self) {
        self.account.add(self.bytes);
    }
}

impl PollBatch {
    pub(super) fn decode(&mut self, decoder: &Decoder, record: &RecordRef<'_>, tag: DeliveryTag) -> Input {
        let source = RecordSource {
            task_type: &self.task_type,
            position: Position { partition: record.partition, offset: record.offset },
            timestamp_ms: record.timestamp_ms,
            value: record.value,
        };
        let size = record.value.map_or(0, <[u8]>::len);
        let reject = match read_record(&source, record.headers()) {
            Ok(received) => match decoder.check(&received, size) {
                Ok(()) => return Input::Task(Box::new(self.in_flight(decoder, record, received, tag))),
                Err(reject) => reject,
            },
            Err(reject) => reject,
        };
        let _charge = self.charge(record.size());
        Input::Invalid(Box::new(Invalid { record: record.to_owned(), reject, tag, _charge }))
    }

    fn in_flight(
        &mut self,
        decoder: &Decoder,
        record: &RecordRef<'_>,
        received: ReceivedTask,
        tag: DeliveryTag,
    ) -> InFlight {
        let kept_headers = decoder.kept_headers(record, &received);
        let correlation = decoder.correlation(record, &received);
        let ReceivedTask { mut task, position, progress, has_foreign_headers } = received;
        task.index_params(&decoder.policy.index);
        if decoder.order == kafleet_config::Order::Key || decoder.has_rate_per_key {
            decoder.key_check.check(record);
        }
        // Headers are kept in the policy, and by types that ask for them; most tasks have almost none.
        let size = if task.policy.is_some() || kept_headers.is_some() {
            record.size()
        } else {
            record.value.map_or(0, <[u8]>::len)
        };
        let key_bytes = record.key.unwrap_or_else(|| task.id.as_str().as_bytes());
        InFlight {
            tag,
            _charge: self.charge(size),
            key: decoder.order_key(record, &task),
            progress,
            record: SourceRecord {
                position,
                timestamp_ms: record.timestamp_ms,
                progress,
                has_own_key: record.key.is_some_and(|key| key != task.id.as_str().as_bytes()),
                has_foreign_headers,
                correlation,
                kept_headers,
            },
            waited: Duration::ZERO,
            announced: false,
            holds_key: false,
            rate_key: if decoder.has_rate_per_key { key_hash(key_bytes) } else { 0 },
            admitted: false,
            suspect: None,
            restarts: Restarts::default(),
            runs_alone: false,
            retry: None,
            trace: None,
            task,
        }
    }

    fn charge(&mut self, size: usize) -> Charge {
        self.bytes += size + TASK_OVERHEAD_BYTES;
        self.account.charge(size + TASK_OVERHEAD_BYTES)
    }
}

impl Decoder {
    pub(super) fn start_batch(&self) -> PollBatch {
        let account = Account::open(&self.memory, self.type_index);
        PollBatch { task_type: Arc::from(&*self.task_type), account, bytes: 0 }
    }

    /// Checks the options and the size of the params against the limits of the configuration.
    fn check(&self, received: &ReceivedTask, size: usize) -> Result<(), Reject> {
        let task = &received.task;
        let reject = |code, message| Reject { task: Some((task.id.clone(), task.run)), ..Reject::new(code, message) };
        if let Some(policy) = task.policy.as_deref()
            && let Err((at, reason)) = self.check_policy(received, policy)
        {
            let header = header::of_pointer(&at);
            let at = at.trim_start_matches('/');
            let reason = if header == header::POLICY { format!("`{at}`: {reason}") } else { reason };
            return Err(reject("bad_header", format!("header `{header}`: {reason}")));
        }
        if let Err(reason) = ForeignAsk::of(&self.policy, task) {
            return Err(reject("bad_header", format!("header `ce_unique`: {reason}")));
        }
        let params = self.limits.check_params(size);
        params.map_err(|error| reject("too_large", format!("{error}; pass a link instead")))
    }

    /// Checks the options of a task. Tasks that a process of the fleet has published were checked there, and tasks that have
    /// used an attempt or a wait were checked by the worker that received them first: settings may have changed since.
    fn check_policy(&self, received: &ReceivedTask, policy: &Policy) -> Result<(), Flaw> {
        let ReceivedTask { task, progress, .. } = received;
        if let Some(topic) = &policy.reply_to {
            self.names.check_reply_topic(topic).map_err(|error| ("/reply_to".to_owned(), error))?;
        }
        if task.announced || progress.attempts > 0 || progress.waits != Waits::default() {
            return Ok(());
        }
        self.limits.check(&task.id, policy, now_ms())?;
        let contradiction = self.policy.contradiction(policy);
        contradiction.map_or(Ok(()), |(field, error)| Err((format!("/{field}"), error)))
    }

    /// Copies the headers for the result of a task, if it has one for other systems.
    fn correlation(&self, record: &RecordRef<'_>, received: &ReceivedTask) -> Option<Headers> {
        let task = &received.task;
        let has_result = self.publish_results || task.policy.as_ref().is_some_and(|policy| policy.reply_to.is_some());
        (has_result && received.has_foreign_headers)
            .then(|| correlation(&self.correlation_headers, record.headers()))
            .flatten()
    }

    /// Copies the headers that the type keeps for its handler.
    fn kept_headers(&self, record: &RecordRef<'_>, received: &ReceivedTask) -> Option<KeptHeaders> {
        (received.has_foreign_headers && !self.keep_headers.is_empty())
            .then(|| kept_headers(&self.keep_headers, record.headers()))
            .flatten()
    }

    /// Hash of the ordering key; tasks with equal hashes run one after the other.
    fn order_key(&self, record: &RecordRef<'_>, task: &TaskSpec) -> u64 {
        let partition = (record.partition as u64 + 1) << 32;
        match self.order {
            kafleet_config::Order::None => 0,
            kafleet_config::Order::Partition => partition,
            // A collision only serializes two keys.
            kafleet_config::Order::Key => {
                partition | key_hash(record.key.unwrap_or_else(|| task.id.as_str().as_bytes()))
            }
        }
    }
}

fn key_hash(key: &[u8]) -> u64 {
    u64::from(partition_of(key, i32::MAX as u32))
}

#[cfg(test)]
impl Decoder {
    /// Creates a decoder for tests.
    pub(super) fn of_order(order: kafleet_config::Order) -> Self {
        Self {
            task_type: "t".into(),
            order,
            limits: TaskLimits { max_params: 100, ..TaskLimits::default() },
            policy: TypePolicy::default(),
            memory: MemoryBudget::new(1, 1 << 20),
            type_index: 0,
            has_rate_per_key: false,
            publish_results: false,
            correlation_headers: [].into(),
            keep_headers: [].into(),
            names: Names::new("kafleet"),
            key_check: KeyCheck {
                task_type: "t".into(),
                partitions: 0,
                counter: prometheus::IntCounter::new("misplaced", "Misplaced keys.").unwrap(),
                misplaced: Default::default(),
            },
        }
    }

    /// Decodes a valid record at an offset, for tests.
    pub(super) fn task_at(&self, offset: i64, tag: DeliveryTag) -> Input {
        let record = RecordRef {
            topic: "tasks",
            partition: 0,
            offset,
            timestamp_ms: 0,
            log_append_time: true,
            key: None,
            value: Some(b"1"),
            headers: &kafleet_broker::OwnedHeaders::new(),
        };
        self.start_batch().decode(self, &record, tag)
    }
}
