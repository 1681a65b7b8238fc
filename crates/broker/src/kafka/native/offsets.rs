//! Offsets of many partitions in one request per broker.

use std::ptr;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaErrorCode;

use super::{AdminError, NativeEvent, NativeQueue, PartitionEntry, entry, millis, wait_for};

/// Reader for whom the end of a partition is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) enum Isolation {
    /// The end is the high watermark.
    Uncommitted,
    /// The end is the last stable offset.
    Committed,
}

impl Isolation {
    const fn level(self) -> sys::rd_kafka_IsolationLevel_t {
        match self {
            Self::Uncommitted => sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED,
            Self::Committed => sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
        }
    }
}

/// Resolves the logical offsets of a list. The result has an entry per partition, in any order.
pub(in crate::kafka) fn list_offsets<C: ClientContext>(
    client: &Client<C>,
    list: &TopicPartitionList,
    isolation: Isolation,
    deadline: Duration,
) -> Result<Vec<PartitionEntry>, AdminError> {
    let queue = NativeQueue::new(client).ok_or_else(|| AdminError::new(RDKafkaErrorCode::Fail, "no queue"))?;
    // SAFETY: the options are destroyed after the call; librdkafka copies them and the list before it returns.
    unsafe {
        let options = sys::rd_kafka_AdminOptions_new(
            client.native_ptr(),
            sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
        );
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(deadline), ptr::null_mut(), 0);
        // Returns an error, which must be destroyed, only for options of another operation.
        sys::rd_kafka_error_destroy(sys::rd_kafka_AdminOptions_set_isolation_level(options, isolation.level()));
        sys::rd_kafka_ListOffsets(client.native_ptr(), list.ptr(), options, queue.0.as_ptr());
        sys::rd_kafka_AdminOptions_destroy(options);
    }
    // librdkafka enforces the deadline itself; one more second for its timers.
    let event = wait_for(&queue, sys::RD_KAFKA_EVENT_LISTOFFSETS_RESULT, deadline + Duration::from_secs(1))
        .ok_or_else(|| AdminError::new(RDKafkaErrorCode::OperationTimedOut, "no answer in time"))?;
    if event.error() != RDKafkaErrorCode::NoError {
        return Err(AdminError::new(event.error(), event.error_text()));
    }
    Ok(listed(&event))
}

fn listed(event: &NativeEvent) -> Vec<PartitionEntry> {
    // SAFETY: result, infos and partitions belong to the event.
    unsafe {
        let result = sys::rd_kafka_event_ListOffsets_result(event.0.as_ptr());
        let mut count = 0;
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let partition = |n| sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*infos.add(n)).as_ref();
        (0..count).filter_map(partition).map(|partition| entry(partition)).collect()
    }
}
