//! Child processes that run attempts, one at a time each, so that a handler that aborts, overflows its stack or runs
//! out of memory takes down its own process and not the worker.
//!
//! A child process is this binary started under another name ([`ARGV0`]); [`child_main`] detects it before anything
//! else runs. It has its own process group and dies with its worker. A pool grows to the number of running attempts
//! and keeps idle processes for a while.

pub mod child_main;
mod process;
pub mod protocol;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kafleet_config::{ChildLimits, TypePolicy};
use kafleet_handlers::process::RunningProgram as _;
use kafleet_handlers::program_env::{ProgramEnv, WithheldVariables};
use kafleet_handlers::resident_memory::resident_bytes;
use kafleet_handlers::{Answer, AnswerFuture, Capabilities, Context, Failure, Handler, ParamsError};
use kafleet_model::json::RawJson;
use kafleet_telemetry::Metrics;
use parking_lot::Mutex;

use self::process::{ChildError, ChildProcess};
use self::protocol::Handshake;
pub use kafleet_handlers::CRASHED;

/// `argv[0]` of a child process. Unlike an environment variable it is not inherited by programs that the child
/// starts.
pub const ARGV0: &str = "kafleet-child";

/// Time that an idle child process is kept, and the interval of the check.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time that a retired child process may spend on background work.
const RETIRE_GRACE: Duration = Duration::from_secs(5);
/// Number of attempts between two checks of a child's memory.
const MEMORY_CHECK_INTERVAL: u32 = 8;
/// Maximum number of child processes tried for one attempt, if they end before it has started.
const MAX_TRIES: usize = 3;

/// Executable that can be started again as a child process.
#[derive(Clone, Debug)]
pub struct OwnExecutable {
    file: PathBuf,
    withheld: WithheldVariables,
}

impl OwnExecutable {
    /// Requires that `main` reaches `kafleet::app().….main()` when the process is started with the same arguments.
    /// `withheld`: variables that child processes do not inherit.
    pub fn of_this_process(withheld: WithheldVariables) -> Option<Self> {
        // On Linux also valid after the file has been replaced by another version.
        let linux = cfg!(target_os = "linux").then(|| PathBuf::from("/proc/self/exe"));
        let file = linux.or_else(|| std::env::current_exe().ok())?;
        Some(Self { file, withheld })
    }
}

/// Program of one type's child processes.
struct Program {
    file: PathBuf,
    memory_bytes: u64,
    env: ProgramEnv,
}

/// Runs the attempts of one type in child processes.
#[derive(Clone)]
pub struct ChildPool {
    pool: Arc<Pool>,
    /// Each attempt gets a new process, so that a crash can only be caused by that attempt.
    fresh: bool,
}

struct Pool {
    program: Program,
    task_type: Arc<str>,
    handler: String,
    limits: ChildLimits,
    /// The process used last is at the end and is used next.
    idle: Mutex<Vec<ChildProcess>>,
    metrics: Metrics,
}

impl ChildPool {
    /// Returns `None` for a handler that cannot crash its process.
    pub fn new(
        own_executable: &OwnExecutable,
        task_type: &Arc<str>,
        handler: &dyn Handler,
        policy: &TypePolicy,
        metrics: &Metrics,
    ) -> Option<Self> {
        let limits = policy.child_limits();
        let env = ProgramEnv { variables: policy.variables.clone(), withheld: own_executable.withheld.clone() };
        let pool = Arc::new(Pool {
            program: Program { file: own_executable.file.clone(), memory_bytes: limits.memory.0, env },
            handler: handler.capabilities().in_child.type_name(task_type)?.to_owned(),
            task_type: task_type.clone(),
            limits,
            idle: Mutex::default(),
            metrics: metrics.clone(),
        });
        tokio::spawn(reap_idle(Arc::downgrade(&pool)));
        Some(Self { pool, fresh: false })
    }

    /// Returns a pool that uses a new process for each attempt.
    pub fn fresh(&self) -> Self {
        Self { pool: self.pool.clone(), fresh: true }
    }
}

