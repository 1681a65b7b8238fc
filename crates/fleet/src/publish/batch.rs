//! Publishing of many tasks: all records are sent in batches, and their events as soon as the records are
//! acknowledged. Each task has its own outcome, as if it had been published alone.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use kafleet_broker::shared_producer::{FULL_QUEUE_DELAY, SendBatch, SendOutcome, unanswered};
use kafleet_broker::{BatchRecord, BrokerError};
use kafleet_model::event::submitted;
use kafleet_model::retry::RunProgress;
use kafleet_model::task::TaskSpec;
use kafleet_model::units::time::time_text;
use tokio::time::Instant;

use super::headers::{bytes_of, headers_at, task_record};
use super::{PUBLISH_DEADLINE, PreparedTask, PublishError, PublishStep, PublishedTask, Publisher, UnannouncedTask};

/// Number of tasks per batch and of concurrent batches per call: they bound the memory of a call besides its input.
const BATCH_TASKS: usize = 5_000;
const CONCURRENT_BATCHES: usize = 2;
/// Number of consecutive sends before yielding to other tasks.
const SENDS_PER_TURN: usize = 256;

pub(super) async fn publish_all(
    publisher: &Publisher,
    tasks: Vec<TaskSpec>,
    now_ms: i64,
) -> Vec<Result<PublishedTask, PublishError>> {
    let count = tasks.len();
    let mut tasks = tasks.into_iter();
    let chunks = std::iter::from_fn(|| {
        let chunk: Vec<TaskSpec> = tasks.by_ref().take(BATCH_TASKS).collect();
        (!chunk.is_empty()).then_some(chunk)
    });
    let batches =
        stream::iter(chunks).map(|chunk| async move { BatchPublish::new(publisher, chunk, now_ms).run().await });
    let mut batches = batches.buffered(CONCURRENT_BATCHES);
    let mut outcomes = Vec::with_capacity(count);
    while let Some(some) = batches.next().await {
        outcomes.extend(some);
    }
    outcomes
}

/// Batch in progress.
struct BatchPublish<'a> {
    publisher: &'a Publisher,
    batch: SendBatch<'a>,
    now_ms: i64,
    time: String,
    /// Topic of the most recent type.
    topic: (Arc<str>, String),
    slots: Vec<BatchSlot>,
    /// Slots to send now, slots to send again after a pause, and the end of that pause.
    ready: VecDeque<u32>,
    again: Vec<u32>,
    resume: Instant,
    /// Number of slots without an outcome.
    open: usize,
    /// Deadline of unpublished records; announcements of published ones have as long again.
    end: Instant,
    ended: bool,
    /// Slots whose records are acknowledged and whose events have not been sent.
    out: Vec<u32>,
    /// Encoded events.
    values: Vec<u8>,
    /// Accepted tasks of one type, not yet in the metric.
    accepted: (Arc<str>, u64),
}

/// Encoded event: its partition, its slot, and its range in the buffer.
struct EncodedEvent {
    partition: u32,
    number: u32,
    value: Range<usize>,
}

enum BatchSlot {
    /// The step of the task is the next one to be acknowledged.
    Open(Box<PreparedTask>),
    Done(Result<PublishedTask, PublishError>),
}

impl PreparedTask {
    fn failed(&self, error: BrokerError) -> PublishError {
        match self.step {
            PublishStep::Announce(position) => {
                let task = UnannouncedTask { task: self.task.clone(), position };
                PublishError::NotAnnounced { task: Box::new(task), error }
            }
            PublishStep::Record | PublishStep::Later { .. } | PublishStep::Ask => PublishError::NotPublished(error),
        }
    }
}

impl<'a> BatchPublish<'a> {
    fn new(publisher: &'a Publisher, tasks: Vec<TaskSpec>, now_ms: i64) -> Self {
        let slots: Vec<BatchSlot> = tasks.into_iter().map(|task| BatchSlot::of(publisher, task, now_ms)).collect();
        let is =
            |slot: &BatchSlot, out: bool| matches!(slot, BatchSlot::Open(open) if open.step.is_announcement() == out);
        let numbers = |out| (0..).zip(&slots).filter(move |(_, slot)| is(slot, out)).map(|(number, _)| number);
        let ready: VecDeque<u32> = numbers(false).collect();
        let out: Vec<u32> = numbers(true).collect();
        let now = Instant::now();
        Self {
            publisher,
            batch: publisher.producer.begin_batch(),
            now_ms,
            time: time_text(now_ms),
            topic: ("".into(), String::new()),
            open: ready.len() + out.len(),
            slots,
            ready,
            again: Vec::new(),
            resume: now,
            end: now + publisher.deadline,
            ended: false,
            out,
            values: Vec::new(),
            accepted: ("".into(), 0),
        }
    }

    async fn run(mut self) -> Vec<Result<PublishedTask, PublishError>> {
        let mut outcomes = Vec::new();
        while self.open > 0 {
            self.announce();
            self.send_some();
            let wait = match (self.again.is_empty(), self.ready.is_empty()) {
                (false, _) => self.resume,
                (true, true) => self.end,
                (true, false) => {
                    tokio::task::yield_now().await;
                    Instant::now()
                }
            };
            self.batch.take_outcomes(&mut outcomes, wait.min(self.end)).await;
            outcomes.drain(..).for_each(|(number, outcome)| self.record_outcome(number, outcome));
            self.give_up_at_the_end();
        }
        self.publisher.count(&self.accepted.0, self.accepted.1);
        self.slots.into_iter().map(BatchSlot::outcome).collect()
    }

