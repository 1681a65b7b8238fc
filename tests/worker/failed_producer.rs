//! A producer that fails permanently: its unsent records are sent by its replacement.

use kafleet::broker::BrokerError;
use kafleet::handlers::Child;
use kafleet::model::event::Kind as EventKind;
use kafleet_testkit::faults::{Call, FaultRules, Rule, send};
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Journal, Kind, counted, ok};

/// Creates a fleet whose worker's first producer fails for good when it holds `most` records of the topics that
/// contain `held`; they are purged. Returns the rule of the failure.
async fn failing_fleet(kinds: &[Kind], held: &'static str, most: usize) -> (Fleet, FaultRules, Rule) {
    let (mut fleet, _) = memory(2, kinds).await;
    let faults = fleet.add_faults();
    let by_first = move |call: &Call<'_>| matches!(call, Call::Send { producer: 0, .. }) && send(held)(call);
    faults.on(by_first).times(most).hold();
    let failed = faults.on(by_first).fail(BrokerError::Fatal("out of order sequence number".into()));
    (fleet, faults, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_failed_producer_are_sent_by_its_replacement() {
    let journal = Journal::default();
    let (fleet, _, failed) = failing_fleet(&[counted("purged", &journal)], ".events", 40).await;
    fleet.send_many("purged", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.hits() > 0, "the first producer failed");
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded));
    assert_eq!(journal.started(), 300, "results are sent again; tasks do not run again");
    fleet.wait_committed("purged").await;
    worker.stop().await;
    fleet.assert_clean("purged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_wait_until_a_failed_producer_is_replaced() {
    let journal = Journal::default();
    let (fleet, faults, failed) = failing_fleet(&[counted("late", &journal)], ".events", 40).await;
    let unopened = BrokerError::Invalid("[kafka]: no thread could be started".into());
    faults.on(|call| matches!(call, Call::OpenProducer)).after(1).times(2).fail(unopened);
    fleet.send_many("late", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.hits() > 0, "the first producer failed");
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "no task fails");
    assert_eq!(journal.started(), 300);
    fleet.wait_committed("late").await;
    worker.stop().await;
    fleet.assert_clean("late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_children_do_not_fail_their_parent() {
    let parent = Kind::new("parent", |_: Value, cx| async move {
        (0..5).for_each(|n| cx.spawn_child(Child::new("child", json!(n))));
        ok(json!(null))
    });
    let (fleet, _, failed) = failing_fleet(&[parent, Kind::echo("child")], "tasks.child", 3).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("p").await;
    assert!(failed.hits() > 0, "the first producer failed");
    assert_eq!((end.kind(), end.payload.error()), (EventKind::Succeeded, None));
    fleet.wait_for_results(6).await;
    eventually("the worker is healthy", async || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    fleet.assert_clean("parent").await;
    fleet.assert_clean("child").await;
}
