//! Groups of tasks that start together, in one call of the handler. A task joins a group when it may start; the group takes a
//! slot, a permit and a call of the rate limit when it is full or old enough.
//!
//! A task that waits in a group holds its ordering key, so that a group has one task of a key.

#![expect(clippy::vec_box, reason = "tasks move between queues as boxes")]

use kafleet_config::{BatchPolicy, TypePolicy};
use kafleet_handlers::TypeRegistration;
use kafleet_handlers::permit::Permit;
use kafleet_model::batch::forming::BatchForming;
use kafleet_model::worker_status::BatchStatus;
use tokio::time::Instant;

use super::HAND_OUT;
use super::admission::{Admission, SlotLoad, has_slot};
use super::failure_policy::time_left;
use crate::decode::{InFlight, Input};

/// Groups of one type.
pub(super) struct Batches {
    forming: BatchForming<Box<InFlight>>,
    policy: BatchPolicy,
    /// Zero of the clock of `forming`.
    base: Instant,
    /// Number of suspects in groups, each of which is alone.
    suspects: usize,
}

impl Batches {
    /// Creates the state of a type whose tasks start together. `None`: each starts on its own.
    pub(super) fn of(registered: &TypeRegistration) -> Option<Box<Self>> {
        let takes_batches = registered.handler.capabilities().takes_batches;
        registered.policy.batch.as_ref().filter(|_| takes_batches).map(|policy| Box::new(Self::new(policy.clone())))
    }

    fn new(policy: BatchPolicy) -> Self {
        Self { forming: BatchForming::new(policy.limits()), policy, base: Instant::now(), suspects: 0 }
    }

    /// Number of tasks in groups.
    pub(super) fn len(&self) -> usize {
        self.forming.len()
    }

    pub(super) fn status(&self) -> BatchStatus {
        let forming = u32::try_from(self.forming.growing()).unwrap_or(u32::MAX);
        BatchStatus { forming, max: self.policy.max, wait_ms: self.policy.wait.0 }
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_millis() as u64
    }

    /// Adds a task that may start to a group. Suspects, and tasks whose time limits differ from those of a call, start alone.
    pub(super) fn add(&mut self, policy: &TypePolicy, in_flight: Box<InFlight>, now: Instant, now_ms: i64) {
        let own = in_flight.task.policy.as_deref();
        let has_own_limit = own.is_some_and(|own| own.timeout.is_some() || own.stall_timeout.is_some());
        let ends_early = time_left(policy, &in_flight, now_ms).is_some_and(|left| left < policy.timeout.into());
        let at_ms = self.ms(now);
        if in_flight.suspect.is_some() || in_flight.runs_alone || has_own_limit || ends_early {
            self.suspects += usize::from(in_flight.suspect.is_some());
            return self.forming.add_alone(in_flight, at_ms);
        }
        let params = &in_flight.task.params;
        let (key, bytes) = (self.policy.key_of(params), params.text().len() as u64);
        self.forming.join(&key, in_flight, bytes, at_ms);
    }

    /// Runs parts of a call that has failed as a whole, each on its own. A task that is alone stays so.
    pub(super) fn run_parts(&mut self, mut parts: [Vec<Box<InFlight>>; 2]) {
        for part in &mut parts {
            if let [in_flight] = part.as_mut_slice() {
                in_flight.runs_alone = true;
            }
        }
        self.forming.run_again(parts.into_iter());
    }

    /// Number of suspects in groups.
    pub(super) fn suspects(&self) -> usize {
        self.suspects
    }

    fn take_ready(&mut self, now: Instant) -> Option<Vec<Box<InFlight>>> {
        let group = self.forming.take_ready(self.ms(now))?;
        self.forget_suspects(&group);
        Some(group)
    }

    fn forget_suspects(&mut self, tasks: &[Box<InFlight>]) {
        self.suspects -= tasks.iter().filter(|in_flight| in_flight.suspect.is_some()).count();
    }

    /// Takes out the selected tasks.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> Vec<Box<InFlight>> {
        let taken = self.forming.extract(&mut |in_flight| is_selected(in_flight));
        self.forget_suspects(&taken);
        taken
    }

    /// Time at which the next group is ready, if none is: one that is ready waits for a slot.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due_ms = self.forming.next_due_ms(self.ms(now))?;
        // A millisecond later, because the clock of the groups is in whole milliseconds.
        Some(self.base + std::time::Duration::from_millis(due_ms.saturating_add(1)))
    }
}

impl Admission {
    /// Takes the next input for a group. While the type starts nothing, and while enough tasks for all slots and one more call are
    /// in groups, tasks stay in the queue.
    pub(super) fn next_for_group(&mut self, load: SlotLoad) -> Option<Input> {
        let batches = self.batches.as_ref()?;
        let room = (self.limits.slots() + 1).saturating_mul(batches.policy.max as usize).max(HAND_OUT);
        if self.limits.is_paused() || self.circuit.stopped().is_some() || batches.len() >= room {
            return None;
        }
        if let Some(in_flight) = self.quarantine.pop(load.suspects) {
            return Some(Input::Task(in_flight));
        }
        self.queue.pop_open(&self.assignments, &self.completions)
    }

