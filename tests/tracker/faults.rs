//! Exactly once under faults of Redis, its connections, the trackers and Kafka, while events arrive and tasks become
//! due. Each case ends with two checks: every record, count, index and effect equals a fold of the same log into an
//! empty store, and everything due was published once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::{Broker, ConsumerSpec, GroupEvent};
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Entry, Index, Store};
use kafleet_testkit::faults::{Call, FaultRules, polls_of};
use kafleet_testkit::oracle::Oracle;
use kafleet_testkit::redis::{Cluster, Cut, Proxy, Sentinels, Server, patient};
use kafleet_testkit::services::connect;
use tokio::sync::Mutex;

use crate::tracker::broker::OwnBroker;
use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event_log, id};
use crate::tracker::fixture::{Fixture, Tracker, eventually};
use crate::tracker::outbox::{make_topics, many, published};

/// Size of one round of the load.
const TREES: usize = 25;
const TIMERS: usize = 20;
const ROUND_INTERVAL: Duration = Duration::from_millis(50);
/// Rounds after which the load becomes light; it continues while the test waits for progress.
const QUICK_ROUNDS: usize = 150;
const SLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Kafka of the test services; `None` with a message if they were not started.
fn kafka() -> Option<Arc<Kafka>> {
    let (brokers, _) = kafleet_testkit::services::kafka_and_redis()?;
    Some(client(brokers))
}

fn client(brokers: String) -> Arc<Kafka> {
    connect(brokers)
}

/// A store with short deadlines.
fn store(url: String) -> Arc<dyn Store> {
    let mut options = RedisOptions::new(url);
    (options.response_timeout, options.read_timeout) = (Duration::from_secs(3), Duration::from_secs(3));
    Arc::new(Redis::connect(options).unwrap())
}

/// Load during which the faults occur.
struct Load {
    fixture: Fixture,
    /// Test fixture over a store with patient deadlines, for the comparison.
    calm: Fixture,
    /// Held by the load while it writes, and by a test to pause it.
    quiet: Arc<Mutex<()>>,
    enough: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    writing: tokio::task::JoinHandle<()>,
}

