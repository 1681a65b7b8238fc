//! The core cases on the broker and the store in memory.

use std::sync::{Arc, Mutex};

use kafleet::broker::memory as broker;
use kafleet::store::memory::Memory;

use crate::cases;
use crate::ground::Ground;
use crate::observed;

const TREES: usize = 400;

pub fn ground(partitions: u32) -> (Ground, Memory) {
    let store = Memory::default();
    (Ground::new(broker::Memory::new(broker::MemoryOptions::default()), Arc::new(store.clone()), partitions), store)
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_folded() {
    cases::everything_is_folded(ground(4).0, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trackers_come_and_go() {
    cases::trackers_come_and_go(ground(5).0, TREES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_event_stops_its_partition() {
    cases::a_newer_event_stops_its_partition(ground(3).0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_wiped() {
    let (ground, store) = ground(3);
    cases::the_store_loses_writes(ground, TREES, |_| {
        store.wipe();
        async {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_goes_back() {
    let (ground, store) = ground(3);
    let saved = Mutex::new(store.snapshot());
    cases::the_store_loses_writes(ground, TREES, |_| {
        let mut saved = saved.lock().unwrap();
        let now = store.snapshot();
        store.restore(&saved);
        *saved = now;
        async {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_tasks_are_announced() {
    observed::foreign_tasks_are_announced(ground(3).0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_new_is_announced() {
    observed::only_what_is_new_is_announced(ground(3).0).await;
}
