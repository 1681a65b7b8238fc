//! Scenario of a simulation, generated from a seed and printed when it fails.

use std::fmt;

use fastrand::Rng;
use kafleet::model::schedule::Overlap;
use serde::{Deserialize, Serialize};

use crate::adaptive;
use crate::apps::{self, AppSpec};
use crate::deliveries;
use crate::kills;
use crate::outages;
use crate::starts;
use crate::step::{ProcessId, ScheduleChange, ScheduleSpec, Step, SubmitVia, TaskRequest, TimedStep};
use crate::task_types::Script;
use crate::unique;

/// Start of the continuations among the child numbers of a path.
const CONTINUATIONS: usize = 100;

/// Task of a batch. The first one is the root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchTask {
    pub unordered: bool,
    /// Index of its parent, an earlier task.
    pub parent: usize,
    pub script: Script,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultMode {
    /// Without faults and with a single worker, no attempt runs twice.
    None,
    /// Graceful restarts only: no attempt runs twice.
    Restarts,
    All,
}

/// Trackers of two builds with different fold versions side by side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Upgrade {
    /// The newer build has a store of its own. Otherwise each build refuses the other's partitions.
    pub separate_store: bool,
    /// All trackers end with the newer build.
    pub completes: bool,
}

/// Change of the clock of a process's machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ClockChange {
    pub process: ProcessId,
    pub at_ms: u64,
    /// Time by which it is ahead from then on.
    pub ahead_ms: i64,
}

/// Workers that differ from the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerVariants {
    /// Workers that serve only one of the types.
    pub single_type: Vec<usize>,
    /// Workers of a newer build, which write unknown event fields and kinds.
    pub newer: Vec<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    pub seed: u64,
    /// Duration of the faults, after which all work has to end.
    pub fault_ms: u64,
    pub events_partitions: u32,
    pub task_partitions: u32,
    pub workers: usize,
    pub trackers: usize,
    pub commit_ms: u64,
    pub inline_retry_ms: u64,
    pub batch_events: usize,
    pub observe: bool,
    pub roots: Vec<(bool, Script)>,
    #[serde(flatten)]
    pub variants: WorkerVariants,
    /// Retention of ended trees; 0 for the default.
    pub retention_ms: u64,
    pub fault_mode: FaultMode,
    /// All types share a consumer group.
    #[serde(default)]
    pub shared_group: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    /// App that runs types instead of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<AppSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<Vec<BatchTask>>,
    /// Wrong clocks, in the order of their times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockChange>,
    pub steps: Vec<TimedStep>,
}

