//! What a lane tells its dispatcher to do with the work of one assignment.

use std::cmp::Reverse;

use super::super::intake::{Held, Work};
use super::{Dispatcher, Running};

/// What a lane tells its dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A new assignment uses this slot.
    Open { slot: u32 },
    /// Give back what has not begun.
    Recall { slot: u32 },
    /// Also stop what runs; its results no longer count.
    Cancel { slot: u32 },
}

impl Dispatcher {
    pub(super) fn obey(&mut self, command: Command) {
        match command {
            Command::Open { slot } => {
                self.closed_slots.remove(&slot);
                self.cancelled_slots.remove(&slot);
            }
            Command::Recall { slot } => self.recall(slot),
            Command::Cancel { slot } => {
                self.recall(slot);
                self.cancelled_slots.insert(slot);
                let of_slot = self.running.values().filter(|running| running.held.ticket.slot() == slot);
                of_slot.for_each(Running::stop);
            }
        }
    }

    pub(super) fn recall(&mut self, slot: u32) {
        self.closed_slots.insert(slot);
        let (back, stay): (Vec<Work>, Vec<Work>) = self.queue.drain(..).partition(|work| work.ticket().slot() == slot);
        self.queue.extend(stay);
        let mut held: Vec<Box<Held>> = Vec::new();
        for followers in self.keys.values_mut() {
            let (back, stay): (Vec<_>, Vec<_>) = followers.drain(..).partition(|held| held.ticket.slot() == slot);
            followers.extend(stay);
            held.extend(back);
        }
        let (asleep, stay): (Vec<_>, Vec<_>) = self.sleeping.drain().partition(|Reverse(next)| next.held.ticket.slot() == slot);
        self.sleeping.extend(stay);
        held.extend(asleep.into_iter().map(|Reverse(next)| next.held));
        for work in back {
            match work {
                Work::Task(task) => held.push(task),
                Work::Rejected(rejected) => self.parts.inbox.returned(rejected.ticket),
            }
        }
        held.into_iter().for_each(|held| self.give_back(held));
    }
}
