//! Faults of one type of a shared group, which must not concern the others, and changes of groups at a bad moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kafleet::broker::{
    Broker, BrokerError, Commit, CommitOutcomes, Committed, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef,
    Watermarks,
};
use kafleet::control::{ControlKey, ControlRecord, Group};
use kafleet::runtime::blocking;

use crate::worker::fleet::{DEADLINE, Fleet, Worker, memory, pause, until};
use crate::worker::shared_groups::assert_once;
use crate::worker::types::{Journal, counted};

/// Faults of the consumers of a broker.
#[derive(Default)]
struct Faults {
    /// Commits of the topics that end with this fail.
    denied_commits: parking_lot::Mutex<Option<&'static str>>,
    /// Commits of these topics cannot be read by the first consumer.
    denied_reads: parking_lot::Mutex<Option<&'static str>>,
    /// Number of tries to read them.
    reads: AtomicUsize,
    /// Time until the outcome of a commit arrives.
    commit_time: parking_lot::Mutex<Duration>,
    consumers: AtomicUsize,
}

struct FaultyBroker {
    inner: Arc<dyn Broker>,
    faults: Arc<Faults>,
}

struct FaultyConsumer {
    inner: Box<dyn Consumer>,
    faults: Arc<Faults>,
    is_first: bool,
    /// Commits that were denied.
    denied: CommitOutcomes,
    /// Outcomes that arrive later.
    delayed: Vec<(Instant, GroupEvent)>,
}

fn denied() -> BrokerError {
    BrokerError::Denied("topic authorization failed".into())
}

impl Consumer for FaultyConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        let mut events = self.inner.poll(max, wait, sink)?;
        let at = Instant::now() + *self.faults.commit_time.lock();
        for event in events.extract_if(.., |event| matches!(event, GroupEvent::Committed(_))) {
            self.delayed.push((at, event));
        }
        let now = Instant::now();
        for (_, event) in self.delayed.extract_if(.., |(at, _)| now >= *at) {
            let GroupEvent::Committed(mut outcomes) = event else { continue };
            outcomes.append(&mut self.denied);
            events.push(GroupEvent::Committed(outcomes));
        }
        Ok(events)
    }

    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let suffix = *self.faults.denied_commits.lock();
        let is_denied = |commit: &&Commit| suffix.is_some_and(|suffix| commit.partition.topic.ends_with(suffix));
        let (failed, others): (Vec<&Commit>, Vec<&Commit>) = commits.iter().partition(is_denied);
        self.denied = failed.into_iter().map(|commit| (commit.partition.clone(), Err(denied()))).collect();
        self.inner.commit(&others.into_iter().cloned().collect::<Vec<_>>())
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        let suffix = self.faults.denied_reads.lock().filter(|_| self.is_first);
        if suffix.is_some_and(|suffix| partitions.iter().any(|partition| partition.topic.ends_with(suffix))) {
            self.faults.reads.fetch_add(1, Ordering::SeqCst);
            return Err(denied());
        }
        self.inner.committed(partitions, deadline)
    }

    delegate!(Consumer via [inner]: assign, release, commit_sync, pause, hold, positions, close);
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.consumer(spec)?;
        if spec.group.is_none() {
            return Ok(inner);
        }
        let is_first = self.faults.consumers.fetch_add(1, Ordering::SeqCst) == 0;
        let (denied, delayed) = (Vec::new(), Vec::new());
        Ok(Box::new(FaultyConsumer { inner, faults: self.faults.clone(), is_first, denied, delayed }))
    }
    delegate!(Broker via [inner]: producer, transactional_producer, topics, apply_topics, watermarks, first_visible, group_offsets, set_group_offsets);
}

/// A fleet with the types `a` and `b` of one group, on a broker with faults.
async fn faulty(partitions: u32, journal: &Journal) -> (Fleet, Arc<Faults>) {
    let (mut fleet, inner) = memory(partitions, &["a", "b"].map(|name| counted(name, journal))).await;
    fleet.share(&["a", "b"]);
    let faults = Arc::new(Faults::default());
    fleet.broker = Arc::new(FaultyBroker { inner, faults: faults.clone() });
    (fleet, faults)
}

