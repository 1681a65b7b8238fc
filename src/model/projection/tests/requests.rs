//! Deferred tasks, cancels and retries.

use super::*;
use crate::model::outbox::{CANCEL_GRACE_MS, CancelRequest, EffectKind, TimerKind};
use crate::model::task::MAX_RUN;

#[test]
fn scheduled_task_waits_with_its_record_until_its_release() {
    let mut scheduled = with_record(submitted("a"), 700);
    scheduled.kind = Kind::Scheduled;
    let kept = fold_log(&[scheduled.clone()], 1, 9);
    let node = kept.node("a");
    assert_eq!((node.state, node.due_ms, node.record_event_offset), (State::Scheduled, Some(700), Some(0)));
    assert_eq!(node.timer().map(|timer| (timer.due_ms, timer.what)), Some((700, TimerKind::Release)));
    assert_eq!(kept.kept[&id("a")], record().encode());
    let log = [scheduled.clone(), event(Kind::Released, "a"), scheduled.clone(), event(Kind::Started, "a"), scheduled];
    assert_eq!(states(&log, "a"), ["scheduled", "queued", "queued", "running", "running"]);
    assert!(
        fold_log(&log[..2], 2, 9).kept.is_empty(),
        "a record deferred and released within one batch is never stored"
    );
    assert!(fold_log(&log, 1, 9).kept.is_empty());
}

#[test]
fn deferred_retry_waits_until_its_release_or_the_end_of_the_task() {
    let mut retrying = with_record(failed("a"), 900);
    (retrying.kind, retrying.attempt) = (Kind::Retrying, 2);
    let ends = [Kind::Released, Kind::Succeeded, Kind::Failed, Kind::Cancelled].map(|kind| (kind, 0));
    // Late events of a worker that was cut off in its next attempt before another one deferred the record.
    let goes_on = [Kind::Started, Kind::Warned, Kind::Retrying, Kind::Scheduled, Kind::Progress, Kind::Submitted];
    for (next, kept) in ends.into_iter().chain(goes_on.map(|kind| (kind, 1))) {
        let mut next = event(next, "a");
        next.attempt = 3;
        let log = [submitted("a"), retrying.clone(), next];
        assert_eq!(fold_log(&log, 2, 9).kept.len(), kept, "{log:?}");
    }
    let kept = fold_log(&[submitted("a"), retrying, released(2)], 1, 9);
    assert_eq!((kept.node("a").attempt, kept.node("a").state), (2, State::Queued));
}

#[test]
fn unknown_kind_does_not_defer_its_record() {
    let mut retrying = failed("a");
    (retrying.kind, retrying.attempt, retrying.due_ms) = (Kind::Retrying, 1, Some(900));
    let mut unknown = with_record(event(Kind::Unknown, "a"), 900);
    unknown.attempt = 2;
    let kept = fold_log(&[submitted("a"), retrying, unknown], 1, 9);
    assert_eq!((kept.kept.len(), kept.node("a").timer()), (0, None));
}

/// A worker that missed the acknowledgement of its events sends them again, after later events.
#[test]
fn resent_events_neither_remove_nor_restore_a_deferred_record() {
    let mut retrying = with_record(failed("a"), 900);
    (retrying.kind, retrying.attempt) = (Kind::Retrying, 2);
    for kind in [Kind::Started, Kind::Warned, Kind::Retrying] {
        let mut again = event(kind, "a");
        again.attempt = 2;
        let kept = fold_log(&[submitted("a"), retrying.clone(), again], 1, 9);
        assert_eq!((kept.kept.len(), kept.node("a").state), (1, State::Retrying), "{kind:?}");
        assert!(kept.node("a").timer().is_some_and(|timer| timer.what == TimerKind::Release), "{kind:?}");
    }
    let mut third = event(Kind::Started, "a");
    third.attempt = 3;
    let log = [submitted("a"), retrying.clone(), released(2), retrying.clone(), third, retrying];
    assert_eq!(states(&log, "a"), ["queued", "retrying", "queued", "queued", "running", "running"]);
    assert!(fold_log(&log, 1, 9).kept.is_empty());
}

