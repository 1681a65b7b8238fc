//! Simulated fleet: its processes and the state known to its clients.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kafleet::api;
use kafleet::broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, ConsumerSpec, Partition, ProducerRecord, RecordRef, StartOffset};
use kafleet::config::{Config, Names, TopicsConfig, TypeGroups};
use kafleet::control::settings::set_fleet;
use kafleet::model::event::Event;
use kafleet::model::retention::Lifetimes;
use kafleet::runtime::simulated::Process;
use kafleet::runtime::{self, Shutdown};
use kafleet::store::memory as store;
use kafleet::{tracker, worker};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::faulty_broker::FaultRng;
use crate::host::System;
use crate::journal::Journal;
use crate::offset_oracle::OffsetOracle;
use crate::request_oracle::Answers;
use crate::roles;
use crate::scenario::Scenario;
use crate::schedules::ExpectedSchedule;
use crate::step::ProcessId;
use crate::task_types::registry;
use crate::tree_oracle::{ScriptedTask, scripted_tasks};
use crate::unique::UniqueAsk;
use crate::verdict::Records;

/// Deadline of the tests' own calls to the broker.
pub const CALL: Duration = Duration::from_secs(10);
/// Session timeout of consumer groups.
pub const SESSION: Duration = Duration::from_secs(6);

/// Process that was started and whose exit has not been handled yet ([`Fleet::reap`]).
pub struct Running {
    pub process: Process,
    shutdown: Shutdown,
    ended: JoinHandle<anyhow::Result<()>>,
}

/// Requests made so far; the verdict depends on them.
#[derive(Default)]
pub struct Requests {
    /// Submitted roots by number: whether the type is unordered and, for an external task, whether it is reported as
    /// failed.
    pub submitted: RefCell<BTreeMap<usize, (bool, Option<bool>)>>,
    /// Ids of requested cancels, accepted or not.
    pub cancels: RefCell<BTreeSet<String>>,
    /// A retry or a redrive was requested, so tasks may be in later runs.
    pub retried: Cell<bool>,
    pub answers: RefCell<Answers>,
    /// Counter of ended pauses and kill switches. A new one is enforced by the oracle only if none ended while it was
    /// requested.
    pub unblocked: Cell<u64>,
    /// Roots for which a kill switch was requested, including removed ones.
    pub killed: RefCell<BTreeSet<String>>,
    /// Params of requested kill switches, including removed ones: durations and numbers of failing attempts.
    pub killed_params: RefCell<Vec<(u64, u32)>>,
    /// Accepted calls of the service, by number, with the time of acceptance in epoch milliseconds.
    pub calls: RefCell<BTreeMap<usize, i64>>,
    /// Asks for unique tasks.
    pub asked_tasks: RefCell<Vec<UniqueAsk>>,
    /// Schedules by number.
    pub schedules: RefCell<BTreeMap<usize, ExpectedSchedule>>,
}

pub struct Fleet {
    pub scenario: Arc<Scenario>,
    pub system: Rc<System>,
    pub broker: Arc<MemoryBroker>,
    pub offset_oracle: Arc<OffsetOracle>,
    pub fault_rng: Arc<FaultRng>,
    /// Current store, and a separate one for trackers of a newer build.
    pub stores: [store::MemoryStore; 2],
    /// Index in `stores` of the store that the API reads.
    pub current: Cell<usize>,
    /// Trackers of the newer build.
    pub newer: RefCell<BTreeSet<ProcessId>>,
    pub names: Names,
    pub journal: Arc<Journal>,
    /// Tasks of the scenario by id.
    pub scripted_tasks: BTreeMap<String, ScriptedTask>,
    pub running: RefCell<BTreeMap<ProcessId, Running>>,
    pub router: Arc<Mutex<Option<Router>>>,
    /// Latest snapshots of the store with their write counts, newest last. A simulated failover restores the first.
    pub snapshots: RefCell<Vec<(u64, Rc<store::Snapshot>)>>,
    /// Records read from the store, with the write count at that time.
    pub records_cache: RefCell<(u64, Rc<Records>)>,
    /// Records at the last check of the invariants.
    pub last_checked: RefCell<Rc<Records>>,
    pub requests: Requests,
    pub violations: RefCell<Vec<String>>,
    /// Number of steps in progress.
    pub running_steps: Cell<usize>,
    pub faults_over: Cell<bool>,
}