    /// Sends ready slots. Stops at the first that has to be retried, since the queue may be full.
    fn send_some(&mut self) {
        if !self.again.is_empty() && Instant::now() >= self.resume {
            self.ready.extend(self.again.drain(..));
        }
        for _ in 0..SENDS_PER_TURN {
            if !self.again.is_empty() {
                return;
            }
            let Some(number) = self.ready.pop_front() else { return };
            if let Err(error) = self.send(number) {
                self.record_outcome(number, Err(error));
            }
        }
    }

    fn send(&mut self, number: u32) -> Result<(), BrokerError> {
        let Some(BatchSlot::Open(open)) = self.slots.get(number as usize) else { return Ok(()) };
        let publisher = self.publisher;
        let batch = &self.batch;
        let task = &open.task;
        self.values.clear();
        match open.step {
            PublishStep::Record => {}
            PublishStep::Announce(position) => submitted(task, position, self.now_ms, &mut self.values)?,
            PublishStep::Later { due_ms } => {
                super::scheduled(task, &publisher.source, due_ms, self.now_ms).encode(&mut self.values)?;
            }
            PublishStep::Ask => super::asked(task, &publisher.source, self.now_ms).encode(&mut self.values)?,
        }
        if open.step != PublishStep::Record {
            return batch.send(&publisher.event_record(task.id.root(), &self.values), number);
        }
        if self.topic.0 != task.task_type {
            self.topic = (task.task_type.clone(), publisher.topology.names.tasks(&task.task_type));
        }
        let headers = headers_at(task, &RunProgress::default(), &publisher.source, self.time.as_str().into());
        batch.send(&task_record(task, &self.topic.1, &bytes_of(&headers)), number)
    }

    /// Sends the events of acknowledged records. Refused events are retried one by one.
    fn announce(&mut self) {
        self.values.clear();
        let mut events = Vec::with_capacity(self.out.len());
        let mut refused = Vec::new();
        for number in self.out.drain(..) {
            let Some(BatchSlot::Open(open)) = self.slots.get(number as usize) else { continue };
            let PublishStep::Announce(position) = open.step else { continue };
            let start = self.values.len();
            if let Err(error) = submitted(&open.task, position, self.now_ms, &mut self.values) {
                self.values.truncate(start);
                refused.push((number, error));
                continue;
            }
            let partition = self.publisher.topology.partition_of(&open.task.id);
            events.push(EncodedEvent { partition, number, value: start..self.values.len() });
        }
        refused.into_iter().for_each(|(number, error)| self.record_outcome(number, Err(error.into())));
        events.sort_by_key(|event| event.partition);
        for events in events.chunk_by(|a, b| a.partition == b.partition) {
            for (n, error) in self.send_events(events) {
                self.record_outcome(events[n].number, Err(error));
            }
        }
    }

    fn send_events(&self, events: &[EncodedEvent]) -> Vec<(usize, BrokerError)> {
        let records = events.iter().filter_map(|event| {
            let Some(BatchSlot::Open(open)) = self.slots.get(event.number as usize) else { return None };
            let key = open.task.id.root().as_bytes();
            let value = &self.values[event.value.clone()];
            Some(BatchRecord { key, value, token: self.batch.token(event.number) })
        });
        let partition = events.first().map_or(0, |event| event.partition as i32);
        self.publisher.producer.send_batch(&self.publisher.events_topic, partition, &records.collect::<Vec<_>>())
    }

    fn record_outcome(&mut self, number: u32, outcome: SendOutcome) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        let BatchSlot::Open(open) = slot else { return };
        let done = match outcome {
            Ok(position) if open.step != PublishStep::Record => {
                if self.accepted.0 != open.task.task_type {
                    let (task_type, tasks) = std::mem::replace(&mut self.accepted, (open.task.task_type.clone(), 0));
                    self.publisher.count(&task_type, tasks);
                }
                self.accepted.1 += 1;
                Ok(PublishedTask { id: open.task.id.clone(), position })
            }
            Ok(position) => {
                open.step = PublishStep::Announce(Some(position));
                return self.out.push(number);
            }
            Err(error) if error.is_retryable() && Instant::now() + FULL_QUEUE_DELAY < self.end => {
                self.resume = Instant::now() + FULL_QUEUE_DELAY;
                return self.again.push(number);
            }
            Err(error) => Err(open.failed(error)),
        };
        super::finish(self.publisher.tracer.as_ref(), open.span.take(), done.as_ref().err());
        self.open -= 1;
        *slot = BatchSlot::Done(done);
    }

    /// At the first deadline fails unpublished tasks, at the second one all remaining tasks.
    fn give_up_at_the_end(&mut self) {
        if Instant::now() < self.end {
            return;
        }
        for number in 0..self.slots.len() as u32 {
            let Some(BatchSlot::Open(open)) = self.slots.get(number as usize) else { continue };
            if self.ended || !open.step.is_announcement() {
                self.record_outcome(number, Err(unanswered(self.publisher.deadline)));
            }
        }
        self.ended = true;
        self.end += self.publisher.deadline;
    }
}

impl BatchSlot {
    fn of(publisher: &Publisher, task: TaskSpec, now_ms: i64) -> Self {
        publisher.prepare(task, now_ms).map_or_else(|error| Self::Done(Err(error)), |open| Self::Open(Box::new(open)))
    }

    fn outcome(self) -> Result<PublishedTask, PublishError> {
        match self {
            Self::Done(done) => done,
            Self::Open(open) => Err(open.failed(unanswered(PUBLISH_DEADLINE))),
        }
    }
}
