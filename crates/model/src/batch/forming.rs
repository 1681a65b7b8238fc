//! Groups of items that are processed in one call: each is open until it is full, and ready for a call when it is full or old.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Maximum number of items.
    pub max: usize,
    /// Time after the first item at which a group is ready, in milliseconds.
    pub wait_ms: u64,
    /// Maximum size of all items, in bytes. A larger item has a group of its own.
    pub max_bytes: u64,
}

/// Items that wait for a call, in groups of equal keys.
#[derive(Debug)]
pub struct BatchForming<T> {
    limits: GroupLimits,
    /// Numbers of the open groups, by key.
    open: BTreeMap<Arc<str>, u64>,
    /// Open groups, by number, which is also the order of their first items.
    growing: BTreeMap<u64, Group<T>>,
    /// Groups that take no more items, by number.
    closed: BTreeMap<u64, Group<T>>,
    /// Parts of calls that have failed. They start before all others.
    again: VecDeque<Vec<T>>,
    next_number: u64,
    /// Number of items in all groups.
    len: usize,
}

#[derive(Debug)]
struct Group<T> {
    /// Time of the first item.
    since_ms: u64,
    bytes: u64,
    /// `None`: the group has not been open.
    key: Option<Arc<str>>,
    items: Vec<T>,
}

impl<T> BatchForming<T> {
    /// Creates the state without groups.
    pub fn new(limits: GroupLimits) -> Self {
        Self {
            limits,
            open: BTreeMap::new(),
            growing: BTreeMap::new(),
            closed: BTreeMap::new(),
            again: VecDeque::new(),
            next_number: 0,
            len: 0,
        }
    }

    /// Number of items in all groups.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item to the open group of its key, or to a new one.
    pub fn join(&mut self, key: &str, item: T, bytes: u64, now_ms: u64) {
        let GroupLimits { max, max_bytes, .. } = self.limits;
        let open = self.open.get(key).copied();
        let is_too_large = |group: &Group<T>| group.bytes.saturating_add(bytes) > max_bytes;
        if let Some(number) = open.filter(|number| self.growing.get(number).is_some_and(is_too_large)) {
            self.close(number);
        }
        let key: Arc<str> = key.into();
        let number = match self.open.get(&key) {
            Some(number) => *number,
            None => {
                let number = self.add_number();
                self.open.insert(key.clone(), number);
                number
            }
        };
        let new = || Group { since_ms: now_ms, bytes: 0, key: Some(key), items: Vec::new() };
        let group = self.growing.entry(number).or_insert_with(new);
        group.items.push(item);
        group.bytes = group.bytes.saturating_add(bytes);
        self.len += 1;
        if group.items.len() >= max || group.bytes >= max_bytes {
            self.close(number);
        }
    }

    /// Adds an item that starts without others. It waits for nothing but a call.
    pub fn add_alone(&mut self, item: T, now_ms: u64) {
        let number = self.add_number();
        self.closed.insert(number, Group { since_ms: now_ms, bytes: 0, key: None, items: vec![item] });
        self.len += 1;
    }

    /// Adds the parts of a call that has failed. Each starts as it is, before all other groups; empty ones are dropped.
    pub fn run_again(&mut self, parts: impl DoubleEndedIterator<Item = Vec<T>>) {
        for part in parts.rev().filter(|part| !part.is_empty()) {
            self.len += part.len();
            self.again.push_front(part);
        }
    }

    /// Number of items in groups that are not full.
    pub fn growing(&self) -> usize {
        self.growing.values().map(|group| group.items.len()).sum()
    }

    /// Returns whether a group is ready for a call.
    pub fn has_ready(&self, now_ms: u64) -> bool {
        !self.again.is_empty() || !self.closed.is_empty() || self.due(now_ms).is_some()
    }

    /// Takes the group that is ready for a call: first parts of failed calls, then the one with the oldest first item.
    pub fn take_ready(&mut self, now_ms: u64) -> Option<Vec<T>> {
        let items = match self.again.pop_front() {
            Some(part) => part,
            None => {
                let due = self.due(now_ms);
                let closed = self.closed.keys().next().copied();
                let number = [due, closed].into_iter().flatten().min()?;
                self.close(number);
                self.closed.remove(&number)?.items
            }
        };
        self.len -= items.len();
        Some(items)
    }

    /// Time at which the next group becomes ready, if none is.
    pub fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        let (_, oldest) = self.growing.first_key_value().filter(|_| !self.has_ready(now_ms))?;
        Some(oldest.since_ms.saturating_add(self.limits.wait_ms))
    }

    /// Takes out the selected items. The others keep their groups.
    pub fn extract(&mut self, is_selected: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let groups = self.growing.values_mut().chain(self.closed.values_mut()).map(|group| &mut group.items);
        for items in groups.chain(self.again.iter_mut()) {
            taken.extend(items.extract_if(.., |item| is_selected(item)));
        }
        self.len -= taken.len();
        self.closed.retain(|_, group| !group.items.is_empty());
        self.again.retain(|items| !items.is_empty());
        self.growing.retain(|_, group| !group.items.is_empty());
        let growing = &self.growing;
        self.open.retain(|_, number| growing.contains_key(number));
        taken
    }

    /// Number of the open group that is ready because of its age.
    fn due(&self, now_ms: u64) -> Option<u64> {
        let (number, oldest) = self.growing.first_key_value()?;
        (oldest.since_ms.saturating_add(self.limits.wait_ms) <= now_ms).then_some(*number)
    }

    fn add_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Closes an open group.
    fn close(&mut self, number: u64) {
        if let Some(group) = self.growing.remove(&number) {
            if let Some(key) = &group.key {
                self.open.remove(key);
            }
            self.closed.insert(number, group);
        }
    }
}
