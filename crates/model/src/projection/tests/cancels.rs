//! Cancels and their withdrawal.

use super::*;
use crate::outbox::{CANCEL_GRACE_MS, CancelRequest, EffectKind, TimerKind};

#[test]
fn cancel_applies_to_tasks_created_before_it() {
    let cancel = event(Kind::CancelRequested, "r");
    let later = |asof| {
        let mut event = submitted("r:late");
        event.task.as_mut().unwrap().asof = Some(asof);
        event
    };
    let log = [submitted("r"), submitted("r:a"), cancel, later(1), event(Kind::Cancelled, "r")];
    assert_eq!(states(&log, "r"), ["queued", "queued", "cancelling", "cancelling", "waiting_for_children"]);
    assert_eq!(states(&log, "r:late"), ["cancelling", "cancelling"]);
    assert_eq!(states(&[&log[..3], &[later(2)]].concat(), "r:late"), ["queued"], "created later, on purpose");
    let projected = fold_log(&log, 1, 9);
    let due = |task: &str| projected.task(task).timer().map(|timer| (timer.due_ms, timer.kind));
    assert_eq!((due("r"), due("r:late")), (None, Some((1_003 + 2_000, TimerKind::Cancel))));
    assert_eq!(projected.task("r").effects[0].id(), "cancel-2");
    // The effect requests the cancel for each descendant.
    let below = cancelled_below("r:a", 2);
    let projected = fold_log(&[&log[..], &[below.clone(), below]].concat(), 1, 9);
    assert_eq!((projected.task("r:a").state, projected.task("r:a").effects.len()), (State::Cancelling, 0));
    assert!(projected.task("r:a").history.entries.last().unwrap().ignored, "a repetition changes nothing");
}

/// A worker comes to the record of a task that the tracker has ended when its paused type is resumed.
#[test]
fn task_is_cancelled_once_although_its_worker_finds_it_later() {
    let log =
        [submitted("r"), event(Kind::CancelRequested, "r"), event(Kind::Cancelled, "r"), event(Kind::Cancelled, "r")];
    let task = fold_log(&log, 1, 9).task("r").clone();
    let kinds: Vec<Kind> = task.history.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::Submitted, Kind::CancelRequested, Kind::Cancelled]);
    assert_eq!((task.own, task.history.duplicates), (State::Cancelled, 0));
}

#[test]
fn cancel_is_withdrawn_when_all_descendants_have_ended() {
    let below = cancelled_below("r:a", 2);
    let log = [
        submitted("r"),
        submitted("r:a"),
        event(Kind::CancelRequested, "r"),
        below,
        event(Kind::Cancelled, "r"),
        event(Kind::Started, "r:a"),
        event(Kind::Cancelled, "r:a"),
    ];
    let effects = |n: usize| fold_log(&log[..n], 2, 9).task("r").effects.iter().map(Effect::id).collect::<Vec<_>>();
    assert_eq!(
        (effects(6), effects(7)),
        (vec!["cancel-2".to_owned()], vec!["cancel-2".to_owned(), "uncancel-6".to_owned()])
    );
    assert_eq!(states(&log, "r").last(), Some(&"cancelled"));
    assert!(fold_log(&log[..6], 1, 9).task("r:a").timer().is_none(), "the worker is responsible for it");
}

#[test]
fn withdrawn_cancel_is_published_again_for_a_late_descendant() {
    let done = |effect: &str| effect_done("r", effect);
    let end = |run| in_run(event(Kind::Succeeded, "r"), run);
    let withdrawn = [
        submitted("r"),
        event(Kind::CancelRequested, "r"),
        event(Kind::Cancelled, "r"),
        done("cancel-1"),
        done("uncancel-2"),
    ];
    let late = [&withdrawn[..], &[submitted("r:late")]].concat();
    assert_eq!((effects_of(&withdrawn, "r"), effects_of(&late, "r")), (String::new(), "cancel-5".to_owned()));
    let ended = [&late[..], &[event(Kind::Cancelled, "r:late")]].concat();
    assert_eq!(effects_of(&ended, "r"), "cancel-5 uncancel-6");
    // One that a later run has superseded leaves the state of its parent as it is.
    let superseded =
        [&withdrawn[..], &[event(Kind::RetryRequested, "r"), done("publish-5"), end(2), submitted("r:late")]].concat();
    assert_eq!(states(&superseded, "r:late"), ["cancelling"]);
    assert_eq!((states(&superseded, "r")[8], &*effects_of(&superseded, "r")), ("succeeded", "cancel-8 uncancel-8"));
}

/// No worker has it, and the cancel has ended it.
#[test]
fn withdrawn_cancel_is_not_published_for_an_external_descendant() {
    let done = |effect: &str| effect_done("r", effect);
    let log = [
        submitted("r"),
        event(Kind::CancelRequested, "r"),
        event(Kind::Cancelled, "r"),
        done("cancel-1"),
        done("uncancel-2"),
        external("r:x", true),
    ];
    assert_eq!((states(&log, "r:x"), effects_of(&log, "r")), (vec!["cancelled"], String::new()));
}

