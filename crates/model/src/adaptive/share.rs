//! Share of a worker in an adaptive limit. Pure: times in milliseconds of any clock that only advances.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::RoundCounts;

/// Period in which refusals brake a worker before the learner decides, in milliseconds.
const BRAKE_PERIOD_MS: u64 = 500;
/// Part of the calls refused in this period above which the worker brakes, and the number of calls needed.
const BRAKE_REFUSED: f64 = 0.1;
const BRAKE_CALLS: u64 = 5;
/// Factor by which a period without refusals releases the brake, for the time in which no tracker decides.
const BRAKE_RELEASE: f64 = 1.02;
/// Time of an attempt that is assumed before the first one has ended, in milliseconds.
const FIRST_CALL_MS: f64 = 100.0;
/// Weight of the latest attempt in the usual time of attempts.
const WEIGHT: f64 = 0.1;
/// Step of the times from which the pauses of a share below 1 follow.
const TIME_STEP: f64 = 1.25;
/// Longest pause of a share below 1, in milliseconds.
const MAX_PAUSE_MS: f64 = 600_000.0;

/// Attempts that a worker may run at once under an adaptive limit, and the counts that it reports.
#[derive(Clone, Debug)]
pub struct AdaptiveShare {
    /// Part of the limit that is this worker's.
    share: f64,
    /// Factor of the brake, up to 1.
    brake: f64,
    /// Random number from 0 to 1 that rounds the share, so that all workers together have the limit.
    rounding: f64,
    /// End of the pause after an attempt, for a share below 1.
    pause_until_ms: u64,
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

impl AdaptiveShare {
    /// Creates the share of a worker that has not read a limit yet. `share`: attempts at once until then.
    pub fn new(share: f64, now_ms: u64) -> Self {
        Self {
            share,
            brake: 1.0,
            rounding: 0.5,
            pause_until_ms: 0,
            held: BinaryHeap::new(),
            usual_ms: FIRST_CALL_MS,
            counts: RoundCounts::default(),
            round_from_ms: now_ms,
            limited_since_ms: None,
            period: BrakePeriod { from_ms: now_ms, ..BrakePeriod::default() },
        }
    }

    /// Applies a decision of the learner, or another share of the same one. `random`: a number from 0 to 1.
    pub fn set(&mut self, round: u64, share: f64, now_ms: u64, random: f64) {
        if self.share >= 1.0 && share < 1.0 {
            // Workers that begin to pause would otherwise call together, after each pause again.
            self.pause_until_ms = now_ms + period(self.usual_ms, share, random);
        }
        // A pause of a smaller share, or of a braked one, may be much longer than those of this one.
        let longest = if share < 1.0 { period(self.usual_ms, share, 1.0) } else { 0 };
        self.pause_until_ms = self.pause_until_ms.min(now_ms + longest);
        self.share = share;
        if round != self.counts.round {
            self.rounding = random;
            self.brake = 1.0;
            self.counts = RoundCounts { round, ..RoundCounts::default() };
            self.round_from_ms = now_ms;
            self.limited_since_ms = self.limited_since_ms.map(|_| now_ms);
        }
    }

    /// Number of attempts that may run at once, at least 1. Below 1 there are pauses between them.
    pub fn slots(&self) -> usize {
        let share = self.share * self.brake;
        let whole = share.floor();
        (whole as usize + usize::from(share - whole > self.rounding)).max(1)
    }

    /// Returns whether another attempt may start beside `running` ones. Called only while a task is ready to start.
    pub fn admits(&mut self, running: usize, now_ms: u64) -> bool {
        while self.held.peek().is_some_and(|Reverse(until)| *until <= now_ms) {
            self.held.pop();
        }
        let is_admitted = running + self.held.len() < self.slots() && now_ms >= self.pause_until_ms;
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

    /// Counts the end of an attempt that began at `started_ms`. `is_refused`: the service has refused the call. `random`: a
    /// number from 0 to 1.
    pub fn attempt_ended(&mut self, started_ms: u64, now_ms: u64, is_refused: bool, random: f64) {
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
        let share = self.share * self.brake;
        if share < 1.0 {
            // Workers that pause call in turn. One that collided with others seeks another place between them.
            let part = if is_refused { 0.5 + random } else { 1.0 };
            self.pause_until_ms = started_ms + period(self.usual_ms, share, part);
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
            self.brake *= 1.0 - part.min(0.5);
        } else if refused == 0 {
            self.brake = (self.brake * BRAKE_RELEASE).min(1.0);
        }
        self.period = BrakePeriod { from_ms: now_ms, ..BrakePeriod::default() };
    }

    /// Time at which more attempts may start. `None`: when one of the running ones has ended.
    pub fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        let held = self.held.peek().map(|Reverse(until)| *until);
        held.into_iter().chain(Some(self.pause_until_ms)).filter(|at| *at > now_ms).min()
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

/// Part of the time between two starts with which one attempt runs for the share `share` of the time.
fn period(usual_ms: f64, share: f64, part: f64) -> u64 {
    // The same in all workers, although each knows another mean: with different periods they would collide again and again.
    let usual_ms = TIME_STEP.powf(usual_ms.max(1.0).log(TIME_STEP).round());
    (usual_ms / share.max(f64::MIN_POSITIVE) * part).clamp(0.0, MAX_PAUSE_MS) as u64
}