pub fn lifetimes(scenario: &Scenario) -> Lifetimes {
    let defaults = Lifetimes::default();
    match scenario.retention_ms {
        0 => defaults,
        retention_ms => Lifetimes { record_retention_ms: retention_ms as i64, ..defaults },
    }
}

/// Publishes the scenario's lifetimes before any task, because later settings do not apply to trees that have ended.
async fn publish_lifetimes(producer: &Arc<SharedProducer>, names: &Names, scenario: &Scenario) {
    let (topic, mut value) = (names.events(), Vec::new());
    Event::settings(lifetimes(scenario), crate::host::START_MS).encode(&mut value).unwrap();
    for partition in (0..scenario.events_partitions).filter(|_| scenario.retention_ms > 0) {
        let record = ProducerRecord {
            topic: &topic,
            partition: Some(partition as i32),
            key: None,
            value: Some(&value),
            headers: &[],
        };
        producer.deliver(record, CALL).await.unwrap();
    }
}

fn broker_on_simulated_clock() -> Arc<MemoryBroker> {
    let start = tokio::time::Instant::now();
    let clock = Arc::new(move || crate::host::START_MS + start.elapsed().as_millis() as i64);
    MemoryBroker::new(MemoryBrokerOptions {
        inline_delivery: true,
        clock,
        session_timeout: SESSION,
        ..MemoryBrokerOptions::default()
    })
}

impl Fleet {
    pub async fn new(scenario: Arc<Scenario>, system: Rc<System>) -> Rc<Self> {
        let broker = broker_on_simulated_clock();
        let groups =
            TypeGroups { default: scenario.shared_group.then(|| "shared".to_owned()), ..TypeGroups::default() };
        let (names, journal) = (Names::new("s").with_groups(groups), Arc::<Journal>::default());
        let topics = TopicsConfig {
            prefix: "s".into(),
            events_partitions: scenario.events_partitions,
            task_partitions: scenario.task_partitions,
            ..TopicsConfig::default()
        };
        let config = Config { topics, ..Config::default() };
        let specs = kafleet::topics::specs(&config, &registry(&journal, &scenario));
        broker.apply_topics(&specs, CALL).unwrap();
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        set_fleet(&producer, &names, scenario.events_partitions).await.unwrap();
        publish_lifetimes(&producer, &names, &scenario).await;
        let of = |topic: String, count: u32| (0..count).map(move |index| Partition::new(topic.as_str(), index as i32));
        let events: Vec<_> = of(names.events(), scenario.events_partitions).collect();
        let types: Vec<String> = registry(&journal, &scenario).types().map(|(name, _)| names.tasks(name)).collect();
        let tasks = types.into_iter().flat_map(|topic| of(topic, scenario.task_partitions));
        let offset_oracle = OffsetOracle::new(broker.clone(), &names, &events, &tasks.collect::<Vec<_>>());
        let checked = offset_oracle.clone();
        *journal.on_attempt.lock() = Some(Box::new(move |id, run, attempt, is_first| {
            checked.attempt_started(id, run, attempt, is_first);
        }));
        Rc::new(Self {
            fault_rng: FaultRng::new(scenario.seed),
            scripted_tasks: scripted_tasks(&scenario),
            scenario,
            system,
            broker,
            offset_oracle,
            stores: Default::default(),
            current: Cell::new(0),
            newer: RefCell::default(),
            names,
            journal,
            running: RefCell::default(),
            router: Arc::default(),
            snapshots: RefCell::default(),
            records_cache: RefCell::default(),
            last_checked: RefCell::default(),
            requests: Requests::default(),
            violations: RefCell::default(),
            running_steps: Cell::new(0),
            faults_over: Cell::new(false),
        })
    }

    pub fn violation(&self, message: impl Into<String>) {
        self.violations.borrow_mut().push(format!("at {} ms: {}", self.system.elapsed_ms(), message.into()));
    }

    pub fn all_processes(&self) -> Vec<ProcessId> {
        let workers = (0..self.scenario.workers).map(ProcessId::Worker);
        workers.chain((0..self.scenario.trackers).map(ProcessId::Tracker)).chain([ProcessId::Api]).collect()
    }