#[test]
fn later_cancel_is_not_withdrawn_with_an_earlier_one() {
    let cancel = event(Kind::CancelRequested, "a");
    let again = event(Kind::RetryRequested, "a");
    let log = [
        submitted("a"),
        cancel.clone(),
        event(Kind::Cancelled, "a"),
        again,
        cancel,
        in_run(event(Kind::Cancelled, "a"), 2),
    ];
    let effects =
        |n: usize| fold_log(&log[..n], 2, 9).task("a").effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ");
    assert_eq!(effects(4), "cancel-1 publish-3 uncancel-2", "the retry does not wait for the withdrawal");
    assert_eq!(effects(5), "publish-3 cancel-4", "the later cancel covers the first one");
    assert_eq!(effects(6), "publish-3 cancel-4 uncancel-5");
}

fn effects_of(log: &[Event], task: &str) -> String {
    fold_log(log, 2, 9).task(task).effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ")
}

fn known_of(mut event: Event, asof: i64) -> Event {
    event.task.as_mut().unwrap().asof = Some(asof);
    event
}

#[test]
fn second_cancel_covers_tasks_exempt_from_the_first() {
    let cancel = event(Kind::CancelRequested, "r");
    let start = [submitted("r"), submitted("r:a"), cancel.clone()];
    let again = [&start[..], std::slice::from_ref(&cancel)].concat();
    assert_eq!(effects_of(&again, "r"), "cancel-2", "no task is exempt from the first cancel");
    assert!(fold_log(&again, 1, 9).task("r").history.entries.last().unwrap().ignored);
    // Tasks added on purpose or retried, and continuations of ended tasks.
    let follower = with_policy(
        "r:a",
        Policy {
            rules: Rules {
                then: vec![Continuation::new("after", serde_json::json!(1)).on(On::Ended)],
                ..Rules::default()
            },
            ..Policy::default()
        },
    );
    let ended = event(Kind::Cancelled, "r:a");
    let cases = [
        (start.to_vec(), vec![known_of(submitted("r:late"), 2)], "r:late"),
        (start.to_vec(), vec![ended.clone(), event(Kind::RetryRequested, "r:a")], "r:a"),
        (vec![submitted("r"), follower, cancel.clone()], vec![ended], "r:a:then"),
    ];
    for (start, later, goes_on) in cases {
        let offset = (start.len() + later.len()) as i64;
        let below = cancelled_below(goes_on, offset);
        let log = [&start[..], &later, &[cancel.clone(), below, cancel.clone()]].concat();
        let projected = fold_log(&log[..log.len() - 1], 2, 9);
        assert_eq!(projected.task(goes_on).state, State::Cancelling, "{goes_on}");
        assert_eq!(
            projected.task("r").effects.iter().map(Effect::id).next_back(),
            Some(format!("cancel-{offset}")),
            "{goes_on}"
        );
        assert!(
            !projected.task("r").effects.iter().any(|effect| effect.id() == "cancel-2"),
            "the later cancel replaces the first"
        );
        assert!(
            fold_log(&log, 1, 9).task("r").history.entries.last().unwrap().ignored,
            "{goes_on}: a third cancel is redundant"
        );
    }
}

#[test]
fn cancel_of_a_single_task_can_be_widened_but_not_narrowed() {
    let wide = event(Kind::CancelRequested, "r");
    let scope = CancelScope { subtree: false, ..CancelScope::default() };
    let narrow = event(Payload::CancelRequested(scope), "r");
    let log = [submitted("r"), external("r:x", true), narrow.clone(), wide, narrow];
    assert_eq!(effects_of(&log[..3], "r"), "cancel-2");
    assert_eq!(effects_of(&log, "r"), "cancel-3");
    let cancel = *fold_log(&log, 1, 9).task("r").requests.cancel.unwrap();
    assert_eq!((cancel.asof, cancel.subtree), (3, true));
}

/// The API publishes the cancel to the workers before its request is projected.
#[test]
fn late_cancel_is_withdrawn_too() {
    let cancel = event(Kind::CancelRequested, "a");
    let log = [submitted("a"), event(Kind::Succeeded, "a"), cancel.clone(), cancel];
    let projected = fold_log(&log, 1, 9);
    let effects = projected.task("a").effects;
    assert_eq!(
        effects,
        [Effect { cause: 3, kind: EffectKind::WithdrawCancel { due_ms: 1_003 + CANCEL_GRACE_MS } }],
        "after the last one"
    );
    assert_eq!(projected.task("a").state, State::Succeeded);
}

