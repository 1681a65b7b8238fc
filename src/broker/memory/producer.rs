//! The producer: a bounded queue, emptied into the logs in batches by a thread of its own, or inline by its callers.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::faults::{SendFault, injected};
use super::log::{Payload, Place, cost_of, outgoing_size};
use super::topics::{self, Topics};
use super::{Core, State};
use crate::broker::{BrokerError, DeliverySink, Partition, Producer, ProducerRecord};

const QUEUE_RECORDS: usize = 100_000;
const QUEUE_BYTES: u64 = 64 << 20;
/// The largest record that a client takes at all, as in librdkafka.
const RECORD_BYTES: usize = 1_000_000_000;
const BATCH: usize = 512;
/// How long a thread waits when a fault delays a record.
const DELAY: Duration = Duration::from_millis(5);
/// Names of topics that are kept for the records to come.
const KNOWN_NAMES: usize = 1024;

struct Item {
    token: u64,
    topic: Arc<str>,
    partition: Option<i32>,
    payload: Arc<Payload>,
    purged: bool,
    delayed: bool,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: u64,
    /// Accepted and without an outcome so far.
    outstanding: usize,
    /// Somebody is at it; whoever comes second leaves the work to them.
    draining: bool,
    closed: bool,
    names: HashSet<Arc<str>>,
}

impl Queue {
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

    fn accept(&mut self, record: &ProducerRecord<'_>, payload: Payload, token: u64) -> Result<(), BrokerError> {
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
        self.items.push_back(Item { token, topic, partition: record.partition, payload, purged: false, delayed: false });
        Ok(())
    }

    fn next_batch(&mut self) -> VecDeque<Item> {
        let rest = self.items.split_off(self.items.len().min(BATCH));
        let batch = std::mem::replace(&mut self.items, rest);
        self.bytes -= batch.iter().map(|item| cost_of(&item.payload)).sum::<u64>();
        batch
    }

    fn take_back(&mut self, mut held: VecDeque<Item>) {
        self.bytes += held.iter().map(|item| cost_of(&item.payload)).sum::<u64>();
        held.append(&mut self.items);
        self.items = held;
    }
}

/// What the producer's handle and its thread share.
pub(super) struct SendQueue {
    core: Arc<Core>,
    sink: Arc<dyn DeliverySink>,
    queue: Mutex<Queue>,
    ready: Condvar,
    settled: Condvar,
}

type Outcome = Result<(i32, i64), BrokerError>;

