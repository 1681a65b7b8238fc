use serde_json::json;

use super::super::tests::{event, status};
use super::*;
use kafleet_config::Role;

/// A hundred seconds after the creation of the tasks.
const NOW: i64 = 1_769_860_900_000;

fn drawn(timed: &[TimelineTask]) -> String {
    let view = View { now_ms: NOW, ..View::for_tests(Role::Read) };
    let range = range_of(timed.iter(), true, NOW);
    let top = &timed[0].task;
    let rows = timeline(&view, "t", top, &TimelineRow::folded(timed, None), range, None).into_string();
    legend(range, false).into_string() + &rows
}

fn timed(change: serde_json::Value, events: Vec<kafleet_documents::HistoryItem>) -> TimelineTask {
    let task = status(change);
    let history = History { id: task.id.clone(), events, dropped: 0, duplicates: 0 };
    TimelineTask { task, history }
}

#[test]
fn open_bar_reaches_now() {
    let shown = drawn(&[timed(json!({}), vec![event("started", 10, 0)])]);
    for text in [
        "1 min 40 s up to now, 12:01:40.",
        "now 12:01:40",
        "attempt 1: running, 1 min 30 s so far",
        "M100 1H992L1000 5",
    ] {
        assert!(shown.contains(text), "{text} is missing in {shown}");
    }
}

#[test]
fn wait_for_the_next_attempt_is_dashed_from_now_on() {
    let task = json!({"state": "retrying", "own_state": "retrying", "due_at": "2026-01-31T12:01:50.000Z"});
    let shown = drawn(&[timed(task, vec![event("started", 10, 0), event("retrying", 20, 0)])]);
    assert!(shown.contains("<line class=\"future\" x1=\"909\" x2=\"1000\""), "{shown}");
    assert!(
        shown.contains("next attempt at 12:01:50") && shown.contains("waited for the next attempt, 1 min 20 s so far")
    );
}

#[test]
fn siblings_of_one_kind_share_a_row() {
    let ended = |id: &str, state: &str, second: u32| {
        let task = json!({"id": id, "state": state, "own_state": state, "started_at": "2026-01-31T12:00:01.000Z",
            "ended_at": format!("2026-01-31T12:00:{second:02}.000Z")});
        timed(task, vec![event("started", 1, 0), event(state, second, 0)])
    };
    let mut tasks: Vec<TimelineTask> = (0..5).map(|n| ended(&format!("a:p{n}"), "succeeded", 2 + n)).collect();
    tasks.insert(2, ended("a:p7", "failed", 3));
    tasks.push(ended("a:q1", "succeeded", 3));
    let rows = |last| TimelineRow::folded(&tasks, last).iter().map(|row| row.others.len()).collect::<Vec<_>>();
    assert_eq!(rows(None), [4, 0, 0], "a failed task and another name have rows of their own");
    assert_eq!(rows(Some("a:p4")), [3, 0, 0, 0], "so has the one that ended last");
    let shown = drawn(&tasks);
    assert!(shown.contains("<strong> × 5</strong>") && shown.contains("took 5.0 s together"), "{shown}");
    assert!(shown.contains("ran, all together, 5.0 s"), "{shown}");
}

#[test]
fn task_is_named_by_its_path_below_the_top() {
    let top = status(json!({"id": "big"}));
    let path_of = |id: &str| path(&top, &status(json!({"id": id}))).into_owned();
    assert_eq!((path_of("big"), path_of("big:p0:5")), ("big".to_owned(), "p0:5".to_owned()));
    let long = path_of(&format!("big:{}:x:y", "p".repeat(60)));
    assert_eq!(long, "…x:y");
}

#[test]
fn failure_is_a_red_mark_also_without_a_start_or_an_end_of_its_attempt() {
    let failed = |change: serde_json::Value, events| {
        let mut task = json!({"state": "failed", "own_state": "failed", "ended_at": "2026-01-31T12:00:30.000Z"});
        task.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        drawn(&[timed(task, events)])
    };
    let attempt = failed(json!({"started_at": "2026-01-31T12:00:10.000Z"}), vec![event("started", 10, 0)]);
    assert!(attempt.contains("<title>attempt 1: failed, 20.0 s</title>"), "{attempt}");
    assert!(!attempt.contains("fill running"), "{attempt}");
    let unstarted = failed(json!({}), Vec::new());
    assert!(unstarted.contains("<rect class=\"fill bad\" x=\"300\" y=\"1\" width=\"10\""), "{unstarted}");
    assert!(unstarted.contains("failed without a start"), "{unstarted}");
}
