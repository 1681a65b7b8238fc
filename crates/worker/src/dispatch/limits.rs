//! Limits of a type: its slots, its part of a fleet-wide concurrency limit, pauses, and the rate limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use kafleet_config::{Rate, RateBy, TypePolicy};
use kafleet_fleet::control::ControlState;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::consumer::assignment::Assignment;
use crate::decode::InFlight;

type TypeLimiter = RateLimiter<NotKeyed, InMemoryState, MonotonicClock, NoOpMiddleware<std::time::Instant>>;
type KeyLimiter = RateLimiter<u64, HashMapStateStore<u64>, MonotonicClock, NoOpMiddleware<std::time::Instant>>;

/// Number of keys in the rate limiter above which unused ones are dropped.
const MAX_KEYS: usize = 10_000;

/// Current limits of one type.
pub(super) struct Limits {
    slots: usize,
    paused: bool,
    assignment: Assignment,
    /// Fleet-wide limit of concurrent attempts that is below the number of partitions.
    low_limit: Option<u32>,
    limiter: Limiter,
    /// Rate limit, with the time between two starts on this worker.
    rate: Option<(Rate, Duration)>,
    /// Time before which the type's rate limit admits no task.
    refused_until: Option<Instant>,
}

enum Limiter {
    None,
    PerType(TypeLimiter),
    PerKey(Box<KeyQueues>),
}

/// Rate limiter per key, with the tasks that it has not admitted yet.
struct KeyQueues {
    limiter: KeyLimiter,
    /// Waiting tasks of each key.
    waiting: FxHashMap<u64, VecDeque<Box<InFlight>>>,
    /// Time at which the next task of each waiting key is admitted.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// Decision of the rate limit about a task.
pub(super) enum RateVerdict {
    Admitted(Box<InFlight>),
    /// No task of the type is admitted now; the task is returned.
    Refused(Box<InFlight>),
    /// The task waits here for its key.
    Queued,
}

impl Limits {
    pub(super) fn new(policy: &TypePolicy) -> Self {
        Self {
            slots: policy.slots() as usize,
            paused: false,
            assignment: Assignment::default(),
            low_limit: None,
            limiter: Limiter::None,
            rate: None,
            refused_until: None,
        }
    }

