//! Retries requested by operators.

use super::*;
use crate::task::MAX_RUN;

#[test]
fn retry_starts_a_new_run_and_recovers_the_parents() {
    let again = event(Kind::RetryRequested, "r:a");
    let mut log =
        vec![submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r"), failed("r:a"), again.clone(), again];
    assert_eq!(states(&log, "r")[3..], ["failed", "waiting_for_children", "waiting_for_children"]);
    let task = fold_log(&log, 2, 9).task("r:a");
    assert_eq!((task.run, task.state, task.requests.asof, task.definition.announced), (2, State::Queued, 4, true));
    assert_eq!(task.effects.iter().map(Effect::id).collect::<Vec<_>>(), ["publish-4"]);
    assert!(task.history.entries.last().unwrap().ignored, "the second request is late");
    log.extend([effect_done("r:a", "publish-4"), in_run(event(Kind::Succeeded, "r:a"), 2)]);
    let projected = fold_log(&log, 3, 9);
    assert_eq!(
        (projected.task("r").state, projected.task("r:a").effects.len(), projected.task("r").tree.highest_run),
        (State::Succeeded, 0, 2)
    );
}

#[test]
fn pending_task_is_not_retried() {
    for log in [vec![submitted("r")], vec![submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r")]] {
        let projected = fold_log(&[log, vec![event(Kind::RetryRequested, "r")]].concat(), 1, 9);
        assert!(projected.task("r").history.entries.last().unwrap().ignored && projected.task("r").run == 1);
    }
}

#[test]
fn failed_tasks_are_retried_in_one_run_chosen_at_the_request() {
    let only = event(retry_of_failed(), "r");
    let of = |task: &str| event(retry_in_run(2), task);
    let ends =
        [submitted("r"), submitted("r:a"), submitted("r:b"), event(Kind::Succeeded, "r"), failed("r:a"), failed("r:b")];
    let log = [&ends[..], &[only, of("r:a"), of("r:b"), of("r:b")]].concat();
    let projected = fold_log(&log, 1, 9);
    assert_eq!(projected.task("r").effects[0].id(), "retry-failed-6");
    assert_eq!((projected.task("r").run, projected.task("r:a").run, projected.task("r:b").run), (1, 2, 2));
    assert_eq!(projected.task("r").tree.highest_run, 2);
}

#[test]
fn retry_after_a_cancel_runs() {
    let log = [
        submitted("a"),
        event(Kind::CancelRequested, "a"),
        event(Kind::Cancelled, "a"),
        event(Kind::RetryRequested, "a"),
    ];
    assert_eq!(states(&log, "a"), ["queued", "cancelling", "cancelled", "queued"]);
}

#[test]
fn run_beyond_the_limit_changes_nothing() {
    let in_run = |kind: Kind, run: u32| Event { run, ..event(kind, "a") };
    for beyond in [MAX_RUN + 1, u32::MAX] {
        let beyond_limit = event(retry_in_run(beyond), "a");
        let log = [
            submitted("a"),
            failed("a"),
            in_run(Kind::Failed, beyond),
            beyond_limit,
            Event { run: beyond, ..submitted("b") },
        ];
        let projected = fold_log(&log, 2, 9);
        assert_eq!(projected, fold_log(&log[..2], 2, 9), "run {beyond}");
    }
    // The last possible run ends, and no other follows.
    let log = [submitted("a"), in_run(Kind::Failed, MAX_RUN), in_run(Kind::RetryRequested, MAX_RUN)];
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!((task.run, task.state, task.effects.len()), (MAX_RUN, State::Failed, 0));
    assert!(task.history.entries.last().is_some_and(|entry| entry.kind == Kind::RetryRequested && entry.ignored));
}

/// The task had failed when the request was made, and was reported as succeeded before the request was in the log.
#[test]
fn retry_of_failed_tasks_uses_no_run_if_nothing_has_failed() {
    let only = event(retry_of_failed(), "r");
    let log = [submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r"), event(Kind::Succeeded, "r:a"), only];
    let projected = fold_log(&log, 1, 9);
    let root = projected.task("r");
    assert!(root.history.entries.last().unwrap().ignored && root.effects.is_empty(), "{root:?}");
    assert_eq!((root.run, root.tree.highest_run), (1, 1));
}

/// Workers restart neither external tasks nor tasks that were never published.
#[test]
fn retry_of_failed_tasks_uses_no_run_if_only_external_ones_have_failed() {
    let only = event(retry_of_failed(), "r");
    let broken = reported("r:x", State::Failed);
    let log = [submitted("r"), external("r:x", true), failed("r:y"), event(Kind::Succeeded, "r"), broken, only.clone()];
    let projected = fold_log(&log, 1, 9);
    let root = projected.task("r");
    assert_eq!(root.state, State::Failed);
    assert!(root.history.entries.last().unwrap().ignored && root.effects.is_empty(), "{root:?}");
    assert_eq!((root.run, root.tree.highest_run), (1, 1));
    // One task that workers run, two levels below the request, suffices.
    let deeper = [&log[..2], &[submitted("r:x:w"), failed("r:x:w")], &log[3..]].concat();
    assert_eq!(fold_log(&deeper, 1, 9).task("r").tree.highest_run, 2);
}
