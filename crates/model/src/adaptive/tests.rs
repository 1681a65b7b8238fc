use proptest::prelude::*;

use super::*;

const BOUNDS: AdaptiveBounds = AdaptiveBounds { min: 2.0, max: 100.0, target_ms: None };

fn at(limit: f64, cut: Option<f64>) -> AdaptiveLimit {
    let cut = cut.map(|limit| LastCut { limit, at_ms: 0, reason: String::new() });
    AdaptiveLimit { limit, round: 7, tick_ms: TICK_MS.0, cut, quiet: 0 }
}

/// Counts of a worker that was at its limit for all of the round.
fn busy(calls: u64, refused: u64) -> RoundCounts {
    RoundCounts {
        round: 7,
        calls,
        refused,
        call_ms: (calls - refused) * 50,
        at_limit_ms: 3_000,
        span_ms: 3_000,
        peak: 100,
    }
}

fn next(limit: &AdaptiveLimit, workers: &[RoundCounts]) -> Option<f64> {
    limit.decide(BOUNDS, workers, 0).map(|next| next.limit)
}

#[test]
fn growth_depends_on_the_last_cut() {
    let quiet = [busy(100, 0), busy(100, 0)];
    assert_eq!(next(&at(8.0, None), &quiet), Some(16.0));
    assert_eq!(next(&at(8.0, Some(40.0)), &quiet), Some(10.0));
    assert_eq!(next(&at(35.0, Some(40.0)), &quiet), Some(36.0), "not beyond 0.9 of it");
    assert_eq!(next(&at(36.0, Some(40.0)), &quiet), Some(36.0 * 1.02));
    assert_eq!(next(&at(40.0, Some(40.0)), &quiet), Some(44.0));
    let grown = AdaptiveLimit { quiet: QUIET_ROUNDS, ..at(44.0, Some(40.0)) };
    assert_eq!(next(&grown, &quiet), Some(88.0));
    assert_eq!(next(&at(80.0, None), &quiet), Some(100.0));
    assert_eq!(next(&at(100.0, None), &quiet), None, "the largest limit");
}

#[test]
fn limit_above_the_need_stays() {
    let idle = RoundCounts { at_limit_ms: 100, ..busy(100, 0) };
    assert_eq!(next(&at(8.0, None), &[idle, idle, busy(100, 0)]), None);
    assert_eq!(next(&at(8.0, None), &[idle, busy(100, 0)]), Some(16.0));
    assert_eq!(next(&at(8.0, None), &[busy(19, 0)]), None, "too few calls");
}

#[test]
fn cuts_are_as_large_as_the_share_that_was_refused() {
    assert_eq!(next(&at(40.0, None), &[busy(100, 2)]), Some(80.0));
    assert_eq!(next(&at(40.0, None), &[busy(100, 3)]), Some(38.0));
    assert_eq!(next(&at(40.0, None), &[busy(100, 25)]), Some(30.0));
    assert_eq!(next(&at(40.0, None), &[busy(100, 90)]), Some(20.0));
    assert_eq!(next(&at(2.0, None), &[busy(100, 90)]), Some(2.0));
    let unused = RoundCounts { peak: 10, ..busy(100, 20) };
    assert_eq!(next(&at(80.0, None), &[unused]), Some(8.0), "ten at once were too many");
    let captured = [busy(2_000, 0), busy(10, 3)];
    assert_eq!(next(&at(40.0, None), &captured), Some(38.0));
}

#[test]
fn slow_calls_cut_only_with_a_target() {
    let slow = RoundCounts { call_ms: 100 * 80, ..busy(100, 0) };
    assert_eq!(next(&at(40.0, None), &[slow]), Some(80.0));
    let bounds = AdaptiveBounds { target_ms: Some(60.0), ..BOUNDS };
    let cut = at(40.0, None).decide(bounds, &[slow], 5).unwrap();
    assert_eq!((cut.limit, cut.round), (30.0, 8));
    let reason = "calls took 80 ms, the target is 60 ms".to_owned();
    assert_eq!(cut.cut, Some(LastCut { limit: 40.0, at_ms: 5, reason }));
}

