//! Queues of types as sampled from Kafka: unfinished tasks and the oldest of them, by partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kafleet_broker::{Broker, BrokerError, CommittedOffset, OpenTransaction, Partition, Record, open_transactions};
use kafleet_documents::{PartitionQueue, QueueDocument};
use kafleet_model::offsets::CompletedOffsets;
use kafleet_model::task::Position;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use tokio::time::timeout;

use super::why::{consumer_group, task_of};
use crate::http::problem::ApiError;
use crate::state::Api;

/// Maximum wait of a list for the samples of its types.
const LIST_WAIT: Duration = Duration::from_millis(100);
/// Maximum partitions of a type that are sampled.
const MAX_PARTITIONS: u32 = 256;
/// Partitions whose first unfinished record is read: those with the most unfinished offsets.
const MAX_INSPECTED_PARTITIONS: usize = 16;
/// Partitions inspected per type when a list of types is sampled.
const INSPECTED_IN_LISTS: usize = 2;

/// Samples the queue of a type.
pub async fn queue(api: &Api, name: &str) -> Result<Arc<QueueDocument>, ApiError> {
    api.queues.full.get(Some(name.to_owned()), sample(api, name, MAX_INSPECTED_PARTITIONS)).await
}

/// Samples the queues of types for a list, with few reads each, so that fewer ages are known. A list does not wait for
/// long: a type that is not sampled in time is shown with its previous sample, or with none.
pub async fn brief_queues(api: &Arc<Api>, names: Vec<String>) -> BTreeMap<String, Arc<QueueDocument>> {
    // The page of a type samples it more often and more exactly: both show one number.
    let last = |name: &str| newer(api.queues.brief.last(name), api.queues.full.last(name));
    let earlier: Vec<_> = names.iter().map(|name| last(name)).collect();
    let sampled = names.iter().map(|name| {
        let (name, api) = (name.clone(), api.clone());
        // A sample that is not awaited any more is finished for the next list.
        let work = kafleet_runtime::spawn(async move {
            let read = sample(&api, &name, INSPECTED_IN_LISTS);
            api.queues.brief.get(Some(name.clone()), read).await
        });
        timeout(LIST_WAIT, work)
    });
    join_all(sampled).await;
    let pairs = names.into_iter().zip(earlier);
    pairs.filter_map(|(name, earlier)| last(&name).or(earlier).map(|queue| (name, queue))).collect()
}

/// Sample that was taken later.
fn newer(one: Option<Arc<QueueDocument>>, other: Option<Arc<QueueDocument>>) -> Option<Arc<QueueDocument>> {
    // These texts sort in the order of their times.
    one.into_iter().chain(other).max_by(|one, other| one.at.cmp(&other.at))
}

async fn sample(api: &Api, name: &str, inspected: usize) -> Result<QueueDocument, ApiError> {
    let partitions = api.types.partitions_of(name).await?.min(MAX_PARTITIONS);
    let (topic, group) = (api.topology.names.tasks(name), consumer_group(api, name));
    let all: Vec<Partition> = (0..partitions as i32).map(|index| Partition::new(topic.as_str(), index)).collect();
    let name = name.to_owned();
    let read = move |broker: &dyn Broker, deadline: Duration| {
        let committed = broker.group_offsets(&group, &all, deadline)?;
        let (starts, ends) = (broker.start_offsets(&all, deadline)?, broker.end_offsets(&all, deadline)?);
        let positions = all.iter().zip(committed).zip(starts.into_iter().zip(ends));
        let mut open: Vec<OpenPartition> = positions
            .filter_map(|((partition, committed), (start, end))| {
                Some(OpenPartition::new(partition, committed, start?, end?))
            })
            .collect();
        open.sort_by_key(|open| std::cmp::Reverse(open.lag()));
        for open_partition in open.iter_mut().filter(|open_partition| open_partition.lag() > 0).take(inspected) {
            open_partition.inspect(broker, deadline)?;
        }
        let is_whole = inspected == MAX_INSPECTED_PARTITIONS;
        let held = if is_whole { open_transactions(broker, &all, now_ms(), deadline)? } else { Vec::new() };
        Ok::<_, BrokerError>(document(&name, open, &held))
    };
    Ok(api.reads.broker.call(read).await?)
}

/// Unfinished part of a partition.
struct OpenPartition {
    partition: Partition,
    completed: CompletedOffsets,
    end: i64,
    /// First record that is not completed, if it was read. `None` inside: there is none.
    first: Option<Option<Record>>,
}

impl OpenPartition {
    fn new(partition: &Partition, committed: Option<CommittedOffset>, start: i64, end: i64) -> Self {
        // A commit beyond the end belongs to an earlier topic of the same name.
        let committed = committed.filter(|committed| committed.offset <= end);
        let completed = match committed {
            Some(at) => CompletedOffsets::of_commit(at.offset, &at.metadata),
            None => CompletedOffsets::starting_at(start),
        };
        Self { partition: partition.clone(), completed, end, first: None }
    }

    /// Reads the first unfinished record.
    fn inspect(&mut self, broker: &dyn Broker, deadline: Duration) -> Result<(), BrokerError> {
        let probe = broker.first_visible(&self.partition, self.completed.watermark(), deadline)?;
        self.first = Some(probe.record.filter(|record| record.offset < self.end));
        Ok(())
    }

    /// Number of unfinished offsets. Those beyond the last completed one may not be tasks.
    fn lag(&self) -> u64 {
        let last = self.completed.end();
        let certain = self.completed.open_below(last.min(self.end));
        let from = self.first.as_ref().map_or(last, |first| first.as_ref().map_or(self.end, |first| first.offset));
        certain + u64::try_from(self.end - last.max(from)).unwrap_or_default()
    }

    /// Whether fewer tasks may be unfinished than [`Self::lag`].
    fn is_at_most(&self) -> bool {
        let rest = self.end - self.completed.end();
        let is_single =
            self.first.as_ref().is_some_and(|first| first.as_ref().is_none_or(|it| it.offset + 1 == self.end));
        rest > 0 && !is_single
    }

    /// Task that keeps the committed offset back while later ones are completed.
    fn held_by(&self, name: &str) -> Option<String> {
        let record = self.first.as_ref()?.as_ref().filter(|record| record.offset < self.completed.end())?;
        let position = Position { partition: record.partition, offset: record.offset };
        task_of(record, name, position).map(|id| id.to_string())
    }
}

fn document(name: &str, mut open: Vec<OpenPartition>, held: &[OpenTransaction]) -> QueueDocument {
    open.sort_by_key(|open| open.partition.index);
    let partitions: Vec<PartitionQueue> = open
        .iter()
        .map(|open| PartitionQueue {
            partition: open.partition.index,
            end: open.end,
            done: open.completed.watermark(),
            lag: open.lag(),
            at_most: open.is_at_most(),
            oldest_at: open.first.as_ref().and_then(|first| Some(time_text(first.as_ref()?.timestamp_ms))),
            held_by: open.held_by(name),
            open_transaction_since: held
                .iter()
                .find(|held| held.partition == open.partition)
                .map(|held| time_text(held.since_ms)),
        })
        .collect();
    QueueDocument {
        at: time_text(now_ms()),
        lag: partitions.iter().map(|partition| partition.lag).sum(),
        at_most: partitions.iter().any(|partition| partition.at_most),
        // These texts sort in the order of their times.
        oldest_at: partitions.iter().filter_map(|partition| partition.oldest_at.clone()).min(),
        oldest_at_least: open.iter().any(|open| open.lag() > 0 && open.first.is_none()),
        partitions,
    }
}
