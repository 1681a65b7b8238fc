//! Continuations of a task that has ended.

use super::*;
use crate::record::rollup::children_of;

fn followed(task: &str, then: Vec<Continuation>) -> Event {
    with_policy(task, Policy { rules: Rules { then, ..Rules::default() }, ..Policy::default() })
}

fn then(on: On) -> Continuation {
    Continuation::new("after", serde_json::json!(1)).on(on)
}

fn effects(projected: &ProjectedStore, task: &str) -> String {
    projected.task(task).effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ")
}

/// A task with the continuation's id has run before.
#[test]
fn outcome_reported_before_the_continuation_is_created_stays() {
    let log = [followed("r", vec![then(On::Ended)]), event(Kind::Succeeded, "r:then"), event(Kind::Succeeded, "r")];
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task("r:then").state, projected.task("r").state), (State::Succeeded, State::Succeeded));
    assert_eq!(effects(&projected, "r:then"), "", "the continuation does not run again");
}

#[test]
fn continuation_exists_before_its_task_appears_finished() {
    let log = [
        submitted("r"),
        followed("r:m", vec![then(On::Succeeded)]),
        submitted("r:m:a"),
        event(Kind::Succeeded, "r"),
        event(Kind::Succeeded, "r:m"),
        event(Kind::Succeeded, "r:m:a"),
        event(Kind::Succeeded, "r:m:then"),
    ];
    let wait = "waiting_for_children";
    assert_eq!(states(&log, "r:m"), ["queued", "queued", "queued", wait, wait, "succeeded"]);
    assert_eq!(states(&log, "r")[3..], [wait, wait, wait, "succeeded"]);
    assert_eq!(states(&log, "r:m:then"), ["queued", "succeeded"]);
    let projected = fold_log(&log[..6], 2, 9);
    let created = projected.task("r:m:then");
    assert_eq!(
        (created.task_type.as_deref(), created.run, created.requests.asof, created.definition.announced),
        (Some("after"), 1, 5, true)
    );
    assert_eq!(effects(&projected, "r:m:then"), "follow-5");
    assert_eq!(children_of(&projected.task("r").tree.below).2.total(), 3);
    assert!(projected.task("r").times.ended_at_ms.is_none() && projected.task("r:m").times.ended_at_ms.is_none());
}

#[test]
fn each_outcome_starts_its_continuations() {
    let all = vec![then(On::Succeeded), then(On::Failed), then(On::Ended)];
    let created = |last: Event| {
        let projected = fold_log(&[followed("r", all.clone()), last], 1, 9);
        ["r:then", "r:then-2", "r:then-3"].map(|task| projected.task_records.contains_key(&id(task)))
    };
    assert_eq!(created(event(Kind::Succeeded, "r")), [true, false, true]);
    assert_eq!(created(failed("r")), [false, true, true]);
    assert_eq!(created(event(Kind::Expired, "r")), [false, true, true]);
    assert_eq!(created(event(Kind::Cancelled, "r")), [false, false, true]);
}

#[test]
fn regular_children_decide_and_continuations_do_not() {
    let log = [
        followed("r", vec![then(On::Ended), then(On::Failed)]),
        submitted("r:a"),
        event(Kind::Succeeded, "r"),
        event(Kind::Succeeded, "r:a"),
        failed("r:then"),
    ];
    let projected = fold_log(&log, 1, 9);
    assert_eq!(projected.task("r").state, State::Failed, "the parent counts it like any child");
    assert!(!projected.task_records.contains_key(&id("r:then-2")), "the task succeeded by itself");
    let tolerant = Rules { max_failed: Some(5), then: vec![then(On::Succeeded)], ..Rules::default() };
    let tolerant = with_policy("r", Policy { rules: tolerant, ..Policy::default() });
    let log = [tolerant, submitted("r:a"), failed("r:a"), event(Kind::Succeeded, "r"), failed("r:then")];
    assert_eq!(states(&log, "r")[3..], ["waiting_for_children", "failed"]);
}

#[test]
fn continuations_may_be_chained() {
    let chain = then(On::Succeeded).then(then(On::Succeeded).then(then(On::Failed)));
    let log = [
        followed("r", vec![chain]),
        event(Kind::Succeeded, "r"),
        event(Kind::Succeeded, "r:then"),
        event(Kind::Failed, "r:then:then"),
        event(Kind::Succeeded, "r:then:then:then"),
    ];
    for batch in [1, 2, 9] {
        let projected = fold_log(&log, batch, 2);
        assert_eq!((projected.task_records.len(), projected.task("r").state), (4, State::Failed));
    }
    assert_eq!(states(&log, "r")[..3], ["queued", "waiting_for_children", "waiting_for_children"]);
}

