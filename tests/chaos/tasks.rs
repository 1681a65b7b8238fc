//! Task types of the load. Handlers append their executions to a file, which is independent of the fleet and of all
//! faults.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use kafleet::builder::App;
use kafleet::config::Order;
use kafleet::handlers::{Child, Context, Fail, Failure, Task, TaskResult};
use kafleet::model::task::continuation::Ended;
use kafleet::runtime::now_ms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Environment variables: file of executions, file that exists while the service of remote tasks is away, and the
/// incarnation of the worker.
pub const EXECUTIONS_FILE: &str = "CHAOS_EXECUTIONS";
pub const OUTAGE_FILE: &str = "CHAOS_OUTAGE";
pub const WORKER: &str = "CHAOS_WORKER";

/// Error kind that opens the circuit of remote tasks.
const AWAY: &str = "unreachable";
/// Pause of a task that waits.
const WAIT: Duration = Duration::from_millis(100);

/// Outcome of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Succeed,
    Fail,
    /// Fails with a dead letter.
    DeadLetter,
    /// Fails in the first run and succeeds in later ones.
    FailFirstRun,
    /// Runs until cancelled.
    Hang,
}

/// Behaviour of a task, as its params.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    pub outcome: Outcome,
    /// Failed attempts before the outcome.
    #[serde(default)]
    pub failures: u32,
    /// Delay before a retry; 0 uses the type's backoff.
    #[serde(default)]
    pub retry_delay_ms: u64,
    /// Duration of an attempt.
    #[serde(default)]
    pub duration_ms: u64,
    /// Attempts before this time wait, epoch milliseconds.
    #[serde(default)]
    pub ready_at_ms: i64,
    #[serde(default)]
    pub children: Vec<TreeTask>,
}

/// Task of a tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TreeTask {
    /// Last segment of its id.
    pub name: String,
    pub kind: String,
    /// The parent ignores its failure.
    pub ignored: bool,
    /// Delay before the start.
    pub delay_ms: u64,
    pub work: Work,
}

impl TreeTask {
    fn child(&self) -> Child {
        let mut child = Child::new(&self.kind, serde_json::to_value(&self.work).unwrap()).id(&self.name);
        if self.ignored {
            child = child.ignore_failure();
        }
        if self.delay_ms > 0 {
            child.policy.not_before_ms = Some(now_ms() + self.delay_ms as i64);
        }
        child
    }
}

impl Task for Work {
    const TYPE: &'static str = "work";
    const CONCURRENCY: u32 = 32;
    const MIN_BACKOFF: Duration = Duration::from_millis(100);
    const MAX_BACKOFF: Duration = Duration::from_millis(300);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        let log = ExecutionLog::open(&cx);
        log.write("begin");
        let outcome = self.attempt(&cx).await;
        log.write(match &outcome {
            Ok(_) => "succeeded",
            Err(failure) if failure.kind == "again" => "again",
            Err(failure) if matches!(failure.then, Fail::Wait { .. }) => "waits",
            Err(_) => "failed",
        });
        outcome
    }
}

impl Work {
    async fn attempt(&self, cx: &Context) -> TaskResult<u32> {
        tokio::time::sleep(Duration::from_millis(self.duration_ms)).await;
        if now_ms() < self.ready_at_ms {
            return Err(Failure::wait(Some(WAIT), "not ready"));
        }
        if cx.number <= self.failures {
            let failure = match self.retry_delay_ms {
                0 => Failure::retry("not yet"),
                delay => Failure::retry_after("not for a while", Duration::from_millis(delay)),
            };
            return Err(failure.of_kind("again"));
        }
        match self.outcome {
            Outcome::Fail => return Err(Failure::fail("as configured")),
            Outcome::FailFirstRun if cx.run == 1 => return Err(Failure::fail("in its first run")),
            Outcome::DeadLetter => return Err(Failure::dead("as configured")),
            Outcome::Hang => {
                cx.cancelled().cancelled().await;
                return Err(Failure::cancelled());
            }
            Outcome::Succeed | Outcome::FailFirstRun => {}
        }
        for task in &self.children {
            cx.spawn_child(task.child());
        }
        Ok(cx.number)
    }
}

/// Type with ordering by key, whose retries stay in the worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct KeyedWork(Work);