fn released(attempt: u32) -> Event {
    Event { attempt, ..event(Kind::Released, "a") }
}

/// A repeated parent publishes its child again. The first copy waits for its second attempt when the other copy is
/// released, whose first attempt fails too: whichever of the two waits is released in the end.
#[test]
fn release_of_one_wait_does_not_end_another() {
    let mut scheduled = with_record(submitted("a"), 700);
    scheduled.kind = Kind::Scheduled;
    let mut retrying = with_record(failed("a"), 900);
    (retrying.kind, retrying.attempt) = (Kind::Retrying, 1);
    let log = [scheduled.clone(), released(0), scheduled, retrying.clone(), released(0), retrying, released(1)];
    let expected = ["scheduled", "queued", "queued", "retrying", "retrying", "retrying", "queued"];
    assert_eq!(states(&log, "a"), expected);
    for waits in 4..7 {
        let kept = fold_log(&log[..waits], 1, 9);
        assert_eq!(
            (kept.kept.len(), kept.node("a").timer().map(|timer| timer.what)),
            (1, Some(TimerKind::Release)),
            "{waits}"
        );
    }
    assert!(fold_log(&log, 1, 9).kept.is_empty());
}

/// A worker is killed in the second attempt. The worker that takes over counts from the beginning and defers the record
/// after a first attempt without a `started` event: it no longer has the record itself.
#[test]
fn record_deferred_after_a_takeover_is_stored() {
    let at = |kind, attempt| Event { attempt, ..event(kind, "a") };
    let handed = |attempt| Event { attempt, ..with_record(at(Kind::Retrying, attempt), 900) };
    let first = [submitted("a"), at(Kind::Started, 1), at(Kind::Retrying, 1), at(Kind::Started, 2), handed(1)];
    let second = [released(1), at(Kind::Started, 2), at(Kind::Retrying, 2), at(Kind::Started, 3), handed(2)];
    for log in [first.to_vec(), [first, second].concat()] {
        let kept = fold_log(&log, 1, 9);
        let node = kept.node("a");
        assert_eq!((kept.kept.len(), node.state, node.attempt), (1, State::Retrying, log[log.len() - 1].attempt));
        assert!(node.timer().is_some_and(|timer| timer.what == TimerKind::Release));
    }
}

/// The position before the release is no longer valid.
#[test]
fn release_without_a_position_clears_the_position() {
    let mut placed = submitted("a");
    placed.task.as_mut().unwrap().position = Some(Position { partition: 0, offset: 7 });
    let mut retrying = with_record(failed("a"), 900);
    (retrying.kind, retrying.attempt) = (Kind::Retrying, 1);
    let mut again = submitted("a");
    again.task.as_mut().unwrap().position = Some(Position { partition: 0, offset: 70 });
    let of_the_first_record = placed.clone();
    let log = [placed, retrying, released(1), again, of_the_first_record];
    let offset = |n: usize| fold_log(&log[..n], 1, 9).node("a").position.map(|position| position.offset);
    assert_eq!([2, 3, 4, 5].map(offset), [Some(7), None, Some(70), Some(70)]);
    assert_eq!(fold_log(&log, 1, 9).node("a").state, State::Queued);
}

/// The publisher reports the position of a record; that of an earlier run's record is ignored.
#[test]
fn publisher_reports_the_position_of_the_record() {
    let at = |offset| Some(Position { partition: 1, offset });
    let placed = |mut event: Event, offset| {
        event.position = at(offset);
        event
    };
    let mut failed = event(Kind::Failed, "a");
    failed.attempt = 1;
    let mut log =
        vec![with_record(submitted("a"), 700), placed(released(0), 8), failed, event(Kind::RetryRequested, "a")];
    log[0].kind = Kind::Scheduled;
    let effects = |log: &[Event]| fold_log(log, 1, 9).node("a").effects.iter().map(Effect::id).collect::<Vec<_>>();
    let position = |log: &[Event]| fold_log(log, 1, 9).node("a").position;
    assert_eq!((position(&log), effects(&log).len()), (at(8), 1));
    let mut done = event(Kind::EffectDone, "a");
    done.effect = Some(effects(&log)[0].as_str().into());
    let mut again = log.clone();
    again.push(placed(done.clone(), 9));
    assert_eq!((position(&again), effects(&again).len()), (at(9), 0));
    let mut other = event(Kind::Failed, "a");
    (other.run, other.attempt) = (2, 1);
    log.extend([other, Event { run: 2, ..event(Kind::RetryRequested, "a") }, placed(done, 9)]);
    assert_eq!((position(&log), fold_log(&log, 1, 9).node("a").run), (at(8), 3));
}