#[test]
fn retry_runs_the_continuation_again() {
    let log = [
        followed("r", vec![then(On::Ended)]),
        event(Kind::Succeeded, "r"),
        failed("r:then"),
        event(Kind::RetryRequested, "r"),
        in_run(event(Kind::Succeeded, "r"), 2),
        in_run(event(Kind::Succeeded, "r:then"), 2),
    ];
    assert_eq!(states(&log, "r")[2..], ["failed", "queued", "waiting_for_children", "succeeded"]);
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task("r:then").run, effects(&projected, "r:then").as_str()), (2, "follow-1 follow-4"));
    // A retry of the failed child recovers the task, and the continuation of its success follows.
    let log = [
        followed("r", vec![then(On::Succeeded)]),
        submitted("r:a"),
        event(Kind::Succeeded, "r"),
        failed("r:a"),
        event(Kind::RetryRequested, "r:a"),
        in_run(event(Kind::Succeeded, "r:a"), 2),
    ];
    assert_eq!(states(&log, "r").last(), Some(&"waiting_for_children"));
    assert_eq!(fold_log(&log, 1, 9).task("r:then").state, State::Queued);
}

#[test]
fn cancel_that_ended_the_task_does_not_apply_to_its_continuation() {
    let log = [followed("r", vec![then(On::Ended)]), event(Kind::CancelRequested, "r"), event(Kind::Cancelled, "r")];
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task("r:then").state, projected.task("r").state), (State::Queued, State::WaitingForChildren));
}

#[test]
fn late_policy_starts_due_continuations() {
    let log = [event(Kind::Succeeded, "r"), followed("r", vec![then(On::Succeeded)])];
    assert_eq!(states(&log, "r"), ["succeeded", "waiting_for_children"]);
}

#[test]
fn handler_adds_continuations() {
    let mut started = followed("r", vec![then(On::Failed)]);
    started.payload = Payload::Started { then: vec![then(On::Succeeded)] };
    let log = [started, event(Kind::Succeeded, "r")];
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task_records.len(), projected.task("r:then-2").state), (2, State::Queued));
    // The handler decides again in the next run.
    let again = [&log[..], &[event(Kind::Succeeded, "r:then-2"), event(Kind::RetryRequested, "r")]].concat();
    let projected = fold_log(&[&again[..], &[in_run(event(Kind::Succeeded, "r"), 2)]].concat(), 2, 3);
    assert_eq!((projected.task("r").state, projected.task("r:then-2").run), (State::Succeeded, 1));
}

#[test]
fn continuation_of_a_previously_ended_continuation_is_created() {
    let chain = then(On::Succeeded).then(then(On::Succeeded));
    let log = [event(Kind::Succeeded, "a:then"), followed("a", vec![chain]), event(Kind::Succeeded, "a")];
    for batch in 1..4 {
        let projected = fold_log(&log, batch, 0);
        assert_eq!(projected.task("a:then").own, State::Succeeded);
        assert_eq!(projected.task("a:then:then").own, State::Queued, "in batches of {batch}");
        assert_eq!(projected.task("a").state, State::WaitingForChildren);
        recompute(&projected);
    }
}

#[test]
fn expired_task_waits_for_its_continuation() {
    let mut working_set = WorkingSet::default();
    working_set.load(id("r"), None);
    let position = LogPosition { offset: 1, log_time_ms: 1_000 };
    working_set.fold(&followed("r", vec![then(On::Ended)]), position).unwrap();
    for missing in working_set.missing_records() {
        working_set.load(missing, None);
    }
    let due_ms = working_set.task("r").unwrap().times.expiry.unwrap().due_ms;
    working_set.expire(&id("r"), LogPosition { offset: 2, log_time_ms: due_ms });
    let state = |task| working_set.task(task).map(|task_record| task_record.state);
    assert_eq!(working_set.task("r").unwrap().own, State::Expired);
    assert_eq!((state("r"), state("r:then")), (Some(State::WaitingForChildren), Some(State::Queued)));
}

/// Doors refuse such a task; another writer of events may still announce one.
#[test]
fn task_fails_whose_continuation_can_have_no_id() {
    let deepest = vec!["r"; 64].join(":");
    let log = [followed(&deepest, vec![then(On::Succeeded)]), event(Kind::Succeeded, &deepest)];
    let projected = fold_log(&log, 1, 9);
    let task = projected.task(&deepest);
    let error = task.outcome.error.as_deref().unwrap();
    assert_eq!((task.own, task.state, error.kind.as_str()), (State::Failed, State::Failed, "bad_then"));
    assert!(error.message.contains("the continuation 1 has no valid id: the id has 65 levels"), "{}", error.message);
    assert_eq!(task.history.entries.last().map(|entry| entry.kind), Some(Kind::Failed));
    let log = [followed(&deepest, vec![then(On::Ended)]), event(Kind::Cancelled, &deepest)];
    assert_eq!(fold_log(&log, 1, 9).task(&deepest).own, State::Cancelled, "it did not end as succeeded");
}
