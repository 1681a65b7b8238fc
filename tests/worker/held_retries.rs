//! Retries and waits that a worker keeps, across its stop, its crash and a move of its partition.

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet::config::Order;
use kafleet::handlers::{Context, Failure};
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::offsets::Metadata;
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, ok};

/// Time between the attempts of [`failing`]: longer than the restarts of a worker in the tests.
const WAIT: Duration = Duration::from_millis(1_500);

/// A type whose attempts all fail; the next one starts after [`WAIT`].
pub fn failing(journal: &Journal) -> Kind {
    failing_after(journal, WAIT)
}

fn failing_after(journal: &Journal, wait: Duration) -> Kind {
    let journal = journal.clone();
    let kind = Kind::new("failing", move |_, cx| {
        let journal = journal.clone();
        async move {
            let _run = journal.begin(&cx);
            Err(Failure::retry_after("down", wait))
        }
    });
    kind.retries(1, Millis(1))
}

fn retrying(events: &[Event]) -> usize {
    events.iter().filter(|event| event.kind() == EventKind::Retrying).count()
}

/// Time of the second attempt of each task against the time at which it was due, in milliseconds.
fn delays(fleet: &Fleet) -> Vec<i64> {
    let events = fleet.events.all();
    let due: BTreeMap<&str, i64> =
        events.iter().filter_map(|event| Some((event.id.as_str(), event.payload.due_ms()?))).collect();
    let ends = events.iter().filter(|event| event.kind() == EventKind::Failed);
    ends.map(|event| event.payload.started_at_ms().unwrap() - due[event.id.as_str()]).collect()
}

/// Restarts workers while tasks wait for their retries: each task has two attempts, and the second one starts when it was
/// due, not earlier.
pub async fn restarts(fleet: Fleet, journal: Journal) {
    for n in 0..6 {
        fleet.send("failing", &format!("t{n}"), "0").await;
    }
    let first = fleet.worker();
    fleet.events.wait("all tasks wait for their retries", |events| retrying(events) == 6).await;
    first.stop().await;
    for _ in 0..3 {
        let worker = fleet.worker();
        worker.ready().await;
        worker.stop().await;
    }
    let last = fleet.worker();
    let results = fleet.wait_for_results(6).await;
    last.stop().await;
    let ends: Vec<_> = results.iter().map(|event| (event.kind(), event.attempt)).collect();
    assert_eq!(ends, [(EventKind::Failed, 2); 6]);
    assert_eq!(journal.started(), 12, "{:?}", journal.counts());
    assert!(delays(&fleet).iter().all(|delay| *delay >= -50), "{:?}", delays(&fleet));
    fleet.assert_clean("failing").await;
}

