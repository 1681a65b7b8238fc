//! Cells: child processes in which attempts run, one at a time each, so that a handler that aborts, overflows its stack or
//! runs out of memory takes down its own process and not the worker.
//!
//! A cell is this binary once more, started under another name ([`ARGV0`]) and seen by [`inside`] before anything else. It
//! is in a process group of its own and dies with its worker. A pool grows to the number of attempts under way, and keeps
//! what is idle for a while.

pub mod child_main;
mod process;
pub mod protocol;
mod stderr;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::process::{Broken, ChildProcess};
use self::protocol::Handshake;
use crate::config::CellLimits;
use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, ParamsError};
use crate::model::json::RawJson;
use crate::telemetry::Metrics;

/// The name that a cell is started under, in place of the binary's own: unlike a variable it does not go on to what the cell
/// starts itself.
pub const ARGV0: &str = "kafleet-child";

/// The kind of an attempt's failure whose process died.
pub const CRASHED: &str = "crashed";

/// How long an idle cell is kept, and how often that is looked at.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How long a cell that is replaced may go on with what it does in the background.
const RETIRE_GRACE: Duration = Duration::from_secs(5);
/// Looks at its memory after so many attempts.
const LOOK_AT_MEMORY: u32 = 8;
/// Cells tried for one attempt, where they die before it has begun.
const TRIES: usize = 3;

/// That this process can be started again as a cell.
#[derive(Clone, Debug)]
pub struct Reentry(PathBuf);

impl Reentry {
    /// Only for a process whose `main` leads to `kafleet::app().….main()` when it is started again with the same arguments.
    pub fn of_this_process() -> Option<Self> {
        if cfg!(target_os = "linux") {
            // Also when the file has been replaced by another version meanwhile.
            return Some(Self("/proc/self/exe".into()));
        }
        std::env::current_exe().ok().map(Self)
    }
}

/// How cells of one type are started.
struct Program {
    file: PathBuf,
    memory_bytes: u64,
}

/// Runs the attempts of one type in cells.
#[derive(Clone)]
pub struct ChildPool {
    pool: Arc<Pool>,
    /// Each attempt in a cell that has had no other: whatever happens to it is this attempt's doing.
    fresh: bool,
}

struct Pool {
    program: Program,
    task_type: Arc<str>,
    handler: String,
    limits: CellLimits,
    /// The one used last is at the end, and used next.
    idle: Mutex<Vec<ChildProcess>>,
    metrics: Metrics,
}

impl ChildPool {
    /// None for a handler that has no need of cells.
    pub fn new(
        reentry: &Reentry,
        task_type: &Arc<str>,
        handler: &dyn Handler,
        limits: CellLimits,
        metrics: &Metrics,
    ) -> Option<Self> {
        let pool = Arc::new(Pool {
            program: Program { file: reentry.0.clone(), memory_bytes: limits.memory.0 },
            handler: handler.name_in_child(task_type)?.to_owned(),
            task_type: task_type.clone(),
            limits,
            idle: Mutex::default(),
            metrics: metrics.clone(),
        });
        tokio::spawn(reap_idle(Arc::downgrade(&pool)));
        Some(Self { pool, fresh: false })
    }

    pub fn fresh(&self) -> Self {
        Self { pool: self.pool.clone(), fresh: true }
    }
}

impl Handler for ChildPool {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let (pool, fresh, message) = (self.pool.clone(), self.fresh, process::assign(params, &cx));
        Ok(Box::pin(async move { pool.attempt(&message?, &cx, fresh).await }))
    }

    /// The cell has a span of its own around the handler.
    fn logs(&self) -> bool {
        false
    }
}

impl Pool {
    async fn attempt(self: &Arc<Self>, message: &[u8], cx: &Context, fresh: bool) -> Answer {
        let mut last = String::new();
        for _ in 0..TRIES {
            let mut cell = self.take(fresh).await?;
            match cell.run(message, cx).await {
                Ok(answer) => {
                    self.release(cell, fresh);
                    return answer;
                }
                Err(Broken::Before(why)) => last = why,
                Err(Broken::Crashed(how)) => {
                    cell.tally.reason = CRASHED;
                    return Err(Failure::retry(format!("the handler took its process down: {how}")).of_kind(CRASHED));
                }
                Err(Broken::Garbled(why)) => {
                    return Err(Failure::retry(format!("the child process cannot be understood: {why}")).of_kind("garbled"));
                }
            }
        }
        Err(not_started(&last))
    }

    async fn take(&self, fresh: bool) -> Result<ChildProcess, Failure> {
        while !fresh && let Some(mut cell) = self.pop() {
            if cell.lives() {
                return Ok(cell);
            }
            // By something that an attempt before has left behind.
            cell.tally.reason = CRASHED;
        }
        let purpose = Handshake { task_type: self.task_type.to_string(), handler: self.handler.clone() };
        let tally = ChildMetrics::new(&self.metrics, &self.task_type);
        ChildProcess::start(&self.program, purpose, tally).await.map_err(|why| not_started(&why))
    }

    fn pop(&self) -> Option<ChildProcess> {
        self.idle.lock().pop()
    }

    /// Keeps a cell for the next attempt, unless it has had its time.
    fn release(&self, mut cell: ChildProcess, fresh: bool) {
        let grown = || cell.used.is_multiple_of(LOOK_AT_MEMORY) && cell.resident_bytes() > self.limits.memory.0 / 2;
        let reason = match () {
            () if cell.used >= self.limits.tasks || fresh => "tasks",
            () if grown() => "memory",
            () => {
                cell.idle_since = Instant::now();
                return self.idle.lock().push(cell);
            }
        };
        cell.tally.reason = reason;
        tokio::spawn(cell.retire(RETIRE_GRACE));
    }

    /// Those that nobody has needed for a while.
    fn idle_for_long(&self, now: Instant) -> Vec<ChildProcess> {
        let mut idle = self.idle.lock();
        let count = idle.partition_point(|cell| now.duration_since(cell.idle_since) > KEEP_IDLE);
        idle.drain(..count).collect()
    }
}

async fn reap_idle(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        for mut cell in pool.idle_for_long(Instant::now()) {
            cell.tally.reason = "idle";
            tokio::spawn(cell.retire(RETIRE_GRACE));
        }
    }
}

fn not_started(why: &dyn std::fmt::Display) -> Failure {
    Failure::retry(format!("a child process for the handler could not be started: {why}")).of_kind("not_started")
}

/// Counts a cell for as long as it lives, and then why it ended.
struct ChildMetrics {
    metrics: Metrics,
    task_type: Arc<str>,
    reason: &'static str,
}

impl ChildMetrics {
    fn new(metrics: &Metrics, task_type: &Arc<str>) -> Self {
        metrics.worker.child_processes.with_label_values(&[&**task_type]).inc();
        Self { metrics: metrics.clone(), task_type: task_type.clone(), reason: "killed" }
    }
}

impl Drop for ChildMetrics {
    fn drop(&mut self) {
        self.metrics.worker.child_processes.with_label_values(&[&*self.task_type]).dec();
        self.metrics.worker.child_process_ends.with_label_values(&[&*self.task_type, self.reason]).inc();
    }
}
