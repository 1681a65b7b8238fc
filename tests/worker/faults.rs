//! Faults of the broker: lost records, lost acknowledgements, refused commits.

use kafleet::broker::memory::Faults;
use kafleet::handlers::{Child, Failure};
use kafleet::model::event::Kind as EventKind;
use serde_json::{Value, json};

use crate::worker::fleet::memory;
use crate::worker::types::{Journal, Kind, counted, ok};

const SHAKY: Faults =
    Faults { seed: 7, unavailable: 0.1, lost_acknowledgement: 0.05, delay: 0.02, duplicate: 0.02, refuse_commit: 0.1 };

#[tokio::test(flavor = "multi_thread")]
async fn faulty_broker_loses_no_task() {
    let journal = Journal::default();
    let (fleet, broker) = memory(4, &[counted("faulty", &journal)]).await;
    fleet.send_many("faulty", "t", 3_000, "0").await;
    broker.set_faults(SHAKY);
    let worker = fleet.worker();
    fleet.wait_for_results(3_000).await;
    fleet.wait_committed("faulty").await;
    broker.set_faults(Faults::default());
    worker.stop().await;
    assert_eq!(journal.started(), 3_000, "a lost result is sent again; the task does not run again");
    fleet.assert_clean("faulty").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faulty_broker_loses_no_retry_child_or_dead_letter() {
    let kind = Kind::new("mixed", |params: Value, cx| async move {
        match params.as_u64().unwrap() % 4 {
            0 if cx.number == 1 => Err(Failure::retry("first")),
            1 => Err(Failure::dead("no")),
            2 => {
                cx.spawn_child(Child::new("echo", params).id("kid"));
                ok(json!(1))
            }
            _ => ok(json!(1)),
        }
    });
    let (fleet, broker) = memory(2, &[kind, Kind::echo("echo")]).await;
    for n in 0..200 {
        fleet.send("mixed", &format!("t{n}"), &n.to_string()).await;
        fleet.send("mixed", &format!("bad{n}"), "not JSON").await;
    }
    broker.set_faults(Faults { seed: 11, ..SHAKY });
    let worker = fleet.worker();
    fleet.wait_for_results(200 + 200 + 50).await;
    fleet.wait_committed("mixed").await;
    broker.set_faults(Faults::default());
    worker.stop().await;
    let results = fleet.results();
    let good = |event: &&kafleet::model::event::Event| event.kind() == EventKind::Succeeded;
    let ids: std::collections::HashSet<_> = results.iter().filter(good).map(|event| event.id.as_str()).collect();
    assert_eq!(ids.len(), 150 + 50);
    let letters = fleet.dead("mixed", 250).await;
    let offsets: std::collections::HashSet<_> = letters.iter().map(|letter| letter.record.key.clone()).collect();
    assert_eq!(offsets.len(), 250, "each result is present, some of them twice");
    fleet.assert_clean("mixed").await;
}

/// The final commit of a drained worker is refused at times; it is retried, so no task is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn refused_final_commit_is_retried() {
    let journal = Journal::default();
    let (fleet, broker) = memory(4, &[counted("work", &journal)]).await;
    broker.set_faults(Faults { seed: 3, refuse_commit: 0.4, ..Faults::default() });
    for round in 1..=10 {
        fleet.send_many("work", &format!("t{round}-"), 50, "0").await;
        let worker = fleet.worker();
        fleet.wait_for_results(50 * round).await;
        worker.stop().await;
    }
    assert_eq!(journal.started(), 500);
    fleet.assert_clean("work").await;
}
