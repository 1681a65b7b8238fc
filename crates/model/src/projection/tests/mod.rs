use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use events::{any_event, began, event, id, record, submitted, with_policy, with_record};
use oracle::recompute;
use projected_store::{ProjectedStore, fold_cut, fold_log, fold_paced};
use proptest::prelude::*;

use super::*;
use crate::error_fingerprint::Fingerprint;
use crate::event::{AttemptFailure, CancelScope, Event, Kind, Payload};
use crate::json::RawJson;
use crate::outbox::{Effect, MAX_DEFERRED_BYTES, RecordCopy};
use crate::projection::changes::{Changes, Entry, Index};
use crate::record::TaskRecord;
use crate::record::rollup::{Counts, children_of, combine};
use crate::record::state::{Category, State};
use crate::statistics::Overview;
use crate::statistics::aggregate::{Aggregate, AggregateKey};
use crate::statistics::errors::ErrorSummary;
use crate::task::action::{Action, Callback, Check, NotifyAction};
use crate::task::continuation::{Continuation, On, number_of, segment};
use crate::task::{OnFailure, Policy, Position, Rules};
use crate::units::duration::Millis;

mod cancels;
mod child_failures;
mod continuations;
mod deferred;
#[path = "../../../../testkit/src/events.rs"]
#[allow(unreachable_pub, reason = "the test kit exports it")]
mod events;
mod history;
mod interruptions;
mod notifications;
mod oracle;
mod projected_store;
mod released;
mod retries;
mod starts;
mod statistics;
mod unique;

fn failed(task: &str) -> Event {
    event(Payload::Failed(AttemptFailure::new("error", "broken", 1)), task)
}

fn in_run(mut event: Event, run: u32) -> Event {
    event.run = run;
    event
}

/// Task that is scheduled with its record.
fn deferred(task: &str, due_ms: i64) -> Event {
    with_record(Event { payload: Kind::Scheduled.into(), ..submitted(task) }, due_ms)
}

/// Failed attempt whose retry is deferred.
fn retrying(task: &str, attempt: u32, due_ms: i64) -> Event {
    let failure = AttemptFailure::new("error", "broken", 1);
    let event = event(Payload::Retrying { failure, due_ms: None, record: None, waits: 0 }, task);
    with_record(Event { attempt, ..event }, due_ms)
}

fn effect_done(task: &str, effect: &str) -> Event {
    event(Payload::EffectDone { effect: Some(effect.into()), position: None }, task)
}

/// Cancel that an ancestor's request of this offset causes.
fn cancelled_below(task: &str, asof: i64) -> Event {
    event(Payload::CancelRequested(CancelScope { asof: Some(asof), ..CancelScope::default() }), task)
}

fn retry_of_failed() -> Payload {
    Payload::RetryRequested { only_failed: true, new_run: None, record: None }
}

fn retry_in_run(run: u32) -> Payload {
    Payload::RetryRequested { only_failed: false, new_run: Some(run), record: None }
}

fn reported(task: &str, state: State) -> Event {
    event(Payload::Reported { state: Some(state), output: None, error: None }, task)
}

fn external(task: &str, block_when_done: bool) -> Event {
    with_policy(
        task,
        Policy { rules: Rules { external: true, block_when_done, ..Rules::default() }, ..Policy::default() },
    )
}

/// State of a task after each event of a log.
fn states(log: &[Event], task: &str) -> Vec<&'static str> {
    (1..=log.len())
        .map(|n| fold_log(&log[..n], 1, 100))
        .filter(|projected| projected.task_records.contains_key(&id(task)))
        .map(|projected| projected.task(task).state.name())
        .collect()
}

#[test]
fn task_goes_from_submitted_to_succeeded() {
    let output = RawJson::parse(b"{\"n\":1}").ok();
    let done = event(Payload::Succeeded { started_at_ms: None, output }, "a");
    let log = [submitted("a"), event(Kind::Started, "a"), done, event(Kind::Started, "a"), failed("a")];
    assert_eq!(states(&log, "a"), ["queued", "running", "succeeded", "succeeded", "succeeded"]);
    let projected = fold_log(&log, 2, 100);
    let task = projected.task("a");
    assert_eq!(
        (task.outcome.output.unwrap().text(), task.history.duplicates, task.history.entries.len()),
        ("{\"n\":1}", 1, 5)
    );
    assert_eq!(projected.counts, BTreeMap::from([(("echo".into(), State::Succeeded), 1)]));
}

