//! Steps of a scenario and their effects on the fleet.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kafleet::broker::memory::Faults;
use kafleet::broker::{Broker, Partition};
use kafleet::config::{Config, TopicsConfig};
use kafleet::model::projection::FOLD_VERSION;
use kafleet::runtime::simulated::Process;
use kafleet::store::{Store, memory as store};

use crate::adaptive::metered_calls;
use crate::fleet::{CALL, Fleet};
use crate::kills::kill_params;
use crate::requests::Client;
use crate::scenario::Scenario;
use crate::step::{ProcessId, Step};
use crate::task_types::{registry, task_type};
use crate::unique::UniqueAsk;

impl Fleet {
    pub fn faults_ended(&self) -> bool {
        self.faults_over.get()
    }

    /// Ends all faults.
    pub fn end_faults(&self) {
        self.faults_over.set(true);
        self.fault_rng.failing.store(0, SeqCst);
        self.fault_rng.down.store(false, SeqCst);
        self.broker.set_faults(Faults::default());
        self.broker.deliver_delayed();
        for partition in 0..self.scenario.events_partitions {
            self.hold_transactions(partition, false);
        }
        self.system.cancel_crashes();
        let frozen: Vec<Process> = self.running.borrow().values().map(|running| running.process).collect();
        frozen.into_iter().for_each(|process| self.system.freeze(process, false));
    }

    /// Ends the upgrade: trackers of the other build are stopped, to be restarted with the final one.
    pub fn finish_upgrade(&self) {
        let Some(upgrade) = self.scenario.upgrade else { return };
        let trackers: BTreeSet<ProcessId> = (0..self.scenario.trackers).map(ProcessId::Tracker).collect();
        let wanted = if upgrade.completes { trackers.clone() } else { BTreeSet::new() };
        let before = self.newer.replace(wanted.clone());
        trackers
            .iter()
            .filter(|process_id| before.contains(process_id) != wanted.contains(process_id))
            .for_each(|process_id| self.stop(*process_id));
        if upgrade.completes && upgrade.separate_store {
            self.current.set(1);
            self.fault_rng.writes.fetch_add(1, SeqCst);
            self.stop(ProcessId::Api);
        }
    }

    /// Wipes a store that the remaining trackers refuse because another build wrote it.
    async fn wipe_incompatible_store(&self) {
        let Some(upgrade) = self.scenario.upgrade.filter(|_| self.faults_over.get()) else { return };
        let version = FOLD_VERSION + u32::from(upgrade.completes);
        let all: Vec<u32> = (0..self.scenario.events_partitions).collect();
        if self
            .store()
            .checkpoints(&all)
            .await
            .unwrap()
            .iter()
            .flatten()
            .any(|checkpoint| checkpoint.version != version)
        {
            self.wipe();
        }
    }

    pub fn store(&self) -> &store::MemoryStore {
        &self.stores[self.current.get()]
    }

    /// Regular work: snapshots of the store, delayed records and exited processes.
    pub async fn tick(&self) {
        self.reap();
        self.wipe_incompatible_store().await;
        self.broker.deliver_delayed();
        if self.system.elapsed_ms() % 1_000 >= 100 {
            return;
        }
        let mut snapshots = self.snapshots.borrow_mut();
        let writes = self.fault_rng.writes.load(SeqCst);
        let snapshot = match snapshots.last() {
            Some((then, snapshot)) if *then == writes => snapshot.clone(),
            _ => Rc::new(self.store().snapshot()),
        };
        snapshots.push((writes, snapshot));
        if snapshots.len() > 6 {
            snapshots.remove(0);
        }
    }

    pub fn wipe(&self) {
        self.store().wipe();
        self.fault_rng.writes.fetch_add(1, SeqCst);
    }

    fn hold_transactions(&self, partition: u32, hold: bool) {
        let name = format!("{}.outbox.{partition}", self.names.events());
        self.broker.hold_transactions(&name, hold);
        if !hold {
            self.broker.end_transaction(&name, self.system.chance(0.5));
        }
    }

