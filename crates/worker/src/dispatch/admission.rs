//! Admission: which task may start now, and where one that may not waits.
//!
//! Tasks wait here for a slot, for the end of the task before them with their ordering key, for the rate limit, for a time, or
//! for a place in quarantine. [`Admission::next`] takes the next input for which a slot and a permit are free, and
//! [`Admission::check`] decides about its task: it starts, it waits here, or it leaves ([`StartDecision`]).
//!
//! Invariant: a task is in one place: in one of these queues, or with its attempt, or on its way out. A task that returns
//! from an exit enters through [`Admission::apply_onward`], with the ordering key that is now free. A key that is not passed on
//! would block the tasks behind it forever, and a task in two places would run twice.
//!
//! The number of running attempts is an argument ([`SlotLoad`]); this module uses neither the attempts, nor Kafka, nor events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kafleet_config::{Order, TypePolicy};
use kafleet_fleet::control::{ControlState, ControlWatch};
use kafleet_handlers::permit::Permit;
use kafleet_handlers::{Failure, Schema};
use tokio::time::Instant;

use super::adaptive::AdaptiveSlots;
use super::assignments::AssignmentStates;
use super::batches::Batches;
use super::circuit::CircuitBreaker;
use super::exits::{Exit, Onward, Wait};
use super::failure_policy::{self, end_of_time, expiry};
use super::hosts::{HostVerdict, Hosts};
use super::limits::{Limits, RateVerdict};
use super::permits::Permits;
use super::quarantine::Quarantine;
use super::queue::{TaskQueue, split};
use super::{DispatcherDeps, LONGEST_WAIT};
use crate::completions::Completions;
use crate::decode::{InFlight, Input};
use crate::heartbeat::TypeStatus;
use crate::type_metrics::TypeGauges;
use crate::unique::ForeignAsk;

/// Waiting tasks of one type, and the conditions of their start.
pub(super) struct Admission {
    schema: Schema,
    pub(super) policy: Arc<TypePolicy>,
    /// Longest wait here of a task that the tracker could keep.
    inline_retry_max: Duration,
    control: Arc<ControlWatch>,
    pub queue: TaskQueue,
    pub(super) quarantine: Quarantine,
    pub(super) completions: Arc<Completions>,
    pub assignments: AssignmentStates,
    pub circuit: CircuitBreaker,
    /// Circuits per host. `None`: the handler of the type names no hosts.
    pub hosts: Option<Box<Hosts>>,
    pub limits: Limits,
    pub adaptive: AdaptiveSlots,
    pub permits: Permits,
    /// Groups of tasks that start together. `None`: each task starts on its own.
    pub batches: Option<Box<Batches>>,
}

/// Attempts that occupy slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotLoad {
    pub attempts: usize,
    /// Attempts in quarantine.
    pub suspects: usize,
}

/// Decision about the next task.
pub(super) enum StartDecision {
    /// The attempt of the task starts, with the permit that was taken for it.
    Start(Box<InFlight>, Option<Permit>),
    /// The task waits here.
    Waits,
    Leaves(Box<InFlight>, Exit),
}

impl Admission {
    pub(super) fn new(deps: &DispatcherDeps, policy: &Arc<TypePolicy>, gauges: &TypeGauges) -> Self {
        let registered = &deps.registered;
        Self {
            schema: registered.schema.clone(),
            policy: policy.clone(),
            inline_retry_max: deps.config.inline_retry_max.into(),
            control: deps.control.clone(),
            queue: TaskQueue::default(),
            quarantine: Quarantine::new(deps.children.is_some(), policy.slots()),
            completions: deps.completions.clone(),
            assignments: AssignmentStates::default(),
            circuit: CircuitBreaker::new(deps.task_type.clone(), deps.health.clone(), gauges.clone()),
            hosts: registered
                .handler
                .capabilities()
                .host
                .map(|host_of| Box::new(Hosts::new(deps.task_type.clone(), host_of, gauges.clone()))),
            limits: Limits::new(policy),
            adaptive: AdaptiveSlots::new(gauges.clone()),
            permits: Permits::new(registered),
            batches: Batches::of(registered),
        }
    }