impl SendQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn inline(&self) -> bool {
        self.core.options.inline_delivery
    }

    /// Sends everything that waits, and tells the outcomes. True when a fault has held the rest back.
    fn drain(&self) -> bool {
        let mut queue = self.lock();
        if std::mem::replace(&mut queue.draining, true) {
            return false;
        }
        loop {
            let mut batch = queue.next_batch();
            drop(queue);
            let outcomes = self.write(&mut batch);
            let told = outcomes.len();
            for (item, outcome) in outcomes {
                self.tell(&item, outcome);
            }
            queue = self.lock();
            queue.outstanding -= told;
            let held = !batch.is_empty();
            queue.take_back(batch);
            if queue.outstanding == 0 {
                self.settled.notify_all();
            }
            if held || queue.items.is_empty() {
                queue.draining = false;
                return held;
            }
        }
    }

    /// Like `drain`, past every delay: a record is delayed once at most.
    pub fn drain_all(&self) {
        while self.drain() {}
    }

    /// Writes from the front of the batch until a fault delays a record; that one and the rest stay in it.
    fn write(&self, batch: &mut VecDeque<Item>) -> Vec<(Item, Outcome)> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        while let Some(mut item) = batch.pop_front() {
            let fault = if item.purged { SendFault::None } else { state.dice.send() };
            if fault == SendFault::Delay && !std::mem::replace(&mut item.delayed, true) {
                batch.push_front(item);
                break;
            }
            let outcome = if item.purged { Err(BrokerError::Purged) } else { self.core.write(&mut state, &item, fault, now_ms) };
            outcomes.push((item, outcome));
        }
        outcomes
    }

    fn tell(&self, item: &Item, outcome: Outcome) {
        let place = Place { offset: -1, timestamp_ms: item.payload.created_ms, log_append_time: false };
        let record = item.payload.record(&item.topic, item.partition.unwrap_or(-1), place);
        self.sink.delivered(item.token, outcome.map_err(|error| (error, &record)));
    }

    /// The producer's thread.
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
                self.ready.wait_for(&mut self.lock(), DELAY);
            }
        }
    }

    /// What waits gets no other outcome than `Purged`.
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
    fn write(&self, state: &mut State, item: &Item, fault: SendFault, now_ms: i64) -> Outcome {
        if fault == SendFault::Unavailable {
            return Err(injected());
        }
        let topic = topics::topic_mut(&mut state.topics, &item.topic)?;
        topic.admits(&item.topic, &item.payload)?;
        let index = topic.choose(&item.topic, item.partition, item.payload.key())?;
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
            SendFault::LostAcknowledgement => Err(BrokerError::InDoubt("a fault on purpose".to_owned())),
            _ => Ok((index, offset)),
        }
    }

    pub(super) fn has_room(&self, topics: &mut Topics, at: &Partition, need: u64, now_ms: i64) -> Result<(), BrokerError> {
        let topic = topics::topic_mut(topics, &at.topic)?;
        let room = topic.has_room(at.index, need, &self.options, now_ms);
        if room { Ok(()) } else { Err(self.full(at)) }
    }

    fn full(&self, at: &Partition) -> BrokerError {
        let limit = self.options.log_bytes_per_partition;
        BrokerError::Full(format!(
            "`{at}` would hold more than {limit} bytes; hint: the broker in memory never drops a record, so start it anew"
        ))
    }
}

pub(super) struct MemoryProducer {
    pipe: Arc<SendQueue>,
}

impl MemoryProducer {
    pub fn start(core: Arc<Core>, sink: Arc<dyn DeliverySink>) -> Result<Self, BrokerError> {
        let pipe = Arc::new(SendQueue { core, sink, queue: Mutex::default(), ready: Condvar::new(), settled: Condvar::new() });
        if pipe.inline() {
            let mut state = pipe.core.lock();
            state.inline.retain(|known| known.strong_count() > 0);
            state.inline.push(Arc::downgrade(&pipe));
        } else {
            let thread = std::thread::Builder::new().name("memory-producer".to_owned());
            let own = pipe.clone();
            thread
                .spawn(move || own.run())
                .map_err(|error| BrokerError::Unavailable(format!("cannot start a thread: {error}")))?;
        }
        Ok(Self { pipe })
    }
}

impl Producer for MemoryProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let size = outgoing_size(record);
        if size > RECORD_BYTES {
            return Err(BrokerError::TooLarge(format!("{size} bytes; a client takes {RECORD_BYTES}")));
        }
        let payload = Payload::new(record, self.pipe.core.now_ms());
        let mut queue = self.pipe.lock();
        queue.accept(record, payload, token)?;
        let first = queue.items.len() == 1;
        drop(queue);
        if self.pipe.inline() {
            self.pipe.drain();
        } else if first {
            self.pipe.ready.notify_one();
        }
        Ok(())
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        if self.pipe.inline() {
            self.pipe.drain_all();
        }
        let end = Instant::now() + deadline.min(Duration::from_secs(24 * 3600));
        let mut queue = self.pipe.lock();
        while queue.outstanding > 0 {
            if self.pipe.settled.wait_until(&mut queue, end).timed_out() && queue.outstanding > 0 {
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
        self.pipe.purge(false);
    }
}

impl Drop for MemoryProducer {
    fn drop(&mut self) {
        self.pipe.purge(true);
    }
}
