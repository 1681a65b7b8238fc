//! A simulated fleet: its processes, and whoever asks something of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::Router;
use kafleet::api::{self, ApiSetup};
use kafleet::broker::memory::{Faults, Memory, MemoryOptions};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition, ProducerRecord};
use kafleet::config::{ApiConfig, Config, Names, TopicsConfig, TrackerConfig, WorkerConfig};
use kafleet::control::settings::set_fleet;
use kafleet::handlers::Task;
use kafleet::model::event::Event;
use kafleet::model::projection::FOLD_VERSION;
use kafleet::model::retention::Lifetimes;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::simulated::Process;
use kafleet::runtime::{self, Health, Shutdown};
use kafleet::store::{Store, memory as store};
use kafleet::telemetry::Metrics;
use kafleet::tracker::{self, TrackerSetup};
use kafleet::worker::{self, WorkerSetup};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::family::{Part, parts};
use crate::host::System;
use crate::ledger::Ledger;
use crate::orders::Answers;
use crate::plans::Plan;
use crate::story::{Deed, Seat, Story};
use crate::trees::{Journal, Oak, registry, task_type};
use crate::uplink::{Luck, Uplink, Watched};
use crate::verdict::Records;

pub const CALL: Duration = Duration::from_secs(10);
/// How long a member of a group may be silent.
pub const SESSION: Duration = Duration::from_secs(6);

/// A process that runs, or should.
struct Running {
    process: Process,
    shutdown: Shutdown,
    ended: JoinHandle<anyhow::Result<()>>,
}

pub struct Fleet {
    pub story: Arc<Story>,
    pub system: Rc<System>,
    pub broker: Arc<Memory>,
    pub ledger: Arc<Ledger>,
    pub luck: Arc<Luck>,
    /// The second one is for trackers of a newer build, where they have one of their own.
    stores: [store::Memory; 2],
    /// Which of them is looked at.
    current: Cell<usize>,
    /// Trackers of a newer build.
    newer: RefCell<BTreeSet<Seat>>,
    pub names: Names,
    pub journal: Arc<Journal>,
    /// Everything that may come, by id.
    pub parts: BTreeMap<String, Part>,
    seats: RefCell<BTreeMap<Seat, Running>>,
    pub router: Arc<Mutex<Option<Router>>>,
    /// Earlier contents of the store, newest last.
    copies: RefCell<Vec<(u64, Rc<store::Snapshot>)>>,
    /// What the store held when it was last looked at.
    pub known: RefCell<(u64, Rc<Records>)>,
    /// And when it was judged.
    pub seen: RefCell<Rc<Records>>,
    /// What was asked for, perhaps in vain.
    pub cancels: RefCell<BTreeSet<String>>,
    pub submitted: RefCell<BTreeMap<usize, (bool, Option<bool>)>>,
    pub retried: Cell<bool>,
    pub answers: RefCell<Answers>,
    /// How often a pause or a kill switch was taken back.
    pub lifted: Cell<u64>,
    /// Trees that a kill switch was set against.
    pub killed: RefCell<BTreeSet<String>>,
    /// What was asked to recur.
    pub plans: RefCell<BTreeMap<usize, Plan>>,
    pub violations: RefCell<Vec<String>>,
    /// Deeds that are not done yet.
    pub under_way: Cell<usize>,
    healed: Cell<bool>,
}

fn lifetimes(story: &Story) -> Lifetimes {
    let lasting = Lifetimes::default();
    match story.kept_ms {
        0 => lasting,
        kept => Lifetimes { record_retention_ms: kept as i64, ..lasting },
    }
}

/// How long trees last is in the log before there is any: it would not hold for those that have ended before.
async fn settle(link: &Arc<SharedProducer>, names: &Names, story: &Story) {
    let (topic, mut value) = (names.events(), Vec::new());
    Event::settings(lifetimes(story), crate::host::BEGINNING_MS).encode(&mut value);
    for partition in (0..story.events_partitions).filter(|_| story.kept_ms > 0) {
        let record =
            ProducerRecord { topic: &topic, partition: Some(partition as i32), key: None, value: Some(&value), headers: &[] };
        link.deliver(record, CALL).await.unwrap();
    }
}