#[test]
fn parent_ends_after_its_last_child_and_fails_if_one_failed() {
    let log = [
        submitted("r"),
        submitted("r:a"),
        submitted("r:b"),
        event(Kind::Succeeded, "r"),
        failed("r:a"),
        event(Kind::Succeeded, "r:b"),
    ];
    let wait = "waiting_for_children";
    assert_eq!(states(&log, "r"), ["queued", "queued", "queued", wait, wait, "failed"]);
    let task = fold_log(&log, 3, 100).task("r");
    let (children, _, tree) = children_of(&task.tree.below);
    assert_eq!((children.total(), children.get(State::Failed), tree.total()), (2, 1, 2));
    assert_eq!(task.tree.last_end.unwrap().by, "r:b");
}

#[test]
fn child_before_its_parent_creates_an_expected_parent() {
    let log = [
        submitted("r:x:y"),
        event(Kind::Succeeded, "r:x:y"),
        submitted("r"),
        event(Kind::Succeeded, "r"),
        submitted("r:x"),
        event(Kind::Succeeded, "r:x"),
    ];
    assert_eq!(
        states(&log, "r"),
        ["expected", "expected", "queued", "waiting_for_children", "waiting_for_children", "succeeded"]
    );
}

#[test]
fn ended_parent_reopens_for_a_late_child() {
    let log = [submitted("r"), event(Kind::Succeeded, "r"), submitted("r:late"), event(Kind::Succeeded, "r:late")];
    assert_eq!(states(&log, "r"), ["queued", "succeeded", "waiting_for_children", "succeeded"]);
    assert!(fold_log(&log[..3], 1, 9).task("r").times.ended_at_ms.is_none());
}

#[test]
fn ignored_failure_does_not_fail_the_parent() {
    let ignored = with_policy("r:a", Policy { on_failure: OnFailure::Ignore, ..Policy::default() });
    let log = [submitted("r"), ignored, event(Kind::Succeeded, "r"), failed("r:a")];
    assert_eq!(states(&log, "r").last(), Some(&"succeeded"));
}

#[test]
fn retried_child_recovers_its_parent_and_retried_parent_supersedes_its_children() {
    let mut log = vec![submitted("r"), submitted("r:a"), event(Kind::Succeeded, "r"), failed("r:a")];
    assert_eq!(states(&log, "r").last(), Some(&"failed"));
    log.extend([in_run(submitted("r:a"), 2), in_run(event(Kind::Succeeded, "r:a"), 2)]);
    assert_eq!(states(&log, "r")[4..], ["waiting_for_children", "succeeded"]);
    // The parent runs again, in run 3: the superseded child no longer counts, even if it fails now.
    log.extend([in_run(submitted("r"), 3), in_run(submitted("r:b"), 3), in_run(event(Kind::Succeeded, "r:b"), 3)]);
    log.extend([in_run(event(Kind::Succeeded, "r"), 3), in_run(failed("r:a"), 2)]);
    let task = fold_log(&log, 4, 100).task("r");
    assert_eq!((task.state, task.run, children_of(&task.tree.below).0.total()), (State::Succeeded, 3, 1));
}

#[test]
fn children_of_a_new_run_count_before_their_parent_is_seen_in_it() {
    let log = [
        submitted("r"),
        submitted("r:a"),
        failed("r:a"),
        event(Kind::Succeeded, "r"),
        in_run(submitted("r:a"), 2),
        in_run(event(Kind::Succeeded, "r:a"), 2),
        in_run(event(Kind::Succeeded, "r"), 2),
    ];
    let task = fold_log(&log, 1, 100).task("r");
    assert_eq!((task.state, children_of(&task.tree.below).0.get(State::Succeeded)), (State::Succeeded, 1));
}

#[test]
fn id_conflict_is_recorded_on_the_parent() {
    let mut other = submitted("r:a");
    other.task.as_mut().unwrap().hash = Some("other".into());
    let projected = fold_log(&[submitted("r"), submitted("r:a"), other, event(Kind::Succeeded, "r:a")], 2, 100);
    let messages: Vec<String> =
        projected.task("r").history.entries.into_iter().filter_map(|entry| entry.message).collect();
    assert!(messages.iter().any(|message| message.starts_with("spawn_conflict: `r:a`")), "{messages:?}");
    assert_eq!(projected.task("r:a").definition.hash.as_deref(), Some("h"));
    assert_eq!(projected.task("r:a").state, State::Succeeded);
}

