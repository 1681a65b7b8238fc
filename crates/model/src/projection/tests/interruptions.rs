//! Attempts that end without an outcome.

use super::*;
use crate::event::InterruptionReason;

fn of_worker(payload: impl Into<Payload>, worker: &str, attempt: u32, at_ms: i64) -> Event {
    Event { at_ms, attempt, worker: Some(worker.into()), ..event(payload, "a") }
}

fn started(worker: &str, at_ms: i64) -> Event {
    of_worker(Kind::Started, worker, 1, at_ms)
}

fn interrupted(worker: &str, attempt: u32, at_ms: i64) -> Event {
    let failure = AttemptFailure::new(InterruptionReason::WorkerStopped.code(), "it stopped", attempt);
    of_worker(Payload::Interrupted(failure), worker, attempt, at_ms)
}

fn entries(task: &TaskRecord) -> Vec<(Kind, Option<&str>, bool)> {
    task.history.entries.iter().map(|entry| (entry.kind, entry.error_kind.as_deref(), entry.ignored)).collect()
}

const STOPPED: (Kind, Option<&str>, bool) = (Kind::Interrupted, Some("worker_stopped"), false);

#[test]
fn interrupted_task_is_queued_until_it_starts_again() {
    let log = [submitted("a"), started("w", 6), interrupted("w", 1, 7), started("x", 8)];
    let task = fold_log(&log[..3], 1, 9).task("a");
    assert_eq!((task.own, task.attempt, task.history.interruptions), (State::Queued, 1, 1));
    assert_eq!(task.outcome.error, None, "an interruption is no failure");
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!((task.own, task.worker.as_deref(), task.history.interruptions), (State::Running, Some("x"), 1));
    let (submitted, started) = ((Kind::Submitted, None, false), (Kind::Started, None, false));
    assert_eq!(entries(&task), [submitted, started, STOPPED, started]);
}

#[test]
fn start_in_another_worker_shows_the_interruption_that_none_has_reported() {
    let late = interrupted("w", 1, 9);
    let task = fold_log(&[submitted("a"), started("w", 6), started("x", 8), late], 1, 9).task("a");
    assert_eq!((task.own, task.history.interruptions), (State::Running, 1), "the late report is not counted again");
    let lost = (Kind::Interrupted, Some("worker_lost"), false);
    let late = (Kind::Interrupted, Some("worker_stopped"), true);
    assert_eq!(entries(&task)[2..], [lost, (Kind::Started, None, false), late]);
    assert_eq!(task.history.entries[2].worker.as_deref(), Some("w"));
}

#[test]
fn interruption_of_an_ended_task_or_another_attempt_changes_nothing() {
    let ended = of_worker(Kind::Succeeded, "w", 1, 7);
    for log in [
        [submitted("a"), started("w", 6), ended, interrupted("w", 1, 8)],
        [submitted("a"), started("w", 6), interrupted("w", 2, 7), interrupted("x", 1, 8)],
    ] {
        let before = fold_log(&log[..3], 1, 9).task("a");
        let after = fold_log(&log, 1, 9).task("a");
        assert_eq!((before.own, before.history.interruptions), (after.own, 0));
        assert!(after.history.entries.last().unwrap().ignored);
    }
}

#[test]
fn task_that_waits_at_a_stopped_worker_is_held_by_none() {
    let failure = AttemptFailure::new("error", "broken", 1);
    let retrying = Payload::Retrying { failure, due_ms: Some(90), record: None, waits: 0 };
    let log = [submitted("a"), of_worker(retrying, "w", 1, 7), interrupted("w", 1, 8)];
    assert!(fold_log(&log[..2], 1, 9).task("a").is_held());
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!((task.own, task.is_held(), task.history.interruptions), (State::Retrying, false, 0));
    assert_eq!(task.times.due_ms, Some(90), "the next attempt is still due");
}

#[test]
fn interruptions_are_counted_within_a_run() {
    let request = event(Kind::RetryRequested, "a");
    let failed = Event { worker: Some("w".into()), attempt: 1, ..failed("a") };
    let again = in_run(submitted("a"), 2);
    let log = [submitted("a"), started("w", 6), interrupted("w", 1, 7), started("w", 8), failed, request, again];
    assert_eq!(fold_log(&log[..5], 1, 9).task("a").history.interruptions, 1);
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!((task.run, task.history.interruptions), (2, 0));
}