impl Fleet {
    pub async fn new(story: Arc<Story>, system: Rc<System>) -> Rc<Self> {
        let clock = {
            let begun = tokio::time::Instant::now();
            Arc::new(move || crate::host::BEGINNING_MS + begun.elapsed().as_millis() as i64)
        };
        let broker =
            Memory::new(MemoryOptions { inline_delivery: true, clock, session_timeout: SESSION, ..MemoryOptions::default() });
        let (names, journal) = (Names::new("s"), Arc::<Journal>::default());
        let topics = TopicsConfig {
            prefix: "s".into(),
            events_partitions: story.events_partitions,
            task_partitions: story.task_partitions,
            ..TopicsConfig::default()
        };
        let config = Config { topics, ..Config::default() };
        let specs = kafleet::topics::specs(&config, &registry(&journal, story.tells()));
        broker.apply_topics(&specs, CALL).unwrap();
        let link = SharedProducer::open(broker.clone(), None).unwrap();
        set_fleet(&link, &names, story.events_partitions).await.unwrap();
        settle(&link, &names, &story).await;
        let of = |topic: String, count: u32| (0..count).map(move |index| Partition::new(topic.as_str(), index as i32));
        let events: Vec<_> = of(names.events(), story.events_partitions).collect();
        let types: Vec<String> = registry(&journal, story.tells()).types().map(|(name, _)| names.tasks(name)).collect();
        let tasks = types.into_iter().flat_map(|topic| of(topic, story.task_partitions));
        let ledger = Ledger::new(broker.clone(), &names, &events, &tasks.collect::<Vec<_>>());
        let checked = ledger.clone();
        *journal.listener.lock() = Some(Box::new(move |id, run, attempt| checked.begins(id, run, attempt)));
        Rc::new(Self {
            luck: Luck::new(story.seed),
            parts: parts(&story),
            story,
            system,
            broker,
            ledger,
            stores: Default::default(),
            current: Cell::new(0),
            newer: RefCell::default(),
            names,
            journal,
            seats: RefCell::default(),
            router: Arc::default(),
            copies: RefCell::default(),
            known: RefCell::default(),
            seen: RefCell::default(),
            cancels: RefCell::default(),
            submitted: RefCell::default(),
            retried: Cell::new(false),
            answers: RefCell::default(),
            lifted: Cell::new(0),
            killed: RefCell::default(),
            plans: RefCell::default(),
            violations: RefCell::default(),
            under_way: Cell::new(0),
            healed: Cell::new(false),
        })
    }

    pub fn violation(&self, what: impl Into<String>) {
        self.violations.borrow_mut().push(format!("at {} ms: {}", self.system.elapsed_ms(), what.into()));
    }

    // ---- processes

    pub fn all_seats(&self) -> Vec<Seat> {
        let workers = (0..self.story.workers).map(Seat::Worker);
        workers.chain((0..self.story.trackers).map(Seat::Tracker)).chain([Seat::Api]).collect()
    }

    pub fn start(&self, seat: Seat) {
        if self.seats.borrow().contains_key(&seat) {
            return;
        }
        let (process, shutdown) = (self.system.process(), Shutdown::new());
        let ended = self.system.by(process, || self.launch(seat, shutdown.clone()));
        self.seats.borrow_mut().insert(seat, Running { process, shutdown, ended });
    }

