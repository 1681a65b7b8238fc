//! Processes of an app: started, replaced and ended, and shared by the attempts of its types.
//!
//! The slots of all processes form one table; the types of the app take them in turn. A dispatcher acquires a permit,
//! which is a reserved slot, before it takes a task from its queue, so no timeout runs while a task waits for a
//! process. A supervisor per process starts it again after its end and replaces it when it is used up.
//!
//! Invariant: a slot that was taken is given back exactly once, by the drop of its lease, however the attempt
//! ends. An attempt that ends without an answer closes its process, which may still be executing it. A lost slot
//! would reduce the capacity of the app until it stands still, without any error.
//!
//! Read next: `slots.rs` (the table, pure), `permit.rs`, `supervision.rs` (one process), `blame.rs` (early deaths).

mod blame;
mod permit;
mod replacement;
mod slots;
mod spares;
mod status;
mod supervision;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use kafleet_handlers::resident_memory::tree_bytes;
use kafleet_model::units::bytes::Bytes;
use kafleet_model::worker_status::AppCapacity;
use kafleet_runtime::{Health, RuntimeThread, watch};
use kafleet_telemetry::AppMetrics;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use self::blame::all_last;
use self::blame::{Blame, Evidence};
pub use self::permit::AppHandler;
use self::permit::WaitingAttempt;
pub use self::replacement::guard_container;
use self::slots::{ProcessId, SlotTable};
use self::spares::Spares;
use self::status::PoolMetrics;
use super::capacity::{Capacity, SlotKind};
use super::container::Container;
use super::declaration::Declaration;
use super::loaded_files::LoadedFiles;
use super::process::{AppProcess, AppProgram, ProcessRequest, StartError};
use super::protocol::Welcome;
use super::session::Session;

/// Maximum time for all processes to end: two grace periods of a process, and some time to start it.
const STOP_DEADLINE: Duration = Duration::from_secs(15);
/// Share of the container's memory for the processes of an app, as large as they are when ready, in percent.
const MEMORY_PERCENT: u64 = 70;

/// App with its first process, which has declared the types.
pub struct OpenedApp {
    /// Runs the sessions with the processes, and the dispatchers of the types.
    thread: RuntimeThread,
    pub program: AppProgram,
    pub welcome: Welcome,
    pub declaration: Declaration,
    pub first: AppProcess,
}

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Number of processes.
    pub processes: u32,
    /// Attempts after which a process is replaced. `None`: no limit.
    pub max_tasks: Option<u32>,
    /// Memory of a process above which it is replaced. `None`: no limit.
    pub memory: Option<Bytes>,
    /// A process ends only when its replacement is ready.
    pub overlap: bool,
}

/// Processes of an app.
pub struct AppPool {
    thread: RuntimeThread,
    program: AppProgram,
    settings: PoolSettings,
    welcome: Welcome,
    declaration: Declaration,
    capacity: Capacity,
    state: Mutex<PoolFields>,
    next_id: AtomicU64,
    /// Process that has declared the types, until the others are started.
    first: Mutex<Option<AppProcess>>,
    supervisors: Mutex<Vec<JoinHandle<()>>>,
    stop: CancellationToken,
    /// Notified when an attempt waits to run in quarantine.
    suspects: Notify,
    /// Evidence of whether the app or an attempt is to blame for early deaths.
    evidence: watch::Sender<Evidence>,
    /// Set when the pool serves.
    metrics: OnceLock<PoolMetrics>,
}

struct PoolFields {
    table: SlotTable<WaitingAttempt>,
    processes: Vec<Arc<ProcessHandle>>,
    /// Time since which no process has served.
    down_since: Option<Instant>,
    /// Reason why the last start has failed, or why a process has died before its first attempt.
    last_failure: Option<String>,
    /// Spare processes, with those that are being started.
    spares: usize,
    blame: Blame,
}

