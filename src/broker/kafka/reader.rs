//! Looking at single places of a log, as readers of what is committed see it.

use std::ops::Range;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::settings::Settings;
use super::{Silent, check_topic, error, list, with_record};
use crate::broker::{BrokerError, CommittedProbe, Listed, Partition, Record};

impl ConsumerContext for Silent {}

/// A consumer kept for the next look; one that failed is made anew.
#[derive(Default)]
pub(super) struct Reader(Mutex<Option<BaseConsumer<Silent>>>);

/// Bytes that one listing reads at most.
const MAX_LISTED_BYTES: usize = 4 << 20;

impl Reader {
    pub fn first_visible(
        &self,
        settings: &Settings,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        self.with(settings, partition, offset, deadline, |client, until| first_visible(client, partition, offset, until))
    }

    pub fn list(
        &self,
        settings: &Settings,
        partition: &Partition,
        range: Range<i64>,
        most: usize,
        deadline: Duration,
    ) -> Result<Listed, BrokerError> {
        let start = range.start;
        self.with(settings, partition, start, deadline, |client, until| list_records(client, partition, range, most, until))
    }

    /// Calls `read` with the client that is kept, or with a new one.
    fn with<T>(
        &self,
        settings: &Settings,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
        read: impl FnOnce(&BaseConsumer<Silent>, Instant) -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        check_topic(&partition.topic)?;
        let until = Instant::now() + deadline;
        let busy = || BrokerError::Unavailable(format!("reading {partition} at {offset}: other reads take too long"));
        let mut kept = self.0.try_lock_until(until).ok_or_else(busy)?;
        let client = match kept.take() {
            Some(client) => client,
            None => settings.reader().create_with_context(Silent).map_err(|error| error::of(&error, "[kafka]"))?,
        };
        let read = read(&client, until)?;
        *kept = Some(client);
        Ok(read)
    }
}

fn first_visible(
    client: &BaseConsumer<Silent>,
    partition: &Partition,
    offset: i64,
    until: Instant,
) -> Result<CommittedProbe, BrokerError> {
    let (first, stable) = ends(client, partition, until)?;
    let from = offset.max(first);
    if from >= stable {
        return Ok(CommittedProbe { place: stable, record: None });
    }
    assign(client, partition, from)?;
    let record = next_record(client, partition, from, until)?;
    unassign(client)?;
    Ok(CommittedProbe { place: record.as_ref().map_or(stable, |record| record.offset), record })
}

fn list_records(
    client: &BaseConsumer<Silent>,
    partition: &Partition,
    range: Range<i64>,
    most: usize,
    until: Instant,
) -> Result<Listed, BrokerError> {
    let (first, stable) = ends(client, partition, until)?;
    let (from, end) = (range.start.max(first), range.end.min(stable));
    let mut listed = Listed { offsets: Vec::new(), to: from.min(range.end) };
    if listed.to >= end {
        return Ok(listed);
    }
    assign(client, partition, from)?;
    let mut bytes = 0;
    while listed.to < end && listed.offsets.len() < most && bytes < MAX_LISTED_BYTES {
        match next_record(client, partition, listed.to, until)? {
            Some(record) if record.offset < end => {
                bytes += record.key.map_or(0, |key| key.len()) + record.value.map_or(0, |value| value.len());
                listed.offsets.push(record.offset);
                listed.to = record.offset + 1;
            }
            _ => listed.to = end,
        }
    }
    unassign(client)?;
    Ok(listed)
}

/// The first offset, and the end. To a client that reads what is committed a log ends where the first open transaction
/// begins.
fn ends(client: &BaseConsumer<Silent>, partition: &Partition, until: Instant) -> Result<(i64, i64), BrokerError> {
    let left = until.saturating_duration_since(Instant::now());
    let ends = client.fetch_watermarks(&partition.topic, partition.index, left);
    ends.map_err(|error| error::of(&error, &format!("asking for the ends of {partition}")))
}

fn assign(client: &BaseConsumer<Silent>, partition: &Partition, from: i64) -> Result<(), BrokerError> {
    let place = list([(partition, Offset::Offset(from))])?;
    client.assign(&place).map_err(|error| error::of(&error, "reading a record"))
}

fn unassign(client: &BaseConsumer<Silent>) -> Result<(), BrokerError> {
    client.unassign().map_err(|error| error::of(&error, "reading a record"))
}

/// None: there is none up to the end.
fn next_record(
    client: &BaseConsumer<Silent>,
    partition: &Partition,
    from: i64,
    until: Instant,
) -> Result<Option<Record>, BrokerError> {
    let mut last = None;
    while Instant::now() < until {
        match client.poll(until.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) if is_of(&message, partition) => {
                return Ok(Some(with_record(&message, |record| record.to_owned())));
            }
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
