//! Caches of queue samples: the backlog of a type as read from Kafka, shared by concurrent and later requests.

use std::time::Duration;

use kafleet_documents::{PartitionQueue, QueueDocument};

use super::recent::Recent;

/// Time for which a sample of one type is reused.
const LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime in lists of types: longer, because each type needs a Kafka client of its own for its group's offsets.
const LIFETIME_IN_LISTS: Duration = Duration::from_secs(15);

/// Cached samples, by type.
pub(crate) struct Queues {
    /// Samples for the page of one type: the oldest unfinished task is read in up to 16 partitions.
    pub full: Recent<QueueDocument>,
    /// Samples for lists of types: the oldest unfinished task is read in up to 2 partitions of each.
    pub brief: Recent<QueueDocument>,
}

impl Default for Queues {
    fn default() -> Self {
        Self { full: Recent::new(LIFETIME, size_of_queue), brief: Recent::new(LIFETIME_IN_LISTS, size_of_queue) }
    }
}

fn size_of_queue(queue: &QueueDocument) -> usize {
    size_of::<QueueDocument>() + queue.partitions.len() * (size_of::<PartitionQueue>() + 64)
}
