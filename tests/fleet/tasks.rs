//! The task types of these tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kafleet::handlers::{Child, Context, Continuation, Failure, Task, TaskResult};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Holds leaves back until it is opened.
#[derive(Clone)]
pub struct Gate(pub watch::Sender<bool>);

impl Gate {
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn passed(&self) {
        let mut open = self.0.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }
}

/// What burns down to the leaves that are to fail only then.
#[derive(Clone)]
pub struct Fuse(pub Gate);

/// A task with `widths[0]` children, which have `widths[1]` each, and so on; the last ones are leaves.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Branch {
    pub widths: Vec<u32>,
    /// The way to the leaf that waits for the gate.
    pub held: Option<Vec<u32>>,
    /// The way to the leaf that fails.
    pub failing: Option<Vec<u32>>,
    /// What is to follow.
    #[serde(default)]
    pub next: Option<String>,
    /// The leaf that fails waits for the fuse.
    #[serde(default)]
    pub fused: bool,
}

impl Branch {
    fn below(&self, n: u32) -> Self {
        let rest = |way: &Option<Vec<u32>>| way.as_ref().filter(|way| way.first() == Some(&n)).map(|way| way[1..].to_vec());
        Self {
            widths: self.widths[1..].to_vec(),
            held: rest(&self.held),
            failing: rest(&self.failing),
            next: None,
            fused: self.fused,
        }
    }
}

impl Branch {
    fn leaf(&self) -> Leaf {
        let fails = self.failing.is_some();
        Leaf { held: self.held.is_some(), fails, fused: self.fused && fails }
    }
}

impl Task for Branch {
    const TYPE: &'static str = "branch";
    const CONCURRENCY: u32 = 20;
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        let width = self.widths.first().copied().unwrap_or(0);
        for n in 0..width {
            let below = self.below(n);
            let child = match below.widths.is_empty() {
                true => Child::of(&below.leaf()),
                false => Child::of(&below),
            };
            cx.spawn_child(child.id(n.to_string()));
        }
        if let Some(next) = self.next {
            cx.then(Continuation::new("echo", next.into()));
        }
        Ok(width)
    }
}

/// Fails so many times; each time it wants to be tried again only after a while.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fickle {
    pub failures: u32,
    pub after_ms: u64,
}

impl Task for Fickle {
    const TYPE: &'static str = "fickle";
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        if cx.number > self.failures {
            return Ok(cx.number);
        }
        Err(Failure::retry_after("not yet", std::time::Duration::from_millis(self.after_ms)))
    }
}

/// Fails as long as the gate is closed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Broken {}

impl Task for Broken {
    const TYPE: &'static str = "broken";
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let open = *cx.state::<Gate>().0.borrow();
        if open { Ok(()) } else { Err(Failure::retry("it is broken")) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Leaf {
    pub held: bool,
    pub fails: bool,
    #[serde(default)]
    pub fused: bool,
}

impl Task for Leaf {
    const TYPE: &'static str = "leaf";
    const CONCURRENCY: u32 = 50;
    type Output = String;

    async fn run(self, cx: Context) -> TaskResult<String> {
        if self.held {
            cx.state::<Gate>().passed().await;
        }
        if self.fused {
            cx.state::<Fuse>().0.passed().await;
        }
        if self.fails { Err(Failure::fail("this one fails")) } else { Ok("done".into()) }
    }
}

/// What was running, and when it was told to stop.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<HashMap<String, Option<Instant>>>>);

impl Heard {
    pub fn is_running(&self, id: &str) -> bool {
        self.0.lock().contains_key(id)
    }

    pub fn stopped(&self, id: &str) -> Option<Instant> {
        self.0.lock().get(id).copied().flatten()
    }
}

/// Runs until it is told to stop.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Patient {}

impl Task for Patient {
    const TYPE: &'static str = "patient";
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let heard = cx.state::<Heard>();
        heard.0.lock().insert(cx.id.to_string(), None);
        cx.cancelled().cancelled().await;
        heard.0.lock().insert(cx.id.to_string(), Some(Instant::now()));
        Err(Failure::cancelled())
    }
}
