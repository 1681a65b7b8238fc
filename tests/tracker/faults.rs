//! Exactly once, whatever happens to Redis, its connections, the trackers, and Kafka, while events come in and tasks become
//! due. Each case ends with the same two questions: is every record, count, index and effect what a fold of the same log into
//! an empty store gives, and was everything that was due published once?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Entry, Index, Store};
use tokio::sync::Mutex;

use crate::broker::OwnBroker;
use crate::cases::agrees;
use crate::firing::{make_topics, many, published};
use crate::ground::{Ground, Tracker, until};
use crate::oracle::Oracle;
use crate::redis::{Cluster, Cut, Proxy, Sentinels, Server, patient};
use crate::selfish::SelfishBroker;
use crate::story::{id, story};

/// Of one round of the load.
const TREES: usize = 25;
const TIMERS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// After so many rounds the load becomes a light one; it goes on as long as somebody waits for more.
const MANY_ROUNDS: usize = 150;
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// None, with a word about it, where no services were started.
fn kafka() -> Option<Arc<Kafka>> {
    let (Ok(brokers), Ok(_)) = (std::env::var("KAFLEET_TEST_KAFKA"), std::env::var("KAFLEET_TEST_REDIS")) else {
        eprintln!("skipped: KAFLEET_TEST_KAFKA and KAFLEET_TEST_REDIS are not both set");
        return None;
    };
    Some(client(brokers))
}

fn client(brokers: String) -> Arc<Kafka> {
    Arc::new(Kafka::new(&BTreeMap::from([("bootstrap.servers".to_owned(), brokers)])).unwrap())
}

/// A store that soon gives up waiting for an answer.
fn store(url: String) -> Arc<dyn Store> {
    let mut options = RedisOptions::new(url);
    (options.response_timeout, options.read_timeout) = (Duration::from_secs(3), Duration::from_secs(3));
    Arc::new(Redis::connect(options).unwrap())
}

/// What the faults come in the middle of.
struct Load {
    ground: Ground,
    /// With a store that has the time to be compared.
    calm: Ground,
    /// Held by whoever writes, and by whoever wants nothing to be written.
    quiet: Arc<Mutex<()>>,
    enough: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    writing: tokio::task::JoinHandle<()>,
}

