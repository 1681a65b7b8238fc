//! Core cases on real Kafka, and with a Redis per test that is disturbed.

use std::sync::{Arc, Mutex};

use kafleet_testkit::redis::Server;
use kafleet_testkit::services::connect;

use crate::tracker::announcements;
use crate::tracker::cases::{self, expect_agreement, one_each};
use crate::tracker::event_log::{event_log, submitted};
use crate::tracker::fixture::{Fixture, part};

const TREES: usize = 200;

/// Test fixture; `None` with a message if the services were not started.
pub fn fixture(partitions: u32) -> Option<(Fixture, Server)> {
    let (brokers, _) = kafleet_testkit::services::kafka_and_redis()?;
    let kafka = connect(brokers);
    let server = Server::start();
    let store = server.store("kafleet");
    Some((Fixture::new(kafka, Arc::new(store), partitions), server))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_events_are_folded_once() {
    let Some((fixture, _server)) = fixture(4) else { return };
    cases::all_events_are_folded_once(fixture, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trackers_start_and_stop_under_load() {
    let Some((fixture, _server)) = fixture(5) else { return };
    cases::trackers_start_and_stop_under_load(fixture, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_event_stops_its_partition() {
    let Some((fixture, _server)) = fixture(3) else { return };
    cases::newer_event_stops_its_partition(fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushall() {
    let Some((fixture, server)) = fixture(3) else { return };
    cases::store_loses_writes(fixture, TREES, |_| {
        let () = server.call(&["FLUSHALL"]).unwrap();
        async {}
    })
    .await;
}

/// Killed and restarted empty.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_killed() {
    let Some((fixture, server)) = fixture(3) else { return };
    let server = Mutex::new(server);
    cases::store_loses_writes(fixture, TREES, |_| {
        let mut server = server.lock().unwrap();
        server.kill();
        server.restart();
        async {}
    })
    .await;
}

/// Connections are closed; data stays.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_killed() {
    let Some((fixture, server)) = fixture(3) else { return };
    cases::store_loses_writes(fixture, TREES, |_| {
        for kind in ["normal", "pubsub"] {
            let _: i64 = server.call(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
        }
        async {}
    })
    .await;
}

/// Test fixture whose trackers have short Redis deadlines.
fn impatient(fixture: &Fixture, server: &Server) -> Fixture {
    fixture.with(fixture.broker.clone(), Arc::new(server.impatient_store("kafleet")))
}

/// Frozen, then stopped, for longer than a call's deadline: reported whether busy or idle, and cleared automatically.
#[tokio::test(flavor = "multi_thread")]
async fn redis_outage_is_reported_and_survived() {
    let Some((fixture, mut server)) = fixture(2) else { return };
    one_each(&fixture, "before").await;
    let tracker = impatient(&fixture, &server).tracker().await;
    expect_agreement(&fixture).await;
    server.freeze();
    fixture.write(&[submitted("busy-0")]).await;
    for partition in fixture.all() {
        tracker.expect_reason(&part(partition), "redis at").await;
    }
    server.thaw();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    server.kill();
    fixture.write(&event_log(1, TREES)).await;
    for partition in fixture.all() {
        tracker.expect_reason(&part(partition), "redis at").await;
    }
    server.restart();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A tracker without its store stops promptly.
#[tokio::test(flavor = "multi_thread")]
async fn stop_does_not_wait_for_redis() {
    let Some((fixture, server)) = fixture(2) else { return };
    let tracker = impatient(&fixture, &server).tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    server.freeze();
    fixture.write(&[submitted("busy-0")]).await;
    let busy = fixture.partition_of("busy-0");
    tracker.expect_reason(&part(busy), "redis at").await;
    tracker.stop().await;
    server.thaw();
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unannounced_tasks_are_announced() {
    let Some((fixture, _server)) = fixture(3) else { return };
    announcements::unannounced_tasks_are_announced(fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_new_tasks_are_announced() {
    let Some((fixture, _server)) = fixture(3) else { return };
    announcements::only_new_tasks_are_announced(fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_partition_gets_ticks() {
    let Some((fixture, _server)) = fixture(2) else { return };
    crate::tracker::ages::idle_partition_gets_ticks(fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_silent_worker_are_marked() {
    let Some((fixture, _server)) = fixture(2) else { return };
    crate::tracker::ages::tasks_of_a_silent_worker_are_marked(fixture).await;
}