#[test]
fn withdrawals_sort_after_all_other_effects() {
    let cancelled = [submitted("a"), event(Kind::CancelRequested, "a"), event(Kind::Cancelled, "a")];
    let with_done = |log: &[Event], effect: &str| {
        let mut done = event(Kind::EffectDone, "a");
        done.effect = Some(effect.into());
        [log, &[done]].concat()
    };
    let turn = |log: &[Event]| fold_log(log, 1, 9).node("a").turn();
    let waits = with_done(&cancelled, "cancel-1");
    assert_eq!((turn(&cancelled), turn(&with_done(&waits, "uncancel-2"))), (Some(1), None));
    assert!(turn(&waits) > Some(i64::from(u32::MAX)));
    assert_eq!(turn(&[&waits[..], &[event(Kind::RetryRequested, "a")]].concat()), Some(4));
}

#[test]
fn deferred_record_beyond_the_limit_fails_the_task() {
    let mut working_set = WorkingSet::resume(MAX_KEPT_BYTES - 3, Lifetimes::default());
    let mut scheduled = with_record(submitted("a"), 700);
    scheduled.kind = Kind::Scheduled;
    working_set.load(id("a"), None);
    working_set.fold(&scheduled, LogPosition { offset: 1, log_time_ms: 2 });
    let node = working_set.node("a").unwrap();
    assert_eq!((node.state, node.kept, working_set.kept_bytes()), (State::Failed, 0, MAX_KEPT_BYTES - 3));
    assert_eq!(node.record_event_offset, Some(1), "a retry finds the record in this event");
    assert!(node.error.as_ref().unwrap().message.contains("too many tasks"));
    assert!(working_set.take_changes().kept.is_empty());
}

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
    let kept = fold_log(&log, 1, 9);
    let due = |task: &str| kept.node(task).timer().map(|timer| (timer.due_ms, timer.what));
    assert_eq!((due("r"), due("r:late")), (None, Some((1_003 + 2_000, TimerKind::Cancel))));
    assert_eq!(kept.node("r").effects[0].id(), "cancel-2");
    // The effect requests the cancel for each descendant.
    let mut below = event(Kind::CancelRequested, "r:a");
    below.asof = Some(2);
    let kept = fold_log(&[&log[..], &[below.clone(), below]].concat(), 1, 9);
    assert_eq!((kept.node("r:a").state, kept.node("r:a").effects.len()), (State::Cancelling, 0));
    assert!(kept.node("r:a").history.last().unwrap().ignored, "a repetition changes nothing");
}

#[test]
fn cancel_is_withdrawn_when_all_descendants_have_ended() {
    let mut below = event(Kind::CancelRequested, "r:a");
    below.asof = Some(2);
    let log = [
        submitted("r"),
        submitted("r:a"),
        event(Kind::CancelRequested, "r"),
        below,
        event(Kind::Cancelled, "r"),
        event(Kind::Started, "r:a"),
        event(Kind::Cancelled, "r:a"),
    ];
    let effects = |n: usize| fold_log(&log[..n], 2, 9).node("r").effects.iter().map(Effect::id).collect::<Vec<_>>();
    assert_eq!(
        (effects(6), effects(7)),
        (vec!["cancel-2".to_owned()], vec!["cancel-2".to_owned(), "uncancel-6".to_owned()])
    );
    assert_eq!(states(&log, "r").last(), Some(&"cancelled"));
    assert!(fold_log(&log[..6], 1, 9).node("r:a").timer().is_none(), "the worker is responsible for it");
}

