//! History of a task.

use super::*;

/// The result of a quick task may precede its `submitted` in the log.
#[test]
fn late_announcement_comes_first_in_history_and_is_not_ignored() {
    let mut late = submitted("a");
    late.at_ms = 9;
    let of_worker = |kind, at_ms| Event { at_ms, worker: Some("w".into()), ..event(kind, "a") };
    let log = [of_worker(Kind::Started, 6), of_worker(Kind::Succeeded, 7), late.clone(), late];
    let entries = |n: usize| {
        let history = fold_log(&log[..n], 1, 9).task("a").history.entries;
        history.into_iter().map(|entry| (entry.kind, entry.at_ms, entry.ignored)).collect::<Vec<_>>()
    };
    let first = [(Kind::Submitted, 4, false), (Kind::Started, 6, false), (Kind::Succeeded, 7, false)];
    assert_eq!(entries(3), first);
    assert_eq!(entries(4), [&first[..], &[(Kind::Submitted, 9, true)]].concat(), "the second one is a repetition");
}

#[test]
fn late_announcement_of_a_later_run_stands_before_that_run() {
    let done = |run| in_run(Event { worker: Some("w".into()), ..event(Kind::Succeeded, "a") }, run);
    let log = [submitted("a"), done(1), done(2), in_run(submitted("a"), 2)];
    let history = fold_log(&log, 1, 9).task("a").history.entries;
    let entries: Vec<_> = history.iter().map(|entry| (entry.kind, entry.run)).collect();
    let s = Kind::Submitted;
    let d = Kind::Succeeded;
    assert_eq!(entries, [(s, 1), (d, 1), (s, 2), (d, 2)]);
}

/// A worker ends a running descendant before the tracker's request for it is projected.
#[test]
fn late_cancel_request_of_a_descendant_stands_before_its_end() {
    let scope = CancelScope { with: Some(id("r")), asof: Some(3), subtree: true };
    let request = Event { by: Some("ann".into()), ..event(Payload::CancelRequested(scope), "r:a") };
    let ended = Event { worker: Some("w".into()), ..event(Kind::Cancelled, "r:a") };
    let log = [
        submitted("r"),
        submitted("r:a"),
        event(Kind::Started, "r:a"),
        event(Kind::CancelRequested, "r"),
        ended,
        request,
    ];
    let history = fold_log(&log, 1, 9).task("r:a").history.entries;
    let entries: Vec<_> = history.iter().map(|entry| (entry.kind, entry.ignored)).collect();
    let expected = [Kind::Submitted, Kind::Started, Kind::CancelRequested, Kind::Cancelled].map(|kind| (kind, false));
    assert_eq!(entries, expected);
    assert_eq!(history[2].by.as_deref(), Some("ann"));
}

/// Only the worker of a type knows the params that it declares.
#[test]
fn later_announcement_adds_tags_of_declared_params() {
    let with_tags = |mut event: Event, tags: &[&str]| {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        event.task.as_mut().unwrap().policy = Some(Box::new(Policy { tags, ..Policy::default() }));
        event
    };
    let of_worker = with_tags(submitted("a"), &["other", "params.n=1", "params.m=2"]);
    let tags = |log: &[Event]| fold_log(log, 1, 9).task("a").definition.policy.map(|policy| policy.tags);
    let declared = ["params.n=1", "params.m=2"].map(str::to_owned).to_vec();
    assert_eq!(tags(&[submitted("a"), of_worker.clone()]), Some(declared.clone()));
    let first = with_tags(submitted("a"), &["ci", "params.n=1"]);
    let all = ["ci", "params.n=1", "params.m=2"].map(str::to_owned).to_vec();
    assert_eq!(tags(&[first, of_worker.clone(), of_worker.clone()]), Some(all));
    let many: Vec<String> = (0..9).map(|n| format!("params.x{n}=1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let bounded = tags(&[submitted("a"), with_tags(submitted("a"), &many)]).unwrap();
    assert_eq!(bounded.len(), 5, "a task has at most five of them");
}

#[test]
fn history_is_bounded_and_keeps_its_first_entry() {
    let mut log = vec![submitted("a")];
    log.extend((0..200).map(|_| event(Kind::Retrying, "a")));
    let task = fold_log(&log, 7, 100).task("a");
    assert_eq!(
        (task.history.entries.len(), task.history.dropped, task.history.entries[0].kind),
        (64, 137, Kind::Submitted)
    );
}
