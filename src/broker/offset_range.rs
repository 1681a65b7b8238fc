//! Reads stretches of logs, once: for whoever looks something up.

use std::time::Duration;

use tokio::time::Instant;

use super::{Broker, BrokerError, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};

const BATCH: usize = 1_000;
const POLL: Duration = Duration::from_millis(50);
/// Silence after which the broker is asked whether what is left of a stretch holds a record at all.
const QUIET: Duration = Duration::from_millis(500);

/// Offsets of one partition, from `from` to below `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub partition: Partition,
    pub from: i64,
    pub to: i64,
}

/// Hands every committed record of these stretches to `take`, in order within each. A stretch is read to its end only when
/// the broker has said that nothing more lies in it: silence is no answer, a slow fetch is silent too. Blocks, at the longest
/// for `deadline`. No two stretches may be of the same partition.
///
/// # Errors
/// `Unavailable` where the deadline was not enough, also because a transaction in a stretch is still open.
pub fn read(
    broker: &dyn Broker,
    stretches: &[OffsetRange],
    deadline: Duration,
    take: &mut dyn FnMut(&RecordRef<'_>),
) -> Result<(), BrokerError> {
    let begun = Instant::now();
    let mut open: Vec<OffsetRange> = stretches.iter().filter(|stretch| stretch.from < stretch.to).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    let starts: Vec<_> = open.iter().map(|stretch| (stretch.partition.clone(), StartOffset::At(stretch.from))).collect();
    consumer.assign(&starts)?;
    let mut heard = begun;
    while !open.is_empty() {
        let left = deadline.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let told = format!("{} of {} partitions were not read to the end within {deadline:?}", open.len(), stretches.len());
            return Err(BrokerError::Unavailable(told));
        }
        let events = consumer.poll(BATCH, POLL.min(left), &mut |record| {
            let of = |stretch: &&mut OffsetRange| {
                stretch.partition.index == record.partition && *stretch.partition.topic == *record.topic
            };
            let Some(stretch) = open.iter_mut().find(of) else { return };
            heard = Instant::now();
            if (stretch.from..stretch.to).contains(&record.offset) {
                take(record);
            }
            stretch.from = stretch.from.max(record.offset + 1);
        })?;
        if let Some(GroupEvent::OutOfRange(partition)) = events.iter().find(|event| matches!(event, GroupEvent::OutOfRange(_))) {
            return Err(BrokerError::Unavailable(format!("a part of {partition} was removed while it was read")));
        }
        for (partition, position) in consumer.positions()? {
            step_to(&mut open, &partition, position);
        }
        if heard.elapsed() >= QUIET {
            step_over_gaps(broker, &mut open, left)?;
            heard = Instant::now();
        }
        let ended: Vec<Partition> = open.iter().filter(|s| s.from >= s.to).map(|s| s.partition.clone()).collect();
        if !ended.is_empty() {
            consumer.release(&ended)?;
            open.retain(|stretch| stretch.from < stretch.to);
        }
    }
    consumer.close(POLL);
    Ok(())
}

fn step_to(open: &mut [OffsetRange], partition: &Partition, position: i64) {
    if let Some(stretch) = open.iter_mut().find(|stretch| stretch.partition == *partition) {
        stretch.from = stretch.from.max(position);
    }
}

/// Ends the stretches in which no committed record is left, such as those that compaction has emptied.
fn step_over_gaps(broker: &dyn Broker, open: &mut [OffsetRange], deadline: Duration) -> Result<(), BrokerError> {
    for stretch in open {
        let first_visible = broker.first_visible(&stretch.partition, stretch.from, deadline)?;
        if first_visible.place >= stretch.to {
            stretch.from = stretch.to;
        }
    }
    Ok(())
}
