//! Looking at single places of a log, as readers of what is committed see it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::settings::Settings;
use super::{Silent, check_topic, error, lend, list};
use crate::broker::{BrokerError, Look, Partition, Record};

impl ConsumerContext for Silent {}

/// A consumer kept for the next look; one that failed is made anew.
#[derive(Default)]
pub(super) struct Reader(Mutex<Option<BaseConsumer<Silent>>>);

impl Reader {
    pub fn look(&self, settings: &Settings, partition: &Partition, offset: i64, deadline: Duration) -> Result<Look, BrokerError> {
        check_topic(&partition.topic)?;
        let until = Instant::now() + deadline;
        let busy = || BrokerError::Unavailable(format!("reading {partition} at {offset}: other reads take too long"));
        let mut kept = self.0.try_lock_until(until).ok_or_else(busy)?;
        let client = match kept.take() {
            Some(client) => client,
            None => settings.reader().create_with_context(Silent).map_err(|error| error::of(&error, "[kafka]"))?,
        };
        let look = look(&client, partition, offset, until)?;
        *kept = Some(client);
        Ok(look)
    }
}

fn look(client: &BaseConsumer<Silent>, partition: &Partition, offset: i64, until: Instant) -> Result<Look, BrokerError> {
    let left = until.saturating_duration_since(Instant::now());
    // To a client that reads what is committed a log ends where the first open transaction begins.
    let ends = client.fetch_watermarks(&partition.topic, partition.index, left);
    let (first, stable) = ends.map_err(|error| error::of(&error, &format!("asking for the ends of {partition}")))?;
    let from = offset.max(first);
    if from >= stable {
        return Ok(Look { place: stable, record: None });
    }
    let place = list([(partition, Offset::Offset(from))])?;
    client.assign(&place).map_err(|error| error::of(&error, "reading a record"))?;
    let record = first_record(client, partition, from, until)?;
    client.unassign().map_err(|error| error::of(&error, "reading a record"))?;
    Ok(Look { place: record.as_ref().map_or(stable, |record| record.offset), record })
}

/// None: there is none up to the end.
fn first_record(
    client: &BaseConsumer<Silent>,
    partition: &Partition,
    from: i64,
    until: Instant,
) -> Result<Option<Record>, BrokerError> {
    let mut last = None;
    while Instant::now() < until {
        match client.poll(until.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) if is_of(&message, partition) => return Ok(Some(lend(&message, |record| record.to_owned()))),
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(None),
            Some(Err(error)) if error::code_of(&error) == Some(RDKafkaErrorCode::AutoOffsetReset) => {
                return Err(BrokerError::Unavailable(format!("reading {partition} at {from}: just removed from the log")));
            }
            Some(Err(error)) => last = Some(error::of(&error, &format!("reading {partition} at {from}"))),
            Some(Ok(_)) | None => {}
        }
    }
    Err(last.unwrap_or_else(|| BrokerError::Unavailable(format!("reading {partition} at {from}: no answer in time"))))
}

fn is_of(message: &BorrowedMessage<'_>, partition: &Partition) -> bool {
    message.topic() == &*partition.topic && message.partition() == partition.index
}
