//! Samples of the queues of types, which requests share.

use std::time::Duration;

use super::recent::Recent;
use crate::api::documents::{PartitionQueue, QueueDocument};

/// Lifetime of a sample.
const LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime of samples for lists: each opens a client of the group.
const LIFETIME_IN_LISTS: Duration = Duration::from_secs(15);
/// Samples that requests share, by type.
pub(crate) struct Queues {
    /// Samples of all partitions.
    pub whole: Recent<QueueDocument>,
    /// Samples for lists, with fewer reads.
    pub brief: Recent<QueueDocument>,
}

impl Default for Queues {
    fn default() -> Self {
        Self { whole: Recent::new(LIFETIME, size_of_queue), brief: Recent::new(LIFETIME_IN_LISTS, size_of_queue) }
    }
}

fn size_of_queue(queue: &QueueDocument) -> usize {
    size_of::<QueueDocument>() + queue.partitions.len() * (size_of::<PartitionQueue>() + 64)
}
