//! Inputs that wait in a dispatcher: ready ones, delayed ones, and tasks behind another one with the same ordering
//! key.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::assignments::AssignmentStates;
use crate::completions::{Completions, DeliveryTag};
use crate::decode::{InFlight, Input};

#[derive(Default)]
pub(super) struct TaskQueue {
    ready: VecDeque<Input>,
    /// Tasks whose attempts may have caused the death of a process of an app, and run again in quarantine.
    quarantined: VecDeque<Box<InFlight>>,
    /// Tasks that wait for a retry or for their `not before`.
    delayed: BinaryHeap<Reverse<DelayedTask>>,
    /// Ordering keys in use, and the tasks that wait for each.
    keys: FxHashMap<u64, VecDeque<Box<InFlight>>>,
}

struct DelayedTask {
    until: Instant,
    in_flight: Box<InFlight>,
}

impl TaskQueue {
    /// Number of ready inputs.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Number of inputs that wait for a slot, a permit or a time.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len() + self.quarantined.len() + self.delayed.len()
    }

    pub(super) fn extend(&mut self, inputs: impl IntoIterator<Item = Input>) {
        self.ready.extend(inputs);
    }

    pub(super) fn push_front(&mut self, in_flight: Box<InFlight>) {
        self.ready.push_front(Input::Task(in_flight));
    }

    /// Takes the next ready input of an open assignment; invalid records of closed ones are released.
    pub(super) fn pop_open(&mut self, assignments: &AssignmentStates, completions: &Completions) -> Option<Input> {
        loop {
            match self.ready.pop_front()? {
                Input::Invalid(invalid) if assignments.is_closed(invalid.tag) => completions.release(invalid.tag),
                input => return Some(input),
            }
        }
    }

    /// Adds a task that runs again in quarantine.
    pub(super) fn quarantine(&mut self, in_flight: Box<InFlight>) {
        self.quarantined.push_back(in_flight);
    }

    pub(super) fn has_quarantined(&self) -> bool {
        !self.quarantined.is_empty()
    }

    pub(super) fn pop_quarantined(&mut self) -> Option<Box<InFlight>> {
        self.quarantined.pop_front()
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.quarantined.clear();
        self.delayed.clear();
        self.keys.clear();
    }

    /// Delays a task; it becomes ready after `wait`, before other ready inputs.
    pub(super) fn delay(&mut self, in_flight: Box<InFlight>, wait: Duration) {
        self.delayed.push(Reverse(DelayedTask { until: Instant::now() + wait, in_flight }));
    }

    /// Time at which the next delayed task becomes ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.peek().map(|Reverse(next)| next.until)
    }

    /// Moves delayed tasks that are due to the front of the ready ones.
    pub(super) fn wake_due(&mut self, now: Instant) {
        while self.delayed.peek().is_some_and(|Reverse(next)| next.until <= now) {
            if let Some(Reverse(next)) = self.delayed.pop() {
                self.push_front(next.in_flight);
            }
        }
    }

    /// Makes the selected delayed tasks due.
    pub(super) fn end_delays(&mut self, now: Instant, is_selected: impl Fn(&InFlight) -> bool) {
        let mut delayed = std::mem::take(&mut self.delayed).into_vec();
        for Reverse(next) in delayed.iter_mut().filter(|Reverse(next)| is_selected(&next.in_flight)) {
            next.until = next.until.min(now);
        }
        self.delayed = delayed.into();
    }

    /// Acquires the task's ordering key. Returns `None` if another task holds it; the task then waits behind that
    /// one.
    pub(super) fn acquire_key(&mut self, mut in_flight: Box<InFlight>) -> Option<Box<InFlight>> {
        if in_flight.key != 0 && !in_flight.holds_key {
            if let Some(followers) = self.keys.get_mut(&in_flight.key) {
                followers.push_back(in_flight);
                return None;
            }
            self.keys.insert(in_flight.key, VecDeque::new());
            in_flight.holds_key = true;
        }
        Some(in_flight)
    }

    /// Releases an ordering key; the next task with it becomes ready.
    pub(super) fn release_key(&mut self, key: u64) {
        let Some(followers) = self.keys.get_mut(&key) else { return };
        match followers.pop_front() {
            Some(mut next) => {
                next.holds_key = true;
                self.push_front(next);
            }
            None => {
                self.keys.remove(&key);
            }
        }
    }

    /// Takes out the selected tasks.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let mut taken = VecDeque::new();
        for input in std::mem::take(&mut self.ready) {
            match input {
                Input::Task(in_flight) if is_selected(&in_flight) => taken.push_back(in_flight),
                input => self.ready.push_back(input),
            }
        }
        taken.extend(split(&mut self.quarantined, is_selected));
        for followers in self.keys.values_mut() {
            taken.extend(split(followers, is_selected));
        }
        let (due, stay): (Vec<_>, Vec<_>) =
            self.delayed.drain().partition(|Reverse(next)| is_selected(&next.in_flight));
        self.delayed.extend(stay);
        taken.extend(due.into_iter().map(|Reverse(next)| next.in_flight));
        taken
    }

    /// Takes out the invalid records of an assignment and returns their tags.
    pub(super) fn extract_invalid(&mut self, assignment_id: u32) -> Vec<DeliveryTag> {
        let of_assignment = |input: &Input| match input {
            Input::Invalid(invalid) => invalid.tag.assignment_id() == assignment_id,
            Input::Task(_) => false,
        };
        let (taken, stay): (Vec<Input>, Vec<Input>) = self.ready.drain(..).partition(of_assignment);
        self.ready.extend(stay);
        taken.iter().map(Input::tag).collect()
    }
}

/// Takes out the selected tasks; the others keep their order.
pub(super) fn split(
    from: &mut VecDeque<Box<InFlight>>,
    is_selected: &mut dyn FnMut(&InFlight) -> bool,
) -> VecDeque<Box<InFlight>> {
    let (taken, stay): (VecDeque<_>, VecDeque<_>) = from.drain(..).partition(|in_flight| is_selected(in_flight));
    *from = stay;
    taken
}

impl PartialEq for DelayedTask {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}
impl Eq for DelayedTask {}
impl PartialOrd for DelayedTask {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for DelayedTask {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}
