//! Open transactions, which hold back their partitions: readers see nothing behind the first record of one until it ends.

use std::time::Duration;

use super::{Broker, BrokerError, ConsumerSpec, Partition, StartOffset};

/// Age from which on an open transaction is remarkable. Those of trackers and APIs end within seconds.
const NOTABLE_AGE_MS: i64 = 15_000;
/// Wait of one poll for the record of a transaction.
const POLL_WAIT: Duration = Duration::from_millis(200);
/// Maximum partitions whose transactions are dated in one call.
const MAX_DATED: usize = 8;

/// The oldest open transaction of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTransaction {
    pub partition: Partition,
    /// Offset of its first record: the last stable offset of the partition.
    pub offset: i64,
    /// Time of its first record, epoch milliseconds.
    pub since_ms: i64,
}

/// Finds the partitions that an open transaction has held back for longer than [`NOTABLE_AGE_MS`].
///
/// # Errors
/// The offsets cannot be listed.
pub fn open_transactions(
    broker: &dyn Broker,
    partitions: &[Partition],
    now_ms: i64,
    deadline: Duration,
) -> Result<Vec<OpenTransaction>, BrokerError> {
    // In this order an end of a transaction between the two reads makes none of it seem open for longer.
    let stable = broker.stable_offsets(partitions, deadline)?;
    let ends = broker.end_offsets(partitions, deadline)?;
    let offsets = partitions.iter().zip(stable.into_iter().zip(ends));
    let held = offsets.filter_map(|(partition, (stable, end))| Some((partition, stable.filter(|at| Some(*at) < end)?)));
    let mut transactions = Vec::new();
    for (partition, offset) in held.take(MAX_DATED) {
        // A record that cannot be read in time is not old for certain.
        let since_ms = time_of(broker, partition, offset, deadline)?.unwrap_or(now_ms);
        let is_old = now_ms.saturating_sub(since_ms) > NOTABLE_AGE_MS;
        transactions.extend(is_old.then(|| OpenTransaction { partition: partition.clone(), offset, since_ms }));
    }
    Ok(transactions)
}

/// Reads the time of the record at an offset, committed or not.
fn time_of(
    broker: &dyn Broker,
    partition: &Partition,
    offset: i64,
    deadline: Duration,
) -> Result<Option<i64>, BrokerError> {
    let mut consumer = broker.consumer(&ConsumerSpec { read_uncommitted: true, ..ConsumerSpec::default() })?;
    consumer.assign(&[(partition.clone(), StartOffset::At(offset))])?;
    let mut time_ms = None;
    for _ in 0..(deadline.as_millis() / POLL_WAIT.as_millis()).max(1) {
        consumer.poll(1, POLL_WAIT, &mut |record| time_ms = time_ms.or(Some(record.timestamp_ms)))?;
        if time_ms.is_some() {
            break;
        }
    }
    consumer.close(POLL_WAIT);
    Ok(time_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBroker, MemoryBrokerOptions};
    use crate::{ProducerRecord, TopicSpec};
    use kafleet_runtime::now_ms;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[test]
    fn only_transactions_that_are_open_for_long_are_found() {
        let broker = MemoryBroker::new(MemoryBrokerOptions::default());
        let spec = TopicSpec { name: "t".into(), partitions: 2, replication: None, config: Vec::new() };
        broker.apply_topics(&[spec], DEADLINE).unwrap();
        let partitions: Vec<Partition> = (0..2).map(|index| Partition::new("t", index)).collect();
        let record = ProducerRecord { topic: "t", partition: Some(1), key: None, value: Some(b"1"), headers: &[] };
        broker.transactional_producer("well").unwrap().send_all(&[record], DEADLINE).unwrap();
        broker.hold_transactions("foreign", true);
        let begun_ms = now_ms();
        broker.transactional_producer("foreign").unwrap().send_all(&[record], DEADLINE).unwrap_err();
        let find = |now_ms: i64| open_transactions(&*broker, &partitions, now_ms, DEADLINE).unwrap();
        assert_eq!(find(begun_ms), [], "it has just begun");
        let transactions = find(begun_ms + 2 * NOTABLE_AGE_MS);
        assert_eq!(transactions.len(), 1, "{transactions:?}");
        assert_eq!(
            (&transactions[0].partition, transactions[0].offset),
            (&partitions[1], 2),
            "behind the record and its marker"
        );
        assert!(transactions[0].since_ms >= begun_ms);
        broker.end_transaction("foreign", false);
        assert_eq!(find(begun_ms + 2 * NOTABLE_AGE_MS), []);
    }
}