/// Running process of a pool.
struct ProcessHandle {
    id: ProcessId,
    pid: u32,
    session: Session,
    /// Time since which the process is ready.
    since: Instant,
    requests: mpsc::UnboundedSender<ProcessRequest>,
    /// Notified when the process should be replaced.
    replace: Notify,
}

impl OpenedApp {
    /// Starts the first process and reads its declaration.
    ///
    /// # Errors
    /// The process cannot be started, ends, or declares something invalid.
    pub async fn open(program: AppProgram, welcome: Welcome) -> Result<Self, StartError> {
        let failed = |reason: String| StartError { app: program.name.clone(), reason };
        let thread = RuntimeThread::start(&format!("kafleet-{}", program.name));
        let thread = thread.map_err(|error| failed(format!("gets no thread: {error}")))?;
        let (app, greeting) = (program.clone(), welcome.clone());
        let started = kafleet_runtime::spawn_on(thread.handle(), async move { app.start(0, &greeting).await });
        let (first, declaration) = started.await.map_err(|error| failed(format!("was not started: {error}")))??;
        Ok(Self { thread, program, welcome, declaration, first })
    }

    /// Attempts that one process runs at once.
    pub fn capacity(&self) -> Capacity {
        self.first.capacity()
    }

    /// Number of processes without a setting: one per core, but at most as many as fit into the container.
    pub fn default_processes(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let (bytes, limit) = (tree_bytes(self.first.pid()), Container::of_this_process().limit());
        let processes = limit.map_or(cores, |limit| cores.min(fitting_processes(bytes, limit)));
        if processes < cores {
            let process = Bytes::whole_mib(bytes);
            let app = self.program.name.as_str();
            tracing::warn!(
                app,
                processes,
                cores,
                %process,
                "more processes would need over {MEMORY_PERCENT} % of the container's memory; `processes` sets their number"
            );
        }
        processes
    }
}

/// Number of processes of this size that fit into a container with this limit, at least 1.
fn fitting_processes(bytes: u64, limit: u64) -> u32 {
    let fitting = u128::from(limit) * u128::from(MEMORY_PERCENT) / 100 / u128::from(bytes.max(1));
    u32::try_from(fitting).unwrap_or(u32::MAX).max(1)
}

impl AppPool {
    /// Creates a pool with the first process. `has_order`: tasks of some type run in order.
    pub fn new(app: OpenedApp, settings: PoolSettings, has_order: bool) -> Arc<Self> {
        let OpenedApp { thread, mut program, welcome, declaration, mut first } = app;
        program.has_order = has_order;
        first.set_order(has_order);
        let capacity = first.capacity();
        let state = PoolFields {
            table: SlotTable::new(),
            processes: Vec::new(),
            down_since: None,
            last_failure: None,
            spares: 0,
            blame: Blame::default(),
        };
        Arc::new(Self {
            thread,
            program,
            settings,
            welcome,
            declaration,
            state: Mutex::new(state),
            next_id: AtomicU64::new(1),
            first: Mutex::new(Some(first)),
            capacity,
            supervisors: Mutex::default(),
            stop: CancellationToken::new(),
            suspects: Notify::new(),
            evidence: watch::Sender::new(Evidence::default()),
            metrics: OnceLock::new(),
        })
    }

    /// Name of the app.
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// Runtime of the sessions, on which attempts are dispatched with the fewest wake-ups.
    pub fn runtime(&self) -> &Handle {
        self.thread.handle()
    }

    /// Types that the app declares.
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Attempts that one process runs at once.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Source files that the processes have loaded, as far as they name them.
    pub fn files(&self) -> &LoadedFiles {
        &self.program.files
    }

    /// Capacity of one kind in all processes.
    pub fn app_capacity(&self, slot_kind: SlotKind) -> AppCapacity {
        AppCapacity {
            app: self.name().to_owned(),
            processes: self.settings.processes,
            per_process: self.capacity.of(slot_kind),
            threads: slot_kind == SlotKind::Thread,
        }
    }

    /// Process ids of the running processes.
    pub fn pids(&self) -> Vec<u32> {
        self.state.lock().processes.iter().map(|process| process.pid).collect()
    }