impl Load {
    fn begin(ground: &Ground, url: String) -> Self {
        make_topics(ground);
        let calm = ground.with(ground.broker.clone(), Arc::new(Redis::connect(patient(url)).unwrap()));
        let (quiet, enough, rounds) = (Arc::<Mutex<()>>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let writing = tokio::spawn({
            let (ground, quiet, enough, rounds) = (ground.clone(), quiet.clone(), enough.clone(), rounds.clone());
            async move {
                for round in 0.. {
                    if enough.load(SeqCst) {
                        return;
                    }
                    let turn = quiet.lock().await;
                    ground.write(&story(round as u64, TREES)).await;
                    ground.write(&many(TIMERS, &format!("timer-{round}"))).await;
                    rounds.store(round + 1, SeqCst);
                    drop(turn);
                    tokio::time::sleep(if round < MANY_ROUNDS { PAUSE } else { LONG_PAUSE }).await;
                }
            }
        });
        Self { ground: ground.clone(), calm, quiet, enough, rounds, writing }
    }

    /// Where the fold is; None while the store cannot be asked.
    async fn folded(&self) -> Option<i64> {
        let fences = self.ground.store.fences(&self.ground.all()).await.ok()?;
        Some(fences.iter().flatten().map(|fence| fence.offset).sum())
    }

    /// The same, of a store that is there.
    async fn folded_now(&self) -> i64 {
        let fences = self.calm.store.fences(&self.calm.all()).await.unwrap();
        fences.iter().flatten().map(|fence| fence.offset).sum()
    }

    /// Some more is folded.
    async fn goes_on(&self, what: &str) {
        let before = self.folded().await.unwrap_or(0);
        until(what, || async { self.folded().await.is_some_and(|now| now > before + 200) }).await;
    }

    /// The load ends, and all of it is there, once.
    async fn ends_well(self, trackers: Vec<Tracker>) {
        self.enough.store(true, SeqCst);
        self.writing.await.unwrap();
        let oracle = settled(&self.calm).await;
        let times = published(&self.ground);
        let not_once: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
        assert!(not_once.is_empty(), "not once: {not_once:?}");
        assert_eq!(times.len(), self.rounds.load(SeqCst) * TIMERS, "what was due is published");
        assert!(oracle.tasks() > times.len());
        for tracker in trackers {
            tracker.is_well().await;
            tracker.stop().await;
        }
    }
}

/// Nothing is due any more, and the store holds what the log gives.
async fn settled(ground: &Ground) -> Oracle {
    let is_done = || async {
        let outboxes = futures::future::join_all(ground.all().into_iter().map(|number| ground.store.outbox(number, 1))).await;
        outboxes.iter().all(|outbox| outbox.as_ref().is_ok_and(|outbox| outbox.timers.is_empty() && outbox.effects.is_empty()))
    };
    ground.folded().await;
    until("everything due is done", is_done).await;
    agrees(ground).await
}

fn rewinds(trackers: &[Tracker], ground: &Ground, reasons: &[&str]) -> u64 {
    let of = |tracker: &Tracker| -> u64 {
        let each = ground.all().into_iter().flat_map(|number| reasons.iter().map(move |reason| (number, *reason)));
        each.map(|(number, reason)| tracker.rewinds(number, reason)).sum()
    };
    trackers.iter().map(of).sum()
}

async fn two_trackers(ground: &Ground) -> Vec<Tracker> {
    let trackers = vec![ground.tracker().await, ground.tracker().await];
    for tracker in &trackers {
        until("it has partitions", || async { tracker.reason("tracker").is_none() }).await;
    }
    trackers
}

/// The master freezes, a replica that has not heard from it for a while takes over, and the old master comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_takes_over() {
    let Some(kafka) = kafka() else { return };
    let sentinels = Sentinels::start();
    let ground = Ground::new(kafka, store(sentinels.url()), 3);
    let load = Load::begin(&ground, sentinels.url());
    let trackers = two_trackers(&ground).await;
    load.goes_on("it is folded").await;
    sentinels.let_lag();
    load.goes_on("it is folded beyond what the replica knows").await;
    // What was on its way to it may still have come there.
    let left = || ground.all().into_iter().map(|number| sentinels.replicated(number)).sum::<i64>();
    until("the replica is behind", || async { load.folded().await.is_some_and(|folded| left() < folded) }).await;
    let lost = load.folded_now().await;
    sentinels.master.freeze();
    sentinels.await_failover();
    sentinels.master.thaw();
    until("it is folded again", || async { load.folded().await.is_some_and(|now| now > lost) }).await;
    until("they have noticed", || async { rewinds(&trackers, &ground, &["store", "fence"]) > 0 }).await;
    load.ends_well(trackers).await;
}

/// Redis ends hard, and the end of its log, which it had not written yet, is gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_second_of_redis_is_lost() {
    let Some(kafka) = kafka() else { return };
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let ground = Ground::new(kafka, store(server.url()), 3);
    let load = Load::begin(&ground, server.url());
    let trackers = two_trackers(&ground).await;
    // Twice, because the first time leaves half a batch in that log.
    for _ in 0..2 {
        load.goes_on("it is folded").await;
        let (file, kept) = append_only_file(&server);
        load.goes_on("it is folded on").await;
        let folded = load.folded_now().await;
        server.kill();
        // In the middle of a batch.
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(kept - 7).unwrap();
        server.start_again();
        until("it is folded again", || async { load.folded().await.is_some_and(|now| now > folded) }).await;
    }
    until("they have noticed", || async { rewinds(&trackers, &ground, &["store", "fence"]) > 0 }).await;
    load.ends_well(trackers).await;
}

/// The newest part of it, and its length now.
fn append_only_file(server: &Server) -> (std::path::PathBuf, u64) {
    let files = std::fs::read_dir(server.folder().join("appendonlydir")).unwrap().map(|entry| entry.unwrap().path());
    let newest = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().unwrap();
    let length = newest.metadata().unwrap().len();
    (newest, length)
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_wiped() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let ground = Ground::new(kafka, store(server.url()), 3);
    let load = Load::begin(&ground, server.url());
    let trackers = two_trackers(&ground).await;
    for _ in 0..3 {
        load.goes_on("it is folded").await;
        let () = server.call(&["FLUSHALL"]).unwrap();
    }
    load.ends_well(trackers).await;
}

