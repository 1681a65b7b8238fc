//! Reaction of a task to failed children.

use super::*;
use crate::outbox::EffectKind;

fn failing_fast(task: &str, max_failed: Option<u32>) -> Event {
    with_policy(task, Policy { rules: Rules { fail_fast: true, max_failed, ..Rules::default() }, ..Policy::default() })
}

fn effects(projected: &ProjectedStore, task: &str) -> String {
    projected.task(task).effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ")
}

#[test]
fn first_failed_child_cancels_the_others() {
    let below = cancelled_below("r:b", 4);
    let log = [
        failing_fast("r", None),
        submitted("r:a"),
        submitted("r:b"),
        event(Kind::Succeeded, "r"),
        failed("r:a"),
        below,
        event(Kind::Cancelled, "r:b"),
    ];
    let wait = "waiting_for_children";
    assert_eq!(states(&log, "r"), ["queued", "queued", "queued", wait, wait, wait, "failed"]);
    assert_eq!(effects(&fold_log(&log[..5], 2, 9), "r"), "cancel-4");
    assert_eq!(states(&log, "r:b").last(), Some(&"cancelled"));
    let task = fold_log(&log, 3, 9).task("r");
    let error = task.outcome.error.unwrap();
    assert_eq!(error.kind, "child_failed");
    assert!(error.message.starts_with("child `r:a` is failed: broken (fail_fast"), "{}", error.message);
    // A late child created before the cancel does not run; one created after it does.
    let mut late = [log[..5].to_vec(), vec![submitted("r:late"), submitted("r:later")]].concat();
    late[6].task.as_mut().unwrap().asof = Some(5);
    let projected = fold_log(&late, 1, 9);
    assert_eq!((projected.task("r:late").state, projected.task("r:later").state), (State::Cancelling, State::Queued));
}

/// The tasks of a batch are published one after the other: a child may fail before its own child is published.
#[test]
fn cancel_that_a_late_descendant_inherits_from_an_ended_task_is_published() {
    let log = [
        failing_fast("r", None),
        submitted("r:a"),
        event(Kind::Succeeded, "r"),
        failed("r:a"),
        submitted("r:a:b"),
        submitted("r:a:c"),
        event(Kind::Cancelled, "r:a:b"),
        event(Kind::Cancelled, "r:a:c"),
    ];
    assert_eq!(effects(&fold_log(&log[..4], 2, 9), "r"), "", "nothing is open");
    assert_eq!(states(&log, "r:a:b"), ["cancelling", "cancelling", "cancelled", "cancelled"]);
    assert_eq!(effects(&fold_log(&log[..6], 2, 9), "r"), "cancel-4");
    let record = fold_log(&log[..6], 2, 9).task("r");
    assert_eq!(record.effects[0].kind, EffectKind::Cancel { asof: 3, subtree: true });
    assert_eq!(
        states(&log, "r")[3..],
        ["failed", "waiting_for_children", "waiting_for_children", "waiting_for_children", "failed"]
    );
    assert_eq!(effects(&fold_log(&log, 2, 9), "r"), "cancel-4 uncancel-7", "workers may still take its record");
}

#[test]
fn running_parent_is_stopped_and_fails() {
    let log = [
        failing_fast("r", None),
        event(Kind::Started, "r"),
        submitted("r:a"),
        failed("r:a"),
        event(Kind::Cancelled, "r"),
        in_run(submitted("r:a"), 2),
        in_run(event(Kind::Succeeded, "r:a"), 2),
    ];
    assert_eq!(states(&log, "r")[2..5], ["running", "cancelling", "failed"]);
    let task = fold_log(&log, 9, 9).task("r");
    assert_eq!((task.own, task.state), (State::Failed, State::Failed), "its own work was never done");
    assert!(task.outcome.error.unwrap().message.contains("`r:a`"));
    let external = with_policy(
        "x",
        Policy { rules: Rules { external: true, fail_fast: true, ..Rules::default() }, ..Policy::default() },
    );
    let projected = fold_log(&[external, submitted("x:a"), failed("x:a")], 1, 9);
    assert_eq!((projected.task("x").own, projected.task("x").state), (State::Failed, State::Failed));
}

