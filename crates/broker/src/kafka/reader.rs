//! Reads of single offsets as a read-committed consumer sees them.

use std::ops::Range;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::settings::Settings;
use super::{SilentContext, check_topic, error, list, with_record};
use crate::{BrokerError, CommittedProbe, Partition, Record, RecordListing};

impl ConsumerContext for SilentContext {}

/// Maximum number of reads at once. One that waits for an unavailable partition must not hold up the others.
const MAX_READS: usize = 4;

/// Consumers for single reads, kept for the next ones. A failed consumer is dropped.
#[derive(Default)]
pub(super) struct Reader {
    state: Mutex<ReaderState>,
    finished: Condvar,
}

#[derive(Default)]
struct ReaderState {
    running: usize,
    idle: Vec<BaseConsumer<SilentContext>>,
}

/// Place of a read among those at once.
struct RunningRead<'a>(&'a Reader);

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.finished.notify_one();
    }
}

/// Maximum bytes read for one listing.
const MAX_LISTED_BYTES: usize = 4 << 20;

impl Reader {
    pub(super) fn first_visible(
        &self,
        settings: &Settings,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        self.with(settings, partition, offset, deadline, |client, until| {
            first_visible(client, partition, offset, until)
        })
    }

    pub(super) fn list(
        &self,
        settings: &Settings,
        partition: &Partition,
        range: Range<i64>,
        max_records: usize,
        deadline: Duration,
    ) -> Result<RecordListing, BrokerError> {
        let start = range.start;
        self.with(settings, partition, start, deadline, |client, until| {
            list_records(client, partition, range, max_records, until)
        })
    }

    /// Calls `read` with an idle client, or with a new one.
    fn with<T>(
        &self,
        settings: &Settings,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
        read: impl FnOnce(&BaseConsumer<SilentContext>, Instant) -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        check_topic(&partition.topic)?;
        let until = Instant::now() + deadline;
        let busy = || {
            BrokerError::Unavailable(format!(
                "reading {partition} at {offset}: concurrent reads did not finish in time"
            ))
        };
        // Dropped after the client: the end of a client takes time, and counts as a read.
        let (_running, idle) = self.begin(until).ok_or_else(busy)?;
        let client = match idle {
            Some(client) => client,
            None => {
                settings.reader().create_with_context(SilentContext).map_err(|error| error::of(&error, "[kafka]"))?
            }
        };
        let read = read(&client, until)?;
        self.state.lock().idle.push(client);
        Ok(read)
    }

    /// Waits until fewer than [`MAX_READS`] reads are running, and takes an idle client. `None` after the deadline.
    fn begin(&self, until: Instant) -> Option<(RunningRead<'_>, Option<BaseConsumer<SilentContext>>)> {
        let mut state = self.state.lock();
        self.finished.wait_while_until(&mut state, |state| state.running >= MAX_READS, until);
        if state.running >= MAX_READS {
            return None;
        }
        state.running += 1;
        Some((RunningRead(self), state.idle.pop()))
    }
}

fn first_visible(
    client: &BaseConsumer<SilentContext>,
    partition: &Partition,
    offset: i64,
    until: Instant,
) -> Result<CommittedProbe, BrokerError> {
    let (first, last_stable) = watermarks(client, partition, until)?;
    let from = offset.max(first);
    if from >= last_stable {
        return Ok(CommittedProbe { offset: last_stable, record: None });
    }
    assign(client, partition, from)?;
    let record = next_record(client, partition, from, until)?;
    unassign(client)?;
    Ok(CommittedProbe { offset: record.as_ref().map_or(last_stable, |record| record.offset), record })
}

fn list_records(
    client: &BaseConsumer<SilentContext>,
    partition: &Partition,
    range: Range<i64>,
    max_records: usize,
    until: Instant,
) -> Result<RecordListing, BrokerError> {
    let (first, last_stable) = watermarks(client, partition, until)?;
    let (from, end) = (range.start.max(first), range.end.min(last_stable));
    let mut listed = RecordListing { offsets: Vec::new(), to: from.min(range.end) };
    if listed.to >= end {
        return Ok(listed);
    }
    assign(client, partition, from)?;
    let mut bytes = 0;
    while listed.to < end && listed.offsets.len() < max_records && bytes < MAX_LISTED_BYTES {
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

/// Returns the first offset and the last stable offset: for a read-committed client, the log ends at the first open
/// transaction.
fn watermarks(
    client: &BaseConsumer<SilentContext>,
    partition: &Partition,
    until: Instant,
) -> Result<(i64, i64), BrokerError> {
    let left = until.saturating_duration_since(Instant::now());
    let watermarks = client.fetch_watermarks(&partition.topic, partition.index, left);
    watermarks.map_err(|error| error::of(&error, &format!("fetching the watermarks of {partition}")))
}

fn assign(client: &BaseConsumer<SilentContext>, partition: &Partition, from: i64) -> Result<(), BrokerError> {
    let start = list([(partition, Offset::Offset(from))])?;
    client.assign(&start).map_err(|error| error::of(&error, "reading a record"))
}

fn unassign(client: &BaseConsumer<SilentContext>) -> Result<(), BrokerError> {
    client.unassign().map_err(|error| error::of(&error, "reading a record"))
}

/// Returns the next record, or `None` at the end of the log.
fn next_record(
    client: &BaseConsumer<SilentContext>,
    partition: &Partition,
    from: i64,
    until: Instant,
) -> Result<Option<Record>, BrokerError> {
    let mut last = None;
    while Instant::now() < until {
        match client.poll(until.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) if belongs_to(&message, partition) => {
                return Ok(Some(with_record(&message, |record| record.to_owned())));
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(None),
            Some(Err(error)) if error::code_of(&error) == Some(RDKafkaErrorCode::AutoOffsetReset) => {
                return Err(BrokerError::Unavailable(format!(
                    "reading {partition} at {from}: the offset was just removed from the log"
                )));
            }
            Some(Err(error)) => last = Some(error::of(&error, &format!("reading {partition} at {from}"))),
            Some(Ok(_)) | None => {}
        }
    }
    Err(last.unwrap_or_else(|| BrokerError::Unavailable(format!("reading {partition} at {from}: timed out"))))
}

fn belongs_to(message: &BorrowedMessage<'_>, partition: &Partition) -> bool {
    message.topic() == &*partition.topic && message.partition() == partition.index
}
