//! Reads the marker of an outbox from its topic.

use std::time::{Duration, Instant};

use kafleet_broker::{Broker, BrokerClient, BrokerError, ConsumerSpec, GroupEvent, Partition, StartOffset};
use uuid::Uuid;

use crate::marker::{Marker, MarkerReader, UnreadableMarker};
use crate::relay::RelayError;

/// Deadline of the read. The compacted topic has a few hundred MiB at most.
const READ_DEADLINE: Duration = Duration::from_secs(60);
const POLL_RECORDS: usize = 1_000;
const POLL_WAIT: Duration = Duration::from_millis(100);

/// Reads the marker up to the present end of the topic. The producer of the outbox must be open: it has ended the
/// transactions of earlier relays, so that nothing of them can follow.
pub(crate) async fn read_marker(client: &BrokerClient, topic: &str, identity: Uuid) -> Result<Marker, RelayError> {
    let at = Partition::new(topic, 0);
    let client = client.with_deadline(READ_DEADLINE);
    client.call(move |broker, deadline| read_to_end(broker, &at, identity, deadline)).await
}

fn read_to_end(broker: &dyn Broker, at: &Partition, identity: Uuid, deadline: Duration) -> Result<Marker, RelayError> {
    let end_time = Instant::now() + deadline;
    let end = broker.watermarks(at, deadline)?.high;
    if end == 0 {
        return Ok(Marker::new(identity));
    }
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    consumer.assign(&[(at.clone(), StartOffset::Beginning)])?;
    let mut reader = MarkerReader::new(identity);
    loop {
        let mut unreadable: Option<UnreadableMarker> = None;
        let events = consumer.poll(POLL_RECORDS, POLL_WAIT, &mut |record| {
            if let Some(key) = record.key
                && let Err(error) = reader.read(key, record.value)
            {
                unreadable.get_or_insert(error);
            }
        })?;
        if let Some(error) = unreadable {
            return Err(RelayError::Marker(error.to_string()));
        }
        if events.iter().any(|event| matches!(event, GroupEvent::OutOfRange(_))) {
            return Err(BrokerError::Unavailable(format!("{at} was truncated while it was read")).into());
        }
        let position = consumer.positions()?.into_iter().find(|(partition, _)| partition == at);
        if position.is_some_and(|(_, offset)| offset >= end) {
            consumer.close(POLL_WAIT);
            return reader.finish().map_err(|error| RelayError::Marker(error.to_string()));
        }
        if Instant::now() >= end_time {
            let reason = format!("the marker on {at} was not read within {} s", deadline.as_secs());
            return Err(BrokerError::Unavailable(reason).into());
        }
    }
}
