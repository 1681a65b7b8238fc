//! Faults: the store is unavailable, hangs or panics; the broker fails to seek or is lost; partitions return while
//! the last owner's requests are still queued.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{BrokerError, GroupEvent, TopicSpec};
use kafleet::config::TrackerConfig;
use kafleet::store::memory::MemoryStore;

use crate::tracker::cases::{expect_agreement, one_each};
use crate::tracker::event_log::{event_log, submitted};
use crate::tracker::faulty::{ANY, FaultMode, Faults, FaultyBroker, FaultyStore};
use crate::tracker::fixture::{DEADLINE, Fixture, Tracker, part, until};
use crate::tracker::memory::fixture;

/// Test fixture with a faulty broker and store, and their controls.
fn faulty(partitions: u32) -> (Fixture, MemoryStore, FaultyStore, Arc<Faults>) {
    let (fixture, memory) = fixture(partitions);
    let store = FaultyStore::new(fixture.store.clone());
    let (broker, faults) = FaultyBroker::new(fixture.broker.clone());
    (fixture.with(broker, Arc::new(store.clone())), memory, store, faults)
}

/// The outage is reported, even while idle, and cleared automatically.
#[tokio::test(flavor = "multi_thread")]
async fn store_outage_is_reported_and_survived() {
    let (fixture, _, store, _) = faulty(2);
    one_each(&fixture, "before").await;
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    store.set(FaultMode::Away);
    for partition in fixture.all() {
        tracker.expect_reason(&part(partition), "connection refused").await;
    }
    let busy = fixture.partition_of("busy-0");
    fixture.write(&[submitted("busy-0")]).await;
    store.set(FaultMode::Well);
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    assert!(tracker.rewinds(busy, "store") > 0 && tracker.rewinds(1 - busy, "store") > 0);
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_at_start_is_survived() {
    let (fixture, _, store, _) = faulty(2);
    one_each(&fixture, "before").await;
    store.set(FaultMode::Away);
    let tracker = fixture.tracker().await;
    tracker.expect_reason(&part(0), "connection refused").await;
    store.set(FaultMode::Well);
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Consumption stops during the outage, and a stop does not wait for the store.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_store_stops_reading() {
    let (fixture, _, store, faults) = faulty(1);
    let config = TrackerConfig { queue_events: 1_000, batch_events: 100, ..TrackerConfig::default() };
    let tracker = fixture.tracker_with(config.clone()).await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    store.set(FaultMode::Silent);
    let began = faults.delivered.load(SeqCst);
    fixture.write(&event_log(5, 1_000)).await;
    until("1,000 events are read", || async { faults.delivered.load(SeqCst) - began >= 1_000 }).await;
    // Further polls would reveal a tracker that continues to read.
    fixture.write(&event_log(6, 1_000)).await;
    let read = faults.delivered.load(SeqCst) - began;
    assert!(read < 6_000, "{read} of {} events are read while the store hangs", fixture.end(0));
    assert!(fixture.end(0) > 12_000);
    tracker.stop().await;
    store.set(FaultMode::Well);
    let tracker = fixture.tracker_with(config).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Starts a tracker whose next read panics while it folds this partition.
async fn panics(fixture: &Fixture, store: &FaultyStore) -> (Tracker, u32) {
    let tracker = fixture.tracker().await;
    one_each(fixture, "before").await;
    expect_agreement(fixture).await;
    store.set(FaultMode::Panics);
    fixture.write(&[submitted("boom")]).await;
    (tracker, fixture.partition_of("boom"))
}

/// A panic on one record is reported, and the partition is retried.
#[tokio::test(flavor = "multi_thread")]
async fn panic_is_reported_and_retried() {
    let (fixture, _, store, _) = faulty(2);
    let (tracker, hit) = panics(&fixture, &store).await;
    tracker.expect_reason(&part(hit), "panicked").await;
    one_each(&fixture, "after").await;
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Records of a store that changes between two reads may be inconsistent; the checkpoint is read again without a
/// delay.
#[tokio::test(flavor = "multi_thread")]
async fn panic_after_store_change_rereads_the_checkpoint() {
    let (fixture, memory, store, _) = faulty(2);
    *store.before_panic.lock().unwrap() = Some(Box::new(move || memory.wipe()));
    let (tracker, hit) = panics(&fixture, &store).await;
    expect_agreement(&fixture).await;
    assert!(tracker.rewinds(hit, "fence") > 0, "the checkpoint was read again without a delay");
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A consumer that could not seek continues at its old position, behind events that must be folded again.
#[tokio::test(flavor = "multi_thread")]
async fn failed_seek_is_retried_before_folding() {
    let (fixture, memory, _, faults) = faulty(2);
    let tracker = fixture.tracker().await;
    fixture.write(&event_log(1, 50)).await;
    expect_agreement(&fixture).await;
    faults.refuse_moves.store(6, SeqCst);
    memory.wipe();
    for seed in 2..6 {
        fixture.write(&event_log(seed, 50)).await;
    }
    expect_agreement(&fixture).await;
    assert_eq!(faults.refuse_moves.load(SeqCst), 0, "the seek is retried until it succeeds");
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A partition is released and assigned again while its first task's seek request is still queued, and another
/// tracker has folded further in between.
#[tokio::test(flavor = "multi_thread")]
async fn late_seek_request_of_an_earlier_owner_is_ignored() {
    let (fixture, memory, store, faults) = faulty(1);
    let early = event_log(1, 5);
    fixture.write(&early).await;
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
    // The next tracker finds the store empty; then the contents return without its knowledge.
    let folded = memory.snapshot();
    memory.wipe();
    faults.polls.store(0, SeqCst);
    let tracker = fixture.tracker().await;
    until("the tracker polls", || async { faults.is_held.load(SeqCst) }).await;
    let partition = fixture.partition(0);
    faults.polls.store(1, SeqCst);
    until("the partition is assigned", || async { tracker.reason("tracker").is_none() }).await;
    let reads = store.reads.load(SeqCst);
    until("the partition task has read the empty store and requested a seek", || async {
        store.reads.load(SeqCst) > reads
    })
    .await;
    memory.restore(&folded);
    fixture.write(&event_log(2, 5)).await;
    *faults.group_events.lock().unwrap() =
        vec![GroupEvent::Revoked(vec![partition.clone()]), GroupEvent::Assigned(vec![partition])];
    faults.polls.store(ANY, SeqCst);
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A failed consumer ends the tracker with an error, so that the process is restarted.
#[tokio::test(flavor = "multi_thread")]
async fn failed_consumer_ends_the_tracker() {
    let (fixture, _, _, faults) = faulty(1);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    *faults.fail.lock().unwrap() = Some(BrokerError::Fenced("another member has this instance id".into()));
    let ended = tokio::time::timeout(DEADLINE, tracker.running).await.expect("it ends").unwrap();
    let message = format!("{:#}", ended.unwrap_err());
    assert!(message.contains("another member has this instance id"), "{message}");
}

/// Broker errors that the client retries stay in the health report until records or commits succeed again.
#[tokio::test(flavor = "multi_thread")]
async fn broker_error_is_reported_and_cleared() {
    let (fixture, _, _, faults) = faulty(1);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    // Repeated, because the response to a commit may clear the error.
    let is_told = || async {
        let away = BrokerError::Unavailable("all brokers are down".into());
        *faults.group_events.lock().unwrap() = vec![GroupEvent::ClientError(away)];
        tracker.reason("events topic").is_some_and(|reason| reason.contains("all brokers are down"))
    };
    until("the error is reported", is_told).await;
    // Nothing is written: the response to the next commit clears the error.
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A stop under load is prompt, and the next tracker continues from there.
#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_lose_nothing() {
    let (fixture, _) = fixture(3);
    let writing = tokio::spawn({
        let fixture = fixture.clone();
        async move { fixture.write(&event_log(8, 2_000)).await }
    });
    while !writing.is_finished() {
        let tracker = fixture.tracker().await;
        until("events are folded", || async { fixture.store.checkpoints(&[0]).await.unwrap()[0].is_some() }).await;
        tracker.stop().await;
    }
    writing.await.unwrap();
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// With unsuitable timestamps or retention, the events topic is not folded, and the reason is reported.
#[tokio::test(flavor = "multi_thread")]
async fn misconfigured_events_topic_is_not_folded() {
    for (key, value, good) in
        [("message.timestamp.type", "CreateTime", "LogAppendTime"), ("retention.ms", "604800000", "-1")]
    {
        let (fixture, _) = fixture(1);
        let set = |value: &str| {
            let config = vec![(key.to_owned(), value.to_owned())];
            let spec = TopicSpec { name: fixture.names.events(), partitions: 1, replication: None, config };
            fixture.broker.apply_topics(&[spec], DEADLINE).unwrap();
        };
        set(value);
        let tracker = fixture.tracker().await;
        tracker.expect_reason(&part(0), &format!("`{key}` is")).await;
        tracker.expect_reason(&part(0), "kafleet topics apply").await;
        tracker.stop().await;
        set(good);
        fixture.write(&[submitted("t")]).await;
        let tracker = fixture.tracker().await;
        expect_agreement(&fixture).await;
        tracker.stop().await;
    }
}
