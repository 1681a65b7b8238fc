//! Setups of the simulated processes, on the faulty broker and store.

use std::sync::Arc;

use kafleet::api::ApiSetup;
use kafleet::config::{Topology, TrackerConfig, WorkerConfig};
use kafleet::handlers::{Registry, Task};
use kafleet::model::units::duration::Millis;
use kafleet::telemetry::Metrics;
use kafleet::tracker::TrackerSetup;
use kafleet::worker::WorkerSetup;

use crate::apps::SimulatedApp;
use crate::faulty_broker::FaultyBroker;
use crate::faulty_store::FaultyStore;
use crate::fleet::{Fleet, lifetimes};
use crate::journal::RunningAttempts;
use crate::step::ProcessId;
use crate::task_types::{self, UnorderedTask};

/// Worker, and the app that runs its types, if the scenario has one.
pub fn worker(fleet: &Fleet, number: usize) -> (WorkerSetup, Option<Arc<SimulatedApp>>) {
    let scenario = &fleet.scenario;
    let is_newer = scenario.variants.newer.contains(&number);
    let config = WorkerConfig {
        drain_timeout: Millis::secs(3),
        commit_interval: Millis(scenario.commit_ms),
        grace: Millis(500),
        inline_retry_max: Millis(scenario.inline_retry_ms),
        ..WorkerConfig::default()
    };
    let types = scenario.variants.single_type.contains(&number).then(|| UnorderedTask::TYPE.to_owned());
    let running = Arc::<RunningAttempts>::default();
    let setup = WorkerSetup {
        types: types.into_iter().collect(),
        config,
        ..WorkerSetup::new(
            broker(fleet, is_newer.then(|| fleet.names.events())),
            task_types::worker_registry(&fleet.journal, scenario, &running),
            Topology::new(fleet.names.clone(), scenario.events_partitions),
            Metrics::new().unwrap(),
        )
    };
    let app = scenario.app.clone().map(|spec| SimulatedApp::new(spec, scenario, &fleet.journal, running));
    (setup, app)
}

pub fn tracker(fleet: &Fleet, process_id: ProcessId) -> TrackerSetup {
    let scenario = &fleet.scenario;
    let is_newer = fleet.newer.borrow().contains(&process_id);
    let has_separate_store = scenario.upgrade.is_some_and(|upgrade| upgrade.separate_store);
    let config =
        TrackerConfig { batch_events: scenario.batch_events, observe: scenario.observe, ..TrackerConfig::default() };
    TrackerSetup {
        config,
        lifetimes: lifetimes(scenario),
        ..TrackerSetup::new(
            broker(fleet, None),
            store(fleet, usize::from(is_newer && has_separate_store), is_newer),
            Topology::new(fleet.names.clone(), scenario.events_partitions),
            Metrics::new().unwrap(),
        )
    }
}

pub fn api(fleet: &Fleet) -> ApiSetup {
    let is_newer = fleet.newer.borrow().contains(&ProcessId::Api);
    ApiSetup {
        registry: registry(fleet),
        ..ApiSetup::new(
            broker(fleet, None),
            store(fleet, fleet.current.get(), is_newer),
            Topology::new(fleet.names.clone(), fleet.scenario.events_partitions),
            Metrics::new().unwrap(),
            kafleet::ui::open,
        )
    }
}

fn registry(fleet: &Fleet) -> Registry {
    task_types::registry(&fleet.journal, &fleet.scenario)
}

/// Broker with faults; a worker of a newer build also publishes events that this build does not know.
fn broker(fleet: &Fleet, newer: Option<String>) -> Arc<FaultyBroker> {
    Arc::new(FaultyBroker {
        inner: fleet.broker.clone(),
        offset_oracle: fleet.offset_oracle.clone(),
        fault_rng: fleet.fault_rng.clone(),
        newer,
    })
}

fn store(fleet: &Fleet, number: usize, newer: bool) -> Arc<FaultyStore> {
    Arc::new(FaultyStore { inner: fleet.stores[number].clone(), fault_rng: fleet.fault_rng.clone(), newer })
}
