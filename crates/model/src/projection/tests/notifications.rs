//! Notifications about the states of a task.

use super::*;
use crate::outbox::TimerKind;
use crate::record::notifications::RuleRef;

fn on(states: &[State]) -> Action {
    Action { on: states.to_vec(), callback: Some(Callback::to("https://a.example")), email: None }
}

fn check(after_ms: u64, expect: State) -> Check {
    let action = || Some(NotifyAction { callback: Some(Callback::to("https://a.example")), ..NotifyAction::default() });
    Check { after: Some(Millis(after_ms)), at: None, expect: vec![expect], passed: action(), failed: action() }
}

fn telling(task: &str, actions: &[Action], checks: &[Check]) -> Event {
    let rules = Rules { actions: actions.to_vec(), checks: checks.to_vec(), ..Rules::default() };
    with_policy(task, Policy { rules, ..Policy::default() })
}

/// Notifications of a task: state, run and rule of each.
fn notified(projected: &ProjectedStore, task: &str) -> Vec<String> {
    let notified_log = projected.task(task).notifications.unwrap();
    notified_log
        .deliveries
        .iter()
        .map(|delivery| format!("{}/{} {}", delivery.state, delivery.run, delivery.rule))
        .collect()
}

fn due(number: u32, task: &str) -> Event {
    event(Payload::Checked { check: Some(number) }, task)
}

#[test]
fn each_state_is_notified_once_when_reached() {
    for state in State::ALL.into_iter().filter(|state| *state != State::Expected) {
        let mut external = telling("x", &[on(&[state])], &[]);
        let mut log = Vec::new();
        external.task.as_mut().unwrap().policy.as_mut().unwrap().rules.external = matches!(state, State::Warning);
        log.push(external);
        log.extend(match state {
            State::Scheduled => vec![event(Kind::Scheduled, "x"), event(Kind::Scheduled, "x")],
            State::Running => vec![event(Kind::Started, "x"), event(Kind::Progress, "x"), event(Kind::Started, "x")],
            State::Retrying => vec![event(Kind::Retrying, "x"), event(Kind::Retrying, "x")],
            State::Cancelling => vec![event(Kind::CancelRequested, "x"), event(Kind::CancelRequested, "x")],
            State::Warning => vec![reported("x", State::Warning), reported("x", State::Warning)],
            State::WaitingForChildren => vec![submitted("x:a"), event(Kind::Succeeded, "x"), submitted("x:b")],
            State::Succeeded => vec![event(Kind::Succeeded, "x"), event(Kind::Succeeded, "x")],
            State::Cancelled => vec![event(Kind::Cancelled, "x"), failed("x")],
            State::Expired => vec![event(Kind::Expired, "x")],
            State::Failed => vec![failed("x"), failed("x")],
            _ => vec![submitted("x")],
        });
        for batch in [1, 2, 9] {
            let projected = fold_log(&log, batch, 9);
            assert_eq!(notified(&projected, "x"), [format!("{state}/1 actions/0")], "{state} in batches of {batch}");
            assert_eq!(projected.task("x").effects.iter().filter(|effect| effect.is_notification()).count(), 1);
        }
    }
}

#[test]
fn state_reached_again_is_notified_again() {
    let again = in_run(event(Kind::Started, "a"), 2);
    let log = [
        telling("a", &[on(&[State::Running, State::Failed]), on(&[State::Failed])], &[]),
        event(Kind::Started, "a"),
        event(Kind::Retrying, "a"),
        event(Kind::Started, "a"),
        failed("a"),
        event(Kind::RetryRequested, "a"),
        again,
        in_run(failed("a"), 2),
    ];
    let projected = fold_log(&log, 3, 9);
    let expected = [
        "running/1 actions/0",
        "running/1 actions/0",
        "failed/1 actions/0",
        "failed/1 actions/1",
        "running/2 actions/0",
        "failed/2 actions/0",
        "failed/2 actions/1",
    ];
    assert_eq!(notified(&projected, "a"), expected);
    let task = projected.task("a");
    let rules = &task.definition.policy.as_ref().unwrap().rules;
    let ids = task
        .notifications
        .as_ref()
        .unwrap()
        .deliveries
        .iter()
        .map(|delivery| delivery.id(&id("a"), delivery.rule.notification(rules).unwrap()));
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), expected.len(), "ids are distinct");
    assert_eq!(fold_log(&log, 1, 0).task("a"), task, "independent of batches");
}