    /// Applies a policy and the control state.
    pub(super) fn apply(&mut self, task_type: &str, policy: &Arc<TypePolicy>, state: &ControlState) {
        self.policy = policy.clone();
        self.quarantine.set_slots(policy.slots());
        let released = self.limits.apply(task_type, policy, state);
        self.queue.extend(released.into_iter().map(Input::Task));
        self.adaptive.set(task_type, policy.adaptive.as_ref(), self.limits.assignment(), state);
        self.circuit.set(policy, state.circuits.get(task_type), self.limits.slots());
        if let Some(hosts) = &mut self.hosts {
            let longest = (policy.order == Order::None).then_some(self.inline_retry_max);
            hosts.set(self.limits.slots(), longest, state.hosts_of(task_type));
            self.release_held(Instant::now());
        }
    }

    /// Takes the next input that may start, with a permit if its attempt needs one.
    pub(super) fn next(&mut self, load: SlotLoad, now: Instant) -> Option<Input> {
        let is_ready = self.queue.ready() > 0 || self.queue.has_quarantined();
        if !has_slot(self, load, now, is_ready) {
            return None;
        }
        if let Some(in_flight) = self.quarantine.pop(load.suspects) {
            return Some(Input::Task(in_flight));
        }
        if self.queue.has_quarantined() && self.permits.acquire_quarantined() {
            return self.queue.pop_quarantined().map(Input::Task);
        }
        if self.queue.ready() > 0 && self.permits.acquire() {
            self.queue.pop_open(&self.assignments, &self.completions)
        } else {
            None
        }
    }

    /// Decides about the task that was taken last.
    pub(super) fn check(&mut self, in_flight: Box<InFlight>, load: SlotLoad, now: i64) -> StartDecision {
        if self.assignments.is_closed(in_flight.tag) {
            return StartDecision::Leaves(in_flight, Exit::Released(None));
        }
        // Costs one atomic load while there are no cancels and kill switches.
        if self.control.concerns_tasks()
            && let Some(verdict) = self.control.state().forbids(&in_flight.task)
        {
            return StartDecision::Leaves(in_flight, Exit::Cancelled(verdict));
        }
        let Some(mut in_flight) = self.queue.acquire_key(in_flight) else { return StartDecision::Waits };
        if in_flight.retry.is_some() && self.starts_now(&in_flight) {
            in_flight.end_resumed_wait();
        }
        if let Some(wait) = self.assignments.wait_of_retry(&mut in_flight, now) {
            self.queue.delay(in_flight, wait);
            return StartDecision::Waits;
        }
        if let Some(exit) = self.exit_before_start(&in_flight, now) {
            return StartDecision::Leaves(in_flight, exit);
        }
        if in_flight.suspect.is_some() && self.quarantine.is_full(load.suspects) {
            self.quarantine.waiting.push_back(in_flight);
            return StartDecision::Waits;
        }
        let mut in_flight = match self.admit_host(in_flight, now) {
            ControlFlow::Continue(in_flight) => in_flight,
            ControlFlow::Break(decision) => return decision,
        };
        let is_in_call = self.batches.is_some() && !self.limits.is_per_key();
        if std::mem::take(&mut in_flight.admitted) || is_in_call {
            return StartDecision::Start(in_flight, self.permits.take());
        }
        match self.limits.admit(in_flight) {
            RateVerdict::Admitted(in_flight) => return StartDecision::Start(in_flight, self.permits.take()),
            RateVerdict::Refused(in_flight) => self.queue.push_front(in_flight),
            RateVerdict::Queued => {}
        }
        StartDecision::Waits
    }

    /// Returns the task if the circuit of its host admits it. A task that has used up its waits starts in any case, so that it
    /// ends like any other whose service does not answer.
    fn admit_host(&mut self, in_flight: Box<InFlight>, now: i64) -> ControlFlow<StartDecision, Box<InFlight>> {
        let Some(hosts) = &mut self.hosts else { return ControlFlow::Continue(in_flight) };
        let is_due = in_flight.progress.waits.are_used_up(failure_policy::max_wait(&self.policy, &in_flight), now);
        match hosts.admit(in_flight, Instant::now(), is_due) {
            HostVerdict::Admitted(in_flight) => ControlFlow::Continue(in_flight),
            HostVerdict::Waits => ControlFlow::Break(StartDecision::Waits),
            HostVerdict::Full(in_flight, failure) => {
                let attempt = in_flight.progress.attempts + 1;
                let exit = match failure_policy::decide(&self.policy, &in_flight, attempt, failure) {
                    Exit::Waiting(wait) => Exit::HandedOver(wait),
                    exit => exit,
                };
                ControlFlow::Break(StartDecision::Leaves(in_flight, exit))
            }
        }
    }

