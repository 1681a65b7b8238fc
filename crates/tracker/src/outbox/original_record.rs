//! Reads the record with which a task was submitted, so that a retry can publish it again.

use std::sync::Arc;

use kafleet_broker::{BrokerError, Partition, Record, header_value};
use kafleet_model::event::{Event, Kind};
use kafleet_model::outbox::RecordCopy;
use kafleet_model::record::TaskRecord;
use kafleet_model::task::header;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::structured::unwrap_structured;

use crate::setup::TrackerSetup;

/// Record of a task as submitted: the parts that a retry copies.
pub(super) struct OriginalRecord {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl OriginalRecord {
    fn of(record: Record) -> Self {
        let (mut headers, mut value) = (record.headers, record.value);
        if let Some((unwrapped, params)) = value.as_deref().and_then(|value| unwrap_structured(&headers, value)) {
            (headers, value) = (unwrapped, Some(params.text().as_bytes().to_vec()));
        }
        let headers = headers.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        Self { key: record.key, value, headers }
    }

    fn deferred(record: RecordCopy) -> Self {
        let value = Some(record.params.text().as_bytes().to_vec());
        Self { key: record.key_bytes(), value, headers: record.header_bytes() }
    }
}

/// Reads the record to publish again: the copy in the event of a redrive, whose params may differ from the original;
/// otherwise the record at the task's position, or, once Kafka no longer retains it, the copy in the event that deferred
/// the task. `None` if neither exists. `events`: topic and partition of the task's events.
pub(super) async fn original_record(
    setup: &TrackerSetup,
    events: (&Arc<str>, u32),
    topic: Arc<str>,
    id: &TaskId,
    task: &TaskRecord,
) -> Result<Option<OriginalRecord>, BrokerError> {
    let event = event_with_copy(setup, events, id, task.definition.record_event_offset).await?;
    let is_redrive = event.as_ref().is_some_and(|event| event.kind() == Kind::RetryRequested);
    if let Some(position) = task.definition.position.filter(|_| !is_redrive) {
        let partition = Partition::new(topic, position.partition);
        let record = read(setup, partition, position.offset).await?;
        if let Some(record) = record.filter(|record| !names_another_task(record, id)) {
            return Ok(Some(OriginalRecord::of(record)));
        }
    }
    Ok(event.and_then(|event| event.payload.into_record()).map(|copy| OriginalRecord::deferred(*copy)))
}

/// Reads the record of a deferred task for which the store had no room, from the event at this offset. `None` if the
/// event no longer exists.
pub(super) async fn deferred_in_log(
    setup: &TrackerSetup,
    events: (&Arc<str>, u32),
    id: TaskId,
    offset: Option<i64>,
) -> Result<(TaskId, Option<RecordCopy>), BrokerError> {
    let event = event_with_copy(setup, events, &id, offset).await?;
    Ok((id, event.and_then(|event| event.payload.into_record()).map(|copy| *copy)))
}

/// Reads the event that carries a copy of the task's record.
async fn event_with_copy(
    setup: &TrackerSetup,
    (topic, number): (&Arc<str>, u32),
    id: &TaskId,
    offset: Option<i64>,
) -> Result<Option<Event>, BrokerError> {
    let Some(offset) = offset else { return Ok(None) };
    let record = read(setup, Partition::new(topic.clone(), number as i32), offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    Ok(event.filter(|event| event.may_have_record_of(id)))
}

/// Returns true if the record names another task, as after its topic was deleted and created again. Records without an
/// id in their headers are assumed to be the task's.
fn names_another_task(record: &Record, id: &TaskId) -> bool {
    let text = |name| header_value(&record.headers, name).map(String::from_utf8_lossy);
    let Some(named) = text(header::ID) else { return false };
    // A child may be named by its segment and its parent.
    !TaskId::resolve(&named, text(header::PARENT).as_deref()).is_ok_and(|named| named == *id)
}

/// Reads a committed record. Returns `None` also if the topic or the partition no longer exists.
async fn read(setup: &TrackerSetup, partition: Partition, offset: i64) -> Result<Option<Record>, BrokerError> {
    match setup.broker.client().read_at(&partition, offset).await {
        Err(BrokerError::Unknown(_)) => Ok(None),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_names_its_task_by_its_path_or_by_segment_and_parent() {
        let another = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.to_string(), Some(value.as_bytes().to_vec())));
            let record = Record {
                topic: "tasks".into(),
                partition: 0,
                offset: 0,
                timestamp_ms: 0,
                key: None,
                value: None,
                headers: headers.collect(),
            };
            names_another_task(&record, &TaskId::parse("order:fetch").unwrap())
        };
        assert!(!another(&[]));
        assert!(!another(&[("ce_id", "fetch"), ("ce_parent", "order")]));
        assert!(!another(&[("ce_id", "order:fetch"), ("ce_parent", "order")]));
        assert!(another(&[("ce_id", "fetch"), ("ce_parent", "other")]));
        assert!(another(&[("ce_id", "fetch")]));
        assert!(another(&[("ce_id", "order:pack"), ("ce_parent", "order")]));
    }
}