fn at(kind: Kind, attempt: u32, at_ms: i64, started_at_ms: Option<i64>) -> Event {
    let event = Event { attempt, at_ms, worker: Some("w".into()), ..event(kind, "a") };
    began(event, started_at_ms)
}

fn asking(states: &[State]) -> Event {
    Event { at_ms: 12, ..telling("a", &[on(states)], &[]) }
}

/// Adds the announcement, as workers do.
fn announcing(mut event: Event, states: &[State]) -> Event {
    event.task = asking(states).task;
    event
}

/// A quick attempt writes no `started`, and its result may precede `submitted` in the log.
#[test]
fn quick_task_notifies_each_state_in_order() {
    let states = [State::Queued, State::Running, State::Succeeded];
    let submitted = asking(&states);
    let started = announcing(at(Kind::Started, 1, 10, None), &states);
    let done = announcing(at(Kind::Succeeded, 1, 11, Some(10)), &states);
    for log in [
        vec![submitted.clone(), started.clone(), done.clone()],
        vec![submitted.clone(), done.clone()],
        vec![done.clone(), submitted.clone()],
        vec![started.clone(), submitted.clone(), done.clone(), done.clone()],
        vec![started, done, submitted.clone(), submitted],
    ] {
        for batch in [1, 2, 9] {
            let projected = fold_log(&log, batch, 9);
            let expected = ["queued/1 actions/0", "running/1 actions/0", "succeeded/1 actions/0"];
            assert_eq!(notified(&projected, "a"), expected, "{log:?}");
            let task = projected.task("a");
            let times: Vec<i64> =
                task.notifications.as_ref().unwrap().deliveries.iter().map(|delivery| delivery.at_ms).collect();
            let queued_ms = if log[0].kind() == Kind::Submitted { 12 } else { 4 };
            assert_eq!(times, [queued_ms, queued_ms.max(10), queued_ms.max(11)], "{log:?}: times never decrease");
            let changes: Vec<u32> =
                task.notifications.as_ref().unwrap().deliveries.iter().map(|delivery| delivery.change).collect();
            assert_eq!((changes, task.effects.len()), (vec![1, 2, 3], 3));
        }
    }
}

#[test]
fn quick_attempts_notify_running_and_retrying_each_time() {
    let states = [State::Queued, State::Running, State::Retrying, State::Failed];
    let mut log = vec![asking(&states)];
    log.extend((1..=2).map(|n| at(Kind::Retrying, n, 20 * i64::from(n), Some(20 * i64::from(n) - 1))));
    log.push(at(Kind::Failed, 3, 60, Some(59)));
    let expected = ["queued", "running", "retrying", "running", "retrying", "running", "failed"];
    let expected: Vec<String> = expected.iter().map(|state| format!("{state}/1 actions/0")).collect();
    assert_eq!(notified(&fold_log(&log, 2, 9), "a"), expected);
    // Explicit events give the same notifications.
    for n in [3, 2, 1] {
        log.insert(n, at(Kind::Started, n as u32, 20 * n as i64 - 1, None));
    }
    assert_eq!(notified(&fold_log(&log, 2, 9), "a"), expected);
}

#[test]
fn rejected_task_notifies_queued_and_failed() {
    let states = State::ALL.into_iter().filter(|state| *state != State::Expected).collect::<Vec<_>>();
    let log = [announcing(at(Kind::Failed, 0, 9, None), &states), asking(&states)];
    assert_eq!(notified(&fold_log(&log, 1, 9), "a"), ["queued/1 actions/0", "failed/1 actions/0"]);
}

