//! The core cases on real Kafka and Redis, each test with a Redis of its own, which is maltreated.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kafleet::broker::kafka::Kafka;

use crate::cases::{self, agrees, one_each};
use crate::ground::{Ground, part};
use crate::observed;
use crate::redis::Server;
use crate::story::{story, submitted};

const TREES: usize = 200;

/// None, with a word about it, where no services were started.
pub fn ground(partitions: u32) -> Option<(Ground, Server)> {
    let (Ok(brokers), Ok(_)) = (std::env::var("KAFLEET_TEST_KAFKA"), std::env::var("KAFLEET_TEST_REDIS")) else {
        eprintln!("skipped: KAFLEET_TEST_KAFKA and KAFLEET_TEST_REDIS are not both set");
        return None;
    };
    let kafka = Kafka::new(&BTreeMap::from([("bootstrap.servers".to_owned(), brokers)])).unwrap();
    let server = Server::start();
    let store = server.store("kafleet");
    Some((Ground::new(Arc::new(kafka), Arc::new(store), partitions), server))
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_folded() {
    let Some((ground, _server)) = ground(4) else { return };
    cases::everything_is_folded(ground, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trackers_come_and_go() {
    let Some((ground, _server)) = ground(5) else { return };
    cases::trackers_come_and_go(ground, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_event_stops_its_partition() {
    let Some((ground, _server)) = ground(3) else { return };
    cases::a_newer_event_stops_its_partition(ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushall() {
    let Some((ground, server)) = ground(3) else { return };
    cases::the_store_loses_writes(ground, TREES, |_| {
        let () = server.call(&["FLUSHALL"]).unwrap();
        async {}
    })
    .await;
}

/// Killed, and started again empty.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_killed() {
    let Some((ground, server)) = ground(3) else { return };
    let server = Mutex::new(server);
    cases::the_store_loses_writes(ground, TREES, |_| {
        let mut server = server.lock().unwrap();
        server.kill();
        server.start_again();
        async {}
    })
    .await;
}

/// The connections go, the data stays.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_killed() {
    let Some((ground, server)) = ground(3) else { return };
    cases::the_store_loses_writes(ground, TREES, |_| {
        for kind in ["normal", "pubsub"] {
            let _: i64 = server.call(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
        }
        async {}
    })
    .await;
}

/// Where trackers soon give up waiting for Redis.
fn hasty(ground: &Ground, server: &Server) -> Ground {
    ground.with(ground.broker.clone(), Arc::new(server.hasty_store("kafleet")))
}

/// Frozen, then gone, for longer than a call waits: it says so, busy or idle, and goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_away_for_a_while() {
    let Some((ground, mut server)) = ground(2) else { return };
    one_each(&ground, "before").await;
    let tracker = hasty(&ground, &server).tracker().await;
    agrees(&ground).await;
    server.freeze();
    ground.write(&[submitted("busy-0")]).await;
    for partition in ground.all() {
        tracker.says(&part(partition), "redis at").await;
    }
    server.thaw();
    agrees(&ground).await;
    tracker.is_well().await;
    server.kill();
    ground.write(&story(1, TREES)).await;
    for partition in ground.all() {
        tracker.says(&part(partition), "redis at").await;
    }
    server.start_again();
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// A tracker that cannot reach its store stops all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_redis() {
    let Some((ground, server)) = ground(2) else { return };
    let tracker = hasty(&ground, &server).tracker().await;
    one_each(&ground, "t").await;
    agrees(&ground).await;
    server.freeze();
    ground.write(&[submitted("busy-0")]).await;
    let busy = ground.partition_of("busy-0");
    tracker.says(&part(busy), "redis at").await;
    tracker.stop().await;
    server.thaw();
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_tasks_are_announced() {
    let Some((ground, _server)) = ground(3) else { return };
    observed::foreign_tasks_are_announced(ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_new_is_announced() {
    let Some((ground, _server)) = ground(3) else { return };
    observed::only_what_is_new_is_announced(ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_partition_is_told_that_time_passes() {
    let Some((ground, _server)) = ground(2) else { return };
    crate::ages::an_idle_partition_is_told_that_time_passes(ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_is_told_of() {
    let Some((ground, _server)) = ground(2) else { return };
    crate::ages::a_silent_worker_is_told_of(ground).await;
}
