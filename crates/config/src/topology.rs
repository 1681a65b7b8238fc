//! Topology of a fleet: names of its topics, and the partitions of its events.

use std::ops::Range;

use kafleet_model::task::id::TaskId;
use kafleet_model::task::partition::events_partition_of;

use super::Names;

/// Names of a fleet, and the number of its events partitions, which never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub names: Names,
    pub events_partitions: u32,
}

impl Topology {
    pub fn new(names: Names, events_partitions: u32) -> Self {
        Self { names, events_partitions }
    }

    /// Events partition of the tree of a task: by the tag of its id, if it has one.
    pub fn partition_of(&self, id: &TaskId) -> u32 {
        self.partition_of_key(id.root())
    }

    /// Events partition of a record key.
    pub fn partition_of_key(&self, key: &str) -> u32 {
        events_partition_of(key, self.events_partitions)
    }

    /// Numbers of all events partitions.
    pub fn partitions(&self) -> Range<u32> {
        0..self.events_partitions
    }
}
