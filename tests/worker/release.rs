//! Tasks handed out to a paused type are released as soon as their partition is revoked.

use kafleet::control::heartbeat::Heartbeat;
use kafleet::model::units::duration::Millis;

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Journal, counted};

/// Number of waiting tasks in the newest heartbeat.
async fn waiting(fleet: &Fleet) -> u32 {
    let records = fleet.records(&fleet.names.workers(), 1, 1).await;
    let heartbeat: Heartbeat = serde_json::from_slice(records.last().unwrap().value.as_deref().unwrap()).unwrap();
    heartbeat.types[0].waiting
}

/// Hands out more tasks to a paused type than its dispatcher accepts. The stop of the worker has a shorter
/// deadline than the drain timeout, so the test fails if the worker waits for the drain timeout.
#[tokio::test(flavor = "multi_thread")]
async fn paused_type_releases_unreceived_tasks_at_once() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("work", &journal).slots(500)]).await;
    fleet.config.drain_timeout = Millis::secs(600);
    fleet.pause("work").await;
    fleet.send_many("work", "t", 4_000, "0").await;
    let worker = fleet.worker();
    eventually("the type is paused", async || worker.metric("kafleet_type_paused", "work") == 1.0).await;
    eventually("the dispatcher has received its maximum", async || waiting(&fleet).await >= 512).await;
    worker.stop().await;
    assert_eq!(journal.started(), 0);
}