#[test]
fn external_task_is_cancelled_at_once_and_an_ended_task_never() {
    let log = [external("x", true), event(Kind::CancelRequested, "x"), event(Kind::CancelRequested, "x")];
    assert_eq!(states(&log, "x"), ["queued", "cancelled", "cancelled"]);
    let projected = fold_log(&[submitted("a"), event(Kind::Succeeded, "a"), event(Kind::CancelRequested, "a")], 1, 9);
    assert!(projected.task("a").history.entries[2].ignored && projected.task("a").requests.cancel.is_none());
}

fn asked_by(task: &str, by: &str, reason: &str) -> Event {
    Event { by: Some(by.into()), message: Some(reason.into()), ..event(Kind::CancelRequested, task) }
}

/// The record of a cancelled child names the requested ancestor, the requester and the reason: for an existing child, for
/// one that appears later, and for an external one, which ends at once.
#[test]
fn cancelled_child_records_ancestor_requester_and_reason() {
    let scope = CancelScope { with: Some(id("r")), asof: Some(3), subtree: true };
    let payload = Payload::CancelRequested(scope);
    let below = |task: &str| Event { payload: payload.clone(), ..asked_by(task, "ann", "too dear") };
    let start = [submitted("r"), submitted("r:a"), external("r:x", true), asked_by("r", "ann", "too dear")];
    let log = [&start[..], &[below("r:a"), below("r:x"), submitted("r:late"), external("r:later", true)]].concat();
    let projected = fold_log(&log, 3, 9);
    for task in ["r:a", "r:x", "r:late", "r:later"] {
        let task_record = projected.task(task);
        let entry = task_record.history.entries.iter().find(|entry| entry.kind == Kind::CancelRequested).unwrap();
        let shown = (entry.message.as_deref(), entry.by.as_deref());
        assert_eq!(shown, (Some("with `r`: too dear"), Some("ann")), "{task}");
        let message = task_record.requests.cancel.unwrap().request.message("");
        assert_eq!(message, "Job was cancelled. With `r`: too dear", "{task}");
        let error = task_record.outcome.error.map(|error| error.message);
        assert_eq!(error, task.starts_with("r:x").then_some(message.clone()).or(error.clone()), "{task}");
    }
    let error = |task: &str| projected.task(task).outcome.error.unwrap().message;
    assert_eq!([error("r:x"), error("r:later")], ["Job was cancelled. With `r`: too dear"; 2].map(str::to_owned));
    let named = projected.task("r");
    assert_eq!(named.history.entries.last().unwrap().message.as_deref(), Some("too dear"));
    assert_eq!(named.requests.cancel.unwrap().request.message(""), "Job was cancelled. On request: too dear");
}

#[test]
fn long_reason_is_cut_for_tasks_below() {
    let request = CancelRequest { reason: Some("x".repeat(2_000).into()), ..CancelRequest::default() };
    let below = request.below("r");
    assert_eq!((below.reason.unwrap().len(), below.with.as_deref()), (256, Some("r")));
}

/// The tracker ends a cancelled task that is not announced; if it is announced later, the cancel applies to it.
#[test]
fn cancel_of_an_expected_task_ends_it_and_applies_when_it_is_announced() {
    let log =
        [submitted("r:a"), event(Kind::Succeeded, "r:a"), asked_by("r", "ann", "no"), event(Kind::Cancelled, "r")];
    assert_eq!(states(&log, "r"), ["expected", "expected", "cancelling", "cancelled"]);
    let projected = fold_log(&log[..3], 1, 9);
    assert_eq!(
        projected.task("r").timer().map(|timer| (timer.due_ms, timer.kind)),
        Some((1_002 + CANCEL_GRACE_MS, TimerKind::Cancel))
    );
    let announced = [&log[..], &[submitted("r")]].concat();
    assert_eq!(states(&announced, "r").last(), Some(&"cancelling"));
    let task = fold_log(&announced, 1, 9).task("r");
    let timer = task.timer().map(|timer| (timer.due_ms, timer.kind));
    assert!(task.definition.announced);
    assert_eq!(timer, Some((1_004 + CANCEL_GRACE_MS, TimerKind::Cancel)), "the tracker waits for the workers anew");
    assert!(
        effects_of(&announced, "r").contains("cancel-4"),
        "the cancel is published again: {}",
        effects_of(&announced, "r")
    );
    let ended = [&announced[..], &[event(Kind::Cancelled, "r")]].concat();
    assert_eq!(states(&ended, "r").last(), Some(&"cancelled"));
    let again = [&ended[..], &[event(Kind::Cancelled, "r"), submitted("r")]].concat();
    assert_eq!(states(&again, "r").last(), Some(&"cancelled"), "it was announced and has ended");
    // A task created later on purpose runs, and so does one whose worker was quicker.
    let on_purpose = [&log[..], &[known_of(submitted("r"), 3)]].concat();
    assert_eq!(states(&on_purpose, "r").last(), Some(&"queued"));
    let quick = [&log[..], &[Event { payload: Kind::Succeeded.into(), ..submitted("r") }]].concat();
    assert_eq!(states(&quick, "r").last(), Some(&"succeeded"));
}