    pub async fn run_step(self: Rc<Self>, step: Step) {
        self.running_steps.set(self.running_steps.get() + 1);
        self.system.mix_trace(self.system.elapsed_ms());
        tracing::info!(at_ms = self.system.elapsed_ms(), ?step, "step");
        let client = Client { fleet: &self };
        match step {
            Step::Submit { root, via } => client.submit(root, via).await,
            Step::External { root, fails } => client.external(root, fails).await,
            Step::Cancel { root, path } => client.cancel(&Scenario::id(root, &path)).await,
            Step::Retry { root, path, only_failed } => client.retry(&Scenario::id(root, &path), only_failed).await,
            Step::StartNow { root } => client.start_now(root).await,
            Step::Redrive { unordered } => client.redrive(unordered).await,
            Step::AddPartition { unordered } => self.add_partition(unordered),
            Step::Pause { unordered, ms } => client.pause_type(unordered, ms).await,
            Step::OpenCircuit { unordered, ms } => client.open_circuit(unordered, ms).await,
            Step::Limit { unordered, slots, ms } => client.limit(unordered, slots, ms).await,
            Step::Outage { ms } => client.outage(ms).await,
            Step::Call { call, ms } => client.call_service(call, ms).await,
            Step::Ask { ask, key, mode, via, ms } => client.ask(UniqueAsk { ask, key, mode, ms }, via).await,
            Step::MeteredCalls { group, count, capacity } => metered_calls(&self, group, count, capacity).await,
            Step::Kill { root, ms } => client.kill(root, ms).await,
            Step::KillParams { root, ms } => kill_params(&client, root, ms).await,
            Step::CreateSchedule { schedule, spec, for_ms } => client.create_schedule(schedule, &spec, for_ms).await,
            Step::ChangeSchedule { schedule, change } => client.change_schedule(schedule, change).await,
            Step::Batch { batch, atomic, repeat } => client.batch(batch, atomic, repeat).await,
            Step::TaskRequest { batch, task, request } => {
                client.request(&self.scenario.batch_task_id(batch, task), request).await;
            }
            fault => self.inject(fault).await,
        }
        self.running_steps.set(self.running_steps.get() - 1);
    }

    async fn inject(&self, fault: Step) {
        match fault {
            Step::Crash { process_id, steps, back_ms } => {
                self.crash(process_id, steps);
                self.restart_later(process_id, back_ms).await;
            }
            Step::Restart { process_id, back_ms } => {
                self.stop(process_id);
                self.restart_later(process_id, back_ms).await;
            }
            // Too late: the builds are final.
            Step::ChangeBuild { .. } if self.faults_over.get() => {}
            Step::ChangeBuild { tracker, newer, back_ms } => {
                let process_id = ProcessId::Tracker(tracker);
                self.stop(process_id);
                if newer {
                    self.newer.borrow_mut().insert(process_id)
                } else {
                    self.newer.borrow_mut().remove(&process_id)
                };
                self.restart_later(process_id, back_ms).await;
            }
            Step::Freeze { process_id, ms } => {
                if let Some(process) = self.process(process_id) {
                    self.system.freeze(process, true);
                    self.sleep_during_faults(ms).await;
                    self.system.freeze(process, false);
                }
            }
            Step::StoreOutage { ms } => {
                self.fault_rng.down.store(true, SeqCst);
                self.sleep_during_faults(ms).await;
                self.fault_rng.down.store(false, SeqCst);
            }
            Step::WipeStore => self.wipe(),
            Step::RollBackStore => {
                if let Some((_, snapshot)) = self.snapshots.borrow().first() {
                    self.store().restore(snapshot);
                    self.fault_rng.writes.fetch_add(1, SeqCst);
                }
            }
            Step::FailCalls { permille, ms } => self.fail_calls(permille, ms).await,
            Step::HoldTransactions { partition, ms } => {
                self.hold_transactions(partition, true);
                self.sleep_during_faults(ms).await;
                self.hold_transactions(partition, false);
            }
            step => unreachable!("{step:?} is not a fault"),
        }
    }

    /// Waits until the time has passed or the faults have ended.
    pub async fn sleep_during_faults(&self, ms: u64) {
        let until = self.system.elapsed_ms() + ms;
        while self.system.elapsed_ms() < until && !self.faults_over.get() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn restart_later(&self, process_id: ProcessId, ms: u64) {
        self.sleep_during_faults(ms).await;
        self.reap();
        if self.process(process_id).is_some_and(|process| self.system.is_dead(process)) {
            self.running.borrow_mut().remove(&process_id);
        }
        self.start(process_id);
    }

    async fn fail_calls(&self, permille: u32, ms: u64) {
        let part = f64::from(permille) / 1_000.0;
        let faults = Faults {
            seed: self.scenario.seed ^ self.system.elapsed_ms(),
            unavailable: part,
            lost_acknowledgement: part,
            delay: part,
            duplicate: part,
            refuse_commit: part,
        };
        self.fault_rng.failing.store(permille, SeqCst);
        self.broker.set_faults(faults);
        self.sleep_during_faults(ms).await;
        self.fault_rng.failing.store(0, SeqCst);
        self.broker.set_faults(Faults::default());
    }

    fn add_partition(&self, unordered: bool) {
        let config =
            TopicsConfig { prefix: "s".into(), task_partitions: self.scenario.task_partitions, ..Default::default() };
        let config = Config { topics: config, ..Config::default() };
        let wanted = self.names.tasks(task_type(unordered));
        let mut specs = kafleet::topics::specs(&config, &registry(&self.journal, &self.scenario));
        specs.retain(|spec| spec.name == wanted);
        specs.iter_mut().for_each(|spec| spec.partitions += 1);
        self.broker.apply_topics(&specs, CALL).unwrap();
        self.offset_oracle.watch(&Partition::new(wanted, self.scenario.task_partitions as i32));
    }
}
