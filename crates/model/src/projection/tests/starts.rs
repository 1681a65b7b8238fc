//! Starts of waiting tasks before their time.

use super::*;
use crate::outbox::TimerKind;
use crate::projection::audit::AuditEntry;
use crate::task::patch::Patch;
use crate::task::start::NextStart;

/// Request to start a task at a time.
fn started(task: &str, next: NextStart, at_ms: i64) -> Event {
    event(Payload::Patched { patch: Some(Box::new(Patch::start(next, at_ms))) }, task)
}

fn next(run: u32, attempts: u32, waits: u32) -> NextStart {
    NextStart { run, attempts, waits }
}

/// Failed attempt whose task waits in the worker.
fn waiting_in_worker(attempt: u32, due_ms: i64) -> Event {
    let mut event = Event { attempt, ..event(Kind::Retrying, "a") };
    event.payload.set_due(due_ms);
    event
}

#[test]
fn start_makes_a_waiting_retry_due() {
    for (wait, timer) in [(retrying("a", 2, 900), Some(TimerKind::Release)), (waiting_in_worker(2, 900), None)] {
        let log = [submitted("a"), wait, started("a", next(1, 2, 0), 50)];
        let projected = fold_log(&log, 1, 9);
        let task = projected.task("a");
        assert_eq!((task.own, task.times.due_ms), (State::Retrying, Some(50)), "{timer:?}");
        assert_eq!(task.timer().map(|timer| (timer.due_ms, timer.kind)), timer.map(|kind| (50, kind)));
        assert!(!task.definition.patched && !task.history.entries[2].ignored);
        let audited = projected.requests.iter().filter_map(|bytes| AuditEntry::decode(bytes));
        assert_eq!(audited.map(|entry| entry.action).collect::<Vec<_>>(), ["start"]);
    }
}

#[test]
fn repeated_start_changes_nothing_and_never_delays() {
    let mut log = vec![submitted("a"), retrying("a", 2, 900), started("a", next(1, 2, 0), 50)];
    log.push(started("a", next(1, 2, 0), 80));
    assert_eq!(fold_log(&log, 1, 9).task("a").times.due_ms, Some(50));
    let early = [submitted("a"), retrying("a", 2, 30), started("a", next(1, 2, 0), 50)];
    assert_eq!(fold_log(&early, 1, 9).task("a").times.due_ms, Some(30), "it has been due before");
}

#[test]
fn start_of_one_wait_does_not_shorten_another() {
    let released = Event { attempt: 2, ..event(Kind::Released, "a") };
    let log = [submitted("a"), retrying("a", 2, 900), released, retrying("a", 3, 990)];
    for other in [next(1, 2, 0), next(1, 4, 0), next(1, 3, 1), next(2, 3, 0)] {
        let mut log = log.to_vec();
        log.push(started("a", other, 50));
        let task = fold_log(&log, 1, 9).task("a");
        assert_eq!((task.times.due_ms, task.history.entries[4].ignored), (Some(990), true), "{other:?}");
    }
}

#[test]
fn start_moves_the_start_of_a_scheduled_task() {
    let log = [deferred("a", 700), started("a", next(1, 0, 0), 50)];
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!((task.own, task.timer().map(|timer| timer.due_ms)), (State::Scheduled, Some(50)));
    assert_eq!(task.definition.policy.and_then(|policy| policy.not_before_ms), Some(50));
}

#[test]
fn cancel_wins_against_a_start() {
    let wait = [submitted("a"), retrying("a", 2, 900)];
    let (cancel, start) = (event(Kind::CancelRequested, "a"), started("a", next(1, 2, 0), 50));
    let expected = fold_log(&[&wait[..], std::slice::from_ref(&cancel)].concat(), 1, 9).task("a").timer();
    assert_eq!(expected.map(|timer| timer.kind), Some(TimerKind::Cancel));
    for requests in [[cancel.clone(), start.clone()], [start, cancel]] {
        let task = fold_log(&[&wait[..], &requests[..]].concat(), 1, 9).task("a");
        assert_eq!((task.state, task.timer().map(|timer| timer.kind)), (State::Cancelling, Some(TimerKind::Cancel)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A start changes nothing but the time that is due, and never makes it later; the start of another wait changes nothing.
    #[test]
    fn start_changes_only_the_due_time(log in prop::collection::vec(any_event(), 1..40), task in 0usize..12, run in 1u32..4, attempts in 0u32..2, at_ms in 0i64..20_000) {
        let before = fold_log(&log, 7, 1_000);
        let ids: Vec<&TaskId> = before.task_records.keys().collect();
        prop_assume!(!ids.is_empty());
        let task = ids[task % ids.len()].as_str();
        let requested = next(run, attempts, 0);
        let is_meant = NextStart::of(&before.task(task)) == Ok(requested);
        let after = |last: Event| fold_log(&[&log[..], &[last]].concat(), 7, 1_000);
        let (without, with) = (after(event(Kind::Patched, task)).task(task), after(started(task, requested, at_ms)));
        recompute(&with);
        let with = with.task(task);
        prop_assert_eq!(with.history.entries.last().map(|entry| entry.ignored), Some(!is_meant));
        let mut expected = TaskRecord { history: with.history.clone(), ..without.clone() };
        if is_meant && without.own == State::Retrying {
            prop_assert!(with.times.due_ms <= Some(at_ms) && without.times.due_ms.is_none_or(|due_ms| with.times.due_ms <= Some(due_ms)));
            expected.times.due_ms = with.times.due_ms;
        }
        if is_meant && without.own == State::Scheduled {
            (expected.times.due_ms, expected.times.ready_ms) = (Some(at_ms), with.times.ready_ms);
            (expected.definition.policy, expected.definition.patched) = (with.definition.policy.clone(), true);
        }
        prop_assert_eq!(with, expected);
    }
}
