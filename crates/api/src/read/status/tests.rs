use std::sync::Arc;

use kafleet_model::event::{Event, Kind};
use kafleet_model::projection::{LogPosition, WorkingSet};
use kafleet_model::record::HistoryEntry;
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::parse_time;
use kafleet_model::trace::Sampler;
use kafleet_store::Checkpoint;
use kafleet_testkit::events::{any_event, began};
use kafleet_tracker::outbox::notification::delivery_event;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::read::mask::Masks;

/// Earliest time in the generated log.
const BEGINNING_MS: i64 = 1_000;

/// Gives the events increasing times from [`BEGINNING_MS`] on.
fn timed(log: Vec<Event>) -> Vec<Event> {
    let time = |(n, mut event): (usize, Event)| {
        event.at_ms = BEGINNING_MS + n as i64;
        if let Some(task) = event.task.as_mut() {
            task.created_at_ms = event.at_ms;
            // Notify about all states, so that all of their times are checked.
            let actions = task.policy.iter_mut().flat_map(|policy| &mut policy.rules.actions);
            actions.for_each(|action| {
                action.on = State::ALL.into_iter().filter(|state| *state != State::Expected).collect();
            });
        }
        let at_ms = event.at_ms;
        began(event, Some(at_ms))
    };
    log.into_iter().enumerate().map(time).collect()
}

/// Projects a log whose log times are those of its events.
fn fold(log: &[Event]) -> Vec<(TaskId, TaskRecord)> {
    let mut working_set = WorkingSet::default();
    let mut missing = working_set.missing(log);
    while !missing.is_empty() {
        missing.into_iter().for_each(|id| working_set.load(id, None));
        missing = working_set.missing_records();
    }
    for (event, offset) in log.iter().zip(0..) {
        working_set.fold(event, LogPosition { offset, log_time_ms: event.at_ms }).unwrap();
    }
    let changes = working_set.take_changes().unwrap();
    changes.task_records.into_iter().map(|(id, bytes)| (id, TaskRecord::decode(&bytes).unwrap())).collect()
}

/// Collects all times of a document with their JSON pointers.
fn times(value: &Value, path: &str, collected: &mut Vec<(String, i64)>) {
    match value {
        Value::String(text) => collected.extend(parse_time(text).ok().map(|ms| (path.to_owned(), ms))),
        Value::Array(items) => items.iter().for_each(|item| times(item, path, collected)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, item)| times(item, &format!("{path}/{name}"), collected));
        }
        _ => {}
    }
}

fn view(id: &TaskId, record: &TaskRecord) -> TaskView {
    TaskView {
        id: id.clone(),
        partition: 0,
        checkpoint: Checkpoint::default(),
        record: record.clone(),
        superseded: false,
        sampler: Sampler::NEVER,
        masks: Masks::default(),
    }
}

/// Returns all documents about a task, including notification payloads.
fn documents(id: &TaskId, record: &TaskRecord) -> Vec<Value> {
    let task = view(id, record);
    let mut documents = vec![
        serde_json::to_value(status(&task)).unwrap(),
        serde_json::to_value(history(&task)).unwrap(),
        serde_json::to_value(tree_node(&task)).unwrap(),
    ];
    for delivery in record.notifications.iter().flat_map(|log| &log.deliveries) {
        documents.push(time_text(delivery.at_ms).into());
        let event = delivery_event(id, record, *delivery, (false, None, None), BEGINNING_MS).unwrap();
        documents.extend(event.and_then(|(event, _)| event.payload.into_record()?.params.value().ok()));
    }
    documents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// All times shown or sent come from the log, none is a default value.
    #[test]
    fn no_document_has_a_time_before_the_first_event(log in prop::collection::vec(any_event(), 1..40)) {
        for (id, record) in fold(&timed(log)) {
            let mut collected = Vec::new();
            documents(&id, &record).iter().for_each(|document| times(document, "", &mut collected));
            prop_assert!(!collected.is_empty());
            for (path, ms) in collected {
                prop_assert!(ms >= BEGINNING_MS, "{path} of `{id}` is {}", time_text(ms));
            }
        }
    }
}

