//! librdkafka calls that rdkafka lacks, implements wrongly or answers with a panic: header names and commit metadata
//! that are not UTF-8, the outcome of commits, record batches, lists of offsets, additional bootstrap servers. All
//! unsafe code of the Kafka client is here.

mod offsets;
mod records;
mod waking_queue;

use std::ffi::{CStr, CString, c_char};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::message::{BorrowedHeaders, Headers as _};
use rdkafka::types::RDKafkaErrorCode;

pub(super) use offsets::{Isolation, list_offsets};
pub(super) use records::Records;
pub(super) use waking_queue::{Waker, WakingQueue};

use crate::{BatchRecord, HeaderList, Partition};

/// Headers of a record, if any.
pub(super) struct Headers<'a>(pub Option<&'a BorrowedHeaders>);

impl HeaderList for Headers<'_> {
    fn len(&self) -> usize {
        self.0.map_or(0, |headers| headers.count())
    }

    fn get(&self, n: usize) -> Option<(&str, Option<&[u8]>)> {
        let headers = ptr::from_ref(self.0?).cast::<sys::rd_kafka_headers_t>();
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: rdkafka's `BorrowedHeaders` is the address of the native list, which lives as long as the record;
        // name and value point into it.
        unsafe {
            let error = sys::rd_kafka_header_get_all(headers, n, &mut name, &mut value, &mut size);
            if RDKafkaErrorCode::from(error) != RDKafkaErrorCode::NoError {
                return None;
            }
            let name = CStr::from_ptr(name).to_str().ok()?;
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
            Some((name, value))
        }
    }
}

/// An entry of a partition list.
pub(super) struct PartitionEntry {
    pub partition: Partition,
    /// Negative: a logical offset, or no offset.
    pub offset: i64,
    pub metadata: String,
    pub error: RDKafkaErrorCode,
}

/// Returns the entries of a list. Metadata that is not UTF-8 is converted with replacement characters.
pub(super) fn entries(list: &TopicPartitionList) -> Vec<PartitionEntry> {
    // SAFETY: the list is alive.
    unsafe { raw_entries(list.ptr()) }
}

/// # Safety
/// `list` is null or a list that outlives the call.
unsafe fn raw_entries(list: *const sys::rd_kafka_topic_partition_list_t) -> Vec<PartitionEntry> {
    // SAFETY: librdkafka keeps `cnt` elements at `elems`.
    unsafe {
        let Some(list) = list.as_ref().filter(|list| list.cnt > 0) else { return Vec::new() };
        std::slice::from_raw_parts(list.elems, list.cnt as usize).iter().map(|elem| entry(elem)).collect()
    }
}

/// # Safety
/// `elem` is an element of a living list.
unsafe fn entry(elem: &sys::rd_kafka_topic_partition_t) -> PartitionEntry {
    // SAFETY: the topic is a C string; metadata is null or points to `metadata_size` bytes.
    unsafe {
        let metadata = if elem.metadata.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(elem.metadata.cast::<u8>(), elem.metadata_size)
        };
        PartitionEntry {
            partition: Partition::new(CStr::from_ptr(elem.topic).to_string_lossy(), elem.partition),
            offset: elem.offset,
            metadata: String::from_utf8_lossy(metadata).into_owned(),
            error: elem.err.into(),
        }
    }
}

/// Returns true if the client has a connected broker. It is asked for metadata, without waiting for the answer.
pub(super) fn has_broker<C: ClientContext>(client: &Client<C>) -> bool {
    let mut metadata = ptr::null();
    // SAFETY: the client is alive; an answer that is already there is freed.
    let code = unsafe {
        let code = sys::rd_kafka_metadata(client.native_ptr(), 0, ptr::null_mut(), &mut metadata, 0);
        if !metadata.is_null() {
            sys::rd_kafka_metadata_destroy(metadata);
        }
        code
    };
    RDKafkaErrorCode::from(code) != RDKafkaErrorCode::BrokerTransportFailure
}

/// Adds servers to those that the client knows.
pub(super) fn add_brokers<C: ClientContext>(client: &Client<C>, servers: &CStr) {
    // SAFETY: the client is alive; the text is copied.
    unsafe { sys::rd_kafka_brokers_add(client.native_ptr(), servers.as_ptr()) };
}

/// An event queue.
struct NativeQueue(NonNull<sys::rd_kafka_queue_t>);

