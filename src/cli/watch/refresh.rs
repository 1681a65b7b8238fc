//! What has to be read again: changes that come close together are looked at together, and what no notice names is looked
//! at no more often than every few seconds.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::documents::FleetChange;

/// Tasks of a partition that are remembered by name; where there are more, anything may have changed.
const MAX_NAMED: usize = 1_000;

#[derive(Debug, Default)]
pub struct RefreshQueue {
    named: BTreeMap<Option<u32>, Named>,
    anywhere: Option<Where>,
}

/// Tasks of one partition, and the place that is to be seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub ids: BTreeSet<String>,
    pub position: Option<String>,
}

/// Where anything may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    Everywhere,
    In(BTreeSet<u32>),
}

impl Where {
    fn of(partition: Option<u32>) -> Self {
        partition.map_or(Self::Everywhere, |partition| Self::In([partition].into()))
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::In(some), Self::In(more)) => Self::In(&some | &more),
            _ => Self::Everywhere,
        }
    }

    /// None: nobody knows in which one it is.
    pub fn has(&self, partition: Option<u32>) -> bool {
        match (self, partition) {
            (Self::In(some), Some(partition)) => some.contains(&partition),
            _ => true,
        }
    }
}

impl RefreshQueue {
    pub fn add(&mut self, change: FleetChange) {
        let Some(ids) = change.ids else { return self.add_anything(Where::of(change.partition)) };
        let named = self.named.entry(change.partition).or_default();
        named.ids.extend(ids);
        // What comes later in a partition includes what came before.
        named.position = change.position;
        if named.ids.len() > MAX_NAMED {
            self.named.remove(&change.partition);
            self.add_anything(Where::of(change.partition));
        }
    }

    pub fn add_anything(&mut self, place: Where) {
        self.anywhere = Some(match self.anywhere.take() {
            Some(before) => before.and(place),
            None => place,
        });
    }

    pub fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    pub fn has_anything(&self) -> bool {
        self.anywhere.is_some()
    }

    pub fn take_named(&mut self) -> Vec<Named> {
        std::mem::take(&mut self.named).into_values().collect()
    }

    pub fn take_anywhere(&mut self) -> Option<Where> {
        self.anywhere.take()
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
    fn changes_of_a_partition_are_read_once_at_the_last_place() {
        let mut due = RefreshQueue::default();
        due.add(change(Some(ids(&["a", "b"])), Some(0), 1));
        due.add(change(Some(ids(&["a"])), Some(0), 9));
        due.add(change(Some(ids(&["c"])), Some(1), 3));
        let named =
            |names: &[&str], position: &str| Named { ids: ids(names).into_iter().collect(), position: Some(position.into()) };
        assert_eq!(due.take_named(), [named(&["a", "b"], "0:9"), named(&["c"], "1:3")]);
        assert!(!due.has_named() && !due.has_anything());
    }

    #[test]
    fn what_is_not_named_is_known_by_its_partition() {
        let mut due = RefreshQueue::default();
        due.add(change(None, Some(2), 1));
        due.add(change(None, Some(0), 1));
        let place = due.take_anywhere().unwrap();
        assert_eq!([Some(0), Some(1), Some(2), None].map(|partition| place.has(partition)), [true, false, true, true]);
        due.add(change(None, Some(2), 1));
        due.add(change(None, None, 1));
        assert_eq!(due.take_anywhere(), Some(Where::Everywhere));
        assert!(!due.has_anything());
    }

    #[test]
    fn too_many_names_are_none() {
        let mut due = RefreshQueue::default();
        for n in 0..MAX_NAMED as u32 {
            due.add(change(Some(vec![format!("t{n}"), format!("t{}", n / 2)]), Some(3), n));
        }
        assert!(due.has_named() && !due.has_anything());
        due.add(change(Some(ids(&["one-more"])), Some(3), 0));
        assert!(!due.has_named());
        assert_eq!(due.take_anywhere(), Some(Where::In([3].into())));
    }
}
