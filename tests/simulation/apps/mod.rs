//! Apps of a simulated fleet: the workers run the types of the scenario in simulated processes, by the real pool, permits and
//! sessions. Only the programs are simulated.

mod attempt;
pub mod deaths;
mod process;
mod program;
mod stream;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use kafleet::apps::capacity::SlotKind;
use kafleet::apps::launch::{Launcher, SimulatedProcess};
use kafleet::apps::pool::{AppHandler, AppPool, OpenedApp, PoolSettings};
use kafleet::apps::process::AppProgram;
use kafleet::apps::protocol::{Limits, VERSION, Welcome};
use kafleet::config::TypePolicy;
use kafleet::handlers::TypeRegistration;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::{self, Shutdown};
use kafleet::worker::{self, WorkerSetup};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::process::{Process, ProcessHandle};
use self::program::SimulatedProgram;
use crate::journal::{Attempt, Journal, RunningAttempts};
use crate::scenario::{FaultMode, Scenario, WorkerVariants};
use crate::step::{ProcessId, Step};
use crate::task_types::{registered, task_type};

/// Time until a process is ready.
const START_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of attempts: longer than any attempt that does not hang.
const TIMEOUT: Millis = Millis::secs(5);

/// App of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppSpec {
    /// Types that it runs.
    pub unordered: bool,
    pub keyed: bool,
    pub processes: u32,
    pub slots: u32,
    pub responsive: bool,
    pub max_tasks: Option<u32>,
    pub overlap: bool,
    /// Percentage of processes that die for no reason, and of failures that are deaths or hangs.
    pub trouble: u32,
}

/// App of one worker.
pub struct SimulatedApp {
    spec: AppSpec,
    journal: Arc<Journal>,
    running: Arc<RunningAttempts>,
    has_started: AtomicBool,
    /// Attempts whose process died with several: their next execution is alone in a process. `None`: not checked, because
    /// another worker may have taken the task in the meantime.
    alone: Option<Mutex<BTreeSet<Attempt>>>,
}

/// Returns whether a worker is frozen for longer than the attempts of an app's type may take: they then time out, beside
/// deaths that are charged to them.
pub fn may_time_out(scenario: &Scenario, name: &str) -> bool {
    let outlasts =
        |step: &Step| matches!(step, Step::Freeze { process_id: ProcessId::Worker(_), ms } if *ms >= TIMEOUT.0);
    let is_of_app =
        [true, false].into_iter().any(|unordered| scenario.app_runs(unordered) && task_type(unordered) == name);
    is_of_app && scenario.steps.iter().any(|timed| outlasts(&timed.step))
}

/// Adds an app to some of the scenarios. Half of them lose their faults, because the oracle of deaths is exact only while one
/// worker runs all attempts. Not from the generator of the rest, so that the other seeds keep it.
pub fn add_app(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x4150_5053);
    if rng.u8(..3) > 0 {
        return;
    }
    scenario.app = Some(AppSpec::random(rng));
    if rng.bool() {
        scenario.steps.retain(|timed| !timed.step.is_fault());
        (scenario.fault_mode, scenario.workers, scenario.upgrade) = (FaultMode::None, 1, None);
        scenario.variants = WorkerVariants::default();
    }
}

impl AppSpec {
    fn random(rng: &mut Rng) -> Self {
        let (unordered, keyed) = [(true, false), (true, true), (false, true)][rng.usize(..3)];
        Self {
            unordered,
            keyed,
            processes: rng.u32(1..4),
            slots: [1, 1, 2, 3][rng.usize(..4)],
            responsive: rng.u8(..3) > 0,
            max_tasks: (rng.u8(..3) == 0).then(|| rng.u32(1..8)),
            overlap: rng.bool(),
            trouble: [0, 20, 60][rng.usize(..3)],
        }
    }

    pub fn runs(&self, unordered: bool) -> bool {
        if unordered { self.unordered } else { self.keyed }
    }
}

impl SimulatedApp {
    /// Creates the app of one worker.
    pub fn new(spec: AppSpec, scenario: &Scenario, journal: &Arc<Journal>, running: Arc<RunningAttempts>) -> Arc<Self> {
        let is_checked = scenario.workers == 1 && scenario.fault_mode != FaultMode::All;
        Arc::new(Self {
            spec,
            journal: journal.clone(),
            running,
            has_started: AtomicBool::new(false),
            alone: is_checked.then(Mutex::default),
        })
    }

    /// Runs a worker with its app.
    pub async fn run_worker(self: Arc<Self>, mut setup: WorkerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
        let welcome = welcome(&setup);
        let (spec, program) = (self.spec.clone(), self.program());
        let opened = OpenedApp::open(program, welcome).await?;
        let settings =
            PoolSettings { processes: spec.processes, max_tasks: spec.max_tasks, memory: None, overlap: spec.overlap };
        let pool = AppPool::new(opened, settings, spec.keyed);
        for unordered in [true, false].into_iter().filter(|unordered| spec.runs(*unordered)) {
            let of_rust = registered(unordered);
            let policy = TypePolicy { timeout: TIMEOUT, ..of_rust.policy.clone() };
            let handler = Arc::new(AppHandler::new(pool.clone(), SlotKind::General));
            setup.registry.add(task_type(unordered), TypeRegistration { handler, policy, ..of_rust });
        }
        pool.serve(setup.health.clone(), &setup.metrics.apps);
        let ended = worker::run(setup, shutdown).await;
        pool.stop().await;
        ended
    }

    fn program(self: Arc<Self>) -> AppProgram {
        AppProgram {
            files: Default::default(),
            name: "app".to_owned(),
            command: Vec::new(),
            cwd: Default::default(),
            env: Default::default(),
            start_timeout: START_TIMEOUT,
            types: None,
            slots: None,
            has_order: self.spec.keyed,
            may_block: false,
            launcher: Some(Arc::new(Starter(self))),
        }
    }
}

impl fmt::Debug for SimulatedApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// Starts the processes of a worker's app. They belong to the process of the worker, and die with it.
#[derive(Debug)]
struct Starter(Arc<SimulatedApp>);

impl Launcher for Starter {
    fn launch(&self, _: u32) -> SimulatedProcess {
        let app = self.0.clone();
        let (pid, journal) = (app.journal.deaths.next_pid(), app.journal.clone());
        let is_first = !app.has_started.swap(true, Ordering::Relaxed);
        let (output, input, reader, writer) = stream::open();
        let (signals, received) = mpsc::unbounded_channel();
        let (exited, exit) = oneshot::channel();
        let shared = ProcessHandle {
            app,
            pid,
            started_at: Instant::now(),
            output,
            state: Mutex::default(),
            is_blocked: AtomicBool::new(false),
        };
        let process = Process { shared: Arc::new(shared), input, signals: received, is_first };
        runtime::spawn(process.run(exited));
        let program = SimulatedProgram { pid, journal, signals, exit, status: None };
        SimulatedProcess { program: Box::new(program), reader: Box::new(reader), writer: Box::new(writer) }
    }
}

fn welcome(setup: &WorkerSetup) -> Welcome {
    Welcome {
        protocol: VERSION,
        app: "app".to_owned(),
        worker: "w".to_owned(),
        version: "0",
        types: None,
        slots: None,
        grace_ms: setup.config.grace.0,
        limits: Limits::new(setup.config.max_params.0, setup.config.max_output.0),
        dev: false,
    }
}