fn has_reason(worker: &Worker, part: &str) -> bool {
    worker.health.reasons().iter().any(|(name, _)| name == part)
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_commits_of_one_type_do_not_stop_the_others() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(2, &journal).await;
    *faults.denied_commits.lock() = Some(".a");
    fleet.send_many("a", "a", 50, "0").await;
    // Many windows: each needs a commit.
    fleet.send_many("b", "b", 5_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(5_000).await;
    assert!(!journal.starts().iter().any(|id| id.starts_with('a')), "no task starts before a window is committed");
    *faults.denied_commits.lock() = None;
    fleet.wait_for_results(5_050).await;
    worker.stop().await;
    assert_once(&fleet, &journal, 5_050);
    fleet.assert_clean("a").await;
    fleet.assert_clean("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn type_that_cannot_start_does_not_stop_the_others() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(2, &journal).await;
    *faults.denied_reads.lock() = Some(".a");
    fleet.send_many("a", "a", 10, "0").await;
    fleet.send_many("b", "b", 1_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(1_000).await;
    until("the health report names the type", || has_reason(&worker, "type a")).await;
    assert!(!has_reason(&worker, "group small"), "{:?}", worker.health.reasons());
    *faults.denied_reads.lock() = None;
    fleet.wait_for_results(1_010).await;
    worker.ready().await;
    worker.stop().await;
    assert_once(&fleet, &journal, 1_010);
}

/// Another worker, which can read the commits, takes the type over.
#[tokio::test(flavor = "multi_thread")]
async fn worker_is_ready_once_partitions_that_it_cannot_start_are_revoked() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(1, &journal).await;
    *faults.denied_reads.lock() = Some(".a");
    let first = fleet.worker();
    until("the health report names the type", || has_reason(&first, "type a")).await;
    let second = fleet.worker_of(&[counted("a", &journal)]);
    fleet.send("a", "moved", "0").await;
    fleet.result_of("moved").await;
    first.ready().await;
    first.stop().await;
    second.stop().await;
}

/// Commits of one type follow one another without a pause; a partition of the other type moves nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn drained_partition_is_released_while_others_commit() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(1, &journal).await;
    *faults.commit_time.lock() = Duration::from_millis(30);
    let first = fleet.worker();
    fleet.send("a", "a-first", "0").await;
    let before = fleet.result_of("a-first").await.worker;
    let second = fleet.worker_of(&[counted("a", &journal)]);
    let end = Instant::now() + DEADLINE;
    for n in 0.. {
        assert!(Instant::now() < end, "the partition has not moved");
        fleet.send_many("b", &format!("b{n}-"), 20, "0").await;
        let id = format!("a{n}");
        fleet.send("a", &id, "0").await;
        pause().await;
        let moved = fleet.results().iter().any(|event| event.id.as_str().starts_with('a') && event.worker != before);
        if moved {
            break;
        }
    }
    first.stop().await;
    second.stop().await;
}

/// Commits that `kafleet offsets init` made before any worker has run.
#[tokio::test(flavor = "multi_thread")]
async fn worker_is_refused_if_an_unused_type_has_commits_in_another_group() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("a", &journal)]).await;
    fleet.send_many("a", "t", 100, "0").await;
    let commit = Commit { partition: Partition::new(fleet.names.tasks("a"), 1), offset: 7, metadata: String::new() };
    let (broker, own) = (fleet.broker.clone(), fleet.names.tasks("a"));
    blocking(move || broker.set_group_offsets(&own, &[commit], DEADLINE)).await.unwrap().unwrap();
    fleet.share(&["a"]);
    let why = fleet.worker().failure().await;
    assert!(why.contains("the commits of the type `a` are in the consumer group `a`"), "{why}");
    assert_eq!(journal.started(), 0);
}

/// Broker whose control topic is followed late; readers that read it once are up to date.
struct LaggingBroker {
    inner: Arc<dyn Broker>,
    control: String,
    lag: Arc<Lag>,
}