/// Before an EXEC has come there, and after it was executed without a word to anybody.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_cut_around_exec() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let proxy = Proxy::to(server.port);
    let ground = Ground::new(kafka, store(format!("redis://127.0.0.1:{}", proxy.port)), 3);
    let load = Load::begin(&ground, server.url());
    let trackers = two_trackers(&ground).await;
    for (cut, wanted) in [(Cut::Before(4), 3), (Cut::After(4), 6)] {
        proxy.cut(cut);
        until(&format!("connections are cut ({cut:?})"), || async { proxy.cuts() >= wanted }).await;
    }
    proxy.cut(Cut::Never);
    until("they have noticed", || async { rewinds(&trackers, &ground, &["store"]) > 0 }).await;
    load.ends_well(trackers).await;
}

/// Each of two trackers takes all partitions for its own, for as long as events come.
#[tokio::test(flavor = "multi_thread")]
async fn two_trackers_own_everything() {
    let Some(kafka) = kafka() else { return };
    let server = Server::start();
    let honest = Ground::new(kafka.clone(), store(server.url()), 2);
    let all = honest.all().into_iter().map(|number| honest.place(number)).collect();
    let selfish = Arc::new(SelfishBroker { inner: kafka, group: honest.names.tracker_group(), all });
    // Each with connections of its own.
    let grounds = [0, 1].map(|_| honest.with(selfish.clone(), store(server.url())));
    make_topics(&honest);
    let mut trackers = vec![grounds[0].tracker().await, grounds[1].tracker().await];
    for tracker in &trackers {
        until("it has taken everything", || async { tracker.reason("tracker").is_none() }).await;
    }
    let load = Load::begin(&honest, server.url());
    for _ in 0..4 {
        load.goes_on("it is folded").await;
    }
    until("they have met", || async { rewinds(&trackers, &honest, &["fence"]) > 0 }).await;
    trackers.remove(0).stop().await;
    load.ends_well(trackers).await;
}

/// In a cluster, slots move key by key from node to node while they are written and read.
#[tokio::test(flavor = "multi_thread")]
async fn slots_move() {
    let Some(kafka) = kafka() else { return };
    let cluster = Cluster::start();
    let ground = Ground::new(kafka, store(cluster.url()), 3);
    let load = Load::begin(&ground, cluster.url());
    let trackers = two_trackers(&ground).await;
    for partition in ground.all() {
        let roots = async || load.calm.store.page(partition, &Index::Roots, None, 200).await.unwrap_or_default();
        until("it is folded", || async { roots().await.len() >= 100 }).await;
        let roots = roots().await;
        let moving = cluster.begin_move(partition);
        for _ in 0..10 {
            moving.keys(20);
            reads_go_on(&*load.calm.store, partition, &roots).await;
        }
        moving.end();
        reads_go_on(&*load.calm.store, partition, &roots).await;
    }
    for partition in ground.all() {
        let fence = load.calm.store.fences(&[partition]).await.unwrap()[0].unwrap();
        let on = || async {
            load.calm.store.fences(&[partition]).await.is_ok_and(|now| now[0].is_some_and(|now| now.offset > fence.offset))
        };
        until("its partition is folded on", on).await;
    }
    load.ends_well(trackers).await;
}

/// Single records, many at once, and lists are answered in the middle of it.
async fn reads_go_on(store: &dyn Store, partition: u32, roots: &[Entry]) {
    let mut ids: Vec<_> = roots.iter().map(|entry| entry.id.clone()).collect();
    ids.push(id("nobody"));
    let nodes = store.nodes(partition, &ids).await.unwrap();
    assert!(nodes[..roots.len()].iter().all(Option::is_some) && nodes[roots.len()].is_none());
    let page = store.page(partition, &Index::Roots, roots.last(), 10).await.unwrap();
    assert!(page.iter().all(|entry| entry < roots.last().unwrap()));
    store.counts(&[0, 1, 2]).await.unwrap();
}

/// Kafka ends hard while things are due, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_is_killed() {
    let Some(mut broker) = OwnBroker::start() else { return };
    let server = Server::start();
    let ground = Ground::new(client(broker.address()), store(server.url()), 3);
    let load = Load::begin(&ground, server.url());
    let trackers = two_trackers(&ground).await;
    load.goes_on("it is folded").await;
    // Those who write would give up; what is due was written before.
    let quiet = load.quiet.clone().lock_owned().await;
    broker.kill();
    broker.start_again();
    drop(quiet);
    load.goes_on("it is folded on").await;
    load.ends_well(trackers).await;
}
