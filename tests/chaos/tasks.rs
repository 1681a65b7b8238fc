//! The task types of the load. Everything that a handler does leaves a line in one file, which no fault takes away: what was
//! really done is read there, and not asked of the fleet.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use kafleet::app::App;
use kafleet::config::Order;
use kafleet::handlers::{Child, Context, Failure, Task, TaskResult};
use kafleet::model::task::continuation::Ended;
use kafleet::runtime::now_ms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file of deeds, and the name of the worker that a process is (or belongs to).
pub const DEEDS: &str = "CHAOS_DEEDS";
pub const WORKER: &str = "CHAOS_WORKER";

/// How a task's own work ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    #[default]
    Well,
    Badly,
    /// Badly, and kept as a dead letter.
    Dead,
    /// Badly in its first run, well in any other.
    FirstBadly,
    /// Not until it is cancelled.
    Never,
}

/// What a task does: its params.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    pub end: End,
    /// Attempts that fail before.
    #[serde(default)]
    pub failures: u32,
    /// After a failed attempt it wants to be left alone for so long; 0: as the type says.
    #[serde(default)]
    pub pause_ms: u64,
    /// What an attempt takes.
    #[serde(default)]
    pub takes_ms: u64,
    #[serde(default)]
    pub children: Vec<Twig>,
}

/// A task in its tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Twig {
    /// The last segment of its id.
    pub name: String,
    pub kind: String,
    /// How it ends does not matter to its parent.
    pub ignored: bool,
    /// It is to start so much later.
    pub later_ms: u64,
    pub work: Work,
}

impl Twig {
    fn child(&self) -> Child {
        let mut child = Child::new(&self.kind, serde_json::to_value(&self.work).unwrap()).id(&self.name);
        if self.ignored {
            child = child.ignore_failure();
        }
        if self.later_ms > 0 {
            child.policy.not_before_ms = Some(now_ms() + self.later_ms as i64);
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
        let deeds = Deeds::open(&cx);
        deeds.note("begin");
        let outcome = self.attempt(&cx).await;
        deeds.note(match &outcome {
            Ok(_) => "well",
            Err(failure) if failure.kind == "again" => "again",
            Err(_) => "badly",
        });
        outcome
    }
}

impl Work {
    async fn attempt(&self, cx: &Context) -> TaskResult<u32> {
        tokio::time::sleep(Duration::from_millis(self.takes_ms)).await;
        if cx.number <= self.failures {
            let failure = match self.pause_ms {
                0 => Failure::retry("not yet"),
                pause => Failure::retry_after("not for a while", Duration::from_millis(pause)),
            };
            return Err(failure.of_kind("again"));
        }
        match self.end {
            End::Badly => return Err(Failure::fail("as it was told")),
            End::FirstBadly if cx.run == 1 => return Err(Failure::fail("in its first run")),
            End::Dead => return Err(Failure::dead("as it was told")),
            End::Never => {
                cx.cancelled().cancelled().await;
                return Err(Failure::cancelled());
            }
            End::Well | End::FirstBadly => {}
        }
        for twig in &self.children {
            cx.spawn_child(twig.child());
        }
        Ok(cx.number)
    }
}

/// The same, one at a time per key: its retries never leave the worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Keyed(Work);

impl Task for Keyed {
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

/// Follows a tree, and counts what it is told of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Join {
    params: Wanted,
    #[serde(rename = "task")]
    _task: Ended,
    results: Vec<Ended>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Wanted {
    pub results: usize,
}

impl Task for Join {
    const TYPE: &'static str = "join";
    const CONCURRENCY: u32 = 8;
    type Output = usize;

    async fn run(self, cx: Context) -> TaskResult<usize> {
        let deeds = Deeds::open(&cx);
        deeds.note("begin");
        let ended = self.results.iter().filter(|result| result.state.is_terminal()).count();
        if ended != self.params.results {
            deeds.note("badly");
            return Err(Failure::fail(format!("{ended} results instead of {}", self.params.results)));
        }
        deeds.note("well");
        Ok(ended)
    }
}

/// A line per deed, appended in one write: `worker id run attempt what at_ms`.
struct Deeds {
    file: File,
    who: String,
}

impl Deeds {
    fn open(cx: &Context) -> Self {
        let file = OpenOptions::new().append(true).open(std::env::var_os(DEEDS).unwrap()).unwrap();
        let who = format!("{} {} {} {}", std::env::var(WORKER).unwrap(), cx.id, cx.run, cx.number);
        Self { file, who }
    }

    fn note(&self, what: &str) {
        (&self.file).write_all(format!("{} {what} {}\n", self.who, now_ms()).as_bytes()).unwrap();
    }
}

/// A program that leaves the same lines.
pub const PROGRAM: &str = "#!/bin/bash
note() { t=$EPOCHREALTIME; t=${t/[.,]/}; echo \"$CHAOS_WORKER $KAFLEET_TASK_ID $KAFLEET_RUN $KAFLEET_ATTEMPT $1 ${t%???}\" >>\"$CHAOS_DEEDS\"; }
note begin
echo 1
note well
";

/// The workers' binary.
pub fn app() -> App {
    kafleet::app().task::<Work>().task::<Keyed>().task::<Join>()
}
