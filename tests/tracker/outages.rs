//! Faults: the store is unavailable, hangs or panics; the broker fails to seek or is lost; partitions return while
//! the last owner's requests are still queued.

use kafleet::broker::{BrokerError, GroupEvent, StartOffset, TopicSpec};
use kafleet::config::TrackerConfig;
use kafleet::store::StoreError;
use kafleet::store::memory::MemoryStore;
use kafleet_testkit::faults::{Call, FaultRules, Rule, polls_of, read_checkpoints, store_calls};

use crate::tracker::cases::{expect_agreement, one_each};
use crate::tracker::event_log::{event_log, submitted};
use crate::tracker::fixture::{DEADLINE, Fixture, Tracker, eventually, part};
use crate::tracker::memory::fixture;

fn faulty(partitions: u32) -> (Fixture, MemoryStore, FaultRules) {
    let (fixture, memory) = fixture(partitions);
    let (fixture, faults) = fixture.with_faults();
    (fixture, memory, faults)
}

fn store_outage(faults: &FaultRules) -> Rule {
    faults.on(store_calls).fail(StoreError::Unavailable("connection refused".into()))
}

/// The outage is reported, even while idle, and cleared automatically.
#[tokio::test(flavor = "multi_thread")]
async fn store_outage_is_reported_and_survived() {
    let (fixture, _, faults) = faulty(2);
    one_each(&fixture, "before").await;
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    let outage = store_outage(&faults);
    for partition in fixture.all() {
        tracker.expect_reason(&part(partition), "connection refused").await;
    }
    let busy = fixture.partition_of("busy-0");
    fixture.write(&[submitted("busy-0")]).await;
    outage.lift();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    assert!(tracker.rewinds(busy, "store") > 0 && tracker.rewinds(1 - busy, "store") > 0);
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_at_start_is_survived() {
    let (fixture, _, faults) = faulty(2);
    one_each(&fixture, "before").await;
    let outage = store_outage(&faults);
    let tracker = fixture.tracker().await;
    tracker.expect_reason(&part(0), "connection refused").await;
    outage.lift();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Consumption stops during the outage, and a stop does not wait for the store.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_store_stops_reading() {
    let (fixture, _, faults) = faulty(1);
    let config = TrackerConfig { queue_events: 1_000, batch_events: 100, ..TrackerConfig::default() };
    let tracker = fixture.tracker_with(config.clone()).await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    let silent = faults.on(store_calls).hang();
    let began = faults.delivered();
    fixture.write(&event_log(5, 1_000)).await;
    eventually("1,000 events are read", || async { faults.delivered() - began >= 1_000 }).await;
    // Further polls would reveal a tracker that continues to read.
    fixture.write(&event_log(6, 1_000)).await;
    let read = faults.delivered() - began;
    assert!(read < 6_000, "{read} of {} events are read while the store hangs", fixture.end(0));
    assert!(fixture.end(0) > 12_000);
    tracker.stop().await;
    silent.lift();
    let tracker = fixture.tracker_with(config).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Starts a tracker whose next read panics after the action while it folds this partition.
async fn panics_after(
    fixture: &Fixture,
    faults: &FaultRules,
    action: impl Fn() + Send + Sync + 'static,
) -> (Tracker, u32) {
    let tracker = fixture.tracker().await;
    one_each(fixture, "before").await;
    expect_agreement(fixture).await;
    faults.on(|call| matches!(call, Call::WriterNodes)).times(1).run(move || {
        action();
        panic!("a panic on purpose");
    });
    fixture.write(&[submitted("boom")]).await;
    (tracker, fixture.partition_of("boom"))
}

/// A panic on one record is reported, and the partition is retried.
#[tokio::test(flavor = "multi_thread")]
async fn panic_is_reported_and_retried() {
    let (fixture, _, faults) = faulty(2);
    let (tracker, hit) = panics_after(&fixture, &faults, || ()).await;
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
    let (fixture, memory, faults) = faulty(2);
    let (tracker, hit) = panics_after(&fixture, &faults, move || memory.wipe()).await;
    expect_agreement(&fixture).await;
    assert!(tracker.rewinds(hit, "fence") > 0, "the checkpoint was read again without a delay");
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A consumer that could not seek continues at its old position, behind events that must be folded again.
#[tokio::test(flavor = "multi_thread")]
async fn failed_seek_is_retried_before_folding() {
    let (fixture, memory, faults) = faulty(2);
    let tracker = fixture.tracker().await;
    fixture.write(&event_log(1, 50)).await;
    expect_agreement(&fixture).await;
    let seeks = |call: &Call<'_>| matches!(call, Call::Assign(starts) if starts.iter().any(|(_, start)| matches!(start, StartOffset::At(_))));
    let refused = faults.on(seeks).times(6).fail(BrokerError::Unavailable("seeking: no answer in time".into()));
    memory.wipe();
    for seed in 2..6 {
        fixture.write(&event_log(seed, 50)).await;
    }
    expect_agreement(&fixture).await;
    assert_eq!(refused.hits(), 6, "the seek is retried until it succeeds");
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A partition is released and assigned again while its first task's seek request is still queued, and another
/// tracker has folded further in between.
#[tokio::test(flavor = "multi_thread")]
async fn late_seek_request_of_an_earlier_owner_is_ignored() {
    let (fixture, memory, faults) = faulty(1);
    let early = event_log(1, 5);
    fixture.write(&early).await;
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
    // The next tracker finds the store empty; then the contents return without its knowledge.
    let folded = memory.snapshot();
    memory.wipe();
    let polls = polls_of(fixture.names.tracker_group());
    let gate = faults.on(polls.clone()).block();
    let reads = faults.count(read_checkpoints);
    let tracker = fixture.tracker().await;
    eventually("the tracker polls", || async { gate.hits() > 0 }).await;
    let partition = fixture.partition(0);
    gate.admit_one();
    eventually("the partition is assigned", || async { tracker.reason("tracker").is_none() }).await;
    let before = reads.hits();
    eventually("the partition task has read the empty store and requested a seek", || async { reads.hits() > before })
        .await;
    memory.restore(&folded);
    fixture.write(&event_log(2, 5)).await;
    let returned = vec![GroupEvent::Revoked(vec![partition.clone()]), GroupEvent::Assigned(vec![partition])];
    faults.on(polls).times(1).answer(returned);
    gate.lift();
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A failed consumer ends the tracker with an error, so that the process is restarted.
#[tokio::test(flavor = "multi_thread")]
async fn failed_consumer_ends_the_tracker() {
    let (fixture, _, faults) = faulty(1);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    let fenced = BrokerError::Fenced("another member has this instance id".into());
    faults.on(polls_of(fixture.names.tracker_group())).times(1).fail(fenced);
    let ended = tokio::time::timeout(DEADLINE, tracker.running).await.expect("it ends").unwrap();
    let message = format!("{:#}", ended.unwrap_err());
    assert!(message.contains("another member has this instance id"), "{message}");
}

/// Broker errors that the client retries stay in the health report until records or commits succeed again.
#[tokio::test(flavor = "multi_thread")]
async fn broker_error_is_reported_and_cleared() {
    let (fixture, _, faults) = faulty(1);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    let down = BrokerError::Unavailable("all brokers are down".into());
    let failing = faults.on(polls_of(fixture.names.tracker_group())).answer(vec![GroupEvent::ClientError(down)]);
    let is_reported =
        || async { tracker.reason("events topic").is_some_and(|reason| reason.contains("all brokers are down")) };
    eventually("the error is reported", is_reported).await;
    failing.lift();
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
        eventually("events are folded", || async { fixture.store.checkpoints(&[0]).await.unwrap()[0].is_some() }).await;
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
