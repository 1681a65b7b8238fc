//! Bad moments: the store is away, hangs, or panics; the broker refuses to move, or is lost; partitions come back while
//! their last owner still speaks.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{BrokerError, GroupEvent, TopicSpec};
use kafleet::config::TrackerConfig;
use kafleet::store::memory::Memory;

use crate::cases::{agrees, one_each};
use crate::ground::{DEADLINE, Ground, Tracker, part, until};
use crate::memory::ground;
use crate::shaky::{ANY, Mood, ShakyBroker, ShakyStore, Tricks};
use crate::story::{story, submitted};

/// A ground with a shaky broker and a shaky store, and what controls them.
fn shaky(partitions: u32) -> (Ground, Memory, ShakyStore, Arc<Tricks>) {
    let (ground, memory) = ground(partitions);
    let store = ShakyStore::new(ground.store.clone());
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    (ground.with(broker, Arc::new(store.clone())), memory, store, tricks)
}

/// It says so, also where nothing happens, and takes it back by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_away_for_a_while() {
    let (ground, _, store, _) = shaky(2);
    one_each(&ground, "before").await;
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    store.set(Mood::Away);
    for partition in ground.all() {
        tracker.says(&part(partition), "connection refused").await;
    }
    let busy = ground.partition_of("busy-0");
    ground.write(&[crate::story::submitted("busy-0")]).await;
    store.set(Mood::Well);
    agrees(&ground).await;
    tracker.is_well().await;
    assert!(tracker.rewinds(busy, "store") > 0 && tracker.rewinds(1 - busy, "store") > 0);
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_away_at_the_start() {
    let (ground, _, store, _) = shaky(2);
    one_each(&ground, "before").await;
    store.set(Mood::Away);
    let tracker = ground.tracker().await;
    tracker.says(&part(0), "connection refused").await;
    store.set(Mood::Well);
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// Nothing is hoarded meanwhile, and a stop does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_hangs() {
    let (ground, _, store, tricks) = shaky(1);
    let config = TrackerConfig { queue_events: 1_000, batch_events: 100, ..TrackerConfig::default() };
    let tracker = ground.tracker_with(config.clone()).await;
    one_each(&ground, "t").await;
    agrees(&ground).await;
    store.set(Mood::Silent);
    let began = tricks.delivered.load(SeqCst);
    ground.write(&story(5, 1_000)).await;
    until("it has read what it may", || async { tricks.delivered.load(SeqCst) - began >= 1_000 }).await;
    // Some polls more would show a reader that goes on.
    ground.write(&story(6, 1_000)).await;
    let read = tricks.delivered.load(SeqCst) - began;
    assert!(read < 6_000, "{read} events are read ahead of a store that hangs, {} are there", ground.end(0));
    assert!(ground.end(0) > 12_000);
    tracker.stop().await;
    store.set(Mood::Well);
    let tracker = ground.tracker_with(config).await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// A tracker whose next read panics as it folds this partition.
async fn panics(ground: &Ground, store: &ShakyStore) -> (Tracker, u32) {
    let tracker = ground.tracker().await;
    one_each(ground, "before").await;
    agrees(ground).await;
    store.set(Mood::Panics);
    ground.write(&[submitted("boom")]).await;
    (tracker, ground.partition_of("boom"))
}

/// One bad record must not take the partition away for good without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_told_and_tried_again() {
    let (ground, _, store, _) = shaky(2);
    let (tracker, hit) = panics(&ground, &store).await;
    tracker.says(&part(hit), "panicked").await;
    one_each(&ground, "after").await;
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// Records of a store that goes to another state between two reads need not fit each other: that is no defect, and nothing
/// to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_over_a_store_that_has_changed_is_a_look_at_its_fence() {
    let (ground, memory, store, _) = shaky(2);
    *store.before_panic.lock().unwrap() = Some(Box::new(move || memory.wipe()));
    let (tracker, hit) = panics(&ground, &store).await;
    agrees(&ground).await;
    assert!(tracker.rewinds(hit, "fence") > 0, "it did not wait as for a defect");
    tracker.is_well().await;
    tracker.stop().await;
}

/// A consumer that could not be moved reads on where it was: behind events that have to be folded again.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_fails_is_made_again_before_anything_is_folded() {
    let (ground, memory, _, tricks) = shaky(2);
    let tracker = ground.tracker().await;
    ground.write(&story(1, 50)).await;
    agrees(&ground).await;
    tricks.refuse_moves.store(6, SeqCst);
    memory.wipe();
    for seed in 2..6 {
        ground.write(&story(seed, 50)).await;
    }
    agrees(&ground).await;
    assert_eq!(tricks.refuse_moves.load(SeqCst), 0, "it was tried until it worked");
    tracker.is_well().await;
    tracker.stop().await;
}