    /// Returns the way out of a task that must not start now, by its own fields.
    fn exit_before_start(&self, in_flight: &InFlight, now: i64) -> Option<Exit> {
        if let Some(exit) = self.ask_before_start(in_flight).or_else(|| expiry(in_flight, now)) {
            return Some(exit);
        }
        let policy = in_flight.task.policy.as_deref();
        let due_ms = policy.and_then(|policy| policy.not_before_ms).filter(|at| *at > now);
        if let Some(due_ms) = due_ms.filter(|_| !self.starts_now(in_flight)) {
            let wait = Duration::from_millis((due_ms - now).max(0) as u64).min(LONGEST_WAIT);
            let start = Wait::Start { due_ms, wait };
            return Some(if self.is_long(wait) { Exit::HandedOver(start) } else { Exit::Waiting(start) });
        }
        if let Some(error) = self.schema.validate(&in_flight.task.params) {
            return Some(Exit::Rejected(error));
        }
        end_of_time(&self.policy, in_flight, now)
    }

    /// Returns the way out of a unique task that no publisher has asked for.
    fn ask_before_start(&self, in_flight: &InFlight) -> Option<Exit> {
        match ForeignAsk::of(&self.policy, &in_flight.task) {
            Ok(ask) => ask.map(|ask| Exit::Asked(Box::new(ask))),
            Err(reason) => {
                let failure = Failure::dead(format!("header `ce_unique`: {reason}")).of_kind("bad_header");
                Some(Exit::Failed { failure, code: Some("bad_header") })
            }
        }
    }

    /// Decides where a task waits for its next attempt: here without a slot, or at the tracker if it would be held here for long
    /// or the commits of its partition have no room for what it has used. `is_bound`: it cannot leave this worker.
    pub(super) fn decide_wait(&self, in_flight: &mut InFlight, after: Wait, is_bound: bool) -> Exit {
        let mut held = after.time();
        if matches!(after, Wait::Retry { waits: Some(_), .. }) {
            // Short waits in a row would hold back the commits of the partition for as long as a long one.
            held = held.saturating_add(in_flight.waited);
            in_flight.waited = held;
        }
        let has_room = self.policy.order != Order::None || self.assignments.has_room(in_flight);
        if is_bound || has_room && !self.is_long(held) { Exit::Waiting(after) } else { Exit::HandedOver(after) }
    }

    /// Returns whether a wait is long enough for the tracker. Tasks of ordered types wait here, where they hold their key.
    fn is_long(&self, wait: Duration) -> bool {
        self.policy.order == Order::None && wait > self.inline_retry_max
    }

    /// Does what an exit has left to the queues. Returns a task that stays but whose partition has been released meanwhile.
    pub(super) fn apply_onward(&mut self, onward: Onward) -> Option<Box<InFlight>> {
        let (mut in_flight, wait, due_ms) = match onward {
            Onward::Left { key } => {
                self.queue.release_key(key);
                return None;
            }
            Onward::Waits { in_flight, wait, due_ms } => (in_flight, Some(wait), due_ms),
            Onward::Restarts(in_flight) => (in_flight, None, None),
        };
        if let Some(due_ms) = due_ms {
            self.completions.record(self.assignments.record_retry(&mut in_flight, due_ms));
        }
        if self.assignments.is_closed(in_flight.tag) {
            return Some(in_flight);
        }
        // The rate limit has counted the start of an attempt that starts again.
        in_flight.admitted |= wait.is_none();
        match wait {
            Some(wait) => self.queue.delay(in_flight, wait),
            None if in_flight.restarts.is_alone => self.queue.quarantine(in_flight),
            None => self.queue.push_front(in_flight),
        }
        None
    }

    /// Ends the delays of the tasks that are requested to start now. Their other conditions stay.
    pub(super) fn end_requested_delays(&mut self) {
        let state = self.control.state();
        if state.starts().next().is_some() {
            let starts_now = |in_flight: &InFlight| state.starts_now(&in_flight.task.id, in_flight.next_start());
            self.queue.end_delays(Instant::now(), starts_now);
        }
    }

    /// Returns whether a request ends the wait of a task before its next start.
    fn starts_now(&self, in_flight: &InFlight) -> bool {
        self.control.state().starts_now(&in_flight.task.id, in_flight.next_start())
    }