#[test]
fn task_that_waited_in_its_worker_notifies_queued_before_running() {
    let states = [State::Scheduled, State::Queued, State::Running, State::Succeeded];
    let scheduled = announcing(at(Kind::Scheduled, 0, 5, None), &states);
    let log = [scheduled, asking(&states), at(Kind::Succeeded, 1, 30, Some(29))];
    let expected = ["scheduled/1 actions/0", "queued/1 actions/0", "running/1 actions/0", "succeeded/1 actions/0"];
    assert_eq!(notified(&fold_log(&log, 1, 9), "a"), expected);
}

/// Handler continuations arrive in a second `started` before the result.
#[test]
fn second_start_of_an_attempt_leaves_its_warning() {
    let states = [State::Running, State::Warning, State::Succeeded];
    let more = Event {
        payload: Payload::Started { then: vec![Continuation::new("after", serde_json::json!(1))] },
        ..at(Kind::Started, 1, 8, None)
    };
    let log = [
        asking(&states),
        at(Kind::Started, 1, 6, None),
        at(Kind::Warned, 1, 7, None),
        more,
        at(Kind::Succeeded, 1, 9, Some(6)),
    ];
    let projected = fold_log(&log[..4], 1, 9);
    assert_eq!(projected.task("a").state, State::Warning);
    assert_eq!(notified(&fold_log(&log, 1, 9), "a")[..2], ["running/1 actions/0", "warning/1 actions/0"]);
}

/// Attempts (whether each writes `started`), position of `submitted`, and outcome.
fn quick_log() -> impl Strategy<Value = (Vec<bool>, usize, bool)> {
    (prop::collection::vec(any::<bool>(), 1..5), any::<prop::sample::Index>(), any::<bool>())
        .prop_map(|(starts, index, fails)| (starts.clone(), index.index(starts.len() * 2 + 1), fails))
}

proptest! {
    /// Each state is notified once each time it is reached, in order, whichever event comes first in the log.
    #[test]
    fn notified_states_do_not_depend_on_the_first_event((starts, index, fails) in quick_log(), batch in 1usize..9) {
        let states = [State::Queued, State::Running, State::Retrying, State::Succeeded, State::Failed];
        let mut log = Vec::new();
        let mut expected = vec!["queued"];
        for (n, writes_start) in starts.iter().enumerate() {
            let attempt = n as u32 + 1;
            let ms = 100 * n as i64 + 50;
            let is_last = n + 1 == starts.len();
            let (kind, state) = match (is_last, fails) {
                (false, _) => (Kind::Retrying, "retrying"),
                (true, false) => (Kind::Succeeded, "succeeded"),
                (true, true) => (Kind::Failed, "failed"),
            };
            if *writes_start {
                log.push(at(Kind::Started, attempt, ms, None));
            }
            log.push(at(kind, attempt, ms + 9, Some(ms)));
            expected.extend(["running", state]);
        }
        log[0] = announcing(log[0].clone(), &states);
        log.insert(index.min(log.len()), asking(&states));
        let projected = fold_log(&log, batch, 9);
        let expected: Vec<String> = expected.iter().map(|state| format!("{state}/1 actions/0")).collect();
        prop_assert_eq!(notified(&projected, "a"), expected);
        let history = projected.task("a").history.entries;
        prop_assert_eq!(history[0].kind, Kind::Submitted);
        prop_assert!(history.iter().all(|entry| !entry.ignored), "{:?}", history);
    }
}

/// A notification has the time of the event that caused it, even if that event concerns a new child.
#[test]
fn parent_reopened_by_a_new_child_notifies_with_the_time_of_that_child() {
    let mut parent = telling("x", &[on(&[State::WaitingForChildren])], &[]);
    parent.task.as_mut().unwrap().policy.as_mut().unwrap().rules.external = true;
    let child = Event { at_ms: 77, ..submitted("x:a") };
    let notified_log =
        fold_log(&[parent, reported("x", State::Succeeded), child], 2, 9).task("x").notifications.unwrap();
    assert_eq!(notified_log.deliveries.iter().map(|delivery| delivery.at_ms).collect::<Vec<_>>(), [77]);
}