    /// Starts the other processes and keeps all of them running. `health` gets the reason if none serves for long.
    pub fn serve(self: &Arc<Self>, health: Health, metrics: &AppMetrics) {
        // Fails if the pool already serves.
        let _ = self.metrics.set(PoolMetrics::new(self.name(), metrics));
        let mut first = self.first.lock().take();
        self.state.lock().down_since = Some(Instant::now());
        let mut supervisors = self.supervisors.lock();
        for number in 0..self.settings.processes {
            supervisors
                .push(kafleet_runtime::spawn_on(self.runtime(), self.clone().keep_running(number, first.take())));
        }
        supervisors.push(kafleet_runtime::spawn_on(self.runtime(), Spares(self.clone()).keep_spares()));
        supervisors.push(kafleet_runtime::spawn_on(self.runtime(), status::report(self.clone(), health)));
    }

    /// Ends all processes; running attempts may finish for some seconds.
    pub async fn stop(&self) {
        self.stop.cancel();
        let first = self.first.lock().take();
        if let Some(first) = first {
            let (requests, receiver) = mpsc::unbounded_channel();
            drop(requests);
            // A closed channel asks the process to end.
            let _ = timeout(STOP_DEADLINE, first.run(receiver, |_| {})).await;
        }
        let supervisors = std::mem::take(&mut *self.supervisors.lock());
        let aborts: Vec<_> = supervisors.iter().map(JoinHandle::abort_handle).collect();
        let mut ended = join_all(supervisors);
        if timeout(STOP_DEADLINE, &mut ended).await.is_err() {
            // Dropping a process kills it.
            aborts.iter().for_each(AbortHandle::abort);
            ended.await;
        }
    }

    /// Adds a process, which gets attempts from now on.
    fn add(
        &self,
        process: &AppProcess,
        requests: mpsc::UnboundedSender<ProcessRequest>,
        is_spare: bool,
    ) -> Arc<ProcessHandle> {
        let handle = Arc::new(ProcessHandle {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            pid: process.pid(),
            session: process.session().clone(),
            since: Instant::now(),
            requests,
            replace: Notify::new(),
        });
        let left = self.settings.max_tasks.map(varied);
        let granted = {
            let mut state = self.state.lock();
            state.processes.push(handle.clone());
            if is_spare {
                state.table.add_spare(handle.id, process.capacity())
            } else {
                state.table.add(handle.id, process.capacity(), left)
            }
        };
        self.hand_out(granted);
        handle
    }
}

impl PoolFields {
    fn process(&self, id: ProcessId) -> Option<Arc<ProcessHandle>> {
        self.processes.iter().find(|process| process.id == id).cloned()
    }
}

impl ProcessHandle {
    /// Starts no more attempts in the process, which ends when it runs none.
    fn close(&self, state: &Mutex<PoolFields>) {
        let is_finished = state.lock().close(self.id);
        if is_finished {
            self.finish();
        }
    }

    /// Ends a process that runs no attempts. A process that still executes an abandoned attempt is killed.
    fn finish(&self) {
        let request = match self.session.stuck() {
            0 => ProcessRequest::Stop,
            _ => ProcessRequest::Kill("an attempt did not stop in time".to_owned()),
        };
        // Fails if the process has ended.
        let _ = self.requests.send(request);
    }
}

/// Varies a number by up to 10 %, so that processes are not replaced at the same time.
fn varied(number: u32) -> u64 {
    ((f64::from(number) * (0.9 + 0.2 * fastrand::f64())) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_fill_seventy_percent_of_a_container() {
        assert_eq!(fitting_processes(100, 1_000), 7);
        assert_eq!(fitting_processes(351, 1_000), 1);
        assert_eq!(fitting_processes(1_000, 1_000), 1, "one process is always started");
        assert_eq!(fitting_processes(0, u64::MAX), u32::MAX, "a process that has ended has no size");
    }
}