    /// Takes out the selected tasks of all that wait.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let mut taken = self.limits.extract(is_selected);
        taken.extend(self.queue.extract(is_selected));
        taken.extend(self.hosts.iter_mut().flat_map(|hosts| hosts.extract(is_selected)));
        taken.extend(split(&mut self.quarantine.waiting, is_selected));
        taken.extend(self.batches.iter_mut().flat_map(|batches| batches.extract(is_selected)));
        taken
    }

    /// Releases the invalid records of an assignment, and takes out its tasks.
    pub(super) fn extract_assignment(&mut self, assignment_id: u32) -> VecDeque<Box<InFlight>> {
        for tag in self.queue.extract_invalid(assignment_id) {
            self.completions.release(tag);
        }
        self.extract(&mut |in_flight| in_flight.tag.assignment_id() == assignment_id)
    }

    /// Drops all inputs: they belong to the next owners of their partitions.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.hosts.iter_mut().for_each(|hosts| drop(hosts.extract(&mut |_| true)));
        self.limits.clear();
        self.permits.clear();
        self.batches = None;
        self.quarantine.waiting.clear();
    }

    /// Returns whether the type starts no tasks until something changes.
    pub(super) fn is_stopped(&self) -> bool {
        self.limits.is_paused() || self.circuit.is_open()
    }

    /// Time at which more tasks may start.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let of_hosts = self.hosts.as_ref().and_then(|hosts| hosts.next_due(now));
        let of_adaptive = self.adaptive.next_due(now).filter(|_| self.queue.ready() > 0);
        let of_type = [self.queue.next_due(), self.limits.next_due(), self.circuit.next_due(now)];
        let of_batches = self.batches.as_ref().and_then(|batches| batches.next_due(now));
        of_type.into_iter().chain([of_hosts, of_adaptive, of_batches]).flatten().min()
    }

    /// Makes the tasks ready whose time has come, those of the rate limit first.
    pub(super) fn run_due(&mut self, now: Instant) {
        self.queue.wake_due(now);
        self.release_held(now);
        for mut in_flight in self.limits.take_due(now).into_iter().rev() {
            in_flight.admitted = true;
            self.queue.push_front(in_flight);
        }
    }

    /// Status of the type, without its attempts.
    pub(super) fn status(&self) -> TypeStatus {
        let assignment = self.limits.assignment();
        let (open_hosts, hosts) = self.hosts.as_ref().map(|hosts| hosts.open()).unwrap_or_default();
        let held = self.hosts.as_ref().map_or(0, |hosts| hosts.waiting());
        let in_groups = self.batches.as_ref().map_or(0, |batches| batches.len());
        TypeStatus {
            slots: self.limits.slots() as u32,
            waiting: (self.queue.waiting() + held + in_groups) as u32,
            open_hosts,
            hosts,
            adaptive: self.adaptive.status(self.limits.slots()),
            batches: self.batches.as_ref().map(|batches| batches.status()),
            paused: self.limits.is_paused(),
            partitions: assignment.owned.clone(),
            stopped: self.circuit.stopped().cloned(),
            circuit: self.circuit.open_reason(),
            app_down: self.permits.down_reason(),
            capacity: self.permits.capacity(),
            refused: assignment.refused.clone(),
            ..TypeStatus::default()
        }
    }
}

