//! Requests to start waiting tasks now: a wait in a worker ends, and nothing else changes.

use std::time::Duration;

use kafleet::config::Order;
use kafleet::control::{CircuitSetting, ControlKey, ControlRecord, ForcedCircuit, StartNow};
use kafleet::handlers::Failure;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::task::start::NextStart;
use kafleet::model::units::duration::Millis;
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Journal, Kind};

/// Time between attempts, which no test waits for.
const LONG: Duration = Duration::from_secs(3_600);

/// A type whose attempts fail; the next one starts much later. Tasks of an ordered type wait in the worker.
fn failing(journal: &Journal) -> Kind {
    let journal = journal.clone();
    let kind = Kind::new("failing", move |_, cx| {
        let journal = journal.clone();
        async move {
            let _run = journal.begin(&cx);
            Err(Failure::retry_after("down", LONG))
        }
    });
    kind.retries(2, Millis(1)).order(Order::Key)
}

impl Fleet {
    /// Requests the start of a task in run 1 after these attempts and waits.
    async fn start_now(&self, id: &str, attempts: u32, waits: u32) {
        let next_start = NextStart { run: 1, attempts, waits };
        let start = ControlRecord::Start(StartNow { v: 1, at_ms: 0, next_start });
        self.put_control(ControlKey::Start(id.into()), start).await;
    }
}

/// Waits until this task has ended this number of attempts with a wait.
async fn wait_for_retries(fleet: &Fleet, id: &str, number: usize) {
    let is_retry = |event: &&Event| event.id.as_str() == id && event.kind() == EventKind::Retrying;
    fleet.events.wait("the task waits", |events| events.iter().filter(is_retry).count() == number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_ends_the_wait_of_a_retry() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    fleet.send("failing", "a", "0").await;
    let worker = fleet.worker();
    for attempts in 1..=2 {
        wait_for_retries(&fleet, "a", attempts).await;
        fleet.start_now("a", attempts as u32, 0).await;
    }
    let end = fleet.result_of("a").await;
    assert_eq!((end.kind(), end.attempt, journal.started()), (EventKind::Failed, 3, 3));
    worker.stop().await;
    fleet.assert_clean("failing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_of_one_wait_does_not_shorten_another() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    for id in ["a", "b"] {
        fleet.send("failing", id, "0").await;
    }
    let worker = fleet.worker();
    wait_for_retries(&fleet, "a", 1).await;
    wait_for_retries(&fleet, "b", 1).await;
    for (attempts, waits) in [(0, 0), (2, 0), (1, 1)] {
        fleet.start_now("a", attempts, waits).await;
    }
    // The record of `b` follows those of `a`, so they have been applied when it takes effect.
    fleet.start_now("b", 1, 0).await;
    wait_for_retries(&fleet, "b", 2).await;
    assert_eq!(journal.counts()["a"], 1);
    fleet.start_now("a", 1, 0).await;
    wait_for_retries(&fleet, "a", 2).await;
    fleet.start_now("a", 1, 0).await;
    fleet.start_now("b", 2, 0).await;
    fleet.result_of("b").await;
    assert_eq!(journal.counts()["a"], 2, "the repeated record means the wait before");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_ends_a_counted_wait_and_a_delayed_first_start() {
    let journal = Journal::default();
    let waits = {
        let journal = journal.clone();
        Kind::new("waits", move |_, cx| {
            let journal = journal.clone();
            async move {
                let _run = journal.begin(&cx);
                Err(Failure::wait(Some(LONG), "later"))
            }
        })
    };
    let (fleet, _) = memory(1, &[waits.order(Order::Key)]).await;
    let later = time_text(now_ms() + 3_600_000);
    let headers = [("ce_id", "a"), ("ce_notbefore", later.as_str())];
    fleet.send_record("waits", None, None, Some(b"1"), &headers).await;
    let worker = fleet.worker();
    fleet.events.wait("the task is scheduled", |events| events.iter().any(|e| e.kind() == EventKind::Scheduled)).await;
    fleet.start_now("a", 0, 0).await;
    for waits in 1..=3 {
        wait_for_retries(&fleet, "a", waits).await;
        assert_eq!(journal.started(), waits);
        fleet.start_now("a", 0, waits as u32).await;
    }
    wait_for_retries(&fleet, "a", 4).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_type_and_open_circuit_hold_a_started_task() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    fleet.send("failing", "a", "0").await;
    let worker = fleet.worker();
    wait_for_retries(&fleet, "a", 1).await;
    let circuit = CircuitSetting { v: 1, at_ms: 0, state: ForcedCircuit::Open, reason: None, by: None };
    fleet.put_control(ControlKey::Circuit("failing".into()), ControlRecord::Circuit(circuit)).await;
    fleet.pause("failing").await;
    fleet.start_now("a", 1, 0).await;
    fleet.delete_control(ControlKey::Pause("failing".into())).await;
    fleet.pause("failing").await;
    fleet.delete_control(ControlKey::Circuit("failing".into())).await;
    // Nothing may start meanwhile.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(journal.counts()["a"], 1);
    fleet.delete_control(ControlKey::Pause("failing".into())).await;
    wait_for_retries(&fleet, "a", 2).await;
    worker.stop().await;
}

/// The commits of the worker before have the time that was due; the next owner reads the request when it starts.
#[tokio::test(flavor = "multi_thread")]
async fn next_owner_of_the_partition_starts_the_task_at_once() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    fleet.send("failing", "a", "0").await;
    let first = fleet.worker();
    wait_for_retries(&fleet, "a", 1).await;
    first.stop().await;
    fleet.start_now("a", 1, 0).await;
    let second = fleet.worker();
    wait_for_retries(&fleet, "a", 2).await;
    assert_eq!(journal.started(), 2);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_task_does_not_start() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[failing(&journal)]).await;
    fleet.send("failing", "a", "0").await;
    let worker = fleet.worker();
    wait_for_retries(&fleet, "a", 1).await;
    fleet.pause("failing").await;
    fleet.start_now("a", 1, 0).await;
    fleet.cancel("a", 9, true).await;
    fleet.delete_control(ControlKey::Pause("failing".into())).await;
    assert_eq!(fleet.result_of("a").await.kind(), EventKind::Cancelled);
    eventually("no attempt runs", async || journal.running() == 0).await;
    assert_eq!(journal.started(), 1);
    worker.stop().await;
}
