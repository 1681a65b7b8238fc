//! Reads stretches of logs, once: for whoever looks something up.

use std::time::Duration;

use tokio::time::Instant;

use super::{Broker, BrokerError, ConsumerSpec, Partition, RecordRef, Start};

const BATCH: usize = 1_000;
const POLL: Duration = Duration::from_millis(50);
/// Silence after which what is left of a stretch holds no record: the marks of transactions are never delivered.
const QUIET: Duration = Duration::from_millis(500);

/// Offsets of one partition, from `from` to below `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub partition: Partition,
    pub from: i64,
    pub to: i64,
}

/// Hands every record of these stretches to `take`, in order within each. Blocks, at the longest for `deadline`: then the
/// error tells that it was not enough. No two stretches may be of the same partition.
pub fn read(
    broker: &dyn Broker,
    stretches: &[Stretch],
    deadline: Duration,
    take: &mut dyn FnMut(&RecordRef<'_>),
) -> Result<(), BrokerError> {
    let begun = Instant::now();
    let mut open: Vec<Stretch> = stretches.iter().filter(|stretch| stretch.from < stretch.to).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    let starts: Vec<_> = open.iter().map(|stretch| (stretch.partition.clone(), Start::At(stretch.from))).collect();
    consumer.assign(&starts)?;
    let mut heard = Instant::now();
    while !open.is_empty() && heard.elapsed() < QUIET {
        let left = deadline.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let told = format!("{} of {} partitions were not read to the end within {deadline:?}", open.len(), stretches.len());
            return Err(BrokerError::Unavailable(told));
        }
        consumer.poll(BATCH, POLL.min(left), &mut |record| {
            let of =
                |stretch: &&mut Stretch| stretch.partition.index == record.partition && *stretch.partition.topic == *record.topic;
            let Some(stretch) = open.iter_mut().find(of) else { return };
            heard = Instant::now();
            if (stretch.from..stretch.to).contains(&record.offset) {
                take(record);
            }
            stretch.from = record.offset + 1;
        })?;
        let ended: Vec<Partition> = open.iter().filter(|s| s.from >= s.to).map(|s| s.partition.clone()).collect();
        if !ended.is_empty() {
            consumer.release(&ended)?;
            open.retain(|stretch| stretch.from < stretch.to);
        }
    }
    consumer.close(POLL);
    Ok(())
}