impl NativeQueue {
    /// Returns the queue read by the consumer's poll.
    fn of_consumer<C: ClientContext>(client: &Client<C>) -> Option<Self> {
        // SAFETY: the client is alive; the reference returned is ours.
        NonNull::new(unsafe { sys::rd_kafka_queue_get_consumer(client.native_ptr()) }).map(Self)
    }

    /// Returns the main queue of a client.
    fn main<C: ClientContext>(client: &Client<C>) -> Option<Self> {
        // SAFETY: the client is alive; the reference returned is ours.
        NonNull::new(unsafe { sys::rd_kafka_queue_get_main(client.native_ptr()) }).map(Self)
    }

    fn new<C: ClientContext>(client: &Client<C>) -> Option<Self> {
        // SAFETY: the client is alive.
        NonNull::new(unsafe { sys::rd_kafka_queue_new(client.native_ptr()) }).map(Self)
    }

    fn is_empty(&self) -> bool {
        // SAFETY: the queue is ours.
        unsafe { sys::rd_kafka_queue_length(self.0.as_ptr()) == 0 }
    }

    fn poll(&self, wait: Duration) -> Option<NativeEvent> {
        // SAFETY: the queue is ours.
        NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.0.as_ptr(), millis(wait)) }).map(NativeEvent)
    }

    /// Starts a commit whose outcome arrives on this queue.
    fn commit<C: ClientContext>(&self, client: &Client<C>, list: &TopicPartitionList) -> RDKafkaErrorCode {
        // SAFETY: librdkafka copies the list, holds its own reference to the queue, and returns an error without a
        // group.
        unsafe {
            sys::rd_kafka_commit_queue(client.native_ptr(), list.ptr(), self.0.as_ptr(), None, ptr::null_mut()).into()
        }
    }
}

