//! Rows whose tasks can be read from Kafka: each exactly once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::kafka::Kafka;
use kafleet_broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset};

use super::ROUND_DEADLINE;
use crate::process::Process;
use crate::{BenchTopics, CALL_DEADLINE, NOOP};

/// Interval between two checks that the relay runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Reader of the task records of a round, from the beginning of the topic.
pub(super) struct PublishedRows {
    consumer: Box<dyn Consumer>,
    /// Flags of the rows whose tasks have been read, by the number of the row.
    seen: Vec<bool>,
    count: u64,
    broker: Arc<Kafka>,
    partitions: Vec<Partition>,
}

impl PublishedRows {
    pub(super) fn read(topics: &BenchTopics) -> anyhow::Result<Self> {
        let topic = topics.topology.names.tasks(NOOP);
        let partitions: Vec<Partition> =
            (0..topics.partitions as i32).map(|number| Partition::new(topic.as_str(), number)).collect();
        let mut consumer = topics.broker.consumer(&ConsumerSpec::default())?;
        consumer.assign(&partitions.iter().map(|at| (at.clone(), StartOffset::Beginning)).collect::<Vec<_>>())?;
        Ok(Self { consumer, seen: Vec::new(), count: 0, broker: topics.broker.clone(), partitions })
    }

    /// Returns the end of each partition.
    fn ends(&self) -> anyhow::Result<Vec<(Partition, i64)>> {
        let end = |at: &Partition| anyhow::Ok((at.clone(), self.broker.watermarks(at, CALL_DEADLINE)?.high));
        self.partitions.iter().map(end).collect()
    }

    /// Waits until the tasks of as many rows have been read, and returns the time of the last one. Yields between polls.
    pub(super) async fn wait(&mut self, count: u64, relay: &mut Process) -> anyhow::Result<Instant> {
        let until = Instant::now() + ROUND_DEADLINE;
        while self.count < count {
            tokio::task::block_in_place(|| self.poll(CHECK_INTERVAL))?;
            relay.check()?;
            tokio::task::yield_now().await;
            if Instant::now() > until {
                bail!("{} of {count} rows are published after {} s", self.count, ROUND_DEADLINE.as_secs());
            }
        }
        Ok(Instant::now())
    }

    /// Reads to the end of the topic and checks that the first `count` rows are there, and no other record.
    pub(super) fn check_end(&mut self, count: u64) -> anyhow::Result<()> {
        let (ends, until) = (self.ends()?, Instant::now() + CALL_DEADLINE);
        loop {
            let positions = self.consumer.positions()?;
            let is_read = |(at, end): &(Partition, i64)| {
                *end == 0 || positions.iter().any(|(other, next)| other == at && next >= end)
            };
            if ends.iter().all(is_read) {
                break;
            }
            if Instant::now() > until {
                bail!("the task topic is not read to its end after {} s", CALL_DEADLINE.as_secs());
            }
            self.poll(Duration::from_millis(100))?;
        }
        if self.count != count || self.seen.len() as u64 != count {
            bail!("{} of {count} rows are published, the last one is row {}", self.count, self.seen.len());
        }
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> anyhow::Result<()> {
        let (seen, count) = (&mut self.seen, &mut self.count);
        let mut failure = None;
        self.consumer.poll(10_000, wait, &mut |record| {
            let id = record.headers().find(|(name, _)| *name == "ce_id").and_then(|(_, value)| value);
            if let Err(error) = note(seen, id.unwrap_or_default()) {
                failure.get_or_insert(error);
            }
            *count += 1;
        })?;
        failure.map_or(Ok(()), Err)
    }
}

/// Notes the row of a task. Fails if it has been noted before.
fn note(seen: &mut Vec<bool>, id: &[u8]) -> anyhow::Result<()> {
    let id = String::from_utf8_lossy(id);
    let row: usize = id.strip_prefix("row-").and_then(|row| row.parse().ok()).context("a task is of no row")?;
    if seen.len() <= row {
        seen.resize(row + 1, false);
    }
    if std::mem::replace(&mut seen[row], true) {
        bail!("the row `{id}` is published twice");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_that_is_published_twice_is_found() {
        let mut seen = Vec::new();
        note(&mut seen, b"row-000000000002").unwrap();
        note(&mut seen, b"row-000000000000").unwrap();
        assert_eq!(seen, [true, false, true]);
        let error = note(&mut seen, b"row-000000000002").unwrap_err();
        assert_eq!(error.to_string(), "the row `row-000000000002` is published twice");
        assert!(note(&mut seen, b"first").is_err());
    }
}
