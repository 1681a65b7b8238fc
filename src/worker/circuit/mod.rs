//! Circuit of a type: decides from the outcomes of attempts when nothing is started because the service behind the type
//! is away. Pure: times and outcomes go in, admissions and changes come out.
//!
//! Closed, it counts outcomes. When half of the recent attempts have failed with a kind that trips it, it opens: nothing
//! starts for a pause. Then one probe runs at a time, or one per longest pause if probes last: a bad one starts the next
//! pause, and three good ones close the circuit. The slots then double each second from one.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::control::ForcedCircuit;

/// Maximum number and age of the counted outcomes.
const MAX_SAMPLES: usize = 50;
const MAX_AGE: Duration = Duration::from_secs(600);
/// Number of outcomes that opens the circuit: at most, and at least.
const ENOUGH_SAMPLES: usize = 20;
const MIN_SAMPLES: usize = 5;
/// Pauses: the first, the longest, and the longest that a service may request.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const MAX_REQUESTED_PAUSE: Duration = Duration::from_secs(300);
/// Part of the outage's time up to which pauses grow, so that a short outage is followed by a short pause.
const PAUSE_PART: u32 = 10;
/// Random part of a pause, in both directions.
const JITTER: f64 = 0.2;
/// Number of good probes that closes the circuit.
const GOOD_PROBES: u32 = 3;

/// Circuit of one type in one worker.
pub(super) struct Circuit {
    state: State,
    /// State set by an operator, which replaces the circuit's own.
    forced: Option<ForcedCircuit>,
    /// Times of the counted outcomes, and whether each trips the circuit.
    samples: VecDeque<(Instant, bool)>,
    trips: usize,
    /// Attempts that started earlier are not counted.
    counts_from: Option<Instant>,
    slots: usize,
}

enum State {
    Closed,
    Open(Outage),
    Probing {
        outage: Outage,
        /// End of the pause. Attempts that started earlier are no probes.
        from: Instant,
        good: u32,
        /// Start of the latest probe, while it runs.
        probe: Option<Instant>,
    },
    /// Closed since this time; the slots are still growing.
    Growing(Instant),
}

#[derive(Clone, Copy)]
struct Outage {
    since: Instant,
    pauses: u32,
    /// End of the current pause.
    until: Instant,
}

/// Outcome of an attempt, as far as the circuit is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The service has answered.
    Good,
    /// The attempt failed with a kind that trips the circuit; time that the service requests.
    Bad(Option<Duration>),
    /// The attempt says nothing about the service, for example because it was cancelled.
    Unknown,
}

/// Change of the state by an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    /// A probe has failed; the next pause.
    Paused(Duration),
    Closed,
}

impl Circuit {
    pub(super) fn new() -> Self {
        Self { state: State::Closed, forced: None, samples: VecDeque::new(), trips: 0, counts_from: None, slots: 1 }
    }

