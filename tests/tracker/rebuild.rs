//! Rebuild: another store is filled from the log while the first one serves, and trackers take it over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kafleet::broker::memory as broker;
use kafleet::config::{Topology, TrackerConfig};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::{Shutdown, now_ms};
use kafleet::store::inspect::Inspect;
use kafleet::store::memory::MemoryStore;
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Checkpoint, PartitionWriter};
use kafleet::telemetry::Metrics;
use kafleet::tracker::TrackerSetup;
use kafleet::tracker::rebuild::{self, Ending, Next, Rebuild, RebuildError, RebuildEvent, RebuildPlan};
use kafleet_testkit::redis::{Cluster, Server, patient};
use kafleet_testkit::wait::DEADLINE;
use tokio::task::JoinHandle;

use crate::tracker::cases::{expect_agreement, one_each};
use crate::tracker::event_log::{event_log, id, submitted, succeeded};
use crate::tracker::fixture::{Fixture, eventually};
use crate::tracker::memory::fixture;
use crate::tracker::outbox::{header, make_topics, read_all, scheduled};

/// Rebuild of the store of `fixture` into the store of `into`.
fn setup(fixture: &Fixture, into: &Fixture) -> Rebuild {
    let tracker = TrackerSetup {
        config: TrackerConfig { batch_events: 50, cache_records: 1_000, ..TrackerConfig::default() },
        ..TrackerSetup::new(
            into.broker.clone(),
            into.store.clone(),
            Topology::new(fixture.names.clone(), fixture.partitions),
            Metrics::new().unwrap(),
        )
    };
    Rebuild { tracker: Arc::new(tracker), source: fixture.store.clone(), compare: None, partial: false, follow: true }
}