proptest! {
    /// Continuations are added to an attempt that has started, whichever of its events reach the log.
    #[test]
    fn no_attempt_has_continuations_before_its_start(
        events in prop::collection::vec(
            (prop::sample::select(vec![Kind::Started, Kind::Succeeded, Kind::Interrupted, Kind::Submitted]), 0..50_i64, any::<Option<u8>>()),
            1..6,
        ),
    ) {
        let events: Vec<_> = events.into_iter().map(|(kind, at_ms, took)| (kind, "w", at_ms, took.map(u32::from))).collect();
        let kinds = kinds(&record_with(&events, 1));
        let added = kinds.split(' ').position(|kind| kind == "continuations_added");
        prop_assert!(added.is_none_or(|added| kinds.split(' ').take(added).any(|kind| kind == "started")), "{kinds}");
    }
}

/// Record of a running task whose first attempt has these events on a worker: kind, time and, of ends, the duration.
fn record_with(events: &[(Kind, &str, i64, Option<u32>)], continuations: usize) -> TaskRecord {
    let mut record = TaskRecord::expected(1, 0);
    (record.own, record.state) = (State::Running, State::Running);
    let then = vec![Continuation::new("after", serde_json::json!(1)); continuations];
    record.continuations.from_handler = (continuations > 0).then_some(then);
    for (kind, worker, at_ms, took_ms) in events {
        let entry = HistoryEntry::of_fold(*kind, 1, (*at_ms, *at_ms), String::new());
        let (attempt, worker) = (1, Some(Arc::from(*worker)));
        record.history.entries.push(HistoryEntry { attempt, worker, took_ms: *took_ms, ..entry });
    }
    record
}

fn kinds(record: &TaskRecord) -> String {
    let history = history(&view(&TaskId::parse("a").unwrap(), record));
    history.events.iter().map(|event| event.kind.clone()).collect::<Vec<_>>().join(" ")
}

#[test]
fn started_of_a_running_attempt_adds_continuations() {
    use Kind::{Interrupted, Started, Succeeded};
    let twice = [(Started, "w", 10, None), (Started, "w", 178, None), (Succeeded, "w", 179, Some(169))];
    assert_eq!(kinds(&record_with(&twice, 1)), "started continuations_added succeeded");
    assert_eq!(kinds(&record_with(&twice[..2], 1)), "started continuations_added");
    // A quick attempt sends no other `started`.
    let quick = [(Started, "w", 20, None), (Succeeded, "w", 21, Some(5))];
    assert_eq!(kinds(&record_with(&quick, 1)), "started succeeded");
    let record = record_with(&twice[..2], 1);
    assert_eq!(last_start(&record).map(|entry| entry.at_ms), Some(10));
    assert_eq!(state_since(&record), Some(10), "it has been running since its start");
    let interrupted =
        [(Started, "w", 10, None), (Interrupted, "w", 15, None), (Started, "w", 20, None), (Started, "w", 30, None)];
    assert_eq!(kinds(&record_with(&interrupted, 1)), "started interrupted started continuations_added");
}

#[test]
fn second_start_of_an_attempt_stays_a_start() {
    use Kind::{Started, Succeeded};
    // The worker has crashed, and has started the attempt again under its name.
    let crashed = [(Started, "w", 10, None), (Started, "w", 50, None), (Succeeded, "w", 60, Some(10))];
    assert_eq!(kinds(&record_with(&crashed, 1)), "started started succeeded");
    assert_eq!(kinds(&record_with(&crashed[..2], 0)), "started started", "the task has no continuations");
    let elsewhere = [(Started, "w", 10, None), (Started, "v", 50, None)];
    assert_eq!(kinds(&record_with(&elsewhere, 1)), "started started");
}
