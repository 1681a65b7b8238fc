//! Record with which a task was submitted, read again for a retry.

use std::sync::Arc;

use crate::broker::{BrokerError, Partition, Record};
use crate::model::event::Event;
use crate::model::outbox::KeptRecord;
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

    fn kept(record: KeptRecord) -> Self {
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
    if let Some(position) = node.position {
        let place = Partition::new(topic, position.partition);
        if let Some(record) = read(setup, place, position.offset).await? {
            return Ok(Some(OriginalRecord::of(record)));
        }
    }
    let Some(offset) = node.record_event_offset else { return Ok(None) };
    let place = Partition::new(events.0.clone(), events.1 as i32);
    let record = read(setup, place, offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    Ok(event
        .filter(|event| event.id == *id)
        .and_then(|event| event.payload.into_record())
        .map(|kept| OriginalRecord::kept(*kept)))
}

async fn read(setup: &TrackerSetup, place: Partition, offset: i64) -> Result<Option<Record>, BrokerError> {
    match setup.broker.client().read_at(&place, offset).await {
        Err(BrokerError::Unknown(_)) => Ok(None),
        read => read,
    }
}
