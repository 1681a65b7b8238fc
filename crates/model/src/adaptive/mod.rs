//! Adaptive limit of concurrent attempts: learns how many calls a service takes at once, from its refusals and times. Pure.
//!
//! One learner decides for the fleet ([`AdaptiveLimit::decide`]), from the counts that the workers have made under the present
//! limit ([`RoundCounts`]). Each worker applies its share of the limit ([`share::AdaptiveShare`]). If each worker learned
//! alone, early ones would keep their slots and later ones get none.
//!
//! Invariant: counts made under another limit are never used. They would cut a limit again that has been cut already.

pub mod setting;
pub mod share;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of calls in a round from which on the learner decides.
pub const MIN_CALLS: u64 = 20;
/// Calls of one worker from which on its own refusals count.
const MIN_WORKER_CALLS: u64 = 10;
/// Part of the calls refused above which the limit is cut: of all workers, and of one. One worker may be refused most of its
/// calls while others have captured the service.
const MAX_REFUSED: f64 = 0.02;
const MAX_REFUSED_AT_ONE: f64 = 0.2;
/// Mean time of a call above which the limit is cut, as a multiple of the target.
const MAX_SLOWNESS: f64 = 1.1;
/// Smallest and largest cut.
const MIN_CUT: f64 = 0.05;
const MAX_CUT: f64 = 0.5;
/// Part of a round for which a worker must have been at its limit to count as one that needs more.
const AT_LIMIT: f64 = 0.5;
/// Growth before the first cut, below the last cut, near it and beyond it.
const GROWTH_FIRST: f64 = 2.0;
const GROWTH_BELOW: f64 = 1.25;
const GROWTH_NEAR: f64 = 1.02;
const GROWTH_BEYOND: f64 = 1.1;
/// Part of the limit of the last cut up to which the growth is fast again.
const NEAR: f64 = 0.9;
/// Bounds of a tick in milliseconds, and its length as a multiple of the mean time of a call.
pub const TICK_MS: (u64, u64) = (1_000, 60_000);
const CALLS_PER_TICK: f64 = 20.0;
/// Rounds beyond the last cut after which the service has evidently grown, so that the limit doubles again.
const QUIET_ROUNDS: u32 = 4;

/// Bounds of the limit, and the time of a call that it aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveBounds {
    /// Smallest limit of the fleet.
    pub min: f64,
    /// Largest limit of the fleet.
    pub max: f64,
    /// Mean time of a call in milliseconds, above which the limit is cut. `None`: only refusals count.
    pub target_ms: Option<f64>,
}

/// Limit of the fleet with what the learner needs for its next decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdaptiveLimit {
    /// Concurrent attempts in the whole fleet. A fraction is a share of the time.
    #[schemars(range(min = 0))]
    pub limit: f64,
    /// Number of the decision, from 1. Workers begin new counts with each.
    pub round: u64,
    /// Time in milliseconds after which the part of the limit that is not divisible by the partitions goes to the next of them.
    #[serde(default = "first_tick")]
    pub tick_ms: u64,
    /// Last cut; null before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<LastCut>,
    /// Rounds in which the limit has grown beyond the last cut.
    #[serde(default)]
    pub quiet: u32,
}

/// Last cut of an adaptive limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LastCut {
    /// Limit before the cut.
    pub limit: f64,
    /// Time of the cut, epoch milliseconds.
    pub at_ms: i64,
    /// Reason for people, such as `12 % of 240 calls were refused`.
    pub reason: String,
}

/// Counts of one worker under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoundCounts {
    /// Decision under which the counts were made; 0 before the first one.
    pub round: u64,
    /// Attempts that started and ended in the round.
    pub calls: u64,
    /// Calls that the service has refused.
    pub refused: u64,
    /// Sum of the times of the others, in milliseconds.
    pub call_ms: u64,
    /// Time for which tasks waited because of the limit, in milliseconds.
    pub at_limit_ms: u64,
    /// Duration of the round, in milliseconds.
    pub span_ms: u64,
    /// Largest number of attempts that ran at once.
    pub peak: u32,
}

fn first_tick() -> u64 {
    TICK_MS.0
}