#[test]
fn reopened_parent_notifies_its_end_again() {
    let log = [
        telling("r", &[on(&[State::WaitingForChildren, State::Succeeded, State::Failed])], &[]),
        submitted("r:a"),
        event(Kind::Succeeded, "r"),
        event(Kind::Succeeded, "r:a"),
        submitted("r:late"),
        failed("r:late"),
    ];
    let wait = "waiting_for_children/1 actions/0";
    assert_eq!(notified(&fold_log(&log, 2, 9), "r"), [wait, "succeeded/1 actions/0", wait, "failed/1 actions/0"]);
}

/// A child whose first event is its end was never pending: its parent, which had ended, waits for nothing.
#[test]
fn child_first_seen_at_its_end_does_not_reopen_its_parent() {
    let every_state: Vec<State> = State::ALL.into_iter().filter(|state| *state != State::Expected).collect();
    let ended = |at_ms: i64, id: &str| Event { at_ms, ..event(Kind::Cancelled, id) };
    let log = [telling("r", &[on(&every_state)], &[]), ended(20, "r"), ended(30, "r:a"), ended(40, "r:b:c")];
    for batch in [1, 9] {
        let projected = fold_log(&log[..3], batch, 9);
        assert_eq!(notified(&projected, "r"), ["queued/1 actions/0", "cancelled/1 actions/0"]);
        let (task, last) = (projected.task("r"), "the tree ends with its last task");
        assert_eq!((task.times.ended_at_ms, task.tree.last_end.unwrap().by.as_str()), (Some(30), "r:a"), "{last}");
        assert_eq!(
            notified(&fold_log(&log, batch, 9), "r")[2..],
            ["waiting_for_children/1 actions/0"],
            "the parent of the last task is not known"
        );
    }
}

#[test]
fn late_policy_notifies_the_current_state() {
    let mut log = vec![event(Kind::Started, "a"), failed("a")];
    assert_eq!(fold_log(&log, 1, 9).task("a").notifications, None, "no rules are known");
    log.push(telling("a", &[on(&[State::Failed, State::Running])], &[]));
    assert_eq!(notified(&fold_log(&log, 1, 9), "a"), ["failed/1 actions/0"]);
}

/// A continuation has its own notifications; its checks count from its creation.
#[test]
fn continuation_notifies_like_any_task() {
    let then = Continuation::new("after", serde_json::json!(1))
        .action(on(&[State::Queued, State::Succeeded]))
        .check(check(5, State::Running));
    let rules = Rules { then: vec![then], ..Rules::default() };
    let start = with_policy("x", Policy { rules, ..Policy::default() });
    let log = [
        start,
        event(Kind::Succeeded, "x"),
        event(Kind::Started, "x:then"),
        due(0, "x:then"),
        event(Kind::Succeeded, "x:then"),
    ];
    for batch in [1, 9] {
        let projected = fold_log(&log, batch, 9);
        assert_eq!(
            notified(&projected, "x:then"),
            ["queued/1 actions/0", "running/1 checks/0/passed", "succeeded/1 actions/0"]
        );
        assert_eq!(projected.task("x").notifications, None);
    }
}

/// The continuation exists before its task appears ended, so the end is not notified twice.
#[test]
fn end_with_a_continuation_is_notified_once() {
    let mut start = telling("x", &[on(&[State::Failed])], &[]);
    let rules = &mut start.task.as_mut().unwrap().policy.as_mut().unwrap().rules;
    (rules.external, rules.fail_fast, rules.then) =
        (true, true, vec![Continuation::new("clean", serde_json::json!(1)).on(On::Failed)]);
    let log = [start, submitted("x:a"), failed("x:a"), event(Kind::Succeeded, "x:then")];
    for n in 1..=log.len() {
        let projected = fold_log(&log[..n], 1, 9);
        let expected = if n < log.len() { vec![] } else { vec!["failed/1 actions/0"] };
        assert_eq!(notified(&projected, "x"), expected, "after {n} events");
    }
}

