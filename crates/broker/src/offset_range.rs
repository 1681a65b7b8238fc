//! One-time reads of offset ranges.

use std::time::Duration;

use tokio::time::Instant;

use super::{Broker, BrokerError, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};

const POLL_RECORDS: usize = 1_000;
const POLL_WAIT: Duration = Duration::from_millis(50);
/// Idle time after which the broker is queried for further records in the rest of a range.
const MAX_IDLE_TIME: Duration = Duration::from_millis(500);

/// A range of offsets of one partition, from `from` (inclusive) to `to` (exclusive).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub partition: Partition,
    pub from: i64,
    pub to: i64,
}

/// Passes every committed record of the ranges to `sink`, in order within each range. A range is complete only when
/// the broker confirms that it contains no further record; the lack of records alone may be a slow fetch. Blocks for
/// at most `deadline`. At most one range per partition.
///
/// # Errors
/// `Unavailable` if the deadline passes, also because a transaction in a range is still open.
pub fn read(
    broker: &dyn Broker,
    ranges: &[OffsetRange],
    deadline: Duration,
    sink: &mut dyn FnMut(&RecordRef<'_>),
) -> Result<(), BrokerError> {
    let started = Instant::now();
    let mut open: Vec<OffsetRange> = ranges.iter().filter(|range| range.from < range.to).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    let starts: Vec<_> = open.iter().map(|range| (range.partition.clone(), StartOffset::At(range.from))).collect();
    consumer.assign(&starts)?;
    let mut last_record = started;
    while !open.is_empty() {
        let left = deadline.saturating_sub(started.elapsed());
        if left.is_zero() {
            let error =
                format!("{} of {} partitions were not read to the end within {deadline:?}", open.len(), ranges.len());
            return Err(BrokerError::Unavailable(error));
        }
        let events = consumer.poll(POLL_RECORDS, POLL_WAIT.min(left), &mut |record| {
            let of = |range: &&mut OffsetRange| {
                range.partition.index == record.partition && *range.partition.topic == *record.topic
            };
            let Some(range) = open.iter_mut().find(of) else { return };
            last_record = Instant::now();
            if (range.from..range.to).contains(&record.offset) {
                sink(record);
            }
            range.from = range.from.max(record.offset + 1);
        })?;
        if let Some(GroupEvent::OutOfRange(partition)) =
            events.iter().find(|event| matches!(event, GroupEvent::OutOfRange(_)))
        {
            return Err(BrokerError::Unavailable(format!("records of {partition} were removed while they were read")));
        }
        for (partition, position) in consumer.positions()? {
            advance_to(&mut open, &partition, position);
        }
        if last_record.elapsed() >= MAX_IDLE_TIME {
            skip_gaps(broker, &mut open, left)?;
            last_record = Instant::now();
        }
        let ended: Vec<Partition> = open.iter().filter(|s| s.from >= s.to).map(|s| s.partition.clone()).collect();
        if !ended.is_empty() {
            consumer.release(&ended)?;
            open.retain(|range| range.from < range.to);
        }
    }
    consumer.close(POLL_WAIT);
    Ok(())
}

fn advance_to(open: &mut [OffsetRange], partition: &Partition, position: i64) {
    if let Some(range) = open.iter_mut().find(|range| range.partition == *partition) {
        range.from = range.from.max(position);
    }
}

/// Completes the ranges that hold no further committed record, such as those emptied by compaction.
fn skip_gaps(broker: &dyn Broker, open: &mut [OffsetRange], deadline: Duration) -> Result<(), BrokerError> {
    for range in open {
        let probe = broker.first_visible(&range.partition, range.from, deadline)?;
        if probe.offset >= range.to {
            range.from = range.to;
        }
    }
    Ok(())
}
