//! Caches of figures of types, shared by concurrent and later requests: their queues as read from Kafka, and their rates and
//! failures as read from the store.

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet_documents::{OwnFailed, PartitionQueue, QueueDocument, Stats, StatsPoint};

use super::letter_counts::LetterCounts;
use super::recent::Recent;

/// Time for which a sample of one type is reused.
const LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime in lists of types: longer, because each type needs a Kafka client of its own for its group's offsets.
const LIFETIME_IN_LISTS: Duration = Duration::from_secs(15);
/// Lifetime of the numbers of dead letters, for which the records of their tasks are read.
const LETTERS_LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime of reads of the store, which read all its partitions.
const STORED_LIFETIME: Duration = Duration::from_secs(1);

/// Cached samples, by type.
pub(crate) struct Queues {
    /// Samples for the page of one type: the oldest unfinished task is read in up to 16 partitions.
    pub full: Recent<QueueDocument>,
    /// Samples for lists of types: the oldest unfinished task is read in up to 2 partitions of each.
    pub brief: Recent<QueueDocument>,
    /// Statistics of the last minutes of each type.
    pub minutes: Recent<Stats>,
    /// Tasks of each type that failed by themselves.
    pub own_failed: Recent<BTreeMap<String, OwnFailed>>,
    /// Unresolved dead letters of a type, or of all types.
    pub dead_letters: Recent<LetterCounts>,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            full: Recent::new(LIFETIME, size_of_queue),
            brief: Recent::new(LIFETIME_IN_LISTS, size_of_queue),
            minutes: Recent::new(STORED_LIFETIME, size_of_stats),
            dead_letters: Recent::new(LETTERS_LIFETIME, LetterCounts::size),
            own_failed: Recent::new(STORED_LIFETIME, |failed| failed.len() * (size_of::<OwnFailed>() + 64)),
        }
    }
}

fn size_of_queue(queue: &QueueDocument) -> usize {
    size_of::<QueueDocument>() + queue.partitions.len() * (size_of::<PartitionQueue>() + 64)
}

fn size_of_stats(stats: &Stats) -> usize {
    stats.series.iter().map(|series| 64 + series.points.len() * (size_of::<StatsPoint>() + 24)).sum()
}
