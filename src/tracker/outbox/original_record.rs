//! Record with which a task was submitted, read again for a retry.

use std::sync::Arc;

use crate::broker::{BrokerError, Partition, Record};
use crate::model::event::Event;
use crate::model::outbox::RecordCopy;
use crate::model::record::TaskRecord;
use crate::model::task::id::TaskId;
use crate::tracker::setup::TrackerSetup;

/// Original record of a task.
pub(super) struct OriginalRecord {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl OriginalRecord {
    fn of(record: Record) -> Self {
        let headers = record.headers.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        Self { key: record.key, value: record.value, headers }
    }

    fn deferred(record: RecordCopy) -> Self {
        let value = Some(record.params.text().as_bytes().to_vec());
        Self { key: record.key_bytes(), value, headers: record.header_bytes() }
    }
}

/// Reads the task's record from its topic, or from the event that contained it.
pub(super) async fn original_record(
    setup: &TrackerSetup,
    events: (&Arc<str>, u32),
    topic: Arc<str>,
    id: &TaskId,
    node: &TaskRecord,
) -> Result<Option<OriginalRecord>, BrokerError> {
    if let Some(position) = node.definition.position {
        let partition = Partition::new(topic, position.partition);
        if let Some(record) = read(setup, partition, position.offset).await? {
            return Ok(Some(OriginalRecord::of(record)));
        }
    }
    let Some(offset) = node.definition.record_event_offset else { return Ok(None) };
    let partition = Partition::new(events.0.clone(), events.1 as i32);
    let record = read(setup, partition, offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    Ok(event
        .filter(|event| event.id == *id)
        .and_then(|event| event.payload.into_record())
        .map(|deferred| OriginalRecord::deferred(*deferred)))
}

async fn read(setup: &TrackerSetup, partition: Partition, offset: i64) -> Result<Option<Record>, BrokerError> {
    match setup.broker.client().read_at(&partition, offset).await {
        Err(BrokerError::Unknown(_)) => Ok(None),
        read => read,
    }
}
