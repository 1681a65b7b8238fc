//! Core cases on the broker and store in memory.

use std::sync::{Arc, Mutex};

use kafleet::broker::memory as broker;
use kafleet::store::memory::MemoryStore;

use crate::tracker::announcements;
use crate::tracker::cases;
use crate::tracker::fixture::Fixture;

const TREES: usize = 400;

pub fn fixture(partitions: u32) -> (Fixture, MemoryStore) {
    let store = MemoryStore::default();
    (
        Fixture::new(
            broker::MemoryBroker::new(broker::MemoryBrokerOptions::default()),
            Arc::new(store.clone()),
            partitions,
        ),
        store,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn all_events_are_folded_once() {
    cases::all_events_are_folded_once(fixture(4).0, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trackers_start_and_stop_under_load() {
    cases::trackers_start_and_stop_under_load(fixture(5).0, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_event_stops_its_partition() {
    cases::newer_event_stops_its_partition(fixture(3).0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_is_wiped() {
    let (fixture, store) = fixture(3);
    cases::store_loses_writes(fixture, TREES, |_| {
        store.wipe();
        async {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_is_restored_from_a_snapshot() {
    let (fixture, store) = fixture(3);
    let saved = Mutex::new(store.snapshot());
    cases::store_loses_writes(fixture, TREES, |_| {
        let mut saved = saved.lock().unwrap();
        let now = store.snapshot();
        store.restore(&saved);
        *saved = now;
        async {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unannounced_tasks_are_announced() {
    announcements::unannounced_tasks_are_announced(fixture(3).0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_new_tasks_are_announced() {
    announcements::only_new_tasks_are_announced(fixture(3).0).await;
}