/// Reports on external tasks may go backwards while children are pending; a reported failure sticks.
#[test]
fn external_task_follows_its_reports() {
    use State::*;
    let outcome = |block, reports: &[State], children: &[Event]| {
        let mut log = vec![external("x", block)];
        log.extend(children.iter().cloned());
        log.extend(reports.iter().map(|state| reported("x", *state)));
        states(&log, "x").last().copied().unwrap()
    };
    let open = submitted("x:c");
    let done = event(Kind::Succeeded, "x:c");
    for (block, reports, children, state) in [
        (true, vec![Running], vec![], "running"),
        (true, vec![Running, Warning], vec![], "warning"),
        (true, vec![Succeeded, Running], vec![], "succeeded"),
        (false, vec![Succeeded, Running], vec![], "running"),
        (true, vec![WaitingForChildren], vec![], "succeeded"),
        (true, vec![Succeeded, Running], vec![open.clone()], "running"),
        (true, vec![Succeeded], vec![open.clone()], "waiting_for_children"),
        (true, vec![Failed, Running, Succeeded], vec![open.clone()], "waiting_for_children"),
        (true, vec![Failed], vec![open.clone(), done.clone()], "failed"),
        (false, vec![Failed, Running, Succeeded], vec![], "failed"),
        (true, vec![Cancelled], vec![], "queued"),
    ] {
        assert_eq!(
            outcome(block, &reports, &children),
            state,
            "block {block}, reports {reports:?}, {} children",
            children.len()
        );
    }
    // A report on a task that is not external is recorded in the history and changes nothing.
    let projected = fold_log(&[submitted("a"), reported("a", Failed)], 1, 9);
    assert!(projected.task("a").history.entries[1].ignored && projected.task("a").state == Queued);
}

#[test]
fn event_about_an_unknown_task_creates_no_record() {
    for kind in [
        Kind::CancelRequested,
        Kind::RetryRequested,
        Kind::Progress,
        Kind::Log,
        Kind::Interrupted,
        Kind::Patched,
        Kind::EffectDone,
        Kind::WorkerSilent,
        Kind::Operated,
        Kind::Tick,
        Kind::Unknown,
    ] {
        assert!(fold_log(&[event(kind, "a")], 1, 9).task_records.is_empty(), "{kind:?}");
    }
}

// ---- properties of random trees and random sequences of events

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The incremental rollup equals a full recomputation after every event, in any order.
    #[test]
    fn rollup_equals_a_recomputation(log in prop::collection::vec(any_event(), 1..40)) {
        for n in 1..=log.len() {
            recompute(&fold_log(&log[..n], n, 1_000));
        }
    }

    /// Batch boundaries, loads and evictions do not change the result.
    #[test]
    fn result_is_independent_of_batches_and_cache(log in prop::collection::vec(any_event(), 1..80), batch in 1usize..20, cache in 0usize..12) {
        prop_assert_eq!(fold_log(&log, batch, cache), fold_log(&log, log.len(), 1_000));
    }

    /// Repeated events of the same or an older run do not change terminal states. (A repeated cancel may end a task that
    /// began after it, whose continuations then run; one that ran in an older run before runs again.)
    #[test]
    fn duplicates_do_not_change_terminal_states(log in prop::collection::vec(any_event(), 1..40), again in prop::collection::vec(any::<prop::sample::Index>(), 1..20)) {
        let before = fold_log(&log, 7, 1_000);
        let mut longer = log.clone();
        // Reports on external tasks that may be reopened, and retries, are requests: repeating them has an effect.
        let is_request = |event: &Event| matches!(event.kind(), Kind::Reported | Kind::RetryRequested);
        let repeats = again.iter().map(|pick| pick.get(&log).clone()).filter(|event| !is_request(event));
        longer.extend(repeats);
        let after = fold_log(&longer, 7, 1_000);
        let task_record = |projected: &ProjectedStore, id: &TaskId| TaskRecord::decode(&projected.task_records[id]).unwrap();
        for id in before.task_records.keys() {
            let old = task_record(&before, id);
            let new = task_record(&after, id);
            let follows = id.parent_id().filter(|_| number_of(id.segment()).is_some());
            let of_older_run = follows.is_some_and(|task| old.run < task_record(&after, &task).run);
            // A cancel of an expected task is reverted by its announcement.
            if old.own.is_terminal() && !of_older_run && !old.is_cancelled_unannounced() {
                prop_assert_eq!((old.own, old.run, &old.outcome.output, &old.outcome.error), (new.own, new.run, &new.outcome.output, &new.outcome.error));
            }
        }
        recompute(&after);
    }
}