impl Load {
    fn begin(fixture: &Fixture, url: String) -> Self {
        make_topics(fixture);
        let calm = fixture.with(fixture.broker.clone(), Arc::new(Redis::connect(patient(url)).unwrap()));
        let (quiet, enough, rounds) =
            (Arc::<Mutex<()>>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let writing = tokio::spawn({
            let (fixture, quiet, enough, rounds) = (fixture.clone(), quiet.clone(), enough.clone(), rounds.clone());
            async move {
                for round in 0.. {
                    if enough.load(SeqCst) {
                        return;
                    }
                    let turn = quiet.lock().await;
                    fixture.write(&event_log(round as u64, TREES)).await;
                    fixture.write(&many(TIMERS, &format!("timer-{round}"))).await;
                    rounds.store(round + 1, SeqCst);
                    drop(turn);
                    // Interval between the rounds of the load.
                    tokio::time::sleep(if round < QUICK_ROUNDS { ROUND_INTERVAL } else { SLOW_INTERVAL }).await;
                }
            }
        });
        Self { fixture: fixture.clone(), calm, quiet, enough, rounds, writing }
    }

    /// Offset up to which the store is folded; `None` while it is unavailable.
    async fn folded(&self) -> Option<i64> {
        let checkpoints = self.fixture.store.checkpoints(&self.fixture.all()).await.ok()?;
        Some(checkpoints.iter().flatten().map(|checkpoint| checkpoint.offset).sum())
    }

    /// Offset up to which an available store is folded.
    async fn folded_now(&self) -> i64 {
        let checkpoints = self.calm.store.checkpoints(&self.calm.all()).await.unwrap();
        checkpoints.iter().flatten().map(|checkpoint| checkpoint.offset).sum()
    }

    /// Waits for progress of the fold.
    async fn wait_for_progress(&self, subject: &str) {
        let before = self.folded().await.unwrap_or(0);
        eventually(subject, || async { self.folded().await.is_some_and(|now| now > before + 200) }).await;
    }

    /// Ends the load and checks that everything is folded and published once.
    async fn finish(self, trackers: Vec<Tracker>) {
        self.enough.store(true, SeqCst);
        self.writing.await.unwrap();
        let oracle = settled(&self.calm).await;
        let times = published(&self.fixture);
        let not_once: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
        assert!(not_once.is_empty(), "published zero or several times: {not_once:?}");
        assert_eq!(times.len(), self.rounds.load(SeqCst) * TIMERS, "all due timers are published");
        assert!(oracle.tasks() > times.len());
        for tracker in trackers {
            tracker.expect_ready().await;
            tracker.stop().await;
        }
    }
}

/// Waits until nothing is due and compares the store with the log.
async fn settled(fixture: &Fixture) -> Oracle {
    let is_done = || async {
        let outboxes =
            futures::future::join_all(fixture.all().into_iter().map(|number| fixture.store.outbox(number, 1))).await;
        outboxes
            .iter()
            .all(|outbox| outbox.as_ref().is_ok_and(|outbox| outbox.timers.is_empty() && outbox.effects.is_empty()))
    };
    fixture.folded().await;
    eventually("all timers and effects are done", is_done).await;
    expect_agreement(fixture).await
}

fn rewinds(trackers: &[Tracker], fixture: &Fixture, reasons: &[&str]) -> u64 {
    let of = |tracker: &Tracker| -> u64 {
        let each = fixture.all().into_iter().flat_map(|number| reasons.iter().map(move |reason| (number, *reason)));
        each.map(|(number, reason)| tracker.rewinds(number, reason)).sum()
    };
    trackers.iter().map(of).sum()
}

async fn two_trackers(fixture: &Fixture) -> Vec<Tracker> {
    let trackers = vec![fixture.tracker().await, fixture.tracker().await];
    for tracker in &trackers {
        eventually("the tracker has partitions", || async { tracker.reason("tracker").is_none() }).await;
    }
    trackers
}

/// The master is frozen, a replica that has lagged takes over, and the old master returns.
#[tokio::test(flavor = "multi_thread")]
async fn lagging_replica_takes_over() {
    let Some(kafka) = kafka() else { return };
    let sentinels = Sentinels::start();
    let fixture = Fixture::new(kafka, store(sentinels.url()), 3);
    let load = Load::begin(&fixture, sentinels.url());
    let trackers = two_trackers(&fixture).await;
    load.wait_for_progress("events are folded").await;
    sentinels.let_lag();
    load.wait_for_progress("events are folded that the replica lacks").await;
    // Data in flight may still have reached the replica.
    let left = || fixture.all().into_iter().map(|number| sentinels.replicated(number)).sum::<i64>();
    eventually("the replica lags", || async { load.folded().await.is_some_and(|folded| left() < folded) }).await;
    let lost = load.folded_now().await;
    sentinels.master.freeze();
    sentinels.await_failover();
    sentinels.master.thaw();
    eventually("the lost events are folded again", || async { load.folded().await.is_some_and(|now| now > lost) })
        .await;
    eventually("the trackers have detected the loss", || async {
        rewinds(&trackers, &fixture, &["store", "fence"]) > 0
    })
    .await;
    load.finish(trackers).await;
}

/// Redis is killed and loses the unwritten end of its append-only file.
#[tokio::test(flavor = "multi_thread")]
async fn redis_loses_the_last_second() {
    let Some(kafka) = kafka() else { return };
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let fixture = Fixture::new(kafka, store(server.url()), 3);
    let load = Load::begin(&fixture, server.url());
    let trackers = two_trackers(&fixture).await;
    // Twice, because the first time leaves a partial batch in the file.
    for _ in 0..2 {
        load.wait_for_progress("events are folded").await;
        let (file, length) = append_only_file(&server);
        load.wait_for_progress("more events are folded").await;
        let folded = load.folded_now().await;
        server.kill();
        // Truncate within a batch.
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length - 7).unwrap();
        server.restart();
        eventually("the lost events are folded again", || async {
            load.folded().await.is_some_and(|now| now > folded)
        })
        .await;
    }
    eventually("the trackers have detected the loss", || async {
        rewinds(&trackers, &fixture, &["store", "fence"]) > 0
    })
    .await;
    load.finish(trackers).await;
}

/// Newest part of the append-only file, and its current length.
fn append_only_file(server: &Server) -> (std::path::PathBuf, u64) {
    let files = std::fs::read_dir(server.folder().join("appendonlydir")).unwrap().map(|entry| entry.unwrap().path());
    let newest = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().unwrap();
    let length = newest.metadata().unwrap().len();
    (newest, length)
}

#[tokio::test(flavor = "multi_thread")]
async fn store_is_wiped_under_load() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let fixture = Fixture::new(kafka, store(server.url()), 3);
    let load = Load::begin(&fixture, server.url());
    let trackers = two_trackers(&fixture).await;
    for _ in 0..3 {
        load.wait_for_progress("events are folded").await;
        let () = server.call(&["FLUSHALL"]).unwrap();
    }
    load.finish(trackers).await;
}

/// Connections are cut before an EXEC arrives, and after it was executed but not answered.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_cut_around_exec() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let proxy = Proxy::to(server.port);
    let fixture = Fixture::new(kafka, store(format!("redis://127.0.0.1:{}", proxy.port)), 3);
    let load = Load::begin(&fixture, server.url());
    let trackers = two_trackers(&fixture).await;
    for (cut, cuts) in [(Cut::Before(4), 3), (Cut::After(4), 6)] {
        proxy.cut(cut);
        eventually(&format!("connections are cut ({cut:?})"), || async { proxy.cuts() >= cuts }).await;
    }
    proxy.cut(Cut::Never);
    eventually("the trackers have read the checkpoint again", || async {
        rewinds(&trackers, &fixture, &["store"]) > 0
    })
    .await;
    load.finish(trackers).await;
}