    pub(super) fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
    }

    /// Sets or removes the state of an operator. A change begins with a closed circuit; after an open one the slots
    /// grow from one.
    pub(super) fn force(&mut self, forced: Option<ForcedCircuit>, now: Instant) {
        if self.forced != forced {
            let is_released = forced.is_none() && self.forced == Some(ForcedCircuit::Open);
            self.state = if is_released { State::Growing(now) } else { State::Closed };
            self.forced = forced;
            self.forget();
        }
    }

    /// Returns whether another attempt may start while `running` ones do.
    pub(super) fn admits(&mut self, now: Instant, running: usize) -> bool {
        match self.forced {
            Some(ForcedCircuit::Open) => return false,
            Some(ForcedCircuit::Closed) => return true,
            None => {}
        }
        match self.state {
            State::Closed => true,
            State::Open(outage) if now < outage.until => false,
            State::Open(outage) => {
                self.state = State::Probing { outage, from: now, good: 0, probe: None };
                true
            }
            // A probe that does not end, such as a long attempt or a call that hangs, holds back the next one for a pause.
            State::Probing { probe, .. } => probe.is_none_or(|probe| now >= probe + MAX_PAUSE),
            State::Growing(since) => {
                let slots = grown_slots(now.saturating_duration_since(since));
                if slots >= self.slots {
                    self.state = State::Closed;
                }
                running < slots || slots >= self.slots
            }
        }
    }

    pub(super) fn attempt_started(&mut self, now: Instant) {
        if let State::Probing { probe, .. } = &mut self.state {
            *probe = Some(now);
        }
    }

    /// Counts the end of an attempt. `jitter`: random number in 0..1.
    pub(super) fn attempt_ended(
        &mut self,
        started_at: Instant,
        now: Instant,
        outcome: Outcome,
        jitter: f64,
    ) -> Option<Change> {
        if self.forced.is_some() {
            return None;
        }
        match &mut self.state {
            State::Closed | State::Growing(_) => self.count(started_at, now, outcome, jitter),
            State::Open(_) => None,
            State::Probing { from, .. } if started_at < *from => None,
            State::Probing { outage, good, probe, .. } => {
                probe.take_if(|latest| *latest == started_at);
                match outcome {
                    Outcome::Unknown => None,
                    Outcome::Bad(requested) => {
                        let mut outage = *outage;
                        let pause = outage.pause(now, requested, jitter);
                        self.state = State::Open(outage);
                        Some(Change::Paused(pause))
                    }
                    Outcome::Good => {
                        *good += 1;
                        (*good >= GOOD_PROBES).then(|| self.close(now))
                    }
                }
            }
        }
    }

    fn count(&mut self, started_at: Instant, now: Instant, outcome: Outcome, jitter: f64) -> Option<Change> {
        let is_bad = match outcome {
            Outcome::Unknown => return None,
            Outcome::Good => false,
            Outcome::Bad(_) => true,
        };
        if self.counts_from.is_some_and(|from| started_at < from) {
            return None;
        }
        self.samples.push_back((now, is_bad));
        self.trips += usize::from(is_bad);
        let is_old = |at: Instant| now.saturating_duration_since(at) > MAX_AGE;
        while self.samples.len() > MAX_SAMPLES || self.samples.front().is_some_and(|(at, _)| is_old(*at)) {
            let dropped = self.samples.pop_front();
            self.trips -= usize::from(dropped.is_some_and(|(_, is_bad)| is_bad));
        }
        let opens = is_bad && self.samples.len() >= self.needed() && self.is_mostly_bad();
        opens.then(|| {
            let mut outage = Outage { since: now, pauses: 0, until: now };
            outage.pause(now, None, jitter);
            self.state = State::Open(outage);
            self.forget();
            Change::Opened
        })
    }

    fn close(&mut self, now: Instant) -> Change {
        self.state = State::Growing(now);
        self.forget();
        self.counts_from = Some(now);
        Change::Closed
    }

    fn forget(&mut self) {
        self.samples.clear();
        self.trips = 0;
        self.counts_from = None;
    }

    /// Number of outcomes that opens the circuit: fewer for few slots, and right after an outage.
    fn needed(&self) -> usize {
        match self.state {
            State::Growing(_) => MIN_SAMPLES,
            _ => (2 * self.slots).clamp(MIN_SAMPLES, ENOUGH_SAMPLES),
        }
    }

    fn is_mostly_bad(&self) -> bool {
        2 * self.trips >= self.samples.len()
    }

    /// Returns whether failures that trip the circuit are waits: it is not closed.
    pub(super) fn makes_waits(&self) -> bool {
        match self.forced {
            Some(forced) => forced == ForcedCircuit::Open,
            None => !matches!(self.state, State::Closed),
        }
    }

    /// Returns whether nothing but probes starts.
    pub(super) fn is_open(&self) -> bool {
        match self.forced {
            Some(forced) => forced == ForcedCircuit::Open,
            None => matches!(self.state, State::Open(_) | State::Probing { .. }),
        }
    }

    /// Start of the outage, while the circuit is open by itself.
    pub(super) fn open_since(&self) -> Option<Instant> {
        match self.state {
            _ if self.forced.is_some() => None,
            State::Open(outage) | State::Probing { outage, .. } => Some(outage.since),
            State::Closed | State::Growing(_) => None,
        }
    }

    /// Time at which more attempts are admitted.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            _ if self.forced.is_some() => None,
            State::Open(outage) => Some(outage.until),
            State::Growing(since) => {
                let seconds = now.saturating_duration_since(since).as_secs() + 1;
                Some(since + Duration::from_secs(seconds))
            }
            State::Probing { probe, .. } => probe.map(|probe| probe + MAX_PAUSE).filter(|due| *due > now),
            State::Closed => None,
        }
    }
}

impl Outage {
    /// Begins the next pause and returns its length.
    fn pause(&mut self, now: Instant, requested: Option<Duration>, jitter: f64) -> Duration {
        let doubled = FIRST_PAUSE * (1 << self.pauses.min(10));
        let part = now.saturating_duration_since(self.since) / PAUSE_PART;
        let own = doubled.min(part.max(FIRST_PAUSE)).min(MAX_PAUSE);
        let own = own.mul_f64(1.0 - JITTER + 2.0 * JITTER * jitter.clamp(0.0, 1.0));
        let pause = requested.map_or(own, |requested| requested.clamp(FIRST_PAUSE, MAX_REQUESTED_PAUSE));
        self.pauses = self.pauses.saturating_add(1);
        self.until = now + pause;
        pause
    }
}

/// Slots after a time since the end of an outage.
fn grown_slots(after: Duration) -> usize {
    1 << after.as_secs().min(30)
}

#[cfg(test)]
mod outages;
#[cfg(test)]
mod tests;