/// A partition is taken away and given back while its first folder's wish still lies in the queue, and another tracker has
/// folded on in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_word_of_an_earlier_owner_is_not_obeyed() {
    let (ground, memory, store, tricks) = shaky(1);
    let early = story(1, 5);
    ground.write(&early).await;
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    tracker.stop().await;
    // From here on the store is folded; the next tracker finds it empty, and the fold comes back behind its back.
    let folded = memory.snapshot();
    memory.wipe();
    tricks.polls.store(0, SeqCst);
    let tracker = ground.tracker().await;
    until("the tracker polls", || async { tricks.is_held.load(SeqCst) }).await;
    let place = ground.place(0);
    tricks.polls.store(1, SeqCst);
    until("the partition is assigned", || async { tracker.reason("tracker").is_none() }).await;
    let looks = store.looks.load(SeqCst);
    until("its folder has found an empty store and asked", || async { store.looks.load(SeqCst) > looks }).await;
    memory.restore(&folded);
    ground.write(&story(2, 5)).await;
    *tricks.say.lock().unwrap() = vec![GroupEvent::Revoked(vec![place.clone()]), GroupEvent::Assigned(vec![place])];
    tricks.polls.store(ANY, SeqCst);
    agrees(&ground).await;
    tracker.stop().await;
}

/// What cannot go on ends with an error, instead of spinning: whoever started the process starts it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_of_no_use_any_more_ends_the_tracker() {
    let (ground, _, _, tricks) = shaky(1);
    let tracker = ground.tracker().await;
    one_each(&ground, "t").await;
    agrees(&ground).await;
    *tricks.fail.lock().unwrap() = Some(BrokerError::Fenced("another member has this instance id".into()));
    let ended = tokio::time::timeout(DEADLINE, tracker.running).await.expect("it ends").unwrap();
    let told = format!("{:#}", ended.unwrap_err());
    assert!(told.contains("another member has this instance id"), "{told}");
}

/// Trouble that the client goes on trying is in the health report until something is heard again.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_broker_is_told_and_taken_back() {
    let (ground, _, _, tricks) = shaky(1);
    let tracker = ground.tracker().await;
    one_each(&ground, "t").await;
    agrees(&ground).await;
    // Said until it is seen: the answer to a commit may come right behind it.
    let is_told = || async {
        let away = BrokerError::Unavailable("all brokers are down".into());
        *tricks.say.lock().unwrap() = vec![GroupEvent::Trouble(away)];
        tracker.reason("events topic").is_some_and(|reason| reason.contains("all brokers are down"))
    };
    until("it is told", is_told).await;
    // Nothing is written: the group's answer to the next commit is sign enough.
    tracker.is_well().await;
    tracker.stop().await;
}

/// A stop in the middle of everything is prompt, and whoever comes next goes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_lose_nothing() {
    let (ground, _) = ground(3);
    let writing = tokio::spawn({
        let ground = ground.clone();
        async move { ground.write(&story(8, 2_000)).await }
    });
    while !writing.is_finished() {
        let tracker = ground.tracker().await;
        until("it folds", || async { ground.store.fences(&[0]).await.unwrap()[0].is_some() }).await;
        tracker.stop().await;
    }
    writing.await.unwrap();
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// Times that are not the broker's, or a log that forgets what the store still shows: nothing is folded, and it says why.
#[tokio::test(flavor = "multi_thread")]
async fn an_events_topic_that_is_not_as_it_must_be_is_not_folded() {
    for (key, value, good) in [("message.timestamp.type", "CreateTime", "LogAppendTime"), ("retention.ms", "604800000", "-1")] {
        let (ground, _) = ground(1);
        let set = |value: &str| {
            let config = vec![(key.to_owned(), value.to_owned())];
            let spec = TopicSpec { name: ground.names.events(), partitions: 1, replication: None, config };
            ground.broker.apply_topics(&[spec], DEADLINE).unwrap();
        };
        set(value);
        let tracker = ground.tracker().await;
        tracker.says(&part(0), &format!("`{key}` is")).await;
        tracker.says(&part(0), "kafleet topics apply").await;
        tracker.stop().await;
        set(good);
        ground.write(&[submitted("t")]).await;
        let tracker = ground.tracker().await;
        agrees(&ground).await;
        tracker.stop().await;
    }
}