impl Drop for NativeQueue {
    fn drop(&mut self) {
        // SAFETY: gives back our reference.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// Maximum records per librdkafka call.
const MAX_BATCH: usize = 10_000;

/// A producer's topic handle.
pub(super) struct TopicHandle(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: librdkafka's topics may be used and destroyed by any thread.
unsafe impl Send for TopicHandle {}
// SAFETY: as above.
unsafe impl Sync for TopicHandle {}

impl TopicHandle {
    /// Opens a topic. The client must outlive it.
    pub(super) fn new<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, RDKafkaErrorCode> {
        let name = CString::new(name).map_err(|_| RDKafkaErrorCode::InvalidArgument)?;
        // SAFETY: the client is alive, the name is copied, the reference returned is ours.
        let topic = unsafe { sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut()) };
        NonNull::new(topic).map(Self).ok_or(RDKafkaErrorCode::InvalidTopic)
    }

    /// Enqueues copies of the records. Returns the rejected ones.
    pub(super) fn produce(&self, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, RDKafkaErrorCode)> {
        let mut messages: Vec<sys::rd_kafka_message_t> = records.iter().map(message).collect();
        for chunk in messages.chunks_mut(MAX_BATCH) {
            let (copy, count) = (sys::RD_KAFKA_MSG_F_COPY, chunk.len() as i32);
            // SAFETY: payloads and keys are copied before the call returns; the outcome of each is in its `err`.
            unsafe { sys::rd_kafka_produce_batch(self.0.as_ptr(), partition, copy, chunk.as_mut_ptr(), count) };
        }
        let outcomes = messages.iter().map(|message| RDKafkaErrorCode::from(message.err)).enumerate();
        outcomes.filter(|(_, code)| *code != RDKafkaErrorCode::NoError).collect()
    }
}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: gives back our reference.
        unsafe { sys::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}

fn message(record: &BatchRecord<'_>) -> sys::rd_kafka_message_t {
    sys::rd_kafka_message_t {
        err: sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR,
        rkt: ptr::null_mut(),
        partition: 0,
        payload: record.value.as_ptr().cast_mut().cast(),
        len: record.value.len(),
        key: record.key.as_ptr().cast_mut().cast(),
        key_len: record.key.len(),
        offset: 0,
        // rdkafka stores the token itself in the pointer to the delivery opaque.
        _private: ptr::without_provenance_mut(record.token as usize),
    }
}

struct NativeEvent(NonNull<sys::rd_kafka_event_t>);

impl NativeEvent {
    fn is(&self, kind: i32) -> bool {
        // SAFETY: the event is ours.
        unsafe { sys::rd_kafka_event_type(self.0.as_ptr()) == kind }
    }

    fn error(&self) -> RDKafkaErrorCode {
        // SAFETY: the event is ours.
        unsafe { sys::rd_kafka_event_error(self.0.as_ptr()) }.into()
    }

    fn error_text(&self) -> String {
        // SAFETY: the event is ours.
        unsafe { text(sys::rd_kafka_event_error_string(self.0.as_ptr())) }
    }
}

impl Drop for NativeEvent {
    fn drop(&mut self) {
        // SAFETY: the event is ours.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// Starts a commit whose outcome arrives in the consumer's poll. rdkafka's own asynchronous commit does not report
/// the outcome.
pub(super) fn begin_commit<C: ClientContext>(client: &Client<C>, list: &TopicPartitionList) -> RDKafkaErrorCode {
    NativeQueue::of_consumer(client).map_or(RDKafkaErrorCode::UnknownGroup, |queue| queue.commit(client, list))
}

/// Commits and waits for the outcome: the overall code and that of each partition. `None` after the deadline.
pub(super) fn commit<C: ClientContext>(
    client: &Client<C>,
    list: &TopicPartitionList,
    deadline: Duration,
) -> Option<(RDKafkaErrorCode, Vec<PartitionEntry>)> {
    let queue = NativeQueue::new(client)?;
    let begun = queue.commit(client, list);
    if begun != RDKafkaErrorCode::NoError {
        return Some((begun, Vec::new()));
    }
    let event = wait_for(&queue, sys::RD_KAFKA_EVENT_OFFSET_COMMIT, deadline)?;
    // SAFETY: the list belongs to the event, or is null.
    let entries = unsafe { raw_entries(sys::rd_kafka_event_topic_partition_list(event.0.as_ptr())) };
    Some((event.error(), entries))
}

fn wait_for(queue: &NativeQueue, kind: i32, deadline: Duration) -> Option<NativeEvent> {
    let until = Instant::now() + deadline;
    loop {
        match queue.poll(until.saturating_duration_since(Instant::now())) {
            Some(event) if event.is(kind) => return Some(event),
            Some(_) => {}
            None if Instant::now() >= until => return None,
            None => {}
        }
    }
}

/// Failed admin request, with the broker's own text.
#[derive(Debug, thiserror::Error)]
#[error("{text} ({code})")]
pub(super) struct AdminError {
    pub code: RDKafkaErrorCode,
    pub text: String,
}

impl AdminError {
    fn new(code: RDKafkaErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Sets entries of a topic's configuration and leaves the others unchanged.
pub(super) fn set_topic_config<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    config: &[(String, String)],
    deadline: Duration,
) -> Result<(), AdminError> {
    let queue = NativeQueue::new(client).ok_or_else(|| AdminError::new(RDKafkaErrorCode::Fail, "no queue"))?;
    let resource = ConfigResource::new(topic, config)?;
    // SAFETY: options and resource are destroyed after the call; librdkafka copies both before it returns.
    unsafe {
        let options = sys::rd_kafka_AdminOptions_new(
            client.native_ptr(),
            sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_INCREMENTALALTERCONFIGS,
        );
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(deadline), ptr::null_mut(), 0);
        let mut resources = [resource.0.as_ptr()];
        sys::rd_kafka_IncrementalAlterConfigs(
            client.native_ptr(),
            resources.as_mut_ptr(),
            1,
            options,
            queue.0.as_ptr(),
        );
        sys::rd_kafka_AdminOptions_destroy(options);
    }
    // librdkafka enforces the deadline itself; one more second for its timers.
    let event = wait_for(&queue, sys::RD_KAFKA_EVENT_INCREMENTALALTERCONFIGS_RESULT, deadline + Duration::from_secs(1))
        .ok_or_else(|| AdminError::new(RDKafkaErrorCode::OperationTimedOut, "no answer in time"))?;
    outcome(&event)
}

fn outcome(event: &NativeEvent) -> Result<(), AdminError> {
    if event.error() != RDKafkaErrorCode::NoError {
        return Err(AdminError::new(event.error(), event.error_text()));
    }
    // SAFETY: result and resources belong to the event.
    unsafe {
        let result = sys::rd_kafka_event_IncrementalAlterConfigs_result(event.0.as_ptr());
        let mut count = 0;
        let resources = sys::rd_kafka_IncrementalAlterConfigs_result_resources(result, &mut count);
        for n in 0..count {
            let resource = *resources.add(n);
            let code = sys::rd_kafka_ConfigResource_error(resource).into();
            if code != RDKafkaErrorCode::NoError {
                return Err(AdminError::new(code, text(sys::rd_kafka_ConfigResource_error_string(resource))));
            }
        }
    }
    Ok(())
}

struct ConfigResource(NonNull<sys::rd_kafka_ConfigResource_t>);

impl ConfigResource {
    fn new(topic: &str, config: &[(String, String)]) -> Result<Self, AdminError> {
        let name = c_string(topic)?;
        // SAFETY: the name is copied.
        let new = unsafe {
            sys::rd_kafka_ConfigResource_new(sys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC, name.as_ptr())
        };
        let resource =
            NonNull::new(new).map(Self).ok_or_else(|| AdminError::new(RDKafkaErrorCode::InvalidArgument, topic))?;
        for (key, value) in config {
            resource.set(&c_string(key)?, &c_string(value)?)?;
        }
        Ok(resource)
    }

    fn set(&self, key: &CStr, value: &CStr) -> Result<(), AdminError> {
        // SAFETY: key and value are copied; a returned error is ours.
        unsafe {
            let set = sys::rd_kafka_AlterConfigOpType_t::RD_KAFKA_ALTER_CONFIG_OP_TYPE_SET;
            let error =
                sys::rd_kafka_ConfigResource_add_incremental_config(self.0.as_ptr(), key.as_ptr(), set, value.as_ptr());
            if error.is_null() {
                return Ok(());
            }
            let code = sys::rd_kafka_error_code(error).into();
            let failure = AdminError::new(code, text(sys::rd_kafka_error_string(error)));
            sys::rd_kafka_error_destroy(error);
            Err(failure)
        }
    }
}

impl Drop for ConfigResource {
    fn drop(&mut self) {
        // SAFETY: the resource is ours.
        unsafe { sys::rd_kafka_ConfigResource_destroy(self.0.as_ptr()) }
    }
}

fn c_string(text: &str) -> Result<CString, AdminError> {
    CString::new(text)
        .map_err(|_| AdminError::new(RDKafkaErrorCode::InvalidArgument, format!("`{text}` contains a zero byte")))
}

/// # Safety
/// `text` is null or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() }
}

/// Converts to librdkafka's milliseconds, capped at an hour.
fn millis(wait: Duration) -> i32 {
    wait.as_millis().min(3_600_000) as i32
}

#[cfg(test)]
mod tests {
    use rdkafka::Offset;
    use rdkafka::message::{Header, OwnedHeaders};

    use super::*;

    #[test]
    fn leaves_out_a_header_whose_name_is_not_utf8() {
        let owned = OwnedHeaders::new().insert(Header { key: "good", value: Some("1") });
        let borrowed = owned.as_borrowed();
        let name = [0xff_u8, 0xfe];
        // SAFETY: the list is ours and alive; name and value are copied.
        unsafe {
            let raw = ptr::from_ref(borrowed).cast_mut().cast::<sys::rd_kafka_headers_t>();
            sys::rd_kafka_header_add(raw, name.as_ptr().cast(), 2, ptr::null(), 0);
        }
        let headers = Headers(Some(borrowed));
        assert_eq!(headers.len(), 2);
        assert_eq!(headers.get(0), Some(("good", Some(&b"1"[..]))));
        assert_eq!(headers.get(1), None);
        assert_eq!(headers.get(2), None);
    }

    #[test]
    fn reads_metadata_that_is_not_utf8() {
        let mut list = TopicPartitionList::new();
        let mut elem = list.add_partition("t", 3);
        elem.set_offset(Offset::Offset(5)).expect("an offset");
        elem.set_metadata("?x");
        // SAFETY: the first of two bytes allocated by `set_metadata`.
        unsafe { *(*(*list.ptr()).elems).metadata.cast::<u8>() = 0xff };
        let entry = entries(&list).remove(0);
        assert_eq!((entry.partition, entry.offset), (Partition::new("t", 3), 5));
        assert_eq!(entry.metadata, "\u{fffd}x");
    }

    #[test]
    fn an_empty_list_has_no_entries() {
        assert!(entries(&TopicPartitionList::new()).is_empty());
    }
}