#[test]
fn check_evaluates_the_state_at_its_time() {
    let start = telling(
        "a",
        &[],
        &[check(5_000, State::Succeeded), check(60_000, State::Succeeded), check(70_000, State::Failed)],
    );
    let timer = |projected: &ProjectedStore| projected.task("a").timer().map(|timer| (timer.due_ms, timer.kind));
    let mut log = vec![start, event(Kind::Started, "a")];
    assert_eq!(timer(&fold_log(&log, 1, 9)), Some((5_004, TimerKind::Check(0))), "from its creation");
    log.extend([due(0, "a"), due(0, "a"), due(7, "a")]);
    let projected = fold_log(&log, 2, 9);
    assert_eq!(
        (notified(&projected, "a"), timer(&projected)),
        (vec!["running/1 checks/0/failed".to_owned()], Some((60_004, TimerKind::Check(1))))
    );
    let history = projected.task("a").history.entries;
    assert_eq!(history[2].message.as_deref(), Some("check 0 failed: state is running, expected succeeded"));
    log.extend([event(Kind::Succeeded, "a"), due(1, "a"), due(2, "a")]);
    let projected = fold_log(&log, 2, 9);
    let expected = ["running/1 checks/0/failed", "succeeded/1 checks/1/passed", "succeeded/1 checks/2/failed"];
    assert_eq!((notified(&projected, "a"), timer(&projected)), (expected.map(str::to_owned).to_vec(), None));
}

#[test]
fn check_without_notification_is_only_recorded() {
    let mut silent = check(5, State::Succeeded);
    silent.failed = None;
    let projected = fold_log(&[telling("a", &[], &[silent]), due(0, "a")], 1, 9);
    assert!(notified(&projected, "a").is_empty());
    assert_eq!(projected.task("a").history.entries.last().unwrap().kind, Kind::Checked);
    assert_eq!(projected.task("a").timer(), None);
}

/// The earliest timer comes first, whatever its kind.
#[test]
fn timer_is_the_earlier_of_check_and_release() {
    let mut start = telling("a", &[], &[check(50, State::Queued)]);
    start = with_record(Event { payload: Kind::Scheduled.into(), ..start }, 90);
    let timer = |log: &[Event]| fold_log(log, 1, 9).task("a").timer().map(|timer| (timer.due_ms, timer.kind));
    assert_eq!(timer(std::slice::from_ref(&start)), Some((54, TimerKind::Check(0))));
    assert_eq!(timer(&[start.clone(), due(0, "a")]), Some((90, TimerKind::Release)));
    assert_eq!(timer(&[start, due(0, "a"), event(Kind::Released, "a")]), None);
}

#[test]
fn finished_tree_is_retained_until_its_checks_have_run() {
    const DAY: u64 = 86_400_000;
    let log = [
        submitted("r"),
        telling("r:a", &[], &[check(20 * DAY, State::Succeeded), check(90 * DAY, State::Succeeded)]),
        event(Kind::Succeeded, "r"),
        event(Kind::Succeeded, "r:a"),
    ];
    let projected = fold_log(&log, 9, 9);
    let due_ms = projected.task("r").times.expiry.unwrap().due_ms;
    let step_ms = 600_000;
    assert_eq!(due_ms, 20 * DAY as i64 + 3_600_000 + step_ms, "beyond its retention, with an hour for a late check");
    let checks = projected.task("r:a").notifications.unwrap().checks;
    assert_eq!(checks, [Some(4 + 20 * DAY as i64), None], "checks beyond the maximum tree age are dropped");
}

#[test]
fn pending_notifications_are_bounded_and_do_not_block_requests() {
    let mut start = telling("x", &[on(&[State::Running, State::Warning])], &[]);
    start.task.as_mut().unwrap().policy.as_mut().unwrap().rules.external = true;
    let mut log = vec![start];
    for _ in 0..150 {
        log.extend([reported("x", State::Running), reported("x", State::Warning)]);
    }
    log.push(event(Kind::CancelRequested, "x"));
    let task = fold_log(&log, 40, 9).task("x");
    let notified_log = task.notifications.as_ref().unwrap();
    assert_eq!((notified_log.deliveries.len(), notified_log.unlisted, notified_log.refused), (32, 224, 44));
    assert_eq!(
        (task.effects.iter().filter(|effect| effect.is_notification()).count(), task.state),
        (256, State::Cancelled)
    );
    assert_eq!((notified_log.deliveries[0].rule, notified_log.deliveries[31].change), (RuleRef::Action(0), 257));
}
