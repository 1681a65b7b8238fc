//! Reads about the queue of a task: offsets, progress, tasks ahead. UI pages of many tasks share recent results.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, CommittedOffset, OpenTransaction, Partition, Watermarks};
use kafleet_model::offsets::CompletedOffsets;
use tokio::time::Instant;

use super::count::{Count, Counter, Listing};
use super::fleet::{consumer_group, consumer_lag};
use crate::backends::KAFKA_DEADLINE;
use crate::http::problem::ApiError;
use crate::read::recent::Recent;
use crate::state::Api;

/// Minimum time over which the progress of a partition is measured.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Lifetime of offsets: of a partition's ends and of commits.
const OFFSETS_LIFETIME: Duration = SAMPLE_INTERVAL;
/// Lifetime of lists of records and of the lag of a type, which take many requests.
const LISTING_LIFETIME: Duration = Duration::from_secs(5);

/// Recent reads shared by UI pages, by partition or type.
pub struct RecentQueues {
    ends: Recent<Watermarks>,
    offsets: Recent<QueueOffsets>,
    listings: Recent<Listing>,
    lags: Recent<Option<Count>>,
    transactions: Recent<Option<OpenTransaction>>,
}

impl Default for RecentQueues {
    fn default() -> Self {
        Self {
            ends: Recent::new(OFFSETS_LIFETIME, |_| size_of::<Watermarks>()),
            offsets: Recent::new(OFFSETS_LIFETIME, QueueOffsets::size),
            listings: Recent::new(LISTING_LIFETIME, Listing::size),
            lags: Recent::new(LISTING_LIFETIME, |_| size_of::<Count>()),
            transactions: Recent::new(LISTING_LIFETIME, |_| size_of::<OpenTransaction>()),
        }
    }
}

/// Offsets of the partition of a queued task.
pub(super) struct QueueOffsets {
    pub ends: Watermarks,
    pub committed: Option<CommittedOffset>,
    /// Progress since an earlier read.
    pub progress: Option<Progress>,
    read_at: Instant,
}

/// Offsets by which the committed offset has moved within a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub moved: i64,
    pub within: Duration,
}

impl Progress {
    /// Tasks per second.
    pub(super) fn rate(self) -> f64 {
        self.moved as f64 / self.within.as_secs_f64()
    }
}

impl QueueOffsets {
    fn size(&self) -> usize {
        size_of::<Self>() + self.committed.as_ref().map_or(0, |committed| committed.metadata.len())
    }

    fn progress_since(&self, earlier: &Self) -> Progress {
        let offset = |offsets: &Self| offsets.committed.as_ref().map_or(offsets.ends.low, |committed| committed.offset);
        let moved = (offset(self) - offset(earlier)).max(0);
        Progress { moved, within: self.read_at.duration_since(earlier.read_at) }
    }
}

/// Reads for the explanation of a task.
pub(super) struct QueueReads<'a> {
    pub api: &'a Api,
    /// Reads that this request shares with others; without them everything is read now.
    pub recent: Option<&'a RecentQueues>,
}

impl QueueReads<'_> {
    pub(super) async fn ends(&self, partition: &Partition) -> Result<Watermarks, ApiError> {
        let read = async { Ok(self.api.reads.broker.with_deadline(KAFKA_DEADLINE).watermarks(partition).await?) };
        match self.recent {
            Some(recent) => Ok(*recent.ends.get(Some(partition.to_string()), read).await?),
            None => read.await,
        }
    }

    pub(super) async fn offsets(&self, task_type: &str, partition: &Partition) -> Result<Arc<QueueOffsets>, ApiError> {
        let Some(recent) = self.recent else { return self.read_offsets(task_type, partition).await.map(Arc::new) };
        let key = partition.to_string();
        let earlier = recent.offsets.last(&key);
        let read = async {
            let offsets = self.read_offsets(task_type, partition).await?;
            let progress = earlier.map(|earlier| offsets.progress_since(&earlier));
            Ok(QueueOffsets { progress, ..offsets })
        };
        recent.offsets.get(Some(key), read).await
    }

    async fn read_offsets(&self, task_type: &str, partition: &Partition) -> Result<QueueOffsets, ApiError> {
        let broker = &self.api.reads.broker;
        let ends = broker.watermarks(partition).await?;
        let group = consumer_group(self.api, task_type);
        let committed = broker.group_offsets(&group, vec![partition.clone()]).await?.into_iter().next().flatten();
        Ok(QueueOffsets { ends, committed, progress: None, read_at: Instant::now() })
    }

    /// Returns the progress of a partition. Takes [`SAMPLE_INTERVAL`] unless it is known from an earlier read; pages do not wait
    /// for it.
    pub(super) async fn progress(
        &self,
        task_type: &str,
        partition: &Partition,
        offsets: &QueueOffsets,
    ) -> Result<Option<Progress>, ApiError> {
        if self.recent.is_some() {
            return Ok(offsets.progress);
        }
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        Ok(Some(self.read_offsets(task_type, partition).await?.progress_since(offsets)))
    }

    /// Counts the unfinished tasks of a partition below an offset.
    pub(super) async fn count_below(
        &self,
        partition: &Partition,
        completed: &CompletedOffsets,
        to: i64,
    ) -> Result<Count, ApiError> {
        let broker = &self.api.reads.broker;
        let (at, completed) = (partition.clone(), completed.clone());
        let Some(recent) = self.recent else {
            let count =
                move |broker: &dyn Broker, deadline| Counter::new(broker, deadline).open_below(&at, &completed, to);
            return Ok(broker.call(count).await?);
        };
        let from = completed.end();
        let list = broker.call(move |broker, deadline| Listing::read(broker, &at, from, deadline));
        let listing = recent.listings.get(Some(partition.to_string()), async { Ok(list.await?) }).await?;
        Ok(listing.open_below(&completed, to))
    }

    /// Transaction that has held back a partition for long.
    pub(super) async fn open_transaction(&self, partition: &Partition) -> Result<Option<OpenTransaction>, ApiError> {
        let broker = self.api.reads.broker.with_deadline(KAFKA_DEADLINE);
        let read = async { Ok(broker.open_transactions(vec![partition.clone()]).await?.pop()) };
        match self.recent {
            Some(recent) => Ok((*recent.transactions.get(Some(partition.to_string()), read).await?).clone()),
            None => read.await,
        }
    }

    /// Counts the unfinished tasks of a type over all partitions. `None` if it has too many partitions.
    pub(super) async fn lag(&self, task_type: &str) -> Result<Option<Count>, ApiError> {
        let read = consumer_lag(self.api, task_type);
        match self.recent {
            Some(recent) => Ok(*recent.lags.get(Some(task_type.to_owned()), read).await?),
            None => read.await,
        }
    }
}