impl Handler for ChildPool {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let pool = self.pool.clone();
        let fresh = self.fresh;
        let message = process::assignment_message(params, &cx);
        Ok(Box::pin(async move { pool.run_attempt(&message?, &cx, fresh).await }))
    }

    /// The child process opens its own span around the handler.
    fn capabilities(&self) -> Capabilities {
        Capabilities { is_silent: true, ..Capabilities::default() }
    }
}

impl Pool {
    async fn run_attempt(self: &Arc<Self>, message: &[u8], cx: &Context, fresh: bool) -> Answer {
        let mut last_error = String::new();
        for _ in 0..MAX_TRIES {
            let mut child = self.acquire(fresh).await?;
            match child.run(message, cx).await {
                Ok(answer) => {
                    self.release(child, fresh);
                    return answer;
                }
                Err(ChildError::NotStarted(error)) => last_error = error,
                Err(ChildError::Crashed(how)) => {
                    child.metrics.end_reason = CRASHED;
                    return Err(Failure::retry(format!("the handler crashed its process: {how}")).of_kind(CRASHED));
                }
                Err(ChildError::Protocol(error)) => {
                    return Err(Failure::retry(format!("the child process sent an invalid message: {error}"))
                        .of_kind("garbled"));
                }
            }
        }
        Err(not_started(&last_error))
    }

    async fn acquire(&self, fresh: bool) -> Result<ChildProcess, Failure> {
        while !fresh && let Some(mut child) = self.pop() {
            if child.process.is_running() {
                return Ok(child);
            }
            // Crashed while idle, as an effect of an earlier attempt.
            child.metrics.end_reason = CRASHED;
        }
        let handshake = Handshake { task_type: self.task_type.to_string(), handler: self.handler.clone() };
        let metrics = ChildMetrics::new(&self.metrics, &self.task_type);
        ChildProcess::start(&self.program, handshake, metrics).await.map_err(|error| not_started(&error))
    }

    fn pop(&self) -> Option<ChildProcess> {
        self.idle.lock().pop()
    }

    /// Keeps a child process for the next attempt, or retires it if it has reached a limit.
    fn release(&self, mut child: ChildProcess, fresh: bool) {
        let is_large = || {
            child.used.is_multiple_of(MEMORY_CHECK_INTERVAL)
                && resident_bytes(child.process.pid()) > self.limits.memory.0 / 2
        };
        let reason = match () {
            () if child.used >= self.limits.tasks || fresh => "tasks",
            () if is_large() => "memory",
            () => {
                child.idle_since = Instant::now();
                return self.idle.lock().push(child);
            }
        };
        child.metrics.end_reason = reason;
        tokio::spawn(child.retire(RETIRE_GRACE));
    }

    /// Takes the processes that have been idle for longer than [`IDLE_TIMEOUT`].
    fn take_idle(&self, now: Instant) -> Vec<ChildProcess> {
        let mut idle = self.idle.lock();
        let count = idle.partition_point(|child| now.duration_since(child.idle_since) > IDLE_TIMEOUT);
        idle.drain(..count).collect()
    }
}

async fn reap_idle(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        for mut child in pool.take_idle(Instant::now()) {
            child.metrics.end_reason = "idle";
            tokio::spawn(child.retire(RETIRE_GRACE));
        }
    }
}

fn not_started(error: &dyn std::fmt::Display) -> Failure {
    Failure::retry(format!("a child process for the handler could not be started: {error}")).of_kind("not_started")
}

/// Counts running child processes, and the reason of each one's end.
struct ChildMetrics {
    metrics: Metrics,
    task_type: Arc<str>,
    end_reason: &'static str,
}

impl ChildMetrics {
    fn new(metrics: &Metrics, task_type: &Arc<str>) -> Self {
        metrics.worker.child_processes.with_label_values(&[&**task_type]).inc();
        Self { metrics: metrics.clone(), task_type: task_type.clone(), end_reason: "killed" }
    }
}

impl Drop for ChildMetrics {
    fn drop(&mut self) {
        self.metrics.worker.child_processes.with_label_values(&[&*self.task_type]).dec();
        self.metrics.worker.child_process_ends.with_label_values(&[&*self.task_type, self.end_reason]).inc();
    }
}