    /// Maximum number of attempts that may run now.
    pub(super) fn open_slots(&self) -> usize {
        if self.paused || self.refused_until.is_some() { 0 } else { self.slots }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the reason why some partitions have no slots, if so: each needs one of the fleet-wide limit.
    pub(super) fn too_low(&self) -> Option<String> {
        let (limit, partitions) = (self.low_limit?, self.assignment.of);
        Some(format!(
            "`max_concurrency` {limit} is below the {partitions} partitions of the topic, so some partitions start no tasks: raise it"
        ))
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_assignment(&mut self, assignment: Assignment) {
        self.assignment = assignment;
    }

    pub(super) fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Applies configuration and control state. Returns the tasks that waited for a rate limit that has changed.
    pub(super) fn apply(
        &mut self,
        task_type: &str,
        policy: &TypePolicy,
        state: &ControlState,
    ) -> VecDeque<Box<InFlight>> {
        self.paused = state.paused.contains_key(task_type);
        let own = state.slots.get(task_type);
        let slots = own.and_then(|own| own.slots).unwrap_or_else(|| policy.slots()) as usize;
        let limit = own.and_then(|own| own.max_concurrency).or(policy.max_concurrency);
        self.slots = limit.map_or(slots, |limit| slots.min(self.assignment.of_limit(limit) as usize));
        self.low_limit = limit.filter(|limit| *limit < self.assignment.of && !self.assignment.owned.is_empty());
        let rate = state.rates.get(task_type).map(|limit| limit.rate).or(policy.rate);
        self.set_rate(rate)
    }

    fn set_rate(&mut self, rate: Option<Rate>) -> VecDeque<Box<InFlight>> {
        let rate = rate.map(|rate| (rate, self.spacing(&rate)));
        if rate == self.rate {
            return VecDeque::new();
        }
        self.rate = rate;
        self.refused_until = None;
        let limiter = rate.map_or(Limiter::None, |(rate, spacing)| Limiter::new(&rate, spacing, self.burst(&rate)));
        match std::mem::replace(&mut self.limiter, limiter) {
            Limiter::PerKey(queues) => queues.waiting.into_values().flatten().collect(),
            _ => VecDeque::new(),
        }
    }

    /// Time between two starts on this worker. A fleet-wide rate is divided by partitions; all tasks of a key are in
    /// one partition, so a rate per key is not divided.
    fn spacing(&self, rate: &Rate) -> Duration {
        let spacing = Duration::from(rate.per) / rate.count;
        match rate.by {
            RateBy::Key => spacing,
            RateBy::Type => spacing.mul_f64(self.assignment.parts()),
        }
    }

    /// Burst on this worker: a fleet-wide one is divided like its rate, and at least 1.
    fn burst(&self, rate: &Rate) -> NonZeroU32 {
        let share = match rate.by {
            RateBy::Key => rate.burst,
            RateBy::Type => (f64::from(rate.burst) / self.assignment.parts()).floor() as u32,
        };
        NonZeroU32::new(share).unwrap_or(NonZeroU32::MIN)
    }

    /// Applies the rate limit to a task.
    pub(super) fn admit(&mut self, in_flight: Box<InFlight>) -> RateVerdict {
        match &mut self.limiter {
            Limiter::None => RateVerdict::Admitted(in_flight),
            Limiter::PerType(limiter) => match limiter.check() {
                Ok(()) => RateVerdict::Admitted(in_flight),
                Err(not_until) => {
                    self.refused_until = Some(earliest(&not_until));
                    RateVerdict::Refused(in_flight)
                }
            },
            Limiter::PerKey(queues) => queues.admit(in_flight),
        }
    }

    /// Returns whether the rate limit counts each task by its key, and not the calls of the type.
    pub(super) fn is_per_key(&self) -> bool {
        matches!(self.limiter, Limiter::PerKey(_))
    }

    /// Applies the rate limit of the type to a call with several tasks.
    pub(super) fn admit_call(&mut self) -> bool {
        let Limiter::PerType(limiter) = &self.limiter else { return true };
        match limiter.check() {
            Ok(()) => true,
            Err(not_until) => {
                self.refused_until = Some(earliest(&not_until));
                false
            }
        }
    }

    /// Time at which the rate limit admits the next waiting task.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let of_key = match &self.limiter {
            Limiter::PerKey(queues) => queues.due.peek().map(|Reverse((at, _))| *at),
            _ => None,
        };
        [self.refused_until, of_key].into_iter().flatten().min()
    }

    /// Takes the tasks that the rate limit admits now.
    pub(super) fn take_due(&mut self, now: Instant) -> VecDeque<Box<InFlight>> {
        self.refused_until = self.refused_until.filter(|at| *at > now);
        match &mut self.limiter {
            Limiter::PerKey(queues) => queues.take_due(now),
            _ => VecDeque::new(),
        }
    }

    /// Takes out the selected waiting tasks.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let Limiter::PerKey(queues) = &mut self.limiter else { return VecDeque::new() };
        // A key without tasks is dropped when it is due.
        queues.waiting.values_mut().flat_map(|waiting| super::queue::split(waiting, is_selected)).collect()
    }

    pub(super) fn clear(&mut self) {
        self.limiter = Limiter::None;
        self.rate = None;
    }
}

impl Limiter {
    fn new(rate: &Rate, spacing: Duration, burst: NonZeroU32) -> Self {
        // The time to refill a burst is computed in 64 bits.
        let longest = Duration::from_nanos(i64::MAX as u64 / u64::from(burst.get()));
        let quota = Quota::with_period(spacing.clamp(Duration::from_nanos(1), longest));
        let Some(quota) = quota.map(|quota| quota.allow_burst(burst)) else {
            return Self::None;
        };
        match rate.by {
            RateBy::Type => Self::PerType(RateLimiter::direct_with_clock(quota, MonotonicClock)),
            RateBy::Key => {
                let limiter = RateLimiter::new(quota, HashMapStateStore::default(), MonotonicClock);
                Self::PerKey(Box::new(KeyQueues { limiter, waiting: FxHashMap::default(), due: BinaryHeap::new() }))
            }
        }
    }
}