#[test]
fn withdrawn_cancel_is_published_again_for_a_late_descendant() {
    let done = |effect: &str| Event { effect: Some(effect.into()), ..event(Kind::EffectDone, "r") };
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
    let done = |effect: &str| Event { effect: Some(effect.into()), ..event(Kind::EffectDone, "r") };
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
        |n: usize| fold_log(&log[..n], 2, 9).node("a").effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ");
    assert_eq!(effects(4), "cancel-1 publish-3 uncancel-2", "the retry does not wait for the withdrawal");
    assert_eq!(effects(5), "publish-3 cancel-4", "the later cancel covers the first one");
    assert_eq!(effects(6), "publish-3 cancel-4 uncancel-5");
}

fn effects_of(log: &[Event], task: &str) -> String {
    fold_log(log, 2, 9).node(task).effects.iter().map(Effect::id).collect::<Vec<_>>().join(" ")
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
    assert!(fold_log(&again, 1, 9).node("r").history.last().unwrap().ignored);
    // Tasks added on purpose or retried, and continuations of ended tasks.
    let follower = with_policy(
        "r:a",
        Policy {
            rules: Rules { then: vec![Continuation::new("after", 1.into()).on(On::Ended)], ..Rules::default() },
            ..Policy::default()
        },
    );
    let ended = event(Kind::Cancelled, "r:a");
    let stories = [
        (start.to_vec(), vec![known_of(submitted("r:late"), 2)], "r:late"),
        (start.to_vec(), vec![ended.clone(), event(Kind::RetryRequested, "r:a")], "r:a"),
        (vec![submitted("r"), follower, cancel.clone()], vec![ended], "r:a:then"),
    ];
    for (start, later, goes_on) in stories {
        let offset = (start.len() + later.len()) as i64;
        let mut below = event(Kind::CancelRequested, goes_on);
        below.asof = Some(offset);
        let log = [&start[..], &later, &[cancel.clone(), below, cancel.clone()]].concat();
        let kept = fold_log(&log[..log.len() - 1], 2, 9);
        assert_eq!(kept.node(goes_on).state, State::Cancelling, "{goes_on}");
        assert_eq!(
            kept.node("r").effects.iter().map(Effect::id).next_back(),
            Some(format!("cancel-{offset}")),
            "{goes_on}"
        );
        assert!(
            !kept.node("r").effects.iter().any(|effect| effect.id() == "cancel-2"),
            "the later cancel replaces the first"
        );
        assert!(
            fold_log(&log, 1, 9).node("r").history.last().unwrap().ignored,
            "{goes_on}: a third cancel is redundant"
        );
    }
}

#[test]
fn cancel_of_a_single_task_can_be_widened_but_not_narrowed() {
    let wide = event(Kind::CancelRequested, "r");
    let mut narrow = event(Kind::CancelRequested, "r");
    narrow.subtree = false;
    let log = [submitted("r"), external("r:x", true), narrow.clone(), wide, narrow];
    assert_eq!(effects_of(&log[..3], "r"), "cancel-2");
    assert_eq!(effects_of(&log, "r"), "cancel-3");
    let cancel = *fold_log(&log, 1, 9).node("r").cancel.unwrap();
    assert_eq!((cancel.asof, cancel.subtree), (3, true));
}

/// The API publishes the cancel to the workers before its request is projected.
#[test]
fn late_cancel_is_withdrawn_too() {
    let cancel = event(Kind::CancelRequested, "a");
    let log = [submitted("a"), event(Kind::Succeeded, "a"), cancel.clone(), cancel];
    let kept = fold_log(&log, 1, 9);
    let effects = kept.node("a").effects;
    assert_eq!(
        effects,
        [Effect { cause: 3, what: EffectKind::WithdrawCancel { due_ms: 1_003 + CANCEL_GRACE_MS } }],
        "after the last one"
    );
    assert_eq!(kept.node("a").state, State::Succeeded);
}