impl Task for KeyedWork {
    const TYPE: &'static str = "keyed";
    const CONCURRENCY: u32 = 32;
    const MIN_BACKOFF: Duration = Duration::from_millis(100);
    const MAX_BACKOFF: Duration = Duration::from_millis(300);
    const ORDER: Order = Order::Key;
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        self.0.run(cx).await
    }
}

/// Type that calls a service, with a circuit.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Remote(Work);

impl Task for Remote {
    const TYPE: &'static str = "remote";
    const CONCURRENCY: u32 = 4;
    // More than fail before the circuits of all workers are open.
    const RETRIES: u32 = 100;
    const MIN_BACKOFF: Duration = Duration::from_millis(100);
    const MAX_BACKOFF: Duration = Duration::from_millis(300);
    const TRIP_ON: &'static [&'static str] = &[AWAY];
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        if std::path::Path::new(&std::env::var_os(OUTAGE_FILE).unwrap()).exists() {
            let log = ExecutionLog::open(&cx);
            log.write("begin");
            log.write("away");
            return Err(Failure::retry("no answer").of_kind(AWAY));
        }
        self.0.run(cx).await
    }
}

/// Continuation that checks the number of results.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Join {
    params: JoinParams,
    #[serde(rename = "task")]
    _task: Ended,
    results: Vec<Ended>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct JoinParams {
    pub results: usize,
}

impl Task for Join {
    const TYPE: &'static str = "join";
    const CONCURRENCY: u32 = 8;
    type Output = usize;

    async fn run(self, cx: Context) -> TaskResult<usize> {
        let log = ExecutionLog::open(&cx);
        log.write("begin");
        let ended = self.results.iter().filter(|result| result.state.is_terminal()).count();
        if ended != self.params.results {
            log.write("failed");
            return Err(Failure::fail(format!("{ended} results instead of {}", self.params.results)));
        }
        log.write("succeeded");
        Ok(ended)
    }
}

/// Appends a line per event of an execution in one write: `worker id run attempt event at_ms`.
struct ExecutionLog {
    file: File,
    prefix: String,
}

impl ExecutionLog {
    fn open(cx: &Context) -> Self {
        let file = OpenOptions::new().append(true).open(std::env::var_os(EXECUTIONS_FILE).unwrap()).unwrap();
        let prefix = format!("{} {} {} {}", std::env::var(WORKER).unwrap(), cx.id, cx.run, cx.number);
        Self { file, prefix }
    }

    fn write(&self, event: &str) {
        (&self.file).write_all(format!("{} {event} {}\n", self.prefix, now_ms()).as_bytes()).unwrap();
    }
}

/// Program that writes the same lines.
pub const PROGRAM: &str = "#!/bin/bash
write() { t=$EPOCHREALTIME; t=${t/[.,]/}; echo \"$CHAOS_WORKER $KAFLEET_TASK_ID $KAFLEET_RUN $KAFLEET_ATTEMPT $1 ${t%???}\" >>\"$CHAOS_EXECUTIONS\"; }
write begin
echo 1
write succeeded
";

/// App that writes the same lines. Its processes die after every tenth answer or so, and lose no attempt.
pub const APP: &str = r#"
import json, os, random, socket, time

line = socket.socket(fileno=os.dup(0)).makefile("rwb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def send(**message):
    line.write(json.dumps(message).encode() + b"\n")
    line.flush()


def write(event):
    fields = (os.environ["CHAOS_WORKER"], attempt["id"], attempt["run"], attempt["number"], event, time.time_ns() // 10**6)
    log = os.open(os.environ["CHAOS_EXECUTIONS"], os.O_WRONLY | os.O_APPEND)
    os.write(log, (" ".join(map(str, fields)) + "\n").encode())
    os.close(log)


send(ready={"protocol": 1, "types": [{"name": "app"}]})
for text in line:
    if attempt := json.loads(text).get("attempt"):
        write("begin")
        write("succeeded")
        send(ok={"n": attempt["n"], "output": 1})
        if random.random() < 0.1:
            os._exit(1)
"#;

/// App of the workers' binary.
pub fn app() -> App {
    kafleet::app().task::<Work>().task::<KeyedWork>().task::<Remote>().task::<Join>()
}