    fn launch(&self, seat: Seat, shutdown: Shutdown) -> JoinHandle<anyhow::Result<()>> {
        let newer = matches!(seat, Seat::Worker(n) if self.story.newer.contains(&n)).then(|| self.names.events());
        let broker =
            Arc::new(Watched { inner: self.broker.clone(), ledger: self.ledger.clone(), luck: self.luck.clone(), newer });
        let store = Arc::new(self.uplink(seat));
        let (names, events_partitions) = (self.names.clone(), self.story.events_partitions);
        let (registry, metrics, health) =
            (registry(&self.journal, self.story.tells()), Metrics::new().unwrap(), Health::default());
        match seat {
            Seat::Worker(n) => {
                let config = WorkerConfig {
                    drain_timeout: Millis::secs(3),
                    commit_interval: Millis(self.story.commit_ms),
                    grace: Millis(500),
                    inline_retry_max: Millis(self.story.inline_retry_ms),
                    ..WorkerConfig::default()
                };
                let types = if self.story.narrow.contains(&n) { vec![Oak::TYPE.to_owned()] } else { Vec::new() };
                let setup =
                    WorkerSetup { broker, registry, types, config, names, events_partitions, metrics, health, reentry: None };
                runtime::spawn(worker::run(setup, shutdown))
            }
            Seat::Tracker(_) => {
                let config =
                    TrackerConfig { batch_events: self.story.batch_events, observe: self.story.observe, ..Default::default() };
                let setup = TrackerSetup {
                    broker,
                    store,
                    config,
                    lifetimes: lifetimes(&self.story),
                    task_retention: TopicsConfig::default().task_retention,
                    topic_check: TopicsConfig::default().check_interval,
                    names,
                    events_partitions,
                    metrics,
                    health,
                };
                runtime::spawn(tracker::run(setup, shutdown))
            }
            Seat::Api => {
                let config = ApiConfig::default();
                let max_tree_age = TopicsConfig::default().max_tree_age;
                let setup = ApiSetup { broker, store, registry, config, names, events_partitions, max_tree_age, metrics, health };
                let place = self.router.clone();
                runtime::spawn(async move {
                    let open = api::open(setup, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &shutdown)?;
                    *place.lock() = Some(open.router.clone());
                    shutdown.drain.cancelled().await;
                    Ok(())
                })
            }
        }
    }

    fn uplink(&self, seat: Seat) -> Uplink {
        let newer = self.newer.borrow().contains(&seat);
        let apart = self.story.upgrade.is_some_and(|upgrade| upgrade.apart);
        let number = if matches!(seat, Seat::Tracker(_)) { usize::from(newer && apart) } else { self.current.get() };
        Uplink { inner: self.stores[number].clone(), luck: self.luck.clone(), newer }
    }

    /// Takes away who is gone; tells who went without having been told to.
    pub fn bury(&self) {
        let gone: Vec<Seat> = {
            let seats = self.seats.borrow();
            seats.iter().filter(|(_, running)| running.ended.is_finished()).map(|(seat, _)| *seat).collect()
        };
        for seat in gone {
            let Some(running) = self.seats.borrow_mut().remove(&seat) else { continue };
            let died = self.system.is_dead(running.process);
            // With its main function a process ends, whatever else it has begun.
            self.system.kill(running.process);
            if died {
                continue;
            }
            use futures::FutureExt;
            match running.ended.now_or_never() {
                Some(Ok(Ok(()))) if running.shutdown.is_draining() => {}
                Some(Ok(Ok(()))) => self.violation(format!("{seat:?} ended though nobody told it to")),
                // It cannot begin, or not go on, while the broker is away; who runs it starts it again.
                Some(Ok(Err(why))) => self.system.note(format!("{why:#}").len() as u64),
                Some(Err(why)) => self.violation(format!("{seat:?} came to a bad end: {why}")),
                None => {}
            }
        }
    }

    pub fn process(&self, seat: Seat) -> Option<Process> {
        self.seats.borrow().get(&seat).map(|running| running.process)
    }

    fn crash(&self, seat: Seat, steps: u32) {
        if let Some(process) = self.process(seat) {
            self.system.light_fuse(process, steps);
        }
    }

    pub fn stop(&self, seat: Seat) {
        if let Some(running) = self.seats.borrow().get(&seat) {
            running.shutdown.begin();
        }
    }

