//! The task type of these tests: it does what its params say.

use std::time::Duration;

use kafleet::app::App;
use kafleet::config::Isolation;
use kafleet::handlers::{Child, Context, Failure, Registered, Task, TaskResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::types::Kind;

/// State of the app: a child process has its own.
pub struct Greeting(pub &'static str);

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Risky {
    pub act: Act,
    /// A file, for [`Act::Await`] and [`Act::Landmine`].
    #[serde(default)]
    pub until: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Answers its process id, and what it finds in its context.
    Answer,
    /// The same after some milliseconds.
    Brief,
    Abort,
    Segfault,
    Exit,
    Overflow,
    Panic,
    /// Takes more memory than it may.
    Devour,
    /// Reports, spawns, and answers.
    NotifyAction,
    /// Spawns and fails.
    SpawnAndFail,
    /// Answers when the file is there.
    Await,
    /// Waits for its cancellation.
    Heed,
    /// Does not.
    Ignore,
    /// Speaks for eight seconds, without getting on.
    Chatter,
    /// Gets on for eight seconds, a heartbeat at a time.
    Beat,
    /// Answers, and takes its process down when the file is there.
    Landmine,
}

impl Task for Risky {
    const TYPE: &'static str = "risky";
    const CONCURRENCY: u32 = 8;
    const RETRIES: u32 = 1;
    const MIN_BACKOFF: Duration = Duration::from_millis(20);
    const MAX_BACKOFF: Duration = Duration::from_millis(20);
    type Output = Value;

    async fn run(self, cx: Context) -> TaskResult<Value> {
        match self.act {
            Act::Answer => {}
            Act::Brief => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..40))).await,
            Act::Abort => {
                eprintln!("enough of this");
                std::process::abort()
            }
            // SAFETY: this is what the test is about.
            Act::Segfault => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
            Act::Exit => std::process::exit(0),
            Act::Overflow => drop(overflow(1)),
            Act::Panic => panic!("on purpose"),
            Act::Devour => drop(vec![1_u8; 512 << 20]),
            Act::NotifyAction => tell(&cx).await?,
            Act::SpawnAndFail => {
                cx.spawn_child(Child::new("leaf", json!(1)));
                return Err(Failure::fail("after spawning").of_kind("own_kind".to_owned()));
            }
            Act::Await => {
                let file = self.until.unwrap_or_default();
                while !std::path::Path::new(&file).exists() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            Act::Heed => cx.cancelled().cancelled().await,
            Act::Ignore => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            Act::Chatter => {
                for _ in 0..800 {
                    cx.silent().log("still here");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            Act::Beat => {
                for _ in 0..800 {
                    cx.heartbeat();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            Act::Landmine => {
                let file = self.until.unwrap_or_default();
                drop(std::thread::spawn(move || {
                    while !std::path::Path::new(&file).exists() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    std::process::abort()
                }));
            }
        }
        let greeting = cx.state::<Greeting>().0;
        Ok(json!({"pid": std::process::id(), "key": cx.idempotency_key(), "attempt": cx.number, "greeting": greeting}))
    }
}

#[allow(unconditional_recursion, reason = "this is what the test is about")]
fn overflow(depth: u64) -> u64 {
    std::hint::black_box([depth; 1024])[7] + overflow(std::hint::black_box(depth + 1))
}

async fn tell(cx: &Context) -> TaskResult<()> {
    cx.progress(json!({"half": true}));
    cx.log("a line");
    let early = cx.spawn_now(vec![Child::new("leaf", json!("early"))]).await?;
    cx.log(format!("{} is out", early[0]));
    cx.spawn_child(Child::new("leaf", json!("late")));
    cx.spawn_child(Child::new("leaf", json!("late")));
    Ok(())
}

pub fn app() -> App {
    kafleet::app().state(Greeting("hello from the app")).task::<Risky>()
}

/// The type as the tests register it.
pub fn risky(isolation: Isolation) -> Kind {
    let mut registered = Registered::of::<Risky>();
    registered.policy.isolation = isolation;
    Kind { name: Risky::TYPE, registered }
}

pub fn params(act: Act) -> String {
    serde_json::to_string(&Risky { act, until: None }).unwrap()
}

/// Of a task that answers when the file is there.
pub fn held(until: &std::path::Path) -> String {
    waiting(Act::Await, until)
}

/// Of an act that waits for the file.
pub fn waiting(act: Act, until: &std::path::Path) -> String {
    serde_json::to_string(&Risky { act, until: Some(until.display().to_string()) }).unwrap()
}