#[derive(Default)]
struct Lag {
    has_begun: AtomicBool,
    /// The topic has been read once.
    was_read: AtomicBool,
    has_ended: AtomicBool,
}

struct LaggingConsumer {
    inner: Box<dyn Consumer>,
    lag: Arc<Lag>,
}

impl Consumer for LaggingConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        if self.lag.has_ended.load(Ordering::SeqCst) {
            return self.inner.poll(max, wait, sink);
        }
        std::thread::sleep(wait);
        Ok(Vec::new())
    }
    delegate!(Consumer via [inner]: assign, release, commit, commit_sync, committed, pause, hold, positions, close);
}

impl Broker for LaggingBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.consumer(spec)?;
        if spec.group.is_some() {
            return Ok(inner);
        }
        if spec.read_uncommitted {
            self.lag.was_read.store(true, Ordering::SeqCst);
            return Ok(inner);
        }
        Ok(Box::new(LaggingConsumer { inner, lag: self.lag.clone() }))
    }

    /// The first call is that of the follower, which finds the topic empty.
    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        if *partition.topic == *self.control && !self.lag.has_begun.swap(true, Ordering::SeqCst) {
            return Ok(Watermarks { low: 0, high: 0 });
        }
        self.inner.watermarks(partition, deadline)
    }
    delegate!(Broker via [inner]: producer, transactional_producer, topics, apply_topics, first_visible, group_offsets, set_group_offsets);
}

/// Runs a task of the type `a`, then lets the next worker follow the control topic late.
async fn lagging(journal: &Journal, shares: bool) -> (Fleet, Arc<Lag>) {
    let (mut fleet, inner) = memory(2, &[counted("a", journal)]).await;
    if shares {
        fleet.share(&["a"]);
    }
    fleet.send("a", "first", "0").await;
    let worker = fleet.worker();
    fleet.result_of("first").await;
    worker.stop().await;
    let lag = Arc::new(Lag::default());
    fleet.broker = Arc::new(LaggingBroker { inner, control: fleet.names.control(), lag: lag.clone() });
    (fleet, lag)
}

async fn record_move(fleet: &Fleet, moving_to: Option<&str>) {
    let record = Group { v: 1, at_ms: 0, group: "a".into(), moving_to: moving_to.map(str::to_owned) };
    fleet.put_control(ControlKey::Group("a".into()), ControlRecord::Group(record)).await;
}

/// Another worker has recorded the group and consumed the type between the two reads of the control topic.
#[tokio::test(flavor = "multi_thread")]
async fn worker_that_follows_the_control_topic_late_is_not_refused() {
    let journal = Journal::default();
    let (fleet, lag) = lagging(&journal, true).await;
    let worker = fleet.worker();
    until("the control topic is read", || lag.was_read.load(Ordering::SeqCst)).await;
    lag.has_ended.store(true, Ordering::SeqCst);
    fleet.send("a", "second", "0").await;
    fleet.result_of("second").await;
    worker.stop().await;
    assert_once(&fleet, &journal, 2);
}

/// A worker that began before the move was recorded, and joined its group after that, processes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn type_is_not_started_while_its_commits_are_moved() {
    let journal = Journal::default();
    let (fleet, lag) = lagging(&journal, false).await;
    record_move(&fleet, Some("small")).await;
    fleet.send("a", "second", "0").await;
    let worker = fleet.worker();
    let is_held = || worker.health.reasons().iter().any(|(_, why)| why.contains("are being moved"));
    until("the type is not started", is_held).await;
    assert_eq!(journal.started(), 1);
    lag.has_ended.store(true, Ordering::SeqCst);
    record_move(&fleet, None).await;
    fleet.result_of("second").await;
    worker.ready().await;
    worker.stop().await;
    assert_once(&fleet, &journal, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_is_refused_while_a_move_has_not_ended() {
    let journal = Journal::default();
    let (fleet, _) = memory(2, &[counted("a", &journal)]).await;
    record_move(&fleet, Some("small")).await;
    let why = fleet.worker().failure().await;
    assert!(why.contains("are being moved from the consumer group `a` to `small`"), "{why}");
    assert!(why.contains("kafleet offsets move a --to small"), "{why}");
}
