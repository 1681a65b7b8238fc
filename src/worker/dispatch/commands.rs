//! What a dispatcher is told: by its lane, about the work of one assignment; by people, over the control topic.

use std::cmp::Reverse;
use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::{Dispatcher, Running};
use crate::worker::consumer::assignment::Assignment;
use crate::worker::decode::{InFlight, Input};
use crate::worker::heartbeat::{MAX_RUNNING, RunningTask, TypeStatus};

/// What a dispatcher is told.
#[derive(Debug)]
pub enum Command {
    /// A new assignment uses this slot.
    Open { slot: u32 },
    /// Give back what has not begun.
    Recall { slot: u32 },
    /// Also stop what runs; its results no longer count.
    Cancel { slot: u32 },
    /// The worker has these partitions now.
    Own(Assignment),
    /// The orders of the control topic have changed.
    Heed,
    /// Say what you are doing.
    Describe(oneshot::Sender<TypeStatus>),
}

impl Dispatcher {
    pub(super) async fn obey(&mut self, command: Command) {
        match command {
            Command::Open { slot } => {
                self.closed_assignments.remove(&slot);
                self.cancelled_assignments.remove(&slot);
            }
            Command::Recall { slot } => self.recall(slot).await,
            Command::Cancel { slot } => {
                self.recall(slot).await;
                // Also what is on its way to the dead letters or to the tracker, or has not been acknowledged.
                self.unfinished = true;
                self.cancelled_assignments.insert(slot);
                let of_slot = self.running.values().filter(|running| running.held.tag.slot() == slot);
                of_slot.for_each(Running::stop);
            }
            Command::Own(portion) => {
                self.limits.own(portion);
                self.set_limits();
            }
            Command::Heed => self.apply_control().await,
            // Whoever asked may have stopped waiting.
            Command::Describe(answer) => drop(answer.send(self.describe())),
        }
    }

    async fn recall(&mut self, slot: u32) {
        self.closed_assignments.insert(slot);
        // What the lane has handed over before it asked: a type that starts nothing would not look at it.
        while let Ok(work) = self.parts.work.try_recv() {
            self.receive(work).await;
        }
        let (back, stay): (Vec<Input>, Vec<Input>) =
            self.queue.drain(..).partition(|work| matches!(work, Input::Invalid(rejected) if rejected.tag.slot() == slot));
        self.queue.extend(stay);
        back.iter().for_each(|work| self.parts.inbox.returned(work.tag()));
        let held = self.extract(&mut |held| held.tag.slot() == slot);
        held.into_iter().for_each(|held| self.release(held));
    }

    /// Takes out the tasks that are meant, of all that are held and do not run.
    pub(super) fn extract(&mut self, meant: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let mut taken = self.limits.extract(meant);
        for work in std::mem::take(&mut self.queue) {
            match work {
                Input::Task(held) if meant(&held) => taken.push_back(held),
                work => self.queue.push_back(work),
            }
        }
        for followers in self.keys.values_mut() {
            taken.extend(split(followers, meant));
        }
        taken.extend(split(&mut self.quarantine.waiting, meant));
        let (asleep, stay): (Vec<_>, Vec<_>) = self.sleeping.drain().partition(|Reverse(next)| meant(&next.held));
        self.sleeping.extend(stay);
        taken.extend(asleep.into_iter().map(|Reverse(next)| next.held));
        taken
    }

    fn describe(&self) -> TypeStatus {
        let running = self.running.values().take(MAX_RUNNING).map(|running| RunningTask {
            id: running.held.task.id.to_string(),
            task_type: self.parts.task_type.to_string(),
            attempt: running.held.attempts + 1,
            began_ms: running.began_ms,
        });
        TypeStatus {
            task_type: self.parts.task_type.to_string(),
            slots: self.limits.slots() as u32,
            in_flight: self.running.len() as u32,
            waiting: (self.queue.len() + self.sleeping.len()) as u32,
            paused: self.limits.is_paused(),
            partitions: self.limits.portion().owned.clone(),
            stopped: self.failures.stopped.clone(),
            refused: self.limits.portion().refused.clone(),
            running: running.collect(),
            ..TypeStatus::default()
        }
    }
}

/// Takes out those that are meant; the others keep their order.
pub(super) fn split(from: &mut VecDeque<Box<InFlight>>, meant: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
    let (taken, stay): (VecDeque<_>, VecDeque<_>) = from.drain(..).partition(|held| meant(held));
    *from = stay;
    taken
}