    pub async fn gone(&self, seat: Seat) {
        for _ in 0..600 {
            self.bury();
            match self.process(seat) {
                Some(process) if !self.system.is_dead(process) => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => return drop(self.seats.borrow_mut().remove(&seat)),
            }
        }
        self.violation(format!("{seat:?} does not stop"));
    }

    // ---- trouble

    pub fn is_healed(&self) -> bool {
        self.healed.get()
    }

    /// Everything is well from now on.
    pub fn heal(&self) {
        self.healed.set(true);
        self.luck.failing.store(0, SeqCst);
        self.luck.down.store(false, SeqCst);
        self.broker.set_faults(Faults::default());
        self.broker.deliver_delayed();
        for partition in 0..self.story.events_partitions {
            self.hold(partition, false);
        }
        self.system.put_out_fuses();
        let frozen: Vec<Process> = self.seats.borrow().values().map(|running| running.process).collect();
        frozen.into_iter().for_each(|process| self.system.freeze(process, false));
    }

    /// Whoever upgrades comes to an end: from now on all trackers are of one build. Who is not ends, to begin again as that.
    pub fn settle(&self) {
        let Some(upgrade) = self.story.upgrade else { return };
        let trackers: BTreeSet<Seat> = (0..self.story.trackers).map(Seat::Tracker).collect();
        let wanted = if upgrade.done { trackers.clone() } else { BTreeSet::new() };
        let before = self.newer.replace(wanted.clone());
        trackers.iter().filter(|seat| before.contains(seat) != wanted.contains(seat)).for_each(|seat| self.stop(*seat));
        if upgrade.done && upgrade.apart {
            self.current.set(1);
            self.luck.writes.fetch_add(1, SeqCst);
            self.stop(Seat::Api);
        }
    }

    /// Once all trackers are of one build: what the other one has folded is emptied, as they say.
    async fn empty_what_is_refused(&self) {
        let Some(upgrade) = self.story.upgrade.filter(|_| self.healed.get()) else { return };
        let version = FOLD_VERSION + u32::from(upgrade.done);
        let all: Vec<u32> = (0..self.story.events_partitions).collect();
        if self.store().fences(&all).await.unwrap().iter().flatten().any(|fence| fence.version != version) {
            self.wipe();
        }
    }

    pub fn store(&self) -> &store::Memory {
        &self.stores[self.current.get()]
    }

    /// What time brings: copies of the store, delayed records, the dead that are found.
    pub async fn tend(&self) {
        self.bury();
        self.empty_what_is_refused().await;
        self.broker.deliver_delayed();
        if self.system.elapsed_ms() % 1_000 >= 100 {
            return;
        }
        let mut copies = self.copies.borrow_mut();
        let writes = self.luck.writes.load(SeqCst);
        let copy = match copies.last() {
            Some((then, copy)) if *then == writes => copy.clone(),
            _ => Rc::new(self.store().snapshot()),
        };
        copies.push((writes, copy));
        if copies.len() > 6 {
            copies.remove(0);
        }
    }

    pub fn wipe(&self) {
        self.store().wipe();
        self.luck.writes.fetch_add(1, SeqCst);
    }

    fn hold(&self, partition: u32, hold: bool) {
        let name = format!("{}.firing.{partition}", self.names.events());
        self.broker.hold_atomic(&name, hold);
        if !hold {
            self.broker.settle_atomic(&name, self.system.chance(0.5));
        }
    }