/// A second worker joins while tasks wait for their retries.
pub async fn moves(fleet: Fleet, journal: Journal) {
    fleet.send_many("failing", "t", 20, "0").await;
    let first = fleet.worker();
    fleet.events.wait("all tasks wait for their retries", |events| retrying(events) == 20).await;
    let second = fleet.worker();
    second.ready().await;
    fleet.wait_for_results(20).await;
    first.stop().await;
    second.stop().await;
    let repeated: Vec<_> = journal.counts().into_iter().filter(|(_, count)| *count != 2).collect();
    assert_eq!(repeated, [], "each task has two attempts");
    assert!(delays(&fleet).iter().all(|delay| *delay >= -50), "{:?}", delays(&fleet));
    fleet.assert_clean("failing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_go_on_after_restarts_of_the_worker() {
    for order in [Order::None, Order::Key] {
        let journal = Journal::default();
        restarts(memory(1, &[failing(&journal).order(order)]).await.0, journal).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_go_on_in_another_worker() {
    for order in [Order::None, Order::Key] {
        let journal = Journal::default();
        moves(memory(4, &[failing(&journal).order(order)]).await.0, journal).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_worker_keeps_the_order_behind_a_retry() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal).order(Order::Key)]).await;
    for id in ["first", "second"] {
        fleet.send_record("failing", None, Some("key"), Some(b"0"), &[("ce_id", id)]).await;
    }
    let worker = fleet.worker();
    fleet.events.wait("the first task waits", |events| retrying(events) == 1).await;
    worker.stop().await;
    let worker = fleet.worker();
    fleet.wait_for_results(2).await;
    worker.stop().await;
    assert_eq!(journal.starts(), ["first", "first", "second", "second"]);
}

/// A type whose executions end with a wait three times.
fn waiting(journal: &Journal) -> Kind {
    let journal = journal.clone();
    Kind::new("waiting", move |params, cx| {
        let journal = journal.clone();
        async move {
            let _run = journal.begin(&cx);
            match journal.counts()[cx.id.as_str()] {
                ..=3 => Err(Failure::wait(Some(Duration::from_millis(300)), "later")),
                _ => ok(params),
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_are_counted_on_after_restarts_of_the_worker() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[waiting(&journal).order(Order::Key)]).await;
    fleet.send("waiting", "t", "0").await;
    for waits in 1..=3 {
        let worker = fleet.worker();
        fleet.events.wait("the task waits", |events| retrying(events) == waits).await;
        worker.stop().await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(1).await;
    worker.stop().await;
    let events = fleet.events.all();
    let waits: Vec<u32> = events.iter().map(|event| event.payload.waits()).filter(|waits| *waits > 0).collect();
    assert_eq!((waits, journal.started()), (vec![1, 2, 3], 4));
}

/// A type whose attempts fail at once up to the third, which waits at the gate.
fn third_waits(journal: &Journal, gate: &Gate) -> Kind {
    let (journal, gate) = (journal.clone(), gate.clone());
    let kind = Kind::new("third", move |_: Value, cx: Context| {
        let (journal, gate) = (journal.clone(), gate.clone());
        async move {
            let _run = journal.begin(&cx);
            if cx.number < 3 {
                return Err(Failure::retry_after("down", Duration::ZERO));
            }
            gate.pass("third").await;
            ok(cx.number.into())
        }
    });
    kind.retries(9, Millis(1))
}

/// The attempts before are committed when the third one starts, although it starts at once.
#[tokio::test(flavor = "multi_thread")]
async fn crash_repeats_one_attempt_and_not_those_before() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(1, &[third_waits(&journal, &gate)]).await;
    fleet.config.commit_interval = Millis::secs(600);
    fleet.send("third", "t", "0").await;
    let first = fleet.worker();
    eventually("the third attempt runs", async || journal.started() == 3).await;
    first.kill().await;
    gate.open();
    let second = fleet.worker();
    let results = fleet.wait_for_results(1).await;
    second.stop().await;
    assert_eq!((results[0].attempt, journal.started()), (3, 4), "the third attempt is repeated");
}

/// More tasks wait than the metadata of a commit has room for: the others wait at the tracker.
#[tokio::test(flavor = "multi_thread")]
async fn retries_beyond_the_metadata_wait_at_the_tracker() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing_after(&journal, Duration::from_secs(20)).slots(1_000)]).await;
    fleet.send_many("failing", "t", 600, "0").await;
    let worker = fleet.worker();
    fleet.events.wait("all tasks wait", |events| retrying(events) == 600).await;
    worker.stop().await;
    let handed_over = fleet.events.all().iter().filter(|event| event.payload.record().is_some()).count();
    assert_eq!(handed_over, 600 - 256);
    let committed = fleet.committed("failing").await[0].clone().unwrap();
    assert!(committed.metadata.len() <= 4_096);
    let metadata = Metadata::decode(committed.offset, &committed.metadata).unwrap();
    assert_eq!(metadata.retries.len(), 256);
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_task_leaves_the_commits() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    fleet.send("failing", "t", "0").await;
    let worker = fleet.worker();
    let retries = async || {
        let committed = fleet.committed("failing").await[0].clone();
        committed.and_then(|at| Metadata::decode(at.offset, &at.metadata)).map_or(0, |metadata| metadata.retries.len())
    };
    eventually("the retry is committed", async || retries().await > 0).await;
    fleet.wait_for_results(1).await;
    worker.stop().await;
    assert_eq!(retries().await, 0);
}