#[test]
fn changed_bounds_apply_at_once() {
    assert_eq!(next(&at(400.0, None), &[]), Some(100.0));
    assert_eq!(next(&at(1.0, None), &[]), Some(2.0));
}

proptest! {
    /// The limit stays within its bounds, only refusals and slow calls cut it, and counts of other rounds change nothing.
    #[test]
    fn decisions_keep_their_bounds(
        limit in 2.0..100.0f64,
        cut in prop::option::of(2.0..200.0f64),
        quiet in 0..10u32,
        workers in prop::collection::vec((0..500u64, 0..500u64, 0..4_000u64, 6..9u64, 0..50u32), 0..20),
    ) {
        let present = AdaptiveLimit { quiet, ..at(limit, cut) };
        let workers: Vec<RoundCounts> = workers
            .into_iter()
            .map(|(calls, refused, at_limit_ms, round, peak)| RoundCounts {
                round,
                at_limit_ms,
                peak,
                ..busy(calls, refused.min(calls))
            })
            .collect();
        let decided = present.decide(BOUNDS, &workers, 0);
        let own: Vec<RoundCounts> = workers.iter().copied().filter(|counts| counts.round == 7).collect();
        prop_assert_eq!(&decided, &present.decide(BOUNDS, &own, 0));
        let Some(decided) = decided else { return Ok(()) };
        prop_assert!((BOUNDS.min..=BOUNDS.max).contains(&decided.limit));
        prop_assert_eq!(decided.round, 8);
        if decided.limit < limit {
            prop_assert!(own.iter().any(|counts| counts.refused > 0), "a cut without a refusal");
        }
    }

    /// All workers together never have more slots than the limit, however the partitions are divided, and each partition has its turn.
    #[test]
    fn shares_of_all_workers_are_the_limit(
        limit in 1.0..100.0f64,
        of in 1..64u32,
        workers in 1..8usize,
        seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut owned = vec![Vec::new(); workers];
        (0..of).for_each(|partition| owned[random.usize(..workers)].push(partition));
        let share = |owned: Vec<u32>| share::ShareOf { round: 1, limit, tick_ms: TICK_MS.0, owned, of };
        let shares: Vec<_> = owned.into_iter().map(|owned| share::AdaptiveShare::new(share(owned), 0, seed >> 24)).collect();
        let (ticks, mut slot_ticks) = (u64::from(of) * 20, 0);
        for tick in 0..ticks {
            let slots = |at: u64| shares.iter().map(|share| share.slots(tick * TICK_MS.0 + at)).sum::<usize>();
            // In the middle of a tick no gained slot pauses.
            let middle = TICK_MS.0 - 1 - (seed >> 24) % TICK_MS.0;
            prop_assert!(slots(random.u64(0..TICK_MS.0)) <= limit.ceil() as usize);
            slot_ticks += slots(middle);
        }
        let mean = slot_ticks as f64 / ticks as f64;
        prop_assert!((mean - limit).abs() < 0.2, "{} slots instead of {}", mean, limit);
    }

    /// A share admits no more attempts than it has slots, and a refused one keeps its slot for the usual time.
    #[test]
    fn share_admits_no_more_than_its_slots(
        limit in 1.0..20.0f64,
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0..200u64), 1..300),
    ) {
        let of = share::ShareOf { round: 1, limit, tick_ms: TICK_MS.0, owned: vec![0], of: 1 };
        let mut own = share::AdaptiveShare::new(of, 0, 0);
        let (mut now, mut running) = (0, Vec::new());
        for (starts, is_refused, after_ms) in steps {
            now += after_ms;
            if starts && own.admits(running.len(), now) {
                prop_assert!(running.len() < own.slots(now) && own.slots(now) <= limit.ceil() as usize);
                own.attempt_started(running.len());
                running.push(now);
            } else if let Some(started) = running.pop() {
                own.attempt_ended(started, now, is_refused);
            }
            prop_assert!(own.next_due_ms(now) > now);
        }
    }
}