/// Last segment of a continuation's id.
pub fn continuation_segment(n: usize) -> String {
    if n == 0 { "then".into() } else { format!("then-{}", n + 1) }
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let fault_mode = [FaultMode::None, FaultMode::Restarts, FaultMode::All][usize::from(rng.u8(..8).min(2))];
        let roots: Vec<_> = (0..rng.usize(1..7)).map(|_| (rng.u8(..3) > 0, Script::random(rng, 3))).collect();
        let workers = rng.usize(1..4);
        let random_workers = |rng: &mut Rng, first| (first..workers).filter(|_| rng.u8(..5) == 0).collect();
        let mut scenario = Self {
            seed,
            fault_ms: [8_000, 15_000, 25_000][rng.usize(..3)],
            events_partitions: rng.u32(1..4),
            task_partitions: rng.u32(1..4),
            workers,
            trackers: rng.usize(1..3),
            commit_ms: [20, 200, 1_000][rng.usize(..3)],
            inline_retry_ms: [0, 500, 30_000][rng.usize(..3)],
            batch_events: [1, 3, 50, 2_000][rng.usize(..4)],
            observe: rng.bool(),
            roots,
            variants: WorkerVariants { single_type: random_workers(rng, 1), newer: random_workers(rng, 0) },
            retention_ms: if rng.u8(..12) == 0 { 150_000 } else { 0 },
            fault_mode,
            // Not from the generator, so that seeds keep the rest of their scenario.
            shared_group: seed.is_multiple_of(3),
            upgrade: (fault_mode == FaultMode::All && rng.u8(..6) == 0)
                .then(|| Upgrade { separate_store: rng.bool(), completes: rng.bool() }),
            app: None,
            batches: Vec::new(),
            clocks: Vec::new(),
            steps: Vec::new(),
        };
        if rng.u8(..4) == 0 {
            // Checks keep a tree for an hour longer, which is too long to simulate.
            let checks = scenario.retention_ms == 0;
            scenario.roots.iter_mut().for_each(|(_, script)| deliveries::add_notifications(script, checks, rng));
        }
        scenario.add_requests(rng);
        scenario.add_schedules(rng);
        if rng.u8(..3) == 0 {
            scenario.add_batches(rng);
        }
        match fault_mode {
            FaultMode::None => {}
            FaultMode::Restarts => scenario.add_restarts(rng),
            FaultMode::All => scenario.add_faults(rng),
        }
        if scenario.upgrade.is_some() {
            scenario.add_upgrades(rng);
        }
        scenario.add_loads();
        apps::add_app(&mut scenario);
        scenario.steps.sort_by_key(|step| step.at_ms);
        // Not from the generator, so that seeds keep the rest of their scenario.
        let waits = &mut Rng::with_seed(seed.rotate_left(32) ^ 0x5741_4954);
        scenario.roots.iter_mut().for_each(|(_, script)| script.add_waits(waits));
        scenario.add_restarts_under_retries();
        starts::add_starts(&mut scenario);
        kills::add_kills(&mut scenario);
        scenario.add_clocks(&mut Rng::with_seed(seed.rotate_left(32) ^ 0x434c_4f43));
        scenario
    }

    /// Makes the clocks of some machines wrong, in a third of the scenarios. Half of these clocks jump.
    fn add_clocks(&mut self, rng: &mut Rng) {
        if rng.u8(..3) > 0 {
            return;
        }
        const DAY_MS: i64 = 86_400_000;
        let workers = (0..self.workers).map(ProcessId::Worker);
        let processes = workers.chain((0..self.trackers).map(ProcessId::Tracker)).chain([ProcessId::Api]);
        for process in processes {
            let jump_ms = rng.bool().then(|| rng.u64(1..self.fault_ms));
            for at_ms in [Some(0), jump_ms].into_iter().flatten() {
                let ahead_ms = [0, 3_000, 90_000, -90_000, DAY_MS, -DAY_MS][rng.usize(..6)];
                self.clocks.push(ClockChange { process, at_ms, ahead_ms });
            }
        }
    }

    /// Changes of the clock of a process's machine: times, and by how much it is ahead.
    pub fn clock_of(&self, process: ProcessId) -> Vec<(u64, i64)> {
        let of_process = self.clocks.iter().filter(|change| change.process == process);
        of_process.map(|change| (change.at_ms, change.ahead_ms)).collect()
    }

    /// Whether any task has notifications.
    pub fn has_notifications(&self) -> bool {
        self.roots.iter().any(|(_, script)| deliveries::has_notifications(script))
    }

    /// Whether an app runs the type.
    pub fn app_runs(&self, unordered: bool) -> bool {
        self.app.as_ref().is_some_and(|app| app.runs(unordered))
    }

    /// Whether any task is unique.
    pub fn has_asks(&self) -> bool {
        self.steps.iter().any(|timed| matches!(timed.step, Step::Ask { .. }))
    }

    /// Whether any task has an adaptive limit.
    pub fn has_metered_calls(&self) -> bool {
        self.steps.iter().any(|timed| matches!(timed.step, Step::MeteredCalls { .. }))
    }

    /// Whether any task calls the service.
    pub fn has_callers(&self) -> bool {
        self.steps.iter().any(|timed| matches!(timed.step, Step::Call { .. }))
    }

    pub fn add(&mut self, at_ms: u64, step: Step) {
        self.steps.push(TimedStep { at_ms, step });
    }

    fn add_requests(&mut self, rng: &mut Rng) {
        for root in 0..self.roots.len() {
            let at_ms = rng.u64(..self.fault_ms / 2);
            if rng.u8(..8) == 0 {
                self.add(at_ms, Step::External { root, fails: rng.bool() });
            } else {
                let delay_ms = if rng.u8(..3) == 0 { rng.u64(1..8_000) } else { 0 };
                let via = if rng.u8(..4) == 0 { SubmitVia::Kafka } else { SubmitVia::Api { delay_ms } };
                self.add(at_ms, Step::Submit { root, via });
            }
        }
        for _ in 0..rng.usize(..5) {
            let (at_ms, root) = (rng.u64(..self.fault_ms * 3 / 2), rng.usize(..self.roots.len()));
            let path = self.random_path(rng, root);
            let ms = rng.u64(100..6_000);
            let step = match rng.u8(..8) {
                0 | 1 => {
                    // Some cancels are followed by a retry.
                    if rng.u8(..3) == 0 {
                        let retry = Step::Retry { root, path: path.clone(), only_failed: rng.bool() };
                        self.add(at_ms + ms, retry);
                    }
                    Step::Cancel { root, path }
                }
                2 | 3 => Step::Retry { root, path, only_failed: rng.bool() },
                4 => Step::Redrive { unordered: rng.bool() },
                5 => Step::AddPartition { unordered: rng.bool() },
                6 => Step::Pause { unordered: rng.bool(), ms },
                _ => Step::Kill { root, ms },
            };
            self.add(at_ms, step);
        }
    }

    /// Adds tasks of further types.
    fn add_loads(&mut self) {
        outages::add_outages(self);
        unique::add_asks(self);
        adaptive::add_metered_calls(self);
    }

    fn add_schedules(&mut self, rng: &mut Rng) {
        for schedule in 0..[0, 0, 0, 0, 0, 1, 1, 2][rng.usize(..8)] {
            let (at_ms, for_ms) = (rng.u64(..self.fault_ms / 2), rng.u64(2_000..self.fault_ms));
            let overlap = [Overlap::Skip, Overlap::Allow, Overlap::BufferOne, Overlap::Replace][rng.usize(..4)];
            let spec = ScheduleSpec {
                every_s: rng.u32(1..5),
                cron: rng.bool(),
                overlap,
                unordered: rng.bool(),
                script: Script::short(rng),
            };
            self.add(at_ms, Step::CreateSchedule { schedule, spec, for_ms });
            for _ in 0..rng.usize(..3) {
                let change = [
                    ScheduleChange::Pause,
                    ScheduleChange::Resume,
                    ScheduleChange::Run,
                    ScheduleChange::Backfill,
                    ScheduleChange::Delete,
                ][rng.usize(..5)];
                self.add(at_ms + rng.u64(..for_ms), Step::ChangeSchedule { schedule, change });
            }
        }
    }

    /// Several clients, some of which send the same batch.
    fn add_batches(&mut self, rng: &mut Rng) {
        for batch in 0..rng.usize(1..5) {
            let task = |n: usize, rng: &mut Rng| {
                let script = Script { fail_fast: rng.u8(..4) == 0, ..Script::random(rng, 0) };
                BatchTask { unordered: rng.u8(..3) > 0, parent: rng.usize(..n.max(1)), script }
            };
            let tasks: Vec<BatchTask> = (0..rng.usize(1..6)).map(|n| task(n, rng)).collect();
            let (atomic, at_ms) = (rng.bool(), rng.u64(..self.fault_ms));
            for _ in 0..rng.usize(1..3) {
                let late_ms = if rng.bool() { rng.u64(..50) } else { rng.u64(..5_000) };
                self.add(at_ms + late_ms, Step::Batch { batch, atomic, repeat: rng.bool() });
            }
            for name in 0..rng.u32(..6) {
                let request = match rng.u8(..4) {
                    0 | 1 => TaskRequest::Cancel,
                    2 => TaskRequest::Retry { only_failed: rng.bool() },
                    _ => TaskRequest::Rename { name },
                };
                let (task, at_ms) = (rng.usize(..tasks.len()), at_ms + rng.u64(..self.fault_ms));
                for _ in 0..rng.usize(1..3) {
                    self.add(at_ms + rng.u64(..2_000), Step::TaskRequest { batch, task, request });
                }
            }
            self.batches.push(tasks);
        }
    }

    /// Id of a task of a batch.
    pub fn batch_task_id(&self, batch: usize, task: usize) -> String {
        match task {
            0 => format!("b{batch}"),
            task => format!("{}:k{task}", self.batch_task_id(batch, self.batches[batch][task].parent)),
        }
    }

    fn random_path(&self, rng: &mut Rng, root: usize) -> Vec<usize> {
        let (mut path, mut script) = (Vec::new(), &self.roots[root].1);
        while script.children.len() + script.continuations.len() > 0 && rng.bool() {
            let n = rng.usize(..script.children.len() + script.continuations.len());
            let (step, next) = match n.checked_sub(script.children.len()) {
                None => (n, &script.children[n].script),
                Some(then) => (CONTINUATIONS + then, &script.continuations[then].task.script),
            };
            path.push(step);
            script = next;
        }
        path
    }

    fn random_process(&self, rng: &mut Rng) -> ProcessId {
        match rng.u8(..7) {
            0..=2 => ProcessId::Worker(rng.usize(..self.workers)),
            3..=5 => ProcessId::Tracker(rng.usize(..self.trackers)),
            _ => ProcessId::Api,
        }
    }

    fn add_restarts(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(1..9) {
            let (at_ms, process_id, back_ms) = (rng.u64(..self.fault_ms), self.random_process(rng), rng.u64(1..4_000));
            self.add(at_ms, Step::Restart { process_id, back_ms });
        }
    }

    /// Restarts workers one after the other while their tasks wait for retries. Not from the generator of the rest, so that
    /// the other seeds keep it.
    fn add_restarts_under_retries(&mut self) {
        let rng = &mut Rng::with_seed(self.seed.rotate_left(32) ^ 0x5245_5452);
        if self.fault_mode == FaultMode::None || rng.bool() {
            return;
        }
        for (_, script) in &mut self.roots {
            (script.fails, script.chooses_wait) = (script.fails.max(1), true);
        }
        for worker in 0..self.workers {
            for _ in 0..rng.usize(1..5) {
                let step = Step::Restart { process_id: ProcessId::Worker(worker), back_ms: rng.u64(1..1_500) };
                self.add(rng.u64(..self.fault_ms), step);
            }
        }
        self.steps.sort_by_key(|step| step.at_ms);
    }

    fn add_faults(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(1..9) {
            let (at_ms, process_id) = (rng.u64(..self.fault_ms), self.random_process(rng));
            let ms = rng.u64(100..15_000);
            let step = match rng.u8(..14) {
                0..=3 => Step::Crash { process_id, steps: rng.u32(1..400), back_ms: rng.u64(1..6_000) },
                4 | 5 => Step::Restart { process_id, back_ms: rng.u64(1..4_000) },
                6 | 7 => Step::Freeze { process_id, ms },
                8 => Step::StoreOutage { ms: ms / 3 },
                9 => Step::WipeStore,
                10 => Step::RollBackStore,
                11 => Step::HoldTransactions { partition: rng.u32(..self.events_partitions), ms: ms / 4 },
                _ => Step::FailCalls { permille: rng.u32(5..150), ms },
            };
            self.add(at_ms, step);
        }
    }

    fn add_upgrades(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(1..6) {
            let (at_ms, back_ms) = (rng.u64(..self.fault_ms), rng.u64(1..4_000));
            let (tracker, newer) = (rng.usize(..self.trackers), rng.u8(..3) > 0);
            self.add(at_ms, Step::ChangeBuild { tracker, newer, back_ms });
        }
    }

    /// Id of the task at a path.
    pub fn id(root: usize, path: &[usize]) -> String {
        path.iter().fold(format!("r{root}"), |id, n| match n.checked_sub(CONTINUATIONS) {
            None => format!("{id}:c{n}"),
            Some(then) => format!("{id}:{}", continuation_segment(then)),
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}: {} workers, {} trackers; {} events partitions, {} per type; commits every {} ms, batches of {} events, inline retries up to {} ms, announcer: {}; workers of one type: {:?}, newer workers: {:?}; retention {} ms; {:?}",
            self.fault_mode,
            self.workers,
            self.trackers,
            self.events_partitions,
            self.task_partitions,
            self.commit_ms,
            self.batch_events,
            self.inline_retry_ms,
            self.observe,
            self.variants.single_type,
            self.variants.newer,
            self.retention_ms,
            self.upgrade
        )?;
        self.app.iter().try_for_each(|app| writeln!(f, "  {app:?}"))?;
        let root_of = |step: &TimedStep| match step.step {
            Step::Submit { root, .. } | Step::External { root, .. } => Some(root),
            _ => None,
        };
        let used: Vec<usize> = self.steps.iter().filter_map(root_of).collect();
        for (n, (unordered, script)) in self.roots.iter().enumerate().filter(|(n, _)| used.contains(n)) {
            writeln!(
                f,
                "  r{n}, {}: {}",
                crate::task_types::task_type(*unordered),
                serde_json::to_string(script).unwrap_or_default()
            )?;
        }
        for (n, tasks) in self.batches.iter().enumerate() {
            writeln!(f, "  b{n}: {}", serde_json::to_string(tasks).unwrap_or_default())?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "  {:>6} ms  {:?}", step.at_ms, step.step))
    }
}
