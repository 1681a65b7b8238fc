use proptest::prelude::*;

use super::*;

const BAD: Outcome = Outcome::Bad(None);
const STEP: Duration = Duration::from_millis(10);

/// A circuit with its clock.
struct Fixture {
    circuit: Circuit,
    now: Instant,
}

impl Fixture {
    fn new(slots: usize) -> Self {
        let mut circuit = Circuit::new();
        circuit.set_slots(slots);
        Self { circuit, now: Instant::now() }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Runs an attempt, if one is admitted.
    fn attempt(&mut self, outcome: Outcome) -> Option<Option<CircuitChange>> {
        if !self.circuit.admits(self.now, 0) {
            return None;
        }
        let started_at = self.now;
        self.circuit.attempt_started(started_at);
        self.pass(STEP);
        Some(self.circuit.attempt_ended(started_at, self.now, outcome, 0.5))
    }

    /// Number of bad attempts after which the circuit opens.
    fn open(&mut self) -> usize {
        (1..=1_000).find(|_| self.attempt(BAD) == Some(Some(CircuitChange::Opened))).expect("it opens")
    }

    fn wait_for_probe(&mut self) {
        self.now = self.circuit.next_due(self.now).expect("a pause");
    }
}

#[test]
fn number_of_failures_that_opens_depends_on_the_slots() {
    for (slots, needed) in [(1, 5), (2, 5), (4, 8), (10, 20), (1_000, 20)] {
        assert_eq!(Fixture::new(slots).open(), needed, "{slots} slots");
    }
}

#[test]
fn half_of_the_recent_attempts_must_be_bad() {
    let mut fixture = Fixture::new(100);
    for n in 0..1_000 {
        assert_eq!(fixture.attempt(if n % 5 < 2 { BAD } else { Outcome::Good }), Some(None), "{n}");
    }
    // 20 of the last 50 are bad; each further one replaces an older one.
    assert!((1..=10).contains(&fixture.open()));
}

#[test]
fn old_and_unknown_outcomes_do_not_count() {
    let mut fixture = Fixture::new(1);
    for _ in 0..4 {
        assert_eq!(fixture.attempt(BAD), Some(None));
        assert_eq!(fixture.attempt(Outcome::Unknown), Some(None));
    }
    fixture.pass(MAX_AGE + STEP);
    assert_eq!(fixture.attempt(BAD), Some(None));
    assert_eq!(fixture.open(), 4);
}

#[test]
fn three_good_probes_close_the_circuit() {
    let mut fixture = Fixture::new(4);
    fixture.open();
    assert!(fixture.circuit.is_open() && fixture.circuit.makes_waits());
    assert_eq!(fixture.attempt(BAD), None, "nothing starts during the pause");
    fixture.wait_for_probe();
    for change in [None, None, Some(CircuitChange::Closed)] {
        assert!(fixture.circuit.is_open());
        assert_eq!(fixture.attempt(Outcome::Good), Some(change));
    }
    assert!(!fixture.circuit.is_open() && fixture.circuit.makes_waits());
    for (running, second, admitted) in [(0, 0, true), (1, 0, false), (1, 1, true), (2, 1, false), (3, 2, true)] {
        let now = fixture.now + Duration::from_secs(second);
        assert_eq!(fixture.circuit.admits(now, running), admitted, "{running} running after {second} s");
    }
    assert!(!fixture.circuit.makes_waits(), "all slots are open again");
}

#[test]
fn one_probe_runs_at_a_time() {
    let mut fixture = Fixture::new(4);
    let before = fixture.now;
    fixture.open();
    fixture.wait_for_probe();
    let now = fixture.now;
    assert!(fixture.circuit.admits(now, 3));
    fixture.circuit.attempt_started(now);
    assert!(!fixture.circuit.admits(now, 4));
    // An attempt from before the outage proves nothing.
    assert_eq!(fixture.circuit.attempt_ended(before, now, BAD, 0.5), None);
    assert!(!fixture.circuit.admits(now, 3));
    assert_eq!(fixture.circuit.attempt_ended(now, now, Outcome::Unknown, 0.5), None);
    assert!(fixture.circuit.admits(now, 3), "a cancelled probe is replaced");
}

/// A probe that hangs, or is long, must not keep the circuit open long after the service is back.
#[test]
fn probe_that_lasts_holds_back_the_next_one_for_the_longest_pause() {
    let mut fixture = Fixture::new(4);
    fixture.open();
    fixture.wait_for_probe();
    let first = fixture.now;
    assert!(fixture.circuit.admits(first, 0));
    fixture.circuit.attempt_started(first);
    fixture.pass(MAX_PAUSE - STEP);
    assert!(!fixture.circuit.admits(fixture.now, 1));
    fixture.wait_for_probe();
    assert_eq!(fixture.now, first + MAX_PAUSE);
    assert!(fixture.circuit.admits(fixture.now, 1));
    assert_eq!(fixture.circuit.next_due(fixture.now), None, "the next task is started when it comes");
    let second = fixture.now;
    fixture.circuit.attempt_started(second);
    assert!(!fixture.circuit.admits(second, 2));
    // The first probe counts, and the second one still runs.
    assert_eq!(fixture.circuit.attempt_ended(first, second, Outcome::Good, 0.5), None);
    assert!(!fixture.circuit.admits(second, 1));
    assert_eq!(fixture.circuit.attempt_ended(second, second, Outcome::Good, 0.5), None);
    assert_eq!(fixture.attempt(Outcome::Good), Some(Some(CircuitChange::Closed)));
}

#[test]
fn pauses_grow_with_the_outage() {
    let mut fixture = Fixture::new(1);
    fixture.open();
    let begun = fixture.now;
    let mut pauses = Vec::new();
    while fixture.now < begun + Duration::from_secs(3_600) {
        fixture.wait_for_probe();
        let Some(Some(CircuitChange::Paused(pause))) = fixture.attempt(BAD) else { panic!("a bad probe") };
        let outage = fixture.now.duration_since(begun);
        assert!(pause <= MAX_PAUSE && pause <= (outage / PAUSE_PART).max(FIRST_PAUSE), "{pause:?} after {outage:?}");
        pauses.push(pause);
    }
    assert!(pauses.is_sorted());
    assert_eq!(pauses.last(), Some(&MAX_PAUSE));
    assert!(pauses.len() < 250, "{} probes in an hour", pauses.len());
}

#[test]
fn service_may_request_a_pause() {
    let mut fixture = Fixture::new(1);
    fixture.open();
    for (requested, pause) in [(0, 1), (40, 40), (4_000, 300)] {
        fixture.wait_for_probe();
        let outcome = Outcome::Bad(Some(Duration::from_secs(requested)));
        assert_eq!(fixture.attempt(outcome), Some(Some(CircuitChange::Paused(Duration::from_secs(pause)))));
    }
}

#[test]
fn operator_sets_the_state() {
    let mut fixture = Fixture::new(1);
    fixture.circuit.force(Some(ForcedCircuit::Open), fixture.now);
    assert_eq!(fixture.attempt(Outcome::Good), None);
    assert!(fixture.circuit.is_open() && fixture.circuit.next_due(fixture.now).is_none());
    fixture.circuit.force(Some(ForcedCircuit::Closed), fixture.now);
    for _ in 0..100 {
        assert_eq!(fixture.attempt(BAD), Some(None));
    }
    assert!(!fixture.circuit.makes_waits());
    fixture.circuit.force(None, fixture.now);
    assert_eq!(fixture.open(), 5, "it counts from zero");
}

#[test]
fn released_circuit_grows_from_one_slot() {
    let mut fixture = Fixture::new(4);
    fixture.circuit.force(Some(ForcedCircuit::Open), fixture.now);
    fixture.circuit.force(None, fixture.now);
    assert!(!fixture.circuit.is_open());
    assert!(fixture.circuit.admits(fixture.now, 0) && !fixture.circuit.admits(fixture.now, 1));
}

#[test]
fn jitter_changes_a_pause_by_a_fifth() {
    for (jitter, pause_ms) in [(0.0, 800), (0.5, 1_000), (1.0, 1_200)] {
        let mut outage = Outage { since: Instant::now(), pauses: 0, until: Instant::now() };
        assert_eq!(outage.pause(Instant::now(), None, jitter), Duration::from_millis(pause_ms));
    }
}

proptest! {
    /// A closed circuit opens exactly when half of the recent attempts are bad, and there are enough of them.
    #[test]
    fn circuit_opens_by_the_rule(
        slots in 1..100usize,
        attempts in prop::collection::vec((any::<bool>(), 0..40_000u64), 1..300),
    ) {
        let mut fixture = Fixture::new(slots);
        let mut ended = Vec::new();
        for (is_bad, after_ms) in attempts {
            fixture.pass(Duration::from_millis(after_ms));
            let change = fixture.attempt(if is_bad { BAD } else { Outcome::Good });
            ended.push((fixture.now, is_bad));
            let young = |(at, _): &&(Instant, bool)| fixture.now.duration_since(*at) <= MAX_AGE;
            let recent: Vec<_> = ended.iter().rev().take(MAX_SAMPLES).filter(young).collect();
            let bad = recent.iter().filter(|(_, is_bad)| *is_bad).count();
            let enough = recent.len() >= (2 * slots).clamp(MIN_SAMPLES, ENOUGH_SAMPLES);
            let opens = is_bad && enough && 2 * bad >= recent.len();
            prop_assert_eq!(change, Some(opens.then_some(CircuitChange::Opened)));
            if opens {
                break;
            }
        }
    }

    /// While the circuit is open nothing starts during a pause, and never more than one probe runs.
    #[test]
    fn open_circuit_admits_single_probes(
        slots in 1..100usize,
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0..3_000u64), 1..300),
    ) {
        let mut fixture = Fixture::new(slots);
        fixture.open();
        let mut probe: Option<Instant> = None;
        for (starts, is_good, after_ms) in steps {
            fixture.pass(Duration::from_millis(after_ms));
            let due = fixture.circuit.next_due(fixture.now);
            if starts && fixture.circuit.admits(fixture.now, 0) {
                prop_assert!(probe.is_none() && due.is_none_or(|due| due <= fixture.now));
                fixture.circuit.attempt_started(fixture.now);
                probe = Some(fixture.now);
            } else if let Some(started_at) = probe.take() {
                let outcome = if is_good { Outcome::Good } else { BAD };
                if fixture.circuit.attempt_ended(started_at, fixture.now, outcome, 0.5) == Some(CircuitChange::Closed) {
                    return Ok(());
                }
                prop_assert!(fixture.circuit.is_open());
            }
        }
    }

    /// The circuit closes soon after the service answers, after any sequence of outcomes.
    #[test]
    fn circuit_closes_after_every_outage(
        slots in 1..100usize,
        outcomes in prop::collection::vec((0..3u8, 0..90_000u64), 0..300),
    ) {
        let mut fixture = Fixture::new(slots);
        for (outcome, after_ms) in outcomes {
            let requested = Outcome::Bad(Some(Duration::from_secs(after_ms / 1_000)));
            fixture.attempt([Outcome::Good, BAD, requested][usize::from(outcome)]);
            fixture.pass(Duration::from_millis(after_ms));
        }
        let healed = fixture.now;
        while fixture.circuit.makes_waits() {
            fixture.attempt(Outcome::Good);
            fixture.now = fixture.circuit.next_due(fixture.now).unwrap_or(fixture.now);
            prop_assert!(fixture.now < healed + MAX_REQUESTED_PAUSE + Duration::from_secs(20));
        }
        prop_assert!(fixture.circuit.admits(fixture.now, slots - 1));
    }
}
