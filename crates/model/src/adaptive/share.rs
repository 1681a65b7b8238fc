//! Share of a worker in an adaptive limit. Pure: times in milliseconds of a clock that only advances, and its distance to the
//! epoch, since the workers take their turns by the time of day.
//!
//! Each partition has ⌊limit/P⌋ slots, and the rest goes round: in each tick the next partitions have one more. So the whole
//! fleet has exactly as many slots as the limit, without a message between workers, and all of them have their turn.
//!
//! Invariant: the slots of all workers together never exceed the limit. A worker that gains a slot with a tick uses it only
//! after the usual time of an attempt, when the one that has lost it is done.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::RoundCounts;

/// Period in which refusals brake a worker before the learner decides, in milliseconds.
const BRAKE_PERIOD_MS: u64 = 500;
/// Part of the calls refused in this period above which the worker brakes, and the number of calls needed.
const BRAKE_REFUSED: f64 = 0.1;
const BRAKE_CALLS: u64 = 5;
/// Largest part by which one period brakes.
const MAX_BRAKE: f64 = 0.5;
/// Factor by which a period without refusals releases the brake, for the time in which no tracker decides.
const BRAKE_RELEASE: f64 = 1.02;
/// Time of an attempt that is assumed before the first one has ended, in milliseconds.
const FIRST_CALL_MS: f64 = 100.0;
/// Weight of the latest attempt in the usual time of attempts.
const WEIGHT: f64 = 0.1;
/// Step from tick to tick of the number that rounds a limit with a fraction: the golden ratio spreads evenly.
const DITHER: f64 = 0.618_033_988_749_894_9;

/// Limit of the fleet and the partitions of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareOf {
    /// Number of the decision; 0: none yet, or an operator's limit.
    pub round: u64,
    /// Concurrent attempts in the whole fleet.
    pub limit: f64,
    /// Time after which the rest of the limit goes to the next partitions, in milliseconds.
    pub tick_ms: u64,
    /// Partitions of this worker.
    pub owned: Vec<u32>,
    /// Number of partitions.
    pub of: u32,
}

/// Attempts that a worker may run at once under an adaptive limit, and the counts that it reports.
#[derive(Clone, Debug)]
pub struct AdaptiveShare {
    of: ShareOf,
    /// Epoch time at the zero of the clock, in milliseconds.
    epoch_ms: u64,
    /// Factor of the brake, up to 1.
    brake: f64,
    /// Times at which the slots of refused attempts become free: a refusal is quick, and would otherwise be repeated at once.
    held: BinaryHeap<Reverse<u64>>,
    /// Usual time of an attempt that is not refused.
    usual_ms: f64,
    counts: RoundCounts,
    round_from_ms: u64,
    /// Time since which tasks wait because of the limit.
    limited_since_ms: Option<u64>,
    period: BrakePeriod,
}

#[derive(Clone, Copy, Debug, Default)]
struct BrakePeriod {
    from_ms: u64,
    calls: u64,
    refused: u64,
}

impl ShareOf {
    /// Slots of the partitions in a tick, for a limit that may be braked.
    fn slots(&self, limit: f64, tick: u64) -> usize {
        let of = u64::from(self.of.max(1));
        let rounded = limit.floor() as u64 + u64::from((tick as f64 * DITHER).fract() < limit.fract());
        let slots_of = |partition: &u32| {
            let rank = (u64::from(*partition) + tick) % of;
            (rounded / of + u64::from(rank < rounded % of)) as usize
        };
        self.owned.iter().map(slots_of).sum()
    }
}

impl AdaptiveShare {
    /// Creates the share of a worker that has counted nothing yet. `epoch_ms`: epoch time at the zero of the clock.
    pub fn new(of: ShareOf, now_ms: u64, epoch_ms: u64) -> Self {
        Self {
            counts: RoundCounts { round: of.round, ..RoundCounts::default() },
            of,
            epoch_ms,
            brake: 1.0,
            held: BinaryHeap::new(),
            usual_ms: FIRST_CALL_MS,
            round_from_ms: now_ms,
            limited_since_ms: None,
            period: BrakePeriod { from_ms: now_ms, ..BrakePeriod::default() },
        }
    }

    /// Applies a decision of the learner, or another share of the same one.
    pub fn set(&mut self, of: ShareOf, now_ms: u64, epoch_ms: u64) {
        self.epoch_ms = epoch_ms;
        if of.round != self.of.round {
            self.brake = 1.0;
            self.counts = RoundCounts { round: of.round, ..RoundCounts::default() };
            self.round_from_ms = now_ms;
            self.limited_since_ms = self.limited_since_ms.map(|_| now_ms);
        }
        self.of = of;
    }