    /// Takes the next group that is ready for a call, if a slot and a permit are free and the rate limit admits it.
    pub(super) fn next_group(&mut self, load: SlotLoad, now: Instant) -> Option<(Vec<Box<InFlight>>, Option<Permit>)> {
        let batches = self.batches.as_mut()?;
        let is_ready = batches.forming.has_ready(batches.ms(now));
        if !has_slot(self, load, now, is_ready) || !is_ready {
            return None;
        }
        if !self.permits.acquire() || !self.limits.admit_call() {
            return None;
        }
        Some((self.batches.as_mut()?.take_ready(now)?, self.permits.take()))
    }
}

#[cfg(test)]
mod tests {
    use kafleet_config::Order;
    use kafleet_model::task::Policy;
    use kafleet_model::units::duration::Millis;

    use super::super::admission::StartDecision;
    use super::super::admission::tests::{admission, task};
    use super::super::exits::Onward;
    use super::*;

    fn with_batches(order: Order, max: u32) -> Admission {
        let mut admission = admission(order);
        let batch = BatchPolicy { max, wait: Millis::secs(1), ..BatchPolicy::default() };
        admission.batches = Some(Box::new(Batches::new(batch)));
        admission
    }

    /// Adds all tasks that may start to groups.
    fn fill(admission: &mut Admission, now: Instant) {
        while let Some(Input::Task(in_flight)) = admission.next_for_group(SlotLoad::default()) {
            if let StartDecision::Start(in_flight, _) = admission.check(in_flight, SlotLoad::default(), 0) {
                let policy = admission.policy.clone();
                admission.batches.as_mut().unwrap().add(&policy, in_flight, now, 0);
            }
        }
    }

    fn next(admission: &mut Admission, now: Instant) -> Option<Vec<Box<InFlight>>> {
        admission.next_group(SlotLoad::default(), now).map(|(group, _)| group)
    }

    fn offsets(group: Option<Vec<Box<InFlight>>>) -> Vec<i64> {
        group.into_iter().flatten().map(|in_flight| in_flight.record.position.offset).collect()
    }

    #[tokio::test]
    async fn full_group_starts_at_once_and_another_one_after_its_wait() {
        let (mut admission, now) = (with_batches(Order::None, 3), Instant::now());
        admission.queue.extend((0..5).map(|offset| task(Order::None, offset)));
        fill(&mut admission, now);
        assert_eq!(offsets(next(&mut admission, now)), [0, 1, 2]);
        assert_eq!(offsets(next(&mut admission, now)), [] as [i64; 0]);
        let due = admission.next_due(now).unwrap();
        assert!(due > now + std::time::Duration::from_millis(999), "{:?}", due - now);
        assert_eq!(offsets(next(&mut admission, due)), [3, 4]);
    }

    #[tokio::test]
    async fn group_has_one_task_of_an_ordering_key() {
        let (mut admission, now) = (with_batches(Order::Partition, 3), Instant::now());
        admission.queue.extend((0..2).map(|offset| task(Order::Partition, offset)));
        fill(&mut admission, now);
        let due = admission.next_due(now).unwrap();
        let group = next(&mut admission, due).unwrap();
        assert_eq!(group.len(), 1, "the second task waits for the key");
        assert!(admission.apply_onward(Onward::left(&group[0])).is_none());
        fill(&mut admission, now);
        assert_eq!(offsets(next(&mut admission, due)), [1]);
    }

    #[tokio::test]
    async fn task_with_a_timeout_of_its_own_starts_alone() {
        let (mut admission, now) = (with_batches(Order::None, 3), Instant::now());
        admission.queue.extend((0..4).map(|offset| {
            let mut input = task(Order::None, offset);
            if let Input::Task(in_flight) = &mut input
                && offset == 1
            {
                in_flight.task.set_policy(Policy { timeout: Some(Millis::secs(5)), ..Policy::default() });
            }
            input
        }));
        fill(&mut admission, now);
        let groups: Vec<_> =
            std::iter::from_fn(|| next(&mut admission, now)).map(|group| offsets(Some(group))).collect();
        assert_eq!(groups, [vec![0, 2, 3], vec![1]]);
    }

    #[tokio::test]
    async fn task_in_a_group_waits_and_can_be_taken_out() {
        let (mut admission, now) = (with_batches(Order::None, 10), Instant::now());
        admission.queue.extend((0..3).map(|offset| task(Order::None, offset)));
        fill(&mut admission, now);
        let status = admission.status();
        assert_eq!(
            (admission.queue.ready(), status.waiting, status.batches.map(|batches| batches.forming)),
            (0, 3, Some(3))
        );
        let taken = admission.extract(&mut |in_flight| in_flight.record.position.offset == 1);
        assert_eq!(offsets(Some(taken.into())), [1]);
        assert_eq!(admission.status().waiting, 2);
    }

    #[tokio::test]
    async fn half_with_one_task_keeps_it_alone() {
        let (mut admission, now) = (with_batches(Order::None, 3), Instant::now());
        admission.queue.extend((0..3).map(|offset| task(Order::None, offset)));
        fill(&mut admission, now);
        let group = next(&mut admission, now).unwrap();
        admission.batches.as_mut().unwrap().run_parts(kafleet_model::batch::halving::halves(group));
        let alone: Vec<Vec<bool>> = std::iter::from_fn(|| next(&mut admission, now))
            .map(|group| group.iter().map(|in_flight| in_flight.runs_alone).collect())
            .collect();
        assert_eq!(alone, [vec![false, false], vec![true]]);
    }
}
