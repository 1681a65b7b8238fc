//! The in-memory producer: a bounded queue, drained in batches by a thread of its own, or inline by its callers.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::faults::{SendFault, injected};
use super::log::{RecordContents, RecordPosition, cost_of, record_size};
use super::topics::{self, Topics};
use super::{BrokerState, Core};
use crate::{BrokerError, DeliverySink, Partition, Producer, ProducerRecord};

const QUEUE_RECORDS: usize = 100_000;
const QUEUE_BYTES: u64 = 64 << 20;
/// Maximum size of a record in the client, as in librdkafka.
const MAX_RECORD_BYTES: usize = 1_000_000_000;
const BATCH_RECORDS: usize = 512;
/// Time that the thread waits when a fault delays a record.
const FAULT_DELAY: Duration = Duration::from_millis(5);
/// Maximum number of cached topic names.
const KNOWN_NAMES: usize = 1024;

struct Item {
    token: u64,
    topic: Arc<str>,
    partition: Option<i32>,
    payload: Arc<RecordContents>,
    purged: bool,
    delayed: bool,
}

#[derive(Default)]
struct PendingItems {
    items: VecDeque<Item>,
    bytes: u64,
    /// Records accepted and without an outcome.
    outstanding: usize,
    /// A thread is draining the queue; concurrent calls leave the work to it.
    draining: bool,
    closed: bool,
    names: HashSet<Arc<str>>,
}

impl PendingItems {
    fn name(&mut self, topic: &str) -> Arc<str> {
        if let Some(name) = self.names.get(topic) {
            return name.clone();
        }
        let name: Arc<str> = topic.into();
        if self.names.len() < KNOWN_NAMES {
            self.names.insert(name.clone());
        }
        name
    }

    fn accept(&mut self, record: &ProducerRecord<'_>, payload: RecordContents, token: u64) -> Result<(), BrokerError> {
        let cost = cost_of(&payload);
        if self.items.len() >= QUEUE_RECORDS || (self.bytes + cost > QUEUE_BYTES && !self.items.is_empty()) {
            return Err(BrokerError::Full(format!(
                "{} records wait in the producer; hint: send it again later",
                self.items.len()
            )));
        }
        let topic = self.name(record.topic);
        self.bytes += cost;
        self.outstanding += 1;
        let payload = Arc::new(payload);
        self.items.push_back(Item {
            token,
            topic,
            partition: record.partition,
            payload,
            purged: false,
            delayed: false,
        });
        Ok(())
    }

    fn next_batch(&mut self) -> VecDeque<Item> {
        let rest = self.items.split_off(self.items.len().min(BATCH_RECORDS));
        let batch = std::mem::replace(&mut self.items, rest);
        self.bytes -= batch.iter().map(|item| cost_of(&item.payload)).sum::<u64>();
        batch
    }

    fn put_back(&mut self, mut delayed: VecDeque<Item>) {
        self.bytes += delayed.iter().map(|item| cost_of(&item.payload)).sum::<u64>();
        delayed.append(&mut self.items);
        self.items = delayed;
    }
}

/// State shared by the producer's handle and its thread.
pub(super) struct SendQueue {
    core: Arc<Core>,
    sink: Arc<dyn DeliverySink>,
    queue: Mutex<PendingItems>,
    ready: Condvar,
    settled: Condvar,
}

type AppendOutcome = Result<LogRecord, BrokerError>;

/// Record in the log.
struct LogRecord {
    partition: i32,
    offset: i64,
    /// Set if the topic's timestamps are the broker's.
    append_ms: Option<i64>,
}

impl SendQueue {
    fn lock(&self) -> MutexGuard<'_, PendingItems> {
        self.queue.lock()
    }

    fn inline(&self) -> bool {
        self.core.options.inline_delivery
    }

    /// Sends all queued records and delivers the outcomes. True if a fault delays the rest.
    fn drain(&self) -> bool {
        let mut queue = self.lock();
        if std::mem::replace(&mut queue.draining, true) {
            return false;
        }
        loop {
            let mut batch = queue.next_batch();
            drop(queue);
            let outcomes = self.write(&mut batch);
            let delivered = outcomes.len();
            for (item, outcome) in outcomes {
                self.deliver(&item, outcome);
            }
            queue = self.lock();
            queue.outstanding -= delivered;
            let delayed = !batch.is_empty();
            queue.put_back(batch);
            if queue.outstanding == 0 {
                self.settled.notify_all();
            }
            if delayed || queue.items.is_empty() {
                queue.draining = false;
                return delayed;
            }
        }
    }

    /// Writes all batches, without delays: a record is delayed at most once.
    pub(super) fn drain_all(&self) {
        while self.drain() {}
    }

    /// Writes records from the front of the batch until a fault delays one; that record and the rest stay in the
    /// batch.
    fn write(&self, batch: &mut VecDeque<Item>) -> Vec<(Item, AppendOutcome)> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        while let Some(mut item) = batch.pop_front() {
            let fault = if item.purged { SendFault::None } else { state.faults.send() };
            if fault == SendFault::Delay && !std::mem::replace(&mut item.delayed, true) {
                batch.push_front(item);
                break;
            }
            let outcome =
                if item.purged { Err(BrokerError::Purged) } else { self.core.write(&mut state, &item, fault, now_ms) };
            outcomes.push((item, outcome));
        }
        outcomes
    }

    fn deliver(&self, item: &Item, outcome: AppendOutcome) {
        let position = RecordPosition { offset: -1, timestamp_ms: item.payload.created_ms, log_append_time: false };
        let record = item.payload.record(&item.topic, item.partition.unwrap_or(-1), position);
        if let Ok(LogRecord { append_ms: Some(append_ms), .. }) = outcome {
            self.sink.appended(item.token, append_ms);
        }
        let outcome = outcome.map(|written| (written.partition, written.offset));
        self.sink.delivered(item.token, outcome.map_err(|error| (error, &record)));
    }

    /// Runs the producer's thread.
    fn run(&self) {
        loop {
            let mut queue = self.lock();
            while queue.items.is_empty() && !queue.closed {
                self.ready.wait(&mut queue);
            }
            if queue.items.is_empty() {
                return;
            }
            drop(queue);
            if self.drain() {
                self.ready.wait_for(&mut self.lock(), FAULT_DELAY);
            }
        }
    }

    /// Discards all queued records with the outcome `Purged`.
    fn purge(&self, closing: bool) {
        let mut queue = self.lock();
        queue.closed |= closing;
        queue.items.iter_mut().for_each(|item| item.purged = true);
        drop(queue);
        self.ready.notify_all();
        if self.inline() {
            self.drain_all();
        }
    }
}