impl RoundCounts {
    fn refused_part(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.refused as f64 / self.calls as f64 }
    }

    /// Mean time of a call that was not refused.
    fn mean_ms(&self) -> Option<f64> {
        let answered = self.calls.saturating_sub(self.refused);
        (answered > 0).then(|| self.call_ms as f64 / answered as f64)
    }

    fn is_at_limit(&self) -> bool {
        self.span_ms > 0 && self.at_limit_ms as f64 >= AT_LIMIT * self.span_ms as f64
    }

    fn add(mut self, other: &Self) -> Self {
        self.calls += other.calls;
        self.refused += other.refused;
        self.call_ms += other.call_ms;
        self.peak += other.peak;
        self
    }
}

impl AdaptiveLimit {
    /// Creates the limit of a type that has none yet: its smallest one.
    pub fn first(bounds: AdaptiveBounds) -> Self {
        Self { limit: bounds.min, round: 1, tick_ms: TICK_MS.0, cut: None, quiet: 0 }
    }

    /// Decides at the end of a round. Returns the next limit, or `None` if the present one stays. `workers`: the counts of
    /// the live workers; those of other rounds are ignored. `now_ms`: epoch milliseconds.
    pub fn decide(&self, bounds: AdaptiveBounds, workers: &[RoundCounts], now_ms: i64) -> Option<Self> {
        let workers: Vec<&RoundCounts> = workers.iter().filter(|counts| counts.round == self.round).collect();
        let total = workers.iter().fold(RoundCounts::default(), |sum, counts| sum.add(counts));
        let bounded = |limit: f64| limit.min(bounds.max).max(bounds.min);
        let tick_ms = total.mean_ms().map_or(self.tick_ms, |mean| (mean * CALLS_PER_TICK) as u64);
        let tick_ms = tick_ms.clamp(TICK_MS.0, TICK_MS.1);
        let next = |limit: f64| Self { limit: bounded(limit), round: self.round + 1, tick_ms, ..self.clone() };
        if self.limit < bounds.min || self.limit > bounds.max {
            // The settings of the type have changed.
            return Some(next(self.limit));
        }
        if total.calls < MIN_CALLS {
            return None;
        }
        if let Some((share, reason)) = reason_to_cut(&total, &workers, bounds) {
            // A limit that was not used up says nothing: what the service refused was less.
            let used = self.limit.min(f64::from(total.peak).max(bounds.min));
            let cut = LastCut { limit: used, at_ms: now_ms, reason };
            return Some(Self { cut: Some(cut), quiet: 0, ..next(used * (1.0 - share.clamp(MIN_CUT, MAX_CUT))) });
        }
        let at_limit = workers.iter().filter(|counts| counts.is_at_limit()).count();
        if 2 * at_limit < workers.len() || self.limit >= bounds.max {
            return None;
        }
        let grown = self.grown();
        let is_beyond = self.cut.as_ref().is_some_and(|cut| self.limit >= cut.limit);
        let quiet = if is_beyond { self.quiet.saturating_add(1) } else { 0 };
        Some(Self { quiet, ..next(grown) })
    }

    /// Limit after a round in which the service has refused nothing.
    fn grown(&self) -> f64 {
        let Some(cut) = &self.cut else { return self.limit * GROWTH_FIRST };
        let near = cut.limit * NEAR;
        if self.limit < near {
            (self.limit * GROWTH_BELOW).min(near)
        } else if self.limit < cut.limit {
            self.limit * GROWTH_NEAR
        } else if self.quiet < QUIET_ROUNDS {
            self.limit * GROWTH_BEYOND
        } else {
            self.limit * GROWTH_FIRST
        }
    }
}

/// Returns the share by which the limit is to be cut, and the reason for people.
fn reason_to_cut(total: &RoundCounts, workers: &[&RoundCounts], bounds: AdaptiveBounds) -> Option<(f64, String)> {
    let percent = |part: f64| (part * 100.0).round();
    let refused = total.refused_part();
    if refused > MAX_REFUSED {
        return Some((refused, format!("{} % of {} calls were refused", percent(refused), total.calls)));
    }
    let is_captured =
        |counts: &&&RoundCounts| counts.calls >= MIN_WORKER_CALLS && counts.refused_part() > MAX_REFUSED_AT_ONE;
    if let Some(worst) = workers.iter().find(is_captured) {
        let reason = format!("{} % of the calls of one worker were refused", percent(worst.refused_part()));
        return Some((refused, reason));
    }
    let mean = total.mean_ms()?;
    let target = bounds.target_ms.filter(|target| mean > target * MAX_SLOWNESS)?;
    Some((1.0 - target / mean, format!("calls took {} ms, the target is {target} ms", mean.round())))
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