impl KeyQueues {
    fn admit(&mut self, in_flight: Box<InFlight>) -> RateVerdict {
        let key = in_flight.rate_key();
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.push_back(in_flight);
            return RateVerdict::Queued;
        }
        match self.limiter.check_key(&key) {
            Ok(()) => {
                self.drop_unused_keys();
                RateVerdict::Admitted(in_flight)
            }
            Err(not_until) => {
                self.due.push(Reverse((earliest(&not_until), key)));
                self.waiting.insert(key, VecDeque::from([in_flight]));
                RateVerdict::Queued
            }
        }
    }

    fn drop_unused_keys(&self) {
        if self.limiter.len() > MAX_KEYS {
            self.limiter.retain_recent();
            self.limiter.shrink_to_fit();
        }
    }

    fn take_due(&mut self, now: Instant) -> VecDeque<Box<InFlight>> {
        let mut admitted = VecDeque::new();
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            while let Some(waiting) = self.waiting.get_mut(&key) {
                let Some(next) = waiting.pop_front() else {
                    self.waiting.remove(&key);
                    break;
                };
                if let Err(not_until) = self.limiter.check_key(&key) {
                    waiting.push_front(next);
                    self.due.push(Reverse((earliest(&not_until), key)));
                    break;
                }
                admitted.push_back(next);
            }
        }
        admitted
    }
}

fn earliest(not_until: &NotUntil<std::time::Instant>) -> Instant {
    not_until.earliest_possible().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_fleet::control::Slots;
    use kafleet_model::units::duration::Millis;

    #[test]
    fn limit_below_the_number_of_partitions_is_reported() {
        let policy = TypePolicy::default();
        let mut limits = Limits::new(&policy);
        let slots: Slots = serde_json::from_str(r#"{"v":1,"max_concurrency":4}"#).unwrap();
        let mut state = ControlState::default();
        state.slots.insert("echo".to_owned(), slots);
        let mut too_low = |owned: Vec<i32>, of: u32| {
            limits.set_assignment(Assignment { owned, of, refused: Vec::new() });
            limits.apply("echo", &policy, &state);
            (limits.slots(), limits.too_low())
        };
        assert_eq!(too_low(vec![3], 4), (1, None));
        let (slots, error) = too_low(vec![5], 8);
        assert_eq!(slots, 0);
        assert!(error.is_some_and(|error| error.contains("`max_concurrency` 4 is below the 8 partitions")));
        assert_eq!(too_low(Vec::new(), 8), (0, None), "a worker without partitions has nothing to start");
    }

    #[test]
    fn slow_rate_with_a_large_burst_is_within_the_range_of_the_limiter() {
        let rate = Rate { count: 1, per: Millis::secs(86_400), burst: 365, by: RateBy::Type };
        rate.check().unwrap();
        let burst = NonZeroU32::new(rate.burst).unwrap();
        let limiter = Limiter::new(&rate, Duration::from_secs(86_400 * 100_000), burst);
        assert!(matches!(limiter, Limiter::PerType(_)));
        assert!(Rate { burst: 366, ..rate }.check().is_err());
    }

    #[test]
    fn bursts_of_all_owners_together_are_the_burst_of_the_fleet() {
        let rate = Rate { count: 1, per: Millis::secs(60), burst: 100, by: RateBy::Type };
        let policy = TypePolicy { rate: Some(rate), ..TypePolicy::default() };
        let burst_of = |owned: Vec<i32>, policy: &TypePolicy| {
            let mut limits = Limits::new(policy);
            limits.set_assignment(Assignment { owned, of: 10, refused: Vec::new() });
            limits.apply("echo", policy, &ControlState::default());
            match &limits.limiter {
                Limiter::PerType(limiter) => (0..200).take_while(|_| limiter.check().is_ok()).count(),
                _ => unreachable!("the rate is by type"),
            }
        };
        assert_eq!([burst_of(vec![0, 1, 2], &policy), burst_of((3..10).collect(), &policy)], [30, 70]);
        let single = TypePolicy { rate: Some(Rate { burst: 1, ..rate }), ..TypePolicy::default() };
        assert_eq!(burst_of(vec![0], &single), 1, "a worker with a partition can start one");
    }
}