    /// Number of the present tick, and the time since its begin.
    fn tick(&self, now_ms: u64) -> (u64, u64) {
        let (epoch_ms, tick_ms) = (self.epoch_ms + now_ms, self.of.tick_ms.max(1));
        (epoch_ms / tick_ms, epoch_ms % tick_ms)
    }

    /// Time for which a gained slot is not used.
    fn pause_ms(&self) -> u64 {
        (self.usual_ms as u64).min(self.of.tick_ms / 2)
    }

    /// Number of attempts that may run at once now.
    pub fn slots(&self, now_ms: u64) -> usize {
        let (tick, since_ms) = self.tick(now_ms);
        let limit = self.of.limit * self.brake;
        let slots = self.of.slots(limit, tick);
        match tick.checked_sub(1) {
            Some(last) if since_ms < self.pause_ms() => slots.min(self.of.slots(limit, last)),
            _ => slots,
        }
    }

    /// Returns whether another attempt may start beside `running` ones. Called only while a task is ready to start.
    pub fn admits(&mut self, running: usize, now_ms: u64) -> bool {
        while self.held.peek().is_some_and(|Reverse(until)| *until <= now_ms) {
            self.held.pop();
        }
        let is_admitted = running + self.held.len() < self.slots(now_ms);
        match (is_admitted, self.limited_since_ms) {
            (false, None) => self.limited_since_ms = Some(now_ms),
            (true, Some(_)) => self.end_limited(now_ms),
            _ => {}
        }
        is_admitted
    }

    /// Registers that no task is ready, so that the limit holds none back.
    pub fn idle(&mut self, now_ms: u64) {
        self.end_limited(now_ms);
    }

    fn end_limited(&mut self, now_ms: u64) {
        if let Some(since) = self.limited_since_ms.take() {
            self.counts.at_limit_ms += now_ms.saturating_sub(since);
        }
    }

    /// Registers the start of an attempt beside `running` others.
    pub fn attempt_started(&mut self, running: usize) {
        let at_once = u32::try_from(running + 1).unwrap_or(u32::MAX);
        self.counts.peak = self.counts.peak.max(at_once);
    }

    /// Counts the end of an attempt that began at `started_ms`. `is_refused`: the service has refused the call.
    pub fn attempt_ended(&mut self, started_ms: u64, now_ms: u64, is_refused: bool) {
        let took_ms = now_ms.saturating_sub(started_ms);
        if started_ms >= self.round_from_ms {
            self.counts.calls += 1;
            self.counts.refused += u64::from(is_refused);
            self.counts.call_ms += if is_refused { 0 } else { took_ms };
        }
        if is_refused {
            let usual_ms = self.usual_ms as u64;
            if took_ms < usual_ms {
                self.held.push(Reverse(started_ms + usual_ms));
            }
        } else {
            self.usual_ms += WEIGHT * (took_ms as f64 - self.usual_ms);
        }
        self.brake(is_refused, now_ms);
    }

    /// Brakes after many refusals, before the learner decides.
    fn brake(&mut self, is_refused: bool, now_ms: u64) {
        self.period.calls += 1;
        self.period.refused += u64::from(is_refused);
        if now_ms.saturating_sub(self.period.from_ms) < BRAKE_PERIOD_MS {
            return;
        }
        let BrakePeriod { calls, refused, .. } = self.period;
        let part = refused as f64 / calls as f64;
        if calls >= BRAKE_CALLS && part > BRAKE_REFUSED {
            self.brake *= 1.0 - part.min(MAX_BRAKE);
        } else if refused == 0 {
            self.brake = (self.brake * BRAKE_RELEASE).min(1.0);
        }
        self.period = BrakePeriod { from_ms: now_ms, ..BrakePeriod::default() };
    }

    /// Time at which more attempts may start, apart from the end of a running one: a refused attempt frees its slot, or the next
    /// partitions have their turn.
    pub fn next_due_ms(&self, now_ms: u64) -> u64 {
        let (_, since_ms) = self.tick(now_ms);
        let pause_ms = self.pause_ms();
        let turn = if since_ms < pause_ms { pause_ms - since_ms } else { self.of.tick_ms.max(1) - since_ms };
        let held = self.held.peek().map(|Reverse(until)| *until).filter(|at| *at > now_ms);
        held.map_or(now_ms + turn, |held| held.min(now_ms + turn))
    }

    /// Counts since the last decision.
    pub fn counts(&self, now_ms: u64) -> RoundCounts {
        let limited_ms = self.limited_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        RoundCounts {
            at_limit_ms: self.counts.at_limit_ms + limited_ms,
            span_ms: now_ms.saturating_sub(self.round_from_ms),
            ..self.counts
        }
    }
}