/// Two trackers both own all partitions while events arrive.
#[tokio::test(flavor = "multi_thread")]
async fn two_trackers_own_all_partitions() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let honest = Fixture::new(kafka.clone(), store(server.url()), 2);
    let sole_owner = sole_owners(&honest);
    // Each tracker has its own connections.
    let grounds = [0, 1].map(|_| honest.with(sole_owner.clone(), store(server.url())));
    make_topics(&honest);
    let mut trackers = vec![grounds[0].tracker().await, grounds[1].tracker().await];
    for tracker in &trackers {
        eventually("the tracker has all partitions", || async { tracker.reason("tracker").is_none() }).await;
    }
    let load = Load::begin(&honest, server.url());
    for _ in 0..4 {
        load.wait_for_progress("events are folded").await;
    }
    eventually("a tracker was fenced", || async { rewinds(&trackers, &honest, &["fence"]) > 0 }).await;
    trackers.remove(0).stop().await;
    load.finish(trackers).await;
}

/// Returns the broker of trackers that are assigned all partitions regardless of their group, like members that were
/// evicted without noticing.
fn sole_owners(honest: &Fixture) -> Arc<dyn Broker> {
    let faults = FaultRules::default();
    let (broker, group) = (honest.broker.clone(), honest.names.tracker_group());
    let opens = move |call: &Call<'_>| matches!(call, Call::OpenConsumer(spec) if spec.group.as_ref() == Some(&group));
    faults.on(opens).answer_with(move |_| broker.consumer(&ConsumerSpec::default()).unwrap());
    let all = honest.all().into_iter().map(|number| honest.partition(number)).collect();
    let polls = polls_of(honest.names.tracker_group());
    let is_first_poll = move |call: &Call<'_>| polls(call) && matches!(call, Call::Poll(reader) if reader.polls == 0);
    faults.on(is_first_poll).answer(vec![GroupEvent::Assigned(all)]);
    let group = honest.names.tracker_group();
    let commits =
        move |call: &Call<'_>| matches!(call, Call::Commit(reader, _) if reader.spec.group.as_ref() == Some(&group));
    faults.on(commits).answer(());
    faults.broker(honest.broker.clone())
}

/// Slots of a cluster are migrated key by key while they are written and read.
#[tokio::test(flavor = "multi_thread")]
async fn slots_migrate_under_load() {
    let Some(kafka) = kafka() else { return };
    let cluster = Cluster::start();
    let fixture = Fixture::new(kafka, store(cluster.url()), 3);
    let load = Load::begin(&fixture, cluster.url());
    let trackers = two_trackers(&fixture).await;
    for partition in fixture.all() {
        let roots = async || load.calm.store.page(partition, &Index::Roots, None, 200).await.unwrap_or_default();
        eventually("100 trees are folded", || async { roots().await.len() >= 100 }).await;
        let roots = roots().await;
        let moving = cluster.begin_move(partition);
        for _ in 0..10 {
            moving.keys(20);
            reads_succeed(&*load.calm.store, partition, &roots).await;
        }
        moving.end();
        reads_succeed(&*load.calm.store, partition, &roots).await;
    }
    for partition in fixture.all() {
        let checkpoint = load.calm.store.checkpoints(&[partition]).await.unwrap()[0].unwrap();
        let on = || async {
            load.calm
                .store
                .checkpoints(&[partition])
                .await
                .is_ok_and(|now| now[0].is_some_and(|now| now.offset > checkpoint.offset))
        };
        eventually("more events of the partition are folded", on).await;
    }
    load.finish(trackers).await;
}

/// Reads of single records, many records and pages succeed during the migration.
async fn reads_succeed(store: &dyn Store, partition: u32, roots: &[Entry]) {
    let mut ids: Vec<_> = roots.iter().map(|entry| entry.id.clone()).collect();
    ids.push(id("nobody"));
    let task_records = store.task_records(partition, &ids).await.unwrap();
    assert!(task_records[..roots.len()].iter().all(Option::is_some) && task_records[roots.len()].is_none());
    let page = store.page(partition, &Index::Roots, roots.last(), 10).await.unwrap();
    assert!(page.iter().all(|entry| entry < roots.last().unwrap()));
    store.counts(&[0, 1, 2]).await.unwrap();
}

/// Kafka is killed while timers are due, and restarted.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_is_killed_under_load() {
    let Some(mut broker) = OwnBroker::start() else { return };
    let server = Server::start();
    let fixture = Fixture::new(client(broker.address()), store(server.url()), 3);
    let load = Load::begin(&fixture, server.url());
    let trackers = two_trackers(&fixture).await;
    load.wait_for_progress("events are folded").await;
    // Producers of the load would give up during the outage, so all due timers are written before it.
    let quiet = load.quiet.clone().lock_owned().await;
    broker.kill();
    broker.restart();
    drop(quiet);
    load.wait_for_progress("more events are folded").await;
    load.finish(trackers).await;
}
