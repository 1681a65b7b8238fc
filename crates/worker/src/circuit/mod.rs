//! Circuit breaker of a type: starts no attempts while the service that the type calls is unavailable, as judged from
//! the outcomes of attempts. Pure: times and outcomes go in, admissions and state changes come out.
//!
//! While closed, it counts outcomes. It opens when at least half of the recent attempts failed with an error kind in
//! `trip_on`. Then nothing starts during a pause. After it, one probe runs at a time; if a probe takes longer than
//! `MAX_PAUSE`, another one may start. A bad probe starts the next pause; three good ones close the circuit. After that,
//! the limit of concurrent attempts starts at one and doubles every second until all slots are in use.

use std::collections::VecDeque;
use std::time::Duration;

use kafleet_fleet::control::ForcedCircuit;
use tokio::time::Instant;

/// Maximum number and age of the counted outcomes.
const MAX_SAMPLES: usize = 50;
const MAX_AGE: Duration = Duration::from_secs(600);
/// Bounds of the number of outcomes needed before the circuit can open, which is twice the slots: upper, lower.
const ENOUGH_SAMPLES: usize = 20;
const MIN_SAMPLES: usize = 5;
/// Pauses: the first and the longest, before jitter, and the longest that a service may request in answer to a probe.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const MAX_REQUESTED_PAUSE: Duration = Duration::from_secs(300);
/// A pause is at most the time since the start of the outage divided by this (but at least the first pause), so that
/// work resumes soon after a short outage.
const PAUSE_PART: u32 = 10;
/// Jitter of a pause: up to this fraction shorter or longer.
const JITTER: f64 = 0.2;
/// Number of good probes that closes the circuit.
const GOOD_PROBES: u32 = 3;

/// Circuit of one type in one worker.
pub(super) struct Circuit {
    state: CircuitPhase,
    /// State set by an operator, which replaces the circuit's own.
    forced: Option<ForcedCircuit>,
    /// Counted outcomes: time, and whether it was bad.
    samples: VecDeque<(Instant, bool)>,
    trips: usize,
    /// Attempts that started earlier are not counted.
    counts_from: Option<Instant>,
    slots: usize,
    /// Upper bound of the number of outcomes needed before the circuit can open.
    enough_samples: usize,
}

enum CircuitPhase {
    Closed,
    Open(Outage),
    Probing {
        outage: Outage,
        /// Start of probing, at or after the end of the pause. Attempts that started earlier are not probes.
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
    /// The attempt failed with an error kind that trips the circuit. The value is the pause requested by the service.
    Bad(Option<Duration>),
    /// No evidence about the service, for example because the attempt was cancelled.
    Unknown,
}

/// State change caused by an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitChange {
    Opened,
    /// A probe failed; the value is the length of the next pause.
    Paused(Duration),
    Closed,
}

impl Circuit {
    pub(super) fn new() -> Self {
        Self {
            state: CircuitPhase::Closed,
            forced: None,
            samples: VecDeque::new(),
            trips: 0,
            counts_from: None,
            slots: 1,
            enough_samples: ENOUGH_SAMPLES,
        }
    }

    /// Creates the circuit of one host of many, which opens after few failures: each of them may occupy a slot until its
    /// timeout.
    fn of_host() -> Self {
        Self { enough_samples: MIN_SAMPLES, ..Self::new() }
    }