/// The running attempt may fail too before its worker receives the cancel.
#[test]
fn parent_that_waits_for_its_retry_fails_with_its_child() {
    let failure = AttemptFailure::new("error", "broken", 1);
    let waits = event(Payload::Retrying { failure, due_ms: None, record: None, waits: 0 }, "r");
    let start = [failing_fast("r", None), event(Kind::Started, "r"), submitted("r:a")];
    for middle in [[failed("r:a"), waits.clone()], [waits.clone(), failed("r:a")]] {
        let log = [&start[..], &middle, &[event(Kind::Cancelled, "r")]].concat();
        assert_eq!(states(&log, "r")[4..], ["cancelling", "failed"]);
        let error = fold_log(&log, 2, 9).task("r").outcome.error.unwrap();
        assert_eq!((&*error.kind, error.message.contains("`r:a`")), ("child_failed", true), "{}", error.message);
    }
    // A result within the grace period counts.
    let log = [&start[..], &[failed("r:a"), waits, failed("r")]].concat();
    assert_eq!(&*fold_log(&log, 2, 9).task("r").outcome.error.unwrap().kind, "error");
}

#[test]
fn tolerated_children_may_fail() {
    let tolerant =
        with_policy("r", Policy { rules: Rules { max_failed: Some(1), ..Rules::default() }, ..Policy::default() });
    let log = [tolerant, submitted("r:a"), submitted("r:b"), failed("r:a"), event(Kind::Succeeded, "r")];
    let end = |last: Event| states(&[&log[..], &[last]].concat(), "r").last().copied();
    assert_eq!((end(event(Kind::Succeeded, "r:b")), end(failed("r:b"))), (Some("succeeded"), Some("failed")));
    assert_eq!(end(event(Kind::Cancelled, "r:b")), Some("failed"), "the worst outcome of the failed children");
    // `fail_fast` counts beyond the tolerated ones.
    let fast = [
        failing_fast("r", Some(1)),
        submitted("r:a"),
        submitted("r:b"),
        submitted("r:c"),
        failed("r:a"),
        failed("r:b"),
    ];
    assert_eq!(effects(&fold_log(&fast[..5], 1, 9), "r"), "");
    assert_eq!(effects(&fold_log(&fast, 1, 9), "r"), "cancel-5");
}

#[test]
fn fail_fast_waits_for_the_policy() {
    let log = [submitted("r:a"), submitted("r:b"), failed("r:a"), failing_fast("r", None)];
    assert_eq!(effects(&fold_log(&log[..3], 1, 9), "r"), "");
    let projected = fold_log(&log, 1, 9);
    assert_eq!((effects(&projected, "r").as_str(), projected.task("r").state), ("cancel-3", State::Cancelling));
}

#[test]
fn retry_recovers_a_task_that_failed_fast_and_may_fail_again() {
    let log = [
        failing_fast("r", None),
        submitted("r:a"),
        event(Kind::Succeeded, "r"),
        failed("r:a"),
        event(Kind::RetryRequested, "r:a"),
        in_run(event(Kind::Succeeded, "r:a"), 2),
    ];
    let task = fold_log(&log, 2, 9).task("r");
    assert_eq!((task.state, task.outcome.error), (State::Succeeded, None));
    let mut again = log.to_vec();
    again.insert(5, submitted("r:b"));
    again[5].task.as_mut().unwrap().asof = Some(4);
    again[6].payload = Kind::Failed.into();
    let projected = fold_log(&again, 2, 9);
    assert_eq!((projected.task("r").state, effects(&projected, "r").as_str()), (State::WaitingForChildren, "cancel-6"));
}

#[test]
fn requested_cancel_ends_as_cancelled() {
    let log = [
        failing_fast("r", None),
        submitted("r:a"),
        event(Kind::CancelRequested, "r"),
        failed("r:a"),
        event(Kind::Cancelled, "r"),
    ];
    let task = fold_log(&log, 2, 9).task("r");
    assert_eq!((task.own, task.effects.len()), (State::Cancelled, 2));
    let cancelled = [failing_fast("r", None), submitted("r:a"), submitted("r:b"), event(Kind::Cancelled, "r:a")];
    assert_eq!(effects(&fold_log(&cancelled, 1, 9), "r"), "", "a cancelled child does not trigger `fail_fast`");
}
