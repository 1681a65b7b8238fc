//! How much may run at once: the type's slots, its part of a fleet-wide limit, a pause, a rate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::config::{Rate, RateBy, TypePolicy};
use crate::control::ControlState;
use crate::worker::consumer::assignment::Assignment;
use crate::worker::decode::InFlight;

type OfType = RateLimiter<NotKeyed, InMemoryState, MonotonicClock, NoOpMiddleware<std::time::Instant>>;
type OfKeys = RateLimiter<u64, HashMapStateStore<u64>, MonotonicClock, NoOpMiddleware<std::time::Instant>>;

/// Keys whose last start is remembered, before those at rest are forgotten.
const MAX_KEYS: usize = 10_000;

/// What holds for one type now.
pub struct Limits {
    slots: usize,
    paused: bool,
    portion: Assignment,
    pace: Pace,
    rate: Option<(Rate, Duration)>,
    /// The rate lets nothing begin before.
    held_until: Option<Instant>,
}

enum Pace {
    Free,
    OfType(OfType),
    OfKeys(Box<ByKey>),
}

struct ByKey {
    limiter: OfKeys,
    /// Tasks whose key has to wait, and when the next one of each may begin.
    waiting: FxHashMap<u64, VecDeque<Box<InFlight>>>,
    wakes: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// Whether a task may begin as far as the rate goes.
pub enum Paced {
    Go(Box<InFlight>),
    /// None of the type may; it is given back.
    NotYet(Box<InFlight>),
    /// It waits for its key.
    Kept,
}

impl Limits {
    pub fn new(policy: &TypePolicy) -> Self {
        Self {
            slots: policy.slots() as usize,
            paused: false,
            portion: Assignment::default(),
            pace: Pace::Free,
            rate: None,
            held_until: None,
        }
    }

    /// Attempts that may run at once now.
    pub fn open_slots(&self) -> usize {
        if self.paused || self.held_until.is_some() { 0 } else { self.slots }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    pub fn own(&mut self, portion: Assignment) {
        self.portion = portion;
    }

    pub fn portion(&self) -> &Assignment {
        &self.portion
    }

    /// Takes over what the configuration and the orders say. Returns tasks that no longer wait for a rate.
    pub fn set(&mut self, task_type: &str, policy: &TypePolicy, orders: &ControlState) -> VecDeque<Box<InFlight>> {
        self.paused = orders.paused.contains_key(task_type);
        let said = orders.slots.get(task_type);
        let slots = said.and_then(|said| said.slots).unwrap_or_else(|| policy.slots()) as usize;
        let limit = said.and_then(|said| said.max_concurrency).or(policy.max_concurrency);
        self.slots = limit.map_or(slots, |limit| slots.min(self.portion.of_limit(limit) as usize));
        let rate = orders.rates.get(task_type).map(|limit| limit.rate).or(policy.rate);
        self.set_rate(rate)
    }

    fn set_rate(&mut self, rate: Option<Rate>) -> VecDeque<Box<InFlight>> {
        let rate = rate.map(|rate| (rate, self.spacing(&rate)));
        if rate == self.rate {
            return VecDeque::new();
        }
        (self.rate, self.held_until) = (rate, None);
        let pace = rate.map_or(Pace::Free, |(rate, spacing)| Pace::of(&rate, spacing));
        match std::mem::replace(&mut self.pace, pace) {
            Pace::OfKeys(by_key) => by_key.waiting.into_values().flatten().collect(),
            _ => VecDeque::new(),
        }
    }

    /// The time between two starts here. What the fleet may do is divided by partitions; a key has one partition anyway.
    fn spacing(&self, rate: &Rate) -> Duration {
        let spacing = Duration::from(rate.per) / rate.count;
        match rate.by {
            RateBy::Key => spacing,
            RateBy::Type => spacing.mul_f64(self.portion.parts()),
        }
    }

    /// Asks the rate for a start.
    pub fn pace(&mut self, held: Box<InFlight>) -> Paced {
        match &mut self.pace {
            Pace::Free => Paced::Go(held),
            Pace::OfType(limiter) => match limiter.check() {
                Ok(()) => Paced::Go(held),
                Err(not_until) => {
                    self.held_until = Some(when(&not_until));
                    Paced::NotYet(held)
                }
            },
            Pace::OfKeys(by_key) => by_key.pace(held),
        }
    }

    /// When a start that waits for the rate is due.
    pub fn next_due(&self) -> Option<Instant> {
        let of_key = match &self.pace {
            Pace::OfKeys(by_key) => by_key.wakes.peek().map(|Reverse((at, _))| *at),
            _ => None,
        };
        [self.held_until, of_key].into_iter().flatten().min()
    }

    /// Tasks that may begin now.
    pub fn due(&mut self, now: Instant) -> VecDeque<Box<InFlight>> {
        self.held_until = self.held_until.filter(|at| *at > now);
        match &mut self.pace {
            Pace::OfKeys(by_key) => by_key.due(now),
            _ => VecDeque::new(),
        }
    }

    /// Takes out the waiting tasks that are meant.
    pub fn extract(&mut self, meant: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let Pace::OfKeys(by_key) = &mut self.pace else { return VecDeque::new() };
        // A key whose tasks are all gone is dropped when its time comes.
        by_key.waiting.values_mut().flat_map(|waiting| super::commands::split(waiting, meant)).collect()
    }

    pub fn clear(&mut self) {
        (self.pace, self.rate) = (Pace::Free, None);
    }
}

impl Pace {
    fn of(rate: &Rate, spacing: Duration) -> Self {
        let quota = Quota::with_period(spacing.max(Duration::from_nanos(1)));
        let Some(quota) = quota.map(|quota| quota.allow_burst(NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN))) else {
            return Self::Free;
        };
        match rate.by {
            RateBy::Type => Self::OfType(RateLimiter::direct_with_clock(quota, MonotonicClock)),
            RateBy::Key => {
                let limiter = RateLimiter::new(quota, HashMapStateStore::default(), MonotonicClock);
                let (waiting, wakes) = Default::default();
                Self::OfKeys(Box::new(ByKey { limiter, waiting, wakes }))
            }
        }
    }
}

impl ByKey {
    fn pace(&mut self, held: Box<InFlight>) -> Paced {
        let key = held.rate_key();
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.push_back(held);
            return Paced::Kept;
        }
        match self.limiter.check_key(&key) {
            Ok(()) => {
                self.forget_rested();
                Paced::Go(held)
            }
            Err(not_until) => {
                self.wakes.push(Reverse((when(&not_until), key)));
                self.waiting.insert(key, VecDeque::from([held]));
                Paced::Kept
            }
        }
    }

    fn forget_rested(&self) {
        if self.limiter.len() > MAX_KEYS {
            self.limiter.retain_recent();
            self.limiter.shrink_to_fit();
        }
    }

    fn due(&mut self, now: Instant) -> VecDeque<Box<InFlight>> {
        let mut due = VecDeque::new();
        while let Some(&Reverse((at, key))) = self.wakes.peek()
            && at <= now
        {
            self.wakes.pop();
            while let Some(waiting) = self.waiting.get_mut(&key) {
                let Some(next) = waiting.pop_front() else {
                    self.waiting.remove(&key);
                    break;
                };
                if let Err(not_until) = self.limiter.check_key(&key) {
                    waiting.push_front(next);
                    self.wakes.push(Reverse((when(&not_until), key)));
                    break;
                }
                due.push_back(next);
            }
        }
        due
    }
}

fn when(not_until: &NotUntil<std::time::Instant>) -> Instant {
    not_until.earliest_possible().into()
}
