//! Reading one record at a known place.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::settings::Settings;
use super::{Silent, error, lend, list};
use crate::broker::{BrokerError, Partition, Record};

impl ConsumerContext for Silent {}

/// A consumer kept for the next read; one that failed is made anew.
#[derive(Default)]
pub(super) struct Reader(Mutex<Option<BaseConsumer<Silent>>>);

impl Reader {
    /// None: there is no record at this offset (compacted, or a transaction's marker), or no longer.
    pub fn read(
        &self,
        settings: &Settings,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<Option<Record>, BrokerError> {
        let until = Instant::now() + deadline;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match kept.take() {
            Some(client) => client,
            None => settings.reader().create_with_context(Silent).map_err(|error| error::of(&error, "[kafka]"))?,
        };
        let place = list([(partition, Offset::Offset(offset))])?;
        client.assign(&place).map_err(|error| error::of(&error, "reading a record"))?;
        let found = find(&client, partition, offset, until)?;
        client.unassign().map_err(|error| error::of(&error, "reading a record"))?;
        *kept = Some(client);
        Ok(found)
    }
}

fn find(
    client: &BaseConsumer<Silent>,
    partition: &Partition,
    offset: i64,
    until: Instant,
) -> Result<Option<Record>, BrokerError> {
    let mut last = None;
    while Instant::now() < until {
        match client.poll(until.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) if is_of(&message, partition) => {
                return Ok((message.offset() == offset).then(|| lend(&message, |record| record.to_owned())));
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(None),
            Some(Err(error)) if error::code_of(&error) == Some(RDKafkaErrorCode::AutoOffsetReset) => return Ok(None),
            Some(Err(error)) => last = Some(error::of(&error, &format!("reading {partition} at {offset}"))),
            Some(Ok(_)) | None => {}
        }
    }
    Err(last.unwrap_or_else(|| BrokerError::Unavailable(format!("reading {partition} at {offset}: no answer in time"))))
}

fn is_of(message: &BorrowedMessage<'_>, partition: &Partition) -> bool {
    message.topic() == &*partition.topic && message.partition() == partition.index
}