    pub async fn perform(self: Rc<Self>, deed: Deed) {
        self.under_way.set(self.under_way.get() + 1);
        self.system.note(self.system.elapsed_ms());
        tracing::info!(at_ms = self.system.elapsed_ms(), ?deed, "deed");
        match deed {
            Deed::Submit { root, way } => self.submit(root, way).await,
            Deed::External { root, fails } => self.external(root, fails).await,
            Deed::Cancel { root, path } => self.cancel(&Story::id(root, &path)).await,
            Deed::Retry { root, path, only_failed } => self.retry(&Story::id(root, &path), only_failed).await,
            Deed::Redrive { oak } => self.redrive(oak).await,
            Deed::Crash { seat, steps, back_ms } => {
                self.crash(seat, steps);
                self.back(seat, back_ms).await;
            }
            Deed::Restart { seat, back_ms } => {
                self.stop(seat);
                self.back(seat, back_ms).await;
            }
            // It has come too late: who is which build is settled.
            Deed::Rebuilt { .. } if self.healed.get() => {}
            Deed::Rebuilt { tracker, newer, back_ms } => {
                let seat = Seat::Tracker(tracker);
                self.stop(seat);
                match newer {
                    true => self.newer.borrow_mut().insert(seat),
                    false => self.newer.borrow_mut().remove(&seat),
                };
                self.back(seat, back_ms).await;
            }
            Deed::Freeze { seat, ms } => {
                if let Some(process) = self.process(seat) {
                    self.system.freeze(process, true);
                    self.pause(ms).await;
                    self.system.freeze(process, false);
                }
            }
            Deed::StoreAway { ms } => {
                self.luck.down.store(true, SeqCst);
                self.pause(ms).await;
                self.luck.down.store(false, SeqCst);
            }
            Deed::StoreWiped => self.wipe(),
            Deed::StoreBack => {
                if let Some((_, copy)) = self.copies.borrow().first() {
                    self.store().restore(copy);
                    self.luck.writes.fetch_add(1, SeqCst);
                }
            }
            Deed::Flaky { permille, ms } => self.flaky(permille, ms).await,
            Deed::Hold { partition, ms } => {
                self.hold(partition, true);
                self.pause(ms).await;
                self.hold(partition, false);
            }
            Deed::More { oak } => self.more(oak),
            Deed::Pause { oak, ms } => self.pause_type(oak, ms).await,
            Deed::Kill { root, ms } => self.kill(root, ms).await,
            Deed::Plan { plan, wish, for_ms } => self.plan(plan, &wish, for_ms).await,
            Deed::Replan { plan, how } => self.replan(plan, how).await,
            Deed::Batch { batch, atomic, insists } => self.batch(batch, atomic, insists).await,
            Deed::Order { batch, task, ask } => self.order(&self.story.ordered_id(batch, task), ask).await,
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    /// For a while, unless all is well before.
    pub async fn pause(&self, ms: u64) {
        let until = self.system.elapsed_ms() + ms;
        while self.system.elapsed_ms() < until && !self.healed.get() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn back(&self, seat: Seat, ms: u64) {
        self.pause(ms).await;
        self.bury();
        if self.process(seat).is_some_and(|process| self.system.is_dead(process)) {
            self.seats.borrow_mut().remove(&seat);
        }
        self.start(seat);
    }

    async fn flaky(&self, permille: u32, ms: u64) {
        let part = f64::from(permille) / 1_000.0;
        let faults = Faults {
            seed: self.story.seed ^ self.system.elapsed_ms(),
            unavailable: part,
            lost_acknowledgement: part,
            delay: part,
            duplicate: part,
            refuse_commit: part,
        };
        self.luck.failing.store(permille, SeqCst);
        self.broker.set_faults(faults);
        self.pause(ms).await;
        self.luck.failing.store(0, SeqCst);
        self.broker.set_faults(Faults::default());
    }

    fn more(&self, oak: bool) {
        let config = TopicsConfig { prefix: "s".into(), task_partitions: self.story.task_partitions, ..Default::default() };
        let config = Config { topics: config, ..Config::default() };
        let wanted = self.names.tasks(task_type(oak));
        let mut specs = kafleet::topics::specs(&config, &registry(&self.journal, self.story.tells()));
        specs.retain(|spec| spec.name == wanted);
        specs.iter_mut().for_each(|spec| spec.partitions += 1);
        self.broker.apply_topics(&specs, CALL).unwrap();
        self.ledger.watch(&Partition::new(wanted, self.story.task_partitions as i32));
    }
}