impl Core {
    fn write(&self, state: &mut BrokerState, item: &Item, fault: SendFault, now_ms: i64) -> AppendOutcome {
        if fault == SendFault::Unavailable {
            return Err(injected());
        }
        let topic = topics::topic_mut(&mut state.topics, &item.topic)?;
        topic.check_record(&item.topic, &item.payload)?;
        let index = topic.choose_partition(&item.topic, item.partition, item.payload.key())?;
        let copies = if fault == SendFault::Duplicate { 2 } else { 1 };
        let need = cost_of(&item.payload) * copies;
        if !topic.has_room(index, need, &self.options, now_ms) {
            return Err(self.full(&Partition::new(item.topic.clone(), index)));
        }
        let offset = topic.append(index, item.payload.clone(), now_ms, 0);
        if fault == SendFault::Duplicate {
            topic.append(index, item.payload.clone(), now_ms, 0);
        }
        match fault {
            SendFault::LostAcknowledgement => Err(BrokerError::InDoubt("injected fault".to_owned())),
            _ => Ok(LogRecord {
                partition: index,
                offset,
                append_ms: topic.log_config.log_append_time.then_some(now_ms),
            }),
        }
    }

    pub(super) fn has_room(
        &self,
        topics: &mut Topics,
        at: &Partition,
        need: u64,
        now_ms: i64,
    ) -> Result<(), BrokerError> {
        let topic = topics::topic_mut(topics, &at.topic)?;
        let room = topic.has_room(at.index, need, &self.options, now_ms);
        if room { Ok(()) } else { Err(self.full(at)) }
    }

    fn full(&self, at: &Partition) -> BrokerError {
        let limit = self.options.log_bytes_per_partition;
        BrokerError::Full(format!(
            "`{at}` would exceed {limit} bytes; hint: the in-memory broker never drops records: restart it"
        ))
    }
}

pub(super) struct MemoryProducer {
    shared: Arc<SendQueue>,
}

impl MemoryProducer {
    pub(super) fn start(core: Arc<Core>, sink: Arc<dyn DeliverySink>) -> Result<Self, BrokerError> {
        let shared =
            Arc::new(SendQueue { core, sink, queue: Mutex::default(), ready: Condvar::new(), settled: Condvar::new() });
        if shared.inline() {
            let mut state = shared.core.lock();
            state.inline.retain(|existing| existing.strong_count() > 0);
            state.inline.push(Arc::downgrade(&shared));
        } else {
            let thread = std::thread::Builder::new().name("memory-producer".to_owned());
            let thread_queue = shared.clone();
            thread
                .spawn(move || thread_queue.run())
                .map_err(|error| BrokerError::Unavailable(format!("cannot start a thread: {error}")))?;
        }
        Ok(Self { shared })
    }
}

impl Producer for MemoryProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let size = record_size(record);
        if size > MAX_RECORD_BYTES {
            return Err(BrokerError::TooLarge(format!("{size} bytes; at most {MAX_RECORD_BYTES} are allowed")));
        }
        let payload = RecordContents::new(record, self.shared.core.now_ms());
        let mut queue = self.shared.lock();
        queue.accept(record, payload, token)?;
        let first = queue.items.len() == 1;
        drop(queue);
        if self.shared.inline() {
            self.shared.drain();
        } else if first {
            self.shared.ready.notify_one();
        }
        Ok(())
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        if self.shared.inline() {
            self.shared.drain_all();
        }
        let end = Instant::now() + deadline.min(Duration::from_secs(24 * 3600));
        let mut queue = self.shared.lock();
        while queue.outstanding > 0 {
            if self.shared.settled.wait_until(&mut queue, end).timed_out() && queue.outstanding > 0 {
                let count = queue.outstanding;
                return Err(BrokerError::Unavailable(format!(
                    "{count} records have no outcome after {} ms",
                    deadline.as_millis()
                )));
            }
        }
        Ok(())
    }

    fn purge(&self) {
        self.shared.purge(false);
    }
}

impl Drop for MemoryProducer {
    fn drop(&mut self) {
        self.shared.purge(true);
    }
}
