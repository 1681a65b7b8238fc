//! Queue of tasks to read again. Changes are merged by partition; a change may name tasks or only a partition.

use std::collections::{BTreeMap, BTreeSet};

use kafleet_documents::FleetChange;

/// Maximum number of named tasks per partition; beyond it the whole partition is treated as changed.
const MAX_NAMED: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct RefreshQueue {
    named: BTreeMap<Option<u32>, NamedTasks>,
    unnamed: Option<PartitionScope>,
}

/// Tasks of one partition, and the position at which to read them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NamedTasks {
    pub ids: BTreeSet<String>,
    pub position: Option<String>,
}

/// Partitions in which any task may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartitionScope {
    Everywhere,
    In(BTreeSet<u32>),
}

impl PartitionScope {
    fn of(partition: Option<u32>) -> Self {
        partition.map_or(Self::Everywhere, |partition| Self::In([partition].into()))
    }

    fn union(self, other: Self) -> Self {
        match (self, other) {
            (Self::In(some), Self::In(more)) => Self::In(&some | &more),
            _ => Self::Everywhere,
        }
    }

    /// Returns whether the scope includes a partition; `None` stands for an unknown one.
    pub(super) fn has(&self, partition: Option<u32>) -> bool {
        match (self, partition) {
            (Self::In(some), Some(partition)) => some.contains(&partition),
            _ => true,
        }
    }
}

impl RefreshQueue {
    pub(super) fn add(&mut self, change: FleetChange) {
        let Some(ids) = change.ids else { return self.add_unnamed(PartitionScope::of(change.partition)) };
        let named = self.named.entry(change.partition).or_default();
        named.ids.extend(ids);
        // A later position in a partition includes the earlier ones.
        named.position = change.position;
        if named.ids.len() > MAX_NAMED {
            self.named.remove(&change.partition);
            self.add_unnamed(PartitionScope::of(change.partition));
        }
    }

    pub(super) fn add_unnamed(&mut self, scope: PartitionScope) {
        self.unnamed = Some(match self.unnamed.take() {
            Some(before) => before.union(scope),
            None => scope,
        });
    }

    pub(super) fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    pub(super) fn has_unnamed(&self) -> bool {
        self.unnamed.is_some()
    }

    pub(super) fn take_named(&mut self) -> Vec<NamedTasks> {
        std::mem::take(&mut self.named).into_values().collect()
    }

    pub(super) fn take_unnamed(&mut self) -> Option<PartitionScope> {
        self.unnamed.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(ids: Option<Vec<String>>, partition: Option<u32>, offset: u32) -> FleetChange {
        FleetChange { ids, partition, position: partition.map(|partition| format!("{partition}:{offset}")) }
    }

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn changes_of_a_partition_are_merged_at_the_last_position() {
        let mut queue = RefreshQueue::default();
        queue.add(change(Some(ids(&["a", "b"])), Some(0), 1));
        queue.add(change(Some(ids(&["a"])), Some(0), 9));
        queue.add(change(Some(ids(&["c"])), Some(1), 3));
        let named = |names: &[&str], position: &str| NamedTasks {
            ids: ids(names).into_iter().collect(),
            position: Some(position.into()),
        };
        assert_eq!(queue.take_named(), [named(&["a", "b"], "0:9"), named(&["c"], "1:3")]);
        assert!(!queue.has_named() && !queue.has_unnamed());
    }

    #[test]
    fn changes_without_ids_are_kept_by_partition() {
        let mut queue = RefreshQueue::default();
        queue.add(change(None, Some(2), 1));
        queue.add(change(None, Some(0), 1));
        let scope = queue.take_unnamed().unwrap();
        assert_eq!([Some(0), Some(1), Some(2), None].map(|partition| scope.has(partition)), [true, false, true, true]);
        queue.add(change(None, Some(2), 1));
        queue.add(change(None, None, 1));
        assert_eq!(queue.take_unnamed(), Some(PartitionScope::Everywhere));
        assert!(!queue.has_unnamed());
    }

    #[test]
    fn too_many_ids_become_a_change_of_the_partition() {
        let mut queue = RefreshQueue::default();
        for n in 0..MAX_NAMED as u32 {
            queue.add(change(Some(vec![format!("t{n}"), format!("t{}", n / 2)]), Some(3), n));
        }
        assert!(queue.has_named() && !queue.has_unnamed());
        queue.add(change(Some(ids(&["one-more"])), Some(3), 0));
        assert!(!queue.has_named());
        assert_eq!(queue.take_unnamed(), Some(PartitionScope::In([3].into())));
    }
}