    pub(super) fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
    }

    /// Sets or removes the state forced by an operator. A change resets the circuit to closed; if a forced open state is
    /// removed, the usable slots grow from one.
    pub(super) fn force(&mut self, forced: Option<ForcedCircuit>, now: Instant) {
        if self.forced != forced {
            let is_released = forced.is_none() && self.forced == Some(ForcedCircuit::Open);
            self.state = if is_released { CircuitPhase::Growing(now) } else { CircuitPhase::Closed };
            self.forced = forced;
            self.clear_samples();
        }
    }

    /// Returns whether another attempt may start while `running` attempts are running.
    pub(super) fn admits(&mut self, now: Instant, running: usize) -> bool {
        match self.forced {
            Some(ForcedCircuit::Open) => return false,
            Some(ForcedCircuit::Closed) => return true,
            None => {}
        }
        match self.state {
            CircuitPhase::Closed => true,
            CircuitPhase::Open(outage) if now < outage.until => false,
            CircuitPhase::Open(outage) => {
                self.state = CircuitPhase::Probing { outage, from: now, good: 0, probe: None };
                true
            }
            // A probe that does not end, such as a long attempt or a hanging call, delays the next one by the longest pause.
            CircuitPhase::Probing { probe, .. } => probe.is_none_or(|probe| now >= probe + MAX_PAUSE),
            CircuitPhase::Growing(since) => {
                let slots = grown_slots(now.saturating_duration_since(since));
                if slots >= self.slots {
                    self.state = CircuitPhase::Closed;
                }
                running < slots || slots >= self.slots
            }
        }
    }

    pub(super) fn attempt_started(&mut self, now: Instant) {
        if let CircuitPhase::Probing { probe, .. } = &mut self.state {
            *probe = Some(now);
        }
    }

    /// Counts the outcome of an attempt. `jitter`: a random number from 0 to 1.
    pub(super) fn attempt_ended(
        &mut self,
        started_at: Instant,
        now: Instant,
        outcome: Outcome,
        jitter: f64,
    ) -> Option<CircuitChange> {
        if self.forced.is_some() {
            return None;
        }
        match &mut self.state {
            CircuitPhase::Closed | CircuitPhase::Growing(_) => self.count(started_at, now, outcome, jitter),
            CircuitPhase::Open(_) => None,
            CircuitPhase::Probing { from, .. } if started_at < *from => None,
            CircuitPhase::Probing { outage, good, probe, .. } => {
                probe.take_if(|latest| *latest == started_at);
                match outcome {
                    Outcome::Unknown => None,
                    Outcome::Bad(requested) => {
                        let mut outage = *outage;
                        let pause = outage.pause(now, requested, jitter);
                        self.state = CircuitPhase::Open(outage);
                        Some(CircuitChange::Paused(pause))
                    }
                    Outcome::Good => {
                        *good += 1;
                        (*good >= GOOD_PROBES).then(|| self.close(now))
                    }
                }
            }
        }
    }

    fn count(&mut self, started_at: Instant, now: Instant, outcome: Outcome, jitter: f64) -> Option<CircuitChange> {
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
            self.state = CircuitPhase::Open(outage);
            self.clear_samples();
            CircuitChange::Opened
        })
    }

    fn close(&mut self, now: Instant) -> CircuitChange {
        self.state = CircuitPhase::Growing(now);
        self.clear_samples();
        self.counts_from = Some(now);
        CircuitChange::Closed
    }

    fn clear_samples(&mut self) {
        self.samples.clear();
        self.trips = 0;
        self.counts_from = None;
    }

    /// Number of outcomes needed before the circuit can open: fewer if there are few slots, and while the slots grow
    /// after an outage.
    fn needed(&self) -> usize {
        match self.state {
            CircuitPhase::Growing(_) => MIN_SAMPLES,
            _ => (2 * self.slots).clamp(MIN_SAMPLES, self.enough_samples),
        }
    }

    fn is_mostly_bad(&self) -> bool {
        2 * self.trips >= self.samples.len()
    }

    /// Returns whether failures that trip the circuit delay their tasks without counting as attempts: while it is open,
    /// and while the slots grow after an outage.
    pub(super) fn makes_waits(&self) -> bool {
        match self.forced {
            Some(forced) => forced == ForcedCircuit::Open,
            None => !matches!(self.state, CircuitPhase::Closed),
        }
    }

    /// Returns whether an operator holds the circuit open, or the usable slots still grow after an outage.
    pub(super) fn is_held_open_or_growing(&self) -> bool {
        self.forced == Some(ForcedCircuit::Open)
            || (self.forced.is_none() && matches!(self.state, CircuitPhase::Growing(_)))
    }

    /// Returns whether the circuit is open: only probes may start, or nothing if an operator opened it.
    pub(super) fn is_open(&self) -> bool {
        match self.forced {
            Some(forced) => forced == ForcedCircuit::Open,
            None => matches!(self.state, CircuitPhase::Open(_) | CircuitPhase::Probing { .. }),
        }
    }

    /// Start of the outage, while the circuit is open because of failures, not because of an operator.
    pub(super) fn open_since(&self) -> Option<Instant> {
        match self.state {
            _ if self.forced.is_some() => None,
            CircuitPhase::Open(outage) | CircuitPhase::Probing { outage, .. } => Some(outage.since),
            CircuitPhase::Closed | CircuitPhase::Growing(_) => None,
        }
    }

    /// Next time at which more attempts may be admitted. `None`: no such time is known.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            _ if self.forced.is_some() => None,
            CircuitPhase::Open(outage) => Some(outage.until),
            CircuitPhase::Growing(since) => {
                let seconds = now.saturating_duration_since(since).as_secs() + 1;
                Some(since + Duration::from_secs(seconds))
            }
            CircuitPhase::Probing { probe, .. } => probe.map(|probe| probe + MAX_PAUSE).filter(|due| *due > now),
            CircuitPhase::Closed => None,
        }
    }
}

impl Outage {
    /// Begins the next pause and returns its length.
    fn pause(&mut self, now: Instant, requested: Option<Duration>, jitter: f64) -> Duration {
        let doubled = FIRST_PAUSE * (1 << self.pauses.min(10));
        let part = now.saturating_duration_since(self.since) / PAUSE_PART;
        let computed = doubled.min(part.max(FIRST_PAUSE)).min(MAX_PAUSE);
        let computed = computed.mul_f64(1.0 - JITTER + 2.0 * JITTER * jitter.clamp(0.0, 1.0));
        let pause = requested.map_or(computed, |requested| requested.clamp(FIRST_PAUSE, MAX_REQUESTED_PAUSE));
        self.pauses = self.pauses.saturating_add(1);
        self.until = now + pause;
        pause
    }
}

/// Number of usable slots at this time after the circuit closed.
fn grown_slots(after: Duration) -> usize {
    1 << after.as_secs().min(30)
}

pub(super) mod hosts;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod tests;