async fn plan(setup: &Rebuild) -> RebuildPlan {
    rebuild::preflight(setup).await.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Returns the error with which the rebuild is refused.
async fn refused(setup: &Rebuild) -> String {
    match rebuild::preflight(setup).await {
        Ok(_) => panic!("the rebuild is not refused"),
        Err(RebuildError::Unsuitable(error)) => error,
        Err(other) => panic!("{other}"),
    }
}

/// Events of a rebuild, and its outcome.
type End = (Vec<RebuildEvent>, Result<Ending, RebuildError>);

/// Runs a rebuild to its end.
fn run(setup: Rebuild, plan: RebuildPlan, stop: &Shutdown) -> JoinHandle<End> {
    run_until_ready(setup, plan, stop).0
}

/// Runs a rebuild to its end, with a flag that is set once all is compared.
fn run_until_ready(setup: Rebuild, plan: RebuildPlan, stop: &Shutdown) -> (JoinHandle<End>, Arc<AtomicBool>) {
    let (stop, ready) = (stop.clone(), Arc::new(AtomicBool::new(false)));
    let is_ready = ready.clone();
    let running = tokio::spawn(async move {
        let mut running = rebuild::start(setup, plan).await.unwrap();
        let mut events = Vec::new();
        loop {
            match running.next(&stop).await {
                Ok(Next::RebuildEvent(event)) => {
                    is_ready.fetch_or(event == RebuildEvent::Ready, SeqCst);
                    events.push(event);
                }
                Ok(Next::Ended(ending)) => return (events, Ok(ending)),
                Err(refusal) => return (events, Err(refusal)),
            }
        }
    });
    (running, ready)
}

async fn ended(running: JoinHandle<End>) -> End {
    tokio::time::timeout(DEADLINE, running).await.expect("the rebuild ends").unwrap()
}

fn another(fixture: &Fixture) -> Fixture {
    fixture.with(fixture.broker.clone(), Arc::new(MemoryStore::default()))
}

/// Rebuild numbers of the partitions' checkpoints.
async fn numbers(fixture: &Fixture) -> Vec<Option<u32>> {
    let checkpoints = fixture.store.checkpoints(&fixture.all()).await.unwrap();
    checkpoints.into_iter().map(|checkpoint| checkpoint.map(|checkpoint| checkpoint.rebuild)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_follows_the_log_until_a_tracker_takes_over() {
    let (fixture, _) = fixture(3);
    make_topics(&fixture);
    let copy = another(&fixture);
    fixture.write(&event_log(1, 200)).await;
    let old = fixture.tracker().await;
    expect_agreement(&fixture).await;
    let stop = Shutdown::new();
    let setup = setup(&fixture, &copy);
    let plan = plan(&setup).await;
    let running = run(setup, plan, &stop);
    expect_agreement(&copy).await;
    fixture.write(&event_log(2, 200)).await;
    expect_agreement(&copy).await;
    assert_eq!(numbers(&copy).await, [Some(1); 3]);
    old.stop().await;
    // Nothing is published yet, although the copy has due timers.
    let due: Vec<_> = (0..30).map(|n| scheduled(&format!("due-{n}"), now_ms() - 1_000)).collect();
    fixture.write(&due).await;
    copy.folded().await;
    assert_eq!(times_published(&fixture), BTreeMap::new());
    let new = copy.tracker().await;
    let (events, ending) = ended(running).await;
    assert_eq!(ending, Ok(Ending::TakenOver));
    let taken: Vec<u32> = events
        .iter()
        .filter_map(|event| if let RebuildEvent::TakenOver { partition } = event { Some(*partition) } else { None })
        .collect();
    assert_eq!(taken.len(), 3, "{events:?}");
    assert!(events.contains(&RebuildEvent::Ready), "{events:?}");
    eventually("all delayed tasks are released", || async {
        let queued = copy.store.counts(&copy.all()).await.unwrap();
        times_published(&fixture).len() == 30 && queued.iter().all(|count| count.state != State::Scheduled)
    })
    .await;
    assert!(times_published(&fixture).values().all(|times| *times == 1), "{:?}", times_published(&fixture));
    expect_agreement(&copy).await;
    assert_eq!(numbers(&copy).await, [Some(0); 3]);
    new.stop().await;
}

fn times_published(fixture: &Fixture) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for record in read_all(fixture, &fixture.names.tasks("root")) {
        *times.entry(header(&record, "ce_id").unwrap().to_owned()).or_default() += 1;
    }
    times
}

#[tokio::test(flavor = "multi_thread")]
async fn later_rebuild_continues_and_ends_the_earlier() {
    let (fixture, _) = fixture(2);
    let copy = another(&fixture);
    let tracker = fixture.tracker().await;
    fixture.write(&event_log(1, 100)).await;
    expect_agreement(&fixture).await;
    let stop = Shutdown::new();
    let (first, again) = (setup(&fixture, &copy), setup(&fixture, &copy));
    let planned = plan(&first).await;
    assert!((planned.number, planned.resumed) == (1, false));
    let first = run(first, planned, &stop);
    expect_agreement(&copy).await;
    let planned = plan(&again).await;
    assert!((planned.number, planned.resumed) == (2, true));
    assert!(planned.partitions.iter().all(|task| task.from == task.end), "folded events are not folded again");
    let second = run(again, planned, &stop);
    let (_, ending) = ended(first).await;
    let error = ending.unwrap_err().to_string();
    assert!(error.contains("another rebuild into this store was started: this one ends"), "{error}");
    fixture.write(&event_log(2, 100)).await;
    expect_agreement(&copy).await;
    assert_eq!(numbers(&copy).await, [Some(2); 2]);
    stop.begin();
    assert_eq!(ended(second).await.1, Ok(Ending::Stopped));
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_stores_are_refused() {
    let (fixture, _) = fixture(2);
    let copy = another(&fixture);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    let error = refused(&setup(&fixture, &fixture)).await;
    assert!(error.contains("this is the store that serves now") && error.contains("hint: "), "{error}");
    // A store with the checkpoint of another fleet.
    put(&copy, 0, Checkpoint { offset: 1, version: 0, ..Checkpoint::default() }).await;
    let error = refused(&setup(&fixture, &copy)).await;
    assert!(error.contains("fold version 0") && error.contains("hint: "), "{error}");
    tracker.stop().await;
}

/// The checkpoints of the copy determine whether a rebuild may start.
#[tokio::test(flavor = "multi_thread")]
async fn store_of_another_fleet_is_refused() {
    use kafleet::model::projection::FOLD_VERSION;
    let (fixture, _) = fixture(2);
    let tracker = fixture.tracker().await;
    one_each(&fixture, "t").await;
    expect_agreement(&fixture).await;
    let now = now_ms();
    let checkpoint =
        Checkpoint { offset: 1, version: FOLD_VERSION, log_time_ms: now, rebuild: 1, ..Checkpoint::default() };
    for (partition, checkpoint, expected) in [
        (0, Checkpoint { rebuild: 0, ..checkpoint }, "trackers project into this store"),
        (0, Checkpoint { offset: 1_000_000, ..checkpoint }, "the log holds 0 to"),
        (
            0,
            Checkpoint { log_time_ms: now - 7_200_000, ..checkpoint },
            "belongs to another fleet: partition 0 is projected up to offset 1",
        ),
        (0, Checkpoint { log_time_ms: now + 7_200_000, ..checkpoint }, "another fleet"),
        (2, checkpoint, "it has a partition 2, this fleet has 0 to 1"),
        (1, Checkpoint { version: FOLD_VERSION + 1, ..checkpoint }, "and this build has"),
    ] {
        let copy = another(&fixture);
        put(&copy, partition, checkpoint).await;
        let error = refused(&setup(&fixture, &copy)).await;
        assert!(error.contains(expected) && error.contains("hint: "), "{error}");
    }
    let newer = another(&fixture);
    put(&newer, 0, Checkpoint { version: FOLD_VERSION + 1, rebuild: 0, ..checkpoint }).await;
    let error = refused(&setup(&newer, &another(&fixture))).await;
    assert!(error.contains("the source has fold version"), "{error}");
    tracker.stop().await;
}

/// Retention has removed the beginning of a partition: trees announced there are missing from the log.
#[tokio::test(flavor = "multi_thread")]
async fn log_without_its_beginning_requires_partial() {
    let log = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(log.clone(), Arc::new(MemoryStore::default()), 2);
    let tracker = fixture.tracker().await;
    let old = one_each(&fixture, "old").await;
    // A tree whose end is in the log but not its beginning.
    let half = (0..).map(|n| format!("half-{n}")).find(|root| fixture.partition_of(root) == 0).unwrap();
    fixture.write(&[submitted(&half)]).await;
    expect_agreement(&fixture).await;
    let (written_ms, beginning) = (now_ms(), fixture.end(0));
    eventually("time passes", || async { now_ms() > written_ms + 1 }).await;
    let new = one_each(&fixture, "new").await;
    fixture.write(&[succeeded(&half)]).await;
    fixture.folded().await;
    log.truncate_before(&fixture.partition(0), beginning).unwrap();

    let copy = another(&fixture);
    let error = refused(&setup(&fixture, &copy)).await;
    let expect_reason = format!("partition 0 begins at offset {beginning} (");
    assert!(
        error.contains("retention has removed the beginning of the log") && error.contains(&expect_reason),
        "{error}"
    );
    assert!(
        error.contains("and 2 trees in the source began earlier, such as") && error.contains("`--partial`"),
        "{error}"
    );
    assert!(!error.contains("partition 1"), "partition 1 is complete: {error}");
    assert_eq!(numbers(&copy).await, [None; 2], "the refused rebuild writes nothing");

    let partial = Rebuild { partial: true, follow: false, ..setup(&fixture, &copy) };
    let planned = plan(&partial).await;
    assert_eq!((planned.partial_trees, planned.partitions[0].from), (2, beginning));
    let (events, ending) = ended(run(partial, planned, &Shutdown::new())).await;
    assert_eq!(ending, Ok(Ending::Complete), "{events:?}");
    assert_eq!(unverified(&events), 2, "{events:?}");
    let state =
        async |task: &str| crate::tracker::cases::state_of(&copy, task).await.map(|task_record| task_record.state);
    for task in [&new[0], &new[1], &old[1]] {
        assert_eq!(state(task).await, Some(State::Succeeded), "{task}");
    }
    assert_eq!(state(&old[0]).await, None, "the task is not in the log");
    let known = crate::tracker::cases::state_of(&copy, &half).await.expect("the task's end is in the log");
    assert_eq!((known.task_type.as_deref(), known.own), (None, State::Succeeded), "{known:?}");
    // A partial rebuild continues without another confirmation and is not mistaken for a complete one.
    let again = Rebuild { follow: false, ..setup(&fixture, &copy) };
    let planned = plan(&again).await;
    assert_eq!((planned.resumed, planned.partial_trees), (true, 2));
    let (events, ending) = ended(run(again, planned, &Shutdown::new())).await;
    assert_eq!((ending, unverified(&events)), (Ok(Ending::Complete), 2), "{events:?}");
    tracker.stop().await;
}

fn unverified(events: &[RebuildEvent]) -> usize {
    let lost = "has lost the beginning of 2 trees in the source";
    events
        .iter()
        .filter(|event| matches!(event, RebuildEvent::Unverified { error, .. } if error.contains(lost)))
        .count()
}

/// A single server and a cluster of three, with a slot migration while the copy is written.
#[tokio::test(flavor = "multi_thread")]
async fn rebuild_works_into_and_from_a_cluster() {
    if kafleet_testkit::services::redis().is_none() {
        return;
    }
    let (servers, cluster) = ([Server::start(), Server::start()], Cluster::start());
    let in_cluster = || {
        let options = RedisOptions { prefix: "fleet".into(), ..patient(cluster.url()) };
        Redis::connect(options).unwrap()
    };
    let (log, _) = fixture(5);
    let [first, last] = servers.each_ref().map(|server| log.with(log.broker.clone(), Arc::new(server.store("fleet"))));
    let copy = log.with(log.broker.clone(), Arc::new(in_cluster()));
    let stop = Shutdown::new();

    let old = first.tracker().await;
    first.write(&(0..300).map(|n| scheduled(&format!("later-{n}"), now_ms() + 3_600_000)).collect::<Vec<_>>()).await;
    first.write(&event_log(1, 300)).await;
    let into = Rebuild { follow: true, ..compared_in(&first, &copy, [servers[0].store("fleet"), in_cluster()]) };
    let planned = plan(&into).await;
    let (running, ready) = run_until_ready(into, planned, &stop);
    expect_agreement(&copy).await;
    eventually("the comparison is complete", || async { ready.load(SeqCst) }).await;
    let moving = cluster.begin_move(0);
    moving.keys(20);
    first.write(&event_log(2, 100)).await;
    moving.end();
    expect_agreement(&copy).await;
    old.stop().await;
    let new = copy.tracker().await;
    let (events, ending) = ended(running).await;
    assert_eq!(ending, Ok(Ending::TakenOver), "{events:?}");
    let same = events
        .iter()
        .filter(|event| matches!(event, RebuildEvent::Verified(comparison) if comparison.keys > 0))
        .count();
    assert_eq!(same, 5, "{events:?}");

    first.write(&event_log(3, 100)).await;
    expect_agreement(&copy).await;
    let back = compared_in(&copy, &last, [in_cluster(), servers[1].store("fleet")]);
    let planned = plan(&back).await;
    let (events, ending) = ended(run(back, planned, &stop)).await;
    assert_eq!(ending, Ok(Ending::Complete), "{events:?}");
    assert!(events.iter().all(|event| matches!(event, RebuildEvent::Verified(_) | RebuildEvent::Ready)), "{events:?}");
    expect_agreement(&last).await;
    // Any node of the cluster identifies the cluster.
    let node = format!("redis-cluster://127.0.0.1:{}", cluster.servers[2].port);
    let same = Redis::connect(RedisOptions { prefix: "fleet".into(), ..patient(node) }).unwrap();
    let error = refused(&setup(&copy, &log.with(log.broker.clone(), Arc::new(same)))).await;
    assert!(error.contains("this is the store that serves now"), "{error}");
    new.stop().await;
}

async fn put(fixture: &Fixture, partition: u32, checkpoint: Checkpoint) {
    let (mut writer, found): (Box<dyn PartitionWriter>, _) = fixture.store.open(partition).await.unwrap();
    writer.apply(&Default::default(), found, checkpoint).await.unwrap();
}

/// A Redis with two databases, and a log in memory.
fn redis(partitions: u32) -> Option<(Fixture, Fixture, Server)> {
    kafleet_testkit::services::redis()?;
    let server = Server::start();
    let (fixture, _) = fixture(partitions);
    let source = fixture.with(fixture.broker.clone(), Arc::new(server.store("fleet")));
    let copy = fixture.with(fixture.broker.clone(), Arc::new(server.database("fleet", 1)));
    Some((source, copy, server))
}

fn compared(source: &Fixture, copy: &Fixture, server: &Server) -> Rebuild {
    compared_in(source, copy, [server.store("fleet"), server.database("fleet", 1)])
}

/// A rebuild with comparison of these stores.
fn compared_in(source: &Fixture, copy: &Fixture, stores: [Redis; 2]) -> Rebuild {
    let [first, second] = stores.map(|store| Arc::new(store) as Arc<dyn Inspect>);
    Rebuild { compare: Some((first, second)), follow: false, ..setup(source, copy) }
}

/// Every key is compared at equal checkpoints while events arrive.
#[tokio::test(flavor = "multi_thread")]
async fn copy_is_compared_under_load() {
    let Some((source, copy, server)) = redis(3) else { return };
    // Without writers the log stands still.
    let tracker = source.tracker_with(TrackerConfig { tick: Millis(3_600_000), ..TrackerConfig::default() }).await;
    // One task with more children than a page, and some delayed tasks.
    source.write(&(0..2_500).map(|n| submitted(&format!("wide:c{n}"))).collect::<Vec<_>>()).await;
    source.write(&(0..300).map(|n| scheduled(&format!("later-{n}"), now_ms() + 3_600_000)).collect::<Vec<_>>()).await;
    source.write(&event_log(1, 300)).await;
    let writing = tokio::spawn({
        let source = source.clone();
        async move {
            for seed in 2..6 {
                source.write(&event_log(seed, 100)).await;
            }
        }
    });
    let stop = Shutdown::new();
    let setup = compared(&source, &copy, &server);
    let plan = plan(&setup).await;
    let (events, ending) = ended(run(setup, plan, &stop)).await;
    assert_eq!(ending, Ok(Ending::Complete), "{events:?}");
    let keys: u64 = events
        .iter()
        .map(|event| if let RebuildEvent::Verified(comparison) = event { comparison.keys } else { 0 })
        .sum();
    assert!(keys > 3_000, "{events:?}");
    writing.await.unwrap();
    // Compare again without writes: the digest covers the contents only.
    source.folded().await;
    let mut digests = Vec::new();
    for _ in 0..2 {
        let setup = compared(&source, &copy, &server);
        let plan = rebuild::preflight(&setup).await.unwrap();
        let (mut events, _) = ended(run(setup, plan, &stop)).await;
        events.retain(|event| *event != RebuildEvent::Ready);
        events.sort_by_key(|event| {
            if let RebuildEvent::Verified(comparison) = event { comparison.partition } else { panic!("{event:?}") }
        });
        digests.push(events);
    }
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0].len(), 3);
    expect_agreement(&copy).await;
    tracker.stop().await;
}

/// Manipulated keys of the source are found and reported by key and field.
#[tokio::test(flavor = "multi_thread")]
async fn differences_are_reported_by_key_and_field() {
    let Some((source, copy, server)) = redis(1) else { return };
    let tracker = source.tracker().await;
    source.write(&[submitted("a"), succeeded("a"), submitted("b"), scheduled("later", now_ms() + 3_600_000)]).await;
    expect_agreement(&source).await;
    tracker.stop().await;
    let record = source.store.task_records(0, &[id("a")]).await.unwrap().remove(0).unwrap();
    let wrong = TaskRecord { attempt: 7, ..record }.encode().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let () = redis::cmd("SET").arg("fleet:{p0}:t:a").arg(wrong).query(&mut connection).unwrap();
    let () = server.call(&["ZREM", "fleet:{p0}:due", "later"]).unwrap();
    let () = server.call(&["DEL", "fleet:{p0}:t:b"]).unwrap();
    let () = server.call(&["DEL", "fleet:{p0}:counts"]).unwrap();
    let setup = compared(&source, &copy, &server);
    let plan = plan(&setup).await;
    let (events, ending) = ended(run(setup, plan, &Shutdown::new())).await;
    assert_eq!(ending, Ok(Ending::Different), "{events:?}");
    let [RebuildEvent::Differs { partition: 0, differences }] = events.as_slice() else { panic!("{events:?}") };
    let of = |key: &str| {
        differences.iter().find(|difference| difference.key == key).unwrap_or_else(|| panic!("{key}: {differences:?}"))
    };
    assert_eq!((of("fleet:{p0}:t:a").source.as_str(), of("fleet:{p0}:t:a").copy.as_str()), ("attempt=7", "attempt=0"));
    assert_eq!(of("fleet:{p0}:t:b").source, "nothing");
    assert_eq!(of("fleet:{p0}:due").source, "nothing");
    assert!(of("fleet:{p0}:due").copy.contains("later"), "{differences:?}");
    assert_eq!(of("fleet:{p0}:counts").source, "nothing", "a hash that exists only in the copy");
    assert_eq!(differences.len(), 4, "{differences:?}");
}
