//! Record batches. The queues of a topic's partitions are forwarded to one queue, which librdkafka empties in batches;
//! record by record from the consumer's queue, each would cost an event, an allocation and several clock reads. With a
//! queue per topic, the records of one topic can wait while those of the others are taken.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::message::BorrowedHeaders;
use rdkafka::types::RDKafkaErrorCode;
use rustc_hash::FxHashMap;

use super::waking_queue::{Waker, WakingQueue};
use super::{Headers, NativeQueue};
use crate::{Partition, RecordRef};

/// Minimum number of topics that share a poll.
const MIN_TURNS: usize = 4;

/// An error received in place of a record.
pub(crate) struct ReceiveError {
    pub code: RDKafkaErrorCode,
    pub reason: String,
    /// Partition that the error concerns, if any.
    pub partition: Option<Partition>,
}

/// Queues of records: one per topic of the subscription, or a single one for all. Drop them before their client.
pub(crate) struct Records {
    queues: Vec<TopicQueue>,
    by_topic: FxHashMap<String, usize>,
    /// Queues of the partitions that are forwarded, and the number of the queue that receives their records. librdkafka
    /// looks for a partition among all topics, which takes long with hundreds of them.
    forwarded: FxHashMap<Partition, (NativeQueue, usize)>,
    /// Queue with which the next poll begins, so that a topic with many records does not starve the others.
    next: usize,
    /// Message pointers of the current batch; null or stale between batches.
    batch: Vec<*mut sys::rd_kafka_message_t>,
}

/// The records of one topic.
struct TopicQueue {
    queue: WakingQueue,
    /// No records are taken.
    held: bool,
}

// SAFETY: librdkafka's queues may be used by any thread; no message is kept in the batch between two calls.
unsafe impl Send for Records {}

impl Records {
    /// Creates a queue for each topic; without topics, one for all.
    pub(crate) fn new<C: ClientContext>(client: &Client<C>, topics: &[String], waker: &Arc<Waker>) -> Option<Self> {
        let open = |_| Some(TopicQueue { queue: WakingQueue::new(NativeQueue::new(client)?, waker), held: false });
        let queues = (0..topics.len().max(1)).map(open).collect::<Option<Vec<_>>>()?;
        let by_topic = topics.iter().cloned().enumerate().map(|(n, topic)| (topic, n)).collect();
        Some(Self { queues, by_topic, forwarded: FxHashMap::default(), next: 0, batch: Vec::new() })
    }

    /// Takes no records of a topic until it is called again with false. Without effect on other topics.
    pub(crate) fn hold(&mut self, topic: &str, held: bool) {
        let queue = self.by_topic.get(topic).and_then(|n| self.queues.get_mut(*n));
        if let Some(queue) = queue {
            queue.held = held;
        }
    }

    /// Forwards a partition's records to the queue of its topic, starting with those already waiting.
    pub(crate) fn forward<C: ClientContext>(&mut self, client: &Client<C>, partition: &Partition) {
        let Ok(topic) = CString::new(&*partition.topic) else { return };
        let index = self.by_topic.get(&*partition.topic).copied().unwrap_or_default();
        // SAFETY: the client is alive and the name copied; the reference returned is ours.
        let queue = unsafe { sys::rd_kafka_queue_get_partition(client.native_ptr(), topic.as_ptr(), partition.index) };
        if let Some(queue) = NonNull::new(queue).map(NativeQueue) {
            self.connect(&queue, index);
            self.forwarded.insert(partition.clone(), (queue, index));
        }
    }

    /// Forwards the same partitions again: librdkafka removes the forwarding when it stops fetching a partition.
    pub(crate) fn forward_again(&self) {
        self.forwarded.values().for_each(|(queue, index)| self.connect(queue, *index));
    }

    /// Forgets a partition that is no longer read.
    pub(crate) fn forget(&mut self, partition: &Partition) {
        self.forwarded.remove(partition);
    }

    fn connect(&self, queue: &NativeQueue, index: usize) {
        let Some(to) = self.queues.get(index) else { return };
        // SAFETY: both queues are alive; librdkafka counts its own references to them.
        unsafe { sys::rd_kafka_queue_forward(queue.0.as_ptr(), to.queue.queue.0.as_ptr()) };
    }

