//! What was handed over to a type that starts nothing is given back as soon as it is asked for.

use std::time::Instant;

use kafleet::control::heartbeat::Heartbeat;
use kafleet::model::units::duration::Millis;

use crate::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::types::{Journal, counted};

/// Tasks that the first type of the first worker has and does not run, by its newest heartbeat.
async fn waiting(fleet: &Fleet) -> u32 {
    let records = fleet.records(&fleet.names.workers(), 1, 1).await;
    let beat: Heartbeat = serde_json::from_slice(records.last().unwrap().value.as_deref().unwrap()).unwrap();
    beat.types[0].waiting
}

/// More is on its way to a paused type than it looks at. The time for a drain is far longer than a stop may take here.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_type_gives_back_at_once_what_it_never_looked_at() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("work", &journal).slots(500)]).await;
    fleet.config.drain_timeout = Millis::secs(600);
    fleet.pause("work").await;
    fleet.send_many("work", "t", 4_000, "0").await;
    let worker = fleet.worker();
    until("it is paused", || worker.metric("kafleet_type_paused", "work") == 1.0).await;
    let end = Instant::now() + DEADLINE;
    while waiting(&fleet).await < 512 {
        assert!(Instant::now() < end, "it holds as much as it looks at");
        pause().await;
    }
    worker.stop().await;
    assert_eq!(journal.started(), 0);
}
