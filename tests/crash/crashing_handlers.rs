//! Task type of these tests, which crashes, blocks or reports as its params request.

use std::time::Duration;

use kafleet::builder::App;
use kafleet::config::Isolation;
use kafleet::handlers::hooks::Submission;
use kafleet::handlers::layer::AttemptRequest;
use kafleet::handlers::{Child, Context, Failure, Task, TaskResult, TypeRegistration};
use kafleet::model::json::RawJson;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::util::MapRequestLayer;

use crate::types::Kind;

/// State of the app; each child process has its own.
pub struct Greeting(pub &'static str);

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Crashing {
    pub act: Act,
    /// A file, for [`Act::Await`] and [`Act::DelayedAbort`].
    #[serde(default)]
    pub until: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Returns its process id and values of its context.
    Answer,
    /// Returns the same after some milliseconds.
    Brief,
    Abort,
    Segfault,
    Exit,
    Overflow,
    Panic,
    /// Allocates more memory than allowed.
    Devour,
    /// Reports progress, spawns children, and succeeds.
    Report,
    /// Spawns a child and fails.
    SpawnAndFail,
    /// Succeeds when the file exists.
    Await,
    /// Waits for its cancellation.
    Stop,
    /// Ignores its cancellation.
    Ignore,
    /// Logs for eight seconds without a sign of life.
    Chatter,
    /// Sends heartbeats for eight seconds.
    Heartbeats,
    /// Succeeds, and aborts its process when the file exists.
    DelayedAbort,
    /// Spawns children that the hook of the app changes.
    Prepare,
    /// Returns the variables with a secret in its environment, and in that of a program that it starts.
    Environment,
}

/// Waits until the test lets the attempt end.
async fn wait_for_file(path: Option<String>) {
    let path = path.unwrap_or_default();
    while !std::path::Path::new(&path).exists() {
        // Interval of the checks; the test has a deadline.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Repeats a call for eight seconds.
async fn repeat(call: impl Fn()) {
    for _ in 0..800 {
        call();
        // The work of the attempt.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Task for Crashing {
    const TYPE: &'static str = "crashing";
    const CONCURRENCY: u32 = 8;
    const RETRIES: u32 = 1;
    const MIN_BACKOFF: Duration = Duration::from_millis(20);
    const MAX_BACKOFF: Duration = Duration::from_millis(20);
    type Output = Value;

    async fn run(self, cx: Context) -> TaskResult<Value> {
        match self.act {
            Act::Answer => {}
            // The work of the attempt.
            Act::Brief => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..40))).await,
            Act::Abort => {
                eprintln!("enough of this");
                std::process::abort()
            }
            // SAFETY: not safe on purpose, the test needs the crash.
            Act::Segfault => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
            Act::Exit => std::process::exit(0),
            Act::Overflow => drop(overflow(1)),
            Act::Panic => panic!("on purpose"),
            Act::Devour => drop(vec![1_u8; 512 << 20]),
            Act::Report => report(&cx).await?,
            Act::Environment => return Ok(json!(visible_secrets().await)),
            Act::Prepare => {
                cx.spawn_now(vec![Child::new("leaf", json!({"runs": 0}))]).await?;
                cx.spawn_child(Child::new("leaf", json!({"runs": 10})));
            }
            Act::SpawnAndFail => {
                cx.spawn_child(Child::new("leaf", json!(1)));
                return Err(Failure::fail("after spawning").of_kind("own_kind".to_owned()));
            }
            Act::Await => wait_for_file(self.until).await,
            Act::Stop => cx.cancelled().cancelled().await,
            Act::Ignore => loop {
                // Keeps its thread without ever looking at the cancel.
                std::thread::sleep(Duration::from_secs(1));
            },
            Act::Chatter => repeat(|| cx.silent().log("still here")).await,
            Act::Heartbeats => repeat(|| cx.heartbeat()).await,
            Act::DelayedAbort => {
                let file = self.until.unwrap_or_default();
                drop(std::thread::spawn(move || {
                    while !std::path::Path::new(&file).exists() {
                        // The test creates the file when the process may die.
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    std::process::abort()
                }));
            }
        }
        let greeting = cx.state::<Greeting>().0;
        let (pid, key, tenant) = (std::process::id(), cx.idempotency_key(), cx.header("x-tenant"));
        Ok(json!({"pid": pid, "key": key, "attempt": cx.number, "greeting": greeting, "tenant": tenant}))
    }
}

/// Value of the variables of this test that programs must not see.
pub const SECRET: &str = "crash-test-secret";

async fn visible_secrets() -> Vec<String> {
    let program = tokio::process::Command::new("env").output().await.unwrap();
    let of_process = std::env::vars().map(|(name, value)| format!("{name}={value}"));
    let of_program: Vec<String> = String::from_utf8(program.stdout).unwrap().lines().map(str::to_owned).collect();
    of_process.chain(of_program).filter(|line| line.contains(SECRET)).collect()
}

#[allow(unconditional_recursion, reason = "the test needs the overflow")]
fn overflow(depth: u64) -> u64 {
    std::hint::black_box([depth; 1024])[7] + overflow(std::hint::black_box(depth + 1))
}

async fn report(cx: &Context) -> TaskResult<()> {
    cx.progress(json!({"half": true}));
    cx.log("a line");
    let early = cx.spawn_now(vec![Child::new("leaf", json!("early"))]).await?;
    cx.log(format!("{} is published", early[0]));
    cx.spawn_child(Child::new("leaf", json!("late")));
    cx.spawn_child(Child::new("leaf", json!("late")));
    Ok(())
}

pub fn app() -> App {
    kafleet::app()
        .state(Greeting("hello from the app"))
        .task::<Crashing>()
        .prepare(count_runs)
        .layer_of::<Crashing, _>(MapRequestLayer::new(renamed))
}

/// Hook that counts its runs in the params.
pub fn count_runs(task: &mut Submission) -> Result<(), String> {
    let runs = task.params.slice().member("runs").and_then(|runs| runs.text().parse::<u64>().ok());
    if let Some(runs) = runs {
        task.params.set("runs", json!(runs + 1));
    }
    Ok(())
}

/// Layer that gives an act its present name.
fn renamed(mut request: AttemptRequest) -> AttemptRequest {
    if let Ok(renamed) = RawJson::parse(request.params.text().replace("\"reply\"", "\"answer\"").as_bytes()) {
        request.params = renamed;
    }
    request
}

/// Creates the type as the tests register it.
pub fn crashing(isolation: Isolation) -> Kind {
    let mut registered = TypeRegistration::of::<Crashing>().with_layer(&MapRequestLayer::new(renamed));
    registered.policy.isolation = isolation;
    Kind { name: Crashing::TYPE, registered }
}

pub fn params(act: Act) -> String {
    serde_json::to_string(&Crashing { act, until: None }).unwrap()
}

/// Params of a task that succeeds when the file exists.
pub fn held(until: &std::path::Path) -> String {
    waiting(Act::Await, until)
}

/// Params of an act that waits for the file.
pub fn waiting(act: Act, until: &std::path::Path) -> String {
    serde_json::to_string(&Crashing { act, until: Some(until.display().to_string()) }).unwrap()
}