#[test]
fn external_task_is_cancelled_at_once_and_an_ended_task_never() {
    let log = [external("x", true), event(Kind::CancelRequested, "x"), event(Kind::CancelRequested, "x")];
    assert_eq!(states(&log, "x"), ["queued", "cancelled", "cancelled"]);
    let kept = fold_log(&[submitted("a"), event(Kind::Succeeded, "a"), event(Kind::CancelRequested, "a")], 1, 9);
    assert!(kept.node("a").history[2].ignored && kept.node("a").cancel.is_none());
}

#[test]
fn retry_starts_a_new_run_and_recovers_the_parents() {
    let again = event(Kind::RetryRequested, "r:a");
    let mut log =
        vec![submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r"), failed("r:a"), again.clone(), again];
    assert_eq!(states(&log, "r")[3..], ["failed", "waiting_for_children", "waiting_for_children"]);
    let node = fold_log(&log, 2, 9).node("r:a");
    assert_eq!((node.run, node.state, node.asof, node.announced), (2, State::Queued, 4, true));
    assert_eq!(node.effects.iter().map(Effect::id).collect::<Vec<_>>(), ["publish-4"]);
    assert!(node.history.last().unwrap().ignored, "the second request is late");
    let mut done = event(Kind::EffectDone, "r:a");
    done.effect = Some("publish-4".into());
    log.extend([done, in_run(event(Kind::Succeeded, "r:a"), 2)]);
    let kept = fold_log(&log, 3, 9);
    assert_eq!(
        (kept.node("r").state, kept.node("r:a").effects.len(), kept.node("r").highest_run),
        (State::Succeeded, 0, 2)
    );
}

#[test]
fn pending_task_is_not_retried() {
    for log in [vec![submitted("r")], vec![submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r")]] {
        let kept = fold_log(&[log, vec![event(Kind::RetryRequested, "r")]].concat(), 1, 9);
        assert!(kept.node("r").history.last().unwrap().ignored && kept.node("r").run == 1);
    }
}

#[test]
fn failed_tasks_are_retried_in_one_run_chosen_at_the_request() {
    let mut only = event(Kind::RetryRequested, "r");
    only.only_failed = true;
    let of = |task: &str| {
        let mut event = event(Kind::RetryRequested, task);
        event.new_run = Some(2);
        event
    };
    let ends =
        [submitted("r"), submitted("r:a"), submitted("r:b"), event(Kind::Succeeded, "r"), failed("r:a"), failed("r:b")];
    let log = [&ends[..], &[only, of("r:a"), of("r:b"), of("r:b")]].concat();
    let kept = fold_log(&log, 1, 9);
    assert_eq!(kept.node("r").effects[0].id(), "retry-failed-6");
    assert_eq!((kept.node("r").run, kept.node("r:a").run, kept.node("r:b").run), (1, 2, 2));
    assert_eq!(kept.node("r").highest_run, 2);
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
        let mut walked = in_run(Kind::RetryRequested, 1);
        walked.new_run = Some(beyond);
        let log = [
            submitted("a"),
            failed("a"),
            in_run(Kind::Failed, beyond),
            walked,
            Event { run: beyond, ..submitted("b") },
        ];
        let kept = fold_log(&log, 2, 9);
        assert_eq!(kept, fold_log(&log[..2], 2, 9), "run {beyond}");
    }
    // The last possible run ends, and no other follows.
    let log = [submitted("a"), in_run(Kind::Failed, MAX_RUN), in_run(Kind::RetryRequested, MAX_RUN)];
    let node = fold_log(&log, 1, 9).node("a");
    assert_eq!((node.run, node.state, node.effects.len()), (MAX_RUN, State::Failed, 0));
    assert!(node.history.last().is_some_and(|entry| entry.kind == Kind::RetryRequested && entry.ignored));
}

/// The task had failed when the request was made, and was reported as succeeded before the request was in the log.
#[test]
fn retry_of_failed_tasks_uses_no_run_if_nothing_has_failed() {
    let mut only = event(Kind::RetryRequested, "r");
    only.only_failed = true;
    let log = [submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r"), event(Kind::Succeeded, "r:a"), only];
    let kept = fold_log(&log, 1, 9);
    let root = kept.node("r");
    assert!(root.history.last().unwrap().ignored && root.effects.is_empty(), "{root:?}");
    assert_eq!((root.run, root.highest_run), (1, 1));
}

/// Workers restart neither external tasks nor tasks that were never published.
#[test]
fn retry_of_failed_tasks_uses_no_run_if_only_external_ones_have_failed() {
    let mut only = event(Kind::RetryRequested, "r");
    only.only_failed = true;
    let broken = reported("r:x", State::Failed);
    let log = [submitted("r"), external("r:x", true), failed("r:y"), event(Kind::Succeeded, "r"), broken, only.clone()];
    let kept = fold_log(&log, 1, 9);
    let root = kept.node("r");
    assert_eq!(root.state, State::Failed);
    assert!(root.history.last().unwrap().ignored && root.effects.is_empty(), "{root:?}");
    assert_eq!((root.run, root.highest_run), (1, 1));
    // One task that workers run, two levels below the request, suffices.
    let deeper = [&log[..2], &[submitted("r:x:w"), failed("r:x:w")], &log[3..]].concat();
    assert_eq!(fold_log(&deeper, 1, 9).node("r").highest_run, 2);
}

fn asked_by(task: &str, by: &str, reason: &str) -> Event {
    Event { by: Some(by.into()), message: Some(reason.into()), ..event(Kind::CancelRequested, task) }
}

/// The record of a cancelled child names the requested ancestor, the requester and the reason: for an existing child, for
/// one that appears later, and for an external one, which ends at once.
#[test]
fn cancelled_child_records_ancestor_requester_and_reason() {
    let below = |task: &str| Event { with: Some(id("r")), asof: Some(3), ..asked_by(task, "ann", "too dear") };
    let start = [submitted("r"), submitted("r:a"), external("r:x", true), asked_by("r", "ann", "too dear")];
    let log = [&start[..], &[below("r:a"), below("r:x"), submitted("r:late"), external("r:later", true)]].concat();
    let kept = fold_log(&log, 3, 9);
    for task in ["r:a", "r:x", "r:late", "r:later"] {
        let node = kept.node(task);
        let entry = node.history.iter().find(|entry| entry.kind == Kind::CancelRequested).unwrap();
        let shown = (entry.message.as_deref(), entry.by.as_deref());
        assert_eq!(shown, (Some("with `r`: too dear"), Some("ann")), "{task}");
        let message = node.cancel.unwrap().request.message("");
        assert_eq!(message, "cancelled with `r`: too dear", "{task}");
        let error = node.error.map(|error| error.message);
        assert_eq!(error, task.starts_with("r:x").then_some(message.clone()).or(error.clone()), "{task}");
    }
    let error = |task: &str| kept.node(task).error.unwrap().message;
    assert_eq!([error("r:x"), error("r:later")], ["cancelled with `r`: too dear"; 2].map(str::to_owned));
    let named = kept.node("r");
    assert_eq!(named.history.last().unwrap().message.as_deref(), Some("too dear"));
    assert_eq!(named.cancel.unwrap().request.message(""), "cancelled on request: too dear");
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
    let kept = fold_log(&log[..3], 1, 9);
    assert_eq!(
        kept.node("r").timer().map(|timer| (timer.due_ms, timer.what)),
        Some((1_002 + CANCEL_GRACE_MS, TimerKind::Cancel))
    );
    let announced = [&log[..], &[submitted("r")]].concat();
    assert_eq!(states(&announced, "r").last(), Some(&"cancelling"));
    let node = fold_log(&announced, 1, 9).node("r");
    assert!(node.announced && node.timer().is_some_and(|timer| timer.what == TimerKind::Cancel));
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
    let quick = [&log[..], &[Event { kind: Kind::Succeeded, ..submitted("r") }]].concat();
    assert_eq!(states(&quick, "r").last(), Some(&"succeeded"));
}