    /// Passes at most `max` available records to the sink, from the topics in turn. Returns their number and the errors
    /// received in between. Never waits.
    pub(crate) fn take_records(
        &mut self,
        max: usize,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> (usize, Vec<ReceiveError>) {
        let count = self.queues.len();
        let part = if count == 1 { max } else { max.div_ceil(MIN_TURNS) };
        let (mut taken, mut failed) = (0, Vec::new());
        loop {
            let before = taken + failed.len();
            for _ in 0..count {
                let turn = part.min(max - taken);
                if turn == 0 {
                    return (taken, failed);
                }
                let n = self.next;
                self.next = (n + 1) % count;
                if !self.queues[n].held && (count == 1 || !self.queues[n].queue.is_empty()) {
                    taken += self.take_from(n, turn, &mut failed, sink);
                }
            }
            if count == 1 || taken + failed.len() == before {
                return (taken, failed);
            }
        }
    }

    fn take_from(
        &mut self,
        n: usize,
        max: usize,
        failed: &mut Vec<ReceiveError>,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> usize {
        self.batch.resize(max, ptr::null_mut());
        let queue = self.queues[n].queue.queue.0.as_ptr();
        // SAFETY: the queue is ours, and the batch has room for `max` messages.
        let count = unsafe { sys::rd_kafka_consume_batch_queue(queue, 0, self.batch.as_mut_ptr(), max) };
        let mut taken = 0;
        for message in &self.batch[..usize::try_from(count).unwrap_or_default()] {
            let message = ConsumedMessage(*message);
            match message.failed() {
                None => {
                    message.with_record(&mut *sink);
                    taken += 1;
                }
                Some(error) => failed.push(error),
            }
        }
        taken
    }
}

/// An owned message of a batch; never null.
struct ConsumedMessage(*mut sys::rd_kafka_message_t);

impl ConsumedMessage {
    fn failed(&self) -> Option<ReceiveError> {
        // SAFETY: the message is alive; the reason is a C string in its payload or a static one; the topic is null or
        // belongs to the message.
        unsafe {
            let message = &*self.0;
            let code = RDKafkaErrorCode::from(message.err);
            (code != RDKafkaErrorCode::NoError).then(|| ReceiveError {
                code,
                reason: super::text(sys::rd_kafka_message_errstr(self.0)),
                partition: (!message.rkt.is_null())
                    .then(|| Partition::new(super::text(sys::rd_kafka_topic_name(message.rkt)), message.partition)),
            })
        }
    }

    fn with_record(&self, sink: &mut dyn FnMut(&RecordRef<'_>)) {
        // SAFETY: topic, key, value and headers belong to the message, which outlives the call; rdkafka's
        // `BorrowedHeaders` is the address of a header list.
        unsafe {
            let message = &*self.0;
            let (mut headers, mut kind) =
                (ptr::null_mut(), sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE);
            // Returns an error for a message without headers.
            sys::rd_kafka_message_headers(self.0, &mut headers);
            sink(&RecordRef {
                topic: CStr::from_ptr(sys::rd_kafka_topic_name(message.rkt)).to_str().unwrap_or_default(),
                partition: message.partition,
                offset: message.offset,
                timestamp_ms: sys::rd_kafka_message_timestamp(self.0, &mut kind),
                log_append_time: kind == sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME,
                key: bytes(message.key, message.key_len),
                value: bytes(message.payload, message.len),
                headers: &Headers(headers.cast::<BorrowedHeaders>().as_ref()),
            });
        }
    }
}

impl Drop for ConsumedMessage {
    fn drop(&mut self) {
        // SAFETY: the message is ours.
        unsafe { sys::rd_kafka_message_destroy(self.0) }
    }
}

/// # Safety
/// `data` is null or points to `size` bytes that live for `'a`.
unsafe fn bytes<'a>(data: *const c_void, size: usize) -> Option<&'a [u8]> {
    // SAFETY: promised by the caller.
    (!data.is_null()).then(|| unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
}
