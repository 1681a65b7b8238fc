//! Records in batches. The queues of the partitions are forwarded to one of our own, which librdkafka empties many at a time:
//! one by one over the consumer's queue, each costs an event, an allocation and some looks at the clock.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::message::BorrowedHeaders;
use rdkafka::types::RDKafkaErrorCode;

use super::{Headers, Queue};
use crate::broker::{Partition, RecordRef};

/// Rings when there is something to be read.
#[derive(Default)]
pub struct Waker {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Waker {
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.heard.notify_one();
    }

    /// Before a look: what comes after it rings again.
    pub fn hush(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// False: it has not rung until then.
    pub fn wait(&self, until: Instant) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.heard.wait_timeout_while(rung, left, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What came in place of a record.
pub struct Failed {
    pub code: RDKafkaErrorCode,
    pub reason: String,
}

/// To be dropped before its client.
pub struct Records {
    queue: Queue,
    /// Null, or what it held a batch ago.
    batch: Vec<*mut sys::rd_kafka_message_t>,
    #[expect(dead_code, reason = "librdkafka has its address")]
    bell: Arc<Waker>,
}

// SAFETY: librdkafka's queues may be used by any thread; nothing is kept in the batch between two calls.
unsafe impl Send for Records {}

impl Records {
    pub fn new<C: ClientContext>(client: &Client<C>, bell: Arc<Waker>) -> Option<Self> {
        let queue = Queue::new(client)?;
        let address = Arc::as_ptr(&bell).cast_mut().cast();
        // SAFETY: the bell lives as long as the queue: after its drop librdkafka does not ring.
        unsafe { sys::rd_kafka_queue_cb_event_enable(queue.0.as_ptr(), Some(ring), address) };
        Some(Self { queue, batch: Vec::new(), bell })
    }

    /// Has the records of a partition come here, those that wait already first. librdkafka takes this back when it stops
    /// reading the partition.
    pub fn forward<C: ClientContext>(&self, client: &Client<C>, partition: &Partition) {
        let Ok(topic) = CString::new(&*partition.topic) else { return };
        // SAFETY: the client is alive and the name copied; the reference returned is ours.
        let queue = unsafe { sys::rd_kafka_queue_get_partition(client.native_ptr(), topic.as_ptr(), partition.index) };
        if let Some(queue) = NonNull::new(queue).map(Queue) {
            // SAFETY: both queues are alive; librdkafka counts its own references to them.
            unsafe { sys::rd_kafka_queue_forward(queue.0.as_ptr(), self.queue.0.as_ptr()) };
        }
    }

    /// Lends what is there, at most so many, and returns how many, and what came in place of some. Never waits.
    pub fn take(&mut self, max: usize, sink: &mut dyn FnMut(&RecordRef<'_>)) -> (usize, Vec<Failed>) {
        if max == 0 {
            return (0, Vec::new());
        }
        self.batch.resize(max, ptr::null_mut());
        // SAFETY: the queue is ours, and there is room for as many as are asked for.
        let count = unsafe { sys::rd_kafka_consume_batch_queue(self.queue.0.as_ptr(), 0, self.batch.as_mut_ptr(), max) };
        let (mut taken, mut failed) = (0, Vec::new());
        for message in &self.batch[..usize::try_from(count).unwrap_or_default()] {
            let message = Message(*message);
            match message.failed() {
                None => {
                    message.with_record(&mut *sink);
                    taken += 1;
                }
                Some(what) => failed.push(what),
            }
        }
        (taken, failed)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: the queue is ours. Forwarded queues may keep it alive; it rings no more.
        unsafe { sys::rd_kafka_queue_cb_event_enable(self.queue.0.as_ptr(), None, ptr::null_mut()) };
    }
}

unsafe extern "C" fn ring(_: *mut sys::rd_kafka_t, bell: *mut c_void) {
    // SAFETY: the address of the bell that `Records` keeps alive until librdkafka has forgotten it.
    if let Some(bell) = unsafe { bell.cast::<Waker>().as_ref() } {
        bell.ring();
    }
}

/// A message of a batch, which is ours; never null.
struct Message(*mut sys::rd_kafka_message_t);

impl Message {
    fn failed(&self) -> Option<Failed> {
        // SAFETY: the message is alive; the reason is a C string in its payload, or one that lives for ever.
        unsafe {
            let code = RDKafkaErrorCode::from((*self.0).err);
            (code != RDKafkaErrorCode::NoError)
                .then(|| Failed { code, reason: super::text(sys::rd_kafka_message_errstr(self.0)) })
        }
    }

    fn with_record(&self, sink: &mut dyn FnMut(&RecordRef<'_>)) {
        // SAFETY: topic, key, value and headers belong to the message, which outlives the call; a list of headers is what
        // rdkafka's `BorrowedHeaders` is the address of.
        unsafe {
            let message = &*self.0;
            let (mut headers, mut kind) = (ptr::null_mut(), sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE);
            // An error: it has none.
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

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { sys::rd_kafka_message_destroy(self.0) }
    }
}

/// # Safety
/// `data` is null or holds so many bytes for as long as the caller says.
unsafe fn bytes<'a>(data: *const c_void, size: usize) -> Option<&'a [u8]> {
    // SAFETY: promised by the caller.
    (!data.is_null()).then(|| unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
}