/// Returns whether an attempt or a call may start now. `is_ready`: there is something to start.
pub(super) fn has_slot(admission: &mut Admission, load: SlotLoad, now: Instant, is_ready: bool) -> bool {
    let is_open = admission.circuit.admits(now, load.attempts) && load.attempts < admission.limits.open_slots();
    admission.adaptive.admits(load.attempts, now, is_open && is_ready) && is_open
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::completions::{ArrivedCompletions, DeliveryTag};
    use crate::decode::Decoder;
    use kafleet_broker::{OwnedHeaders, RecordRef};
    use kafleet_handlers::TypeRegistration;
    use kafleet_runtime::Health;
    use kafleet_telemetry::Metrics;

    pub(in super::super) fn admission(order: Order) -> Admission {
        let policy = Arc::new(TypePolicy { order, ..TypePolicy::default() });
        let gauges = TypeGauges::new(&Metrics::new().unwrap(), &"t".into());
        let registered = TypeRegistration::of_fn(|(): (), _cx| async { Ok::<(), Failure>(()) });
        Admission {
            schema: Schema::any(),
            inline_retry_max: Duration::from_secs(10),
            control: ControlWatch::new(ControlState::default()),
            queue: TaskQueue::default(),
            quarantine: Quarantine::new(false, 8),
            completions: Arc::default(),
            assignments: AssignmentStates::default(),
            circuit: CircuitBreaker::new("t".into(), Health::default(), gauges.clone()),
            hosts: None,
            adaptive: AdaptiveSlots::new(gauges.clone()),
            limits: Limits::new(&policy),
            permits: Permits::new(&registered),
            batches: None,
            policy,
        }
    }

    pub(in super::super) fn task(order: Order, offset: i64) -> Input {
        Decoder::of_order(order).task_at(offset, DeliveryTag::new(0, 7, offset))
    }

    /// Returns the next task, if an attempt of it may start.
    fn next(admission: &mut Admission) -> Option<Box<InFlight>> {
        let Some(Input::Task(in_flight)) = admission.next(SlotLoad::default(), Instant::now()) else { return None };
        match admission.check(in_flight, SlotLoad::default(), 0) {
            StartDecision::Start(in_flight, _) => Some(in_flight),
            StartDecision::Waits | StartDecision::Leaves(..) => None,
        }
    }

    #[test]
    fn ordering_key_of_a_task_that_has_left_starts_the_next_one() {
        let mut admission = admission(Order::Partition);
        admission.queue.extend([0, 1].map(|offset| task(Order::Partition, offset)));
        let first = next(&mut admission).unwrap();
        assert!(next(&mut admission).is_none(), "the second task waits for the key");
        assert!(admission.apply_onward(Onward::left(&first)).is_none());
        assert_eq!(next(&mut admission).unwrap().record.position.offset, 1);
    }

    #[test]
    fn request_to_start_ends_only_the_wait_that_it_names() {
        for (attempts, expected) in [(1, true), (0, false), (2, false)] {
            let mut admission = admission(Order::Key);
            let Input::Task(mut in_flight) = task(Order::Key, 0) else { panic!("not a task") };
            in_flight.progress.attempts = 1;
            admission.control = started(&in_flight, attempts);
            let onward = Onward::Waits { in_flight, wait: Duration::from_secs(3_600), due_ms: None };
            assert!(admission.apply_onward(onward).is_none());
            admission.end_requested_delays();
            admission.run_due(Instant::now());
            assert_eq!(admission.queue.ready() == 1, expected, "after {attempts} attempts");
        }
    }

    /// Control state with the request to start a task after this number of attempts.
    fn started(in_flight: &InFlight, attempts: u32) -> Arc<ControlWatch> {
        let (key, run) = (format!("start/{}", in_flight.task.id), in_flight.task.run);
        let value = format!(r#"{{"v":1,"run":{run},"attempts":{attempts},"waits":0}}"#);
        let mut state = ControlState::default();
        let record = RecordRef {
            topic: "control",
            partition: 0,
            offset: 0,
            timestamp_ms: 0,
            log_append_time: true,
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &OwnedHeaders::new(),
        };
        state.apply_record(&record).unwrap();
        ControlWatch::new(state)
    }

    #[test]
    fn task_of_a_released_partition_does_not_stay() {
        let mut admission = admission(Order::None);
        admission.queue.extend([task(Order::None, 0)]);
        let in_flight = next(&mut admission).unwrap();
        admission.assignments.close(7);
        let onward = Onward::Waits { in_flight, wait: Duration::ZERO, due_ms: Some(5) };
        assert!(admission.apply_onward(onward).is_some());
        let mut arrived = ArrivedCompletions::default();
        admission.completions.take_arrived(&mut arrived);
        assert_eq!(arrived.recorded.len(), 1, "its next owner learns what it has used");
    }

    #[test]
    fn long_wait_is_at_the_tracker_unless_the_task_must_stay() {
        for (order, wait_s, is_bound, leaves) in [
            (Order::None, 9, false, false),
            (Order::None, 11, false, true),
            (Order::None, 11, true, false),
            (Order::Key, 11, false, false),
        ] {
            let admission = admission(order);
            let Input::Task(mut in_flight) = task(order, 0) else { panic!("not a task") };
            let failure = Failure::retry("later");
            let after = Wait::Retry { wait: Duration::from_secs(wait_s), waits: None, failure };
            let exit = admission.decide_wait(&mut in_flight, after, is_bound);
            assert_eq!(matches!(exit, Exit::HandedOver(_)), leaves, "{order:?}, {wait_s} s, bound: {is_bound}");
        }
    }
}