    pub fn start(&self, process_id: ProcessId) {
        if self.running.borrow().contains_key(&process_id) {
            return;
        }
        let (process, shutdown) = (self.system.process(self.scenario.clock_of(process_id)), Shutdown::new());
        let ended = self.system.run_as(process, || self.launch(process_id, shutdown.clone()));
        self.running.borrow_mut().insert(process_id, Running { process, shutdown, ended });
    }

    fn launch(&self, process_id: ProcessId, shutdown: Shutdown) -> JoinHandle<anyhow::Result<()>> {
        match process_id {
            ProcessId::Worker(n) => {
                *self.journal.service.worker_starts.lock() += 1;
                let (setup, app) = roles::worker(self, n);
                match app {
                    Some(app) => runtime::spawn(app.run_worker(setup, shutdown)),
                    None => runtime::spawn(worker::run(setup, shutdown)),
                }
            }
            ProcessId::Tracker(_) => runtime::spawn(tracker::run(roles::tracker(self, process_id), shutdown)),
            ProcessId::Api => {
                let (setup, slot) = (roles::api(self), self.router.clone());
                runtime::spawn(async move {
                    let open = api::open(setup, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &shutdown)?;
                    open.load().await;
                    *slot.lock() = Some(open.router.clone());
                    shutdown.drain.cancelled().await;
                    Ok(())
                })
            }
        }
    }

    /// Removes exited processes. A panic, or an exit without a crash or a stop request, is a violation.
    pub fn reap(&self) {
        let exited: Vec<ProcessId> = {
            let running = self.running.borrow();
            running
                .iter()
                .filter(|(_, running)| running.ended.is_finished())
                .map(|(process_id, _)| *process_id)
                .collect()
        };
        for process_id in exited {
            let Some(running) = self.running.borrow_mut().remove(&process_id) else { continue };
            let died = self.system.is_dead(running.process);
            // The end of the main task ends the process with all of its other tasks.
            self.system.kill(running.process);
            if died {
                continue;
            }
            use futures::FutureExt;
            match running.ended.now_or_never() {
                Some(Ok(Ok(()))) if running.shutdown.is_draining() => {}
                Some(Ok(Ok(()))) => self.violation(format!("{process_id:?} exited without being stopped")),
                // A process may exit with an error while the broker is unavailable; its supervisor restarts it. The
                // length of the error is part of the trace, so that runs of one seed can be compared.
                Some(Ok(Err(error))) => self.system.mix_trace(format!("{error:#}").len() as u64),
                Some(Err(panic)) => self.violation(format!("{process_id:?} failed: {panic}")),
                None => {}
            }
        }
    }

    pub fn process(&self, process_id: ProcessId) -> Option<Process> {
        self.running.borrow().get(&process_id).map(|running| running.process)
    }

    pub fn crash(&self, process_id: ProcessId, steps: u32) {
        if let Some(process) = self.process(process_id) {
            self.system.crash_after(process, steps);
        }
    }

    pub fn stop(&self, process_id: ProcessId) {
        if let Some(running) = self.running.borrow().get(&process_id) {
            running.shutdown.begin();
        }
    }

    /// Waits up to 30 s for a stopped process to exit.
    pub async fn wait_for_exit(&self, process_id: ProcessId) {
        for _ in 0..600 {
            self.reap();
            match self.process(process_id) {
                Some(process) if !self.system.is_dead(process) => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => return drop(self.running.borrow_mut().remove(&process_id)),
            }
        }
        self.violation(format!("{process_id:?} has not exited within 30 s of its stop"));
    }

    /// Reads the committed records of a partition in order.
    pub fn each_record(&self, partition: &Partition, take: &mut dyn FnMut(&RecordRef<'_>)) {
        let mut consumer = self.broker.consumer(&ConsumerSpec::default()).unwrap();
        consumer.assign(&[(partition.clone(), StartOffset::Beginning)]).unwrap();
        // Stops at an open transaction, which only this thread could end.
        let mut before = None;
        while before != Some(consumer.positions().unwrap()) {
            before = Some(consumer.positions().unwrap());
            consumer.poll(10_000, Duration::ZERO, take).unwrap();
        }
    }
}
