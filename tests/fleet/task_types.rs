//! Task types of the fleet tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kafleet::handlers::{Child, Context, Continuation, Failure, Task, TaskResult};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Blocks tasks until it is opened.
#[derive(Clone)]
pub struct Gate(pub watch::Sender<bool>);

impl Gate {
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn wait_until_open(&self) {
        let mut open = self.0.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }
}

/// Gate of the leaves that fail on command.
#[derive(Clone)]
pub struct FailureGate(pub Gate);

/// Task with `widths[0]` children, which have `widths[1]` children each, and so on; the last level are leaves.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Branch {
    pub widths: Vec<u32>,
    /// Path to the leaf that waits for the gate.
    pub held: Option<Vec<u32>>,
    /// Path to the leaf that fails.
    pub failing: Option<Vec<u32>>,
    /// Params of a continuation added by the handler.
    #[serde(default)]
    pub next: Option<String>,
    /// The failing leaf waits for [`FailureGate`].
    #[serde(default)]
    pub waits_to_fail: bool,
}

impl Branch {
    fn below(&self, n: u32) -> Self {
        let rest = |path: &Option<Vec<u32>>| {
            path.as_ref().filter(|path| path.first() == Some(&n)).map(|path| path[1..].to_vec())
        };
        Self {
            widths: self.widths[1..].to_vec(),
            held: rest(&self.held),
            failing: rest(&self.failing),
            next: None,
            waits_to_fail: self.waits_to_fail,
        }
    }
}

impl Branch {
    fn leaf(&self) -> Leaf {
        let fails = self.failing.is_some();
        Leaf { held: self.held.is_some(), fails, waits_to_fail: self.waits_to_fail && fails }
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
            let child = if below.widths.is_empty() { Child::of(&below.leaf()) } else { Child::of(&below) };
            cx.spawn_child(child.id(n.to_string()));
        }
        if let Some(next) = self.next {
            cx.then(Continuation::new("echo", serde_json::json!(next)));
        }
        Ok(width)
    }
}

/// Fails a given number of times, asking for a delay before each retry.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Flaky {
    pub failures: u32,
    pub after_ms: u64,
}

impl Task for Flaky {
    const TYPE: &'static str = "flaky";
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        if cx.number > self.failures {
            return Ok(cx.number);
        }
        Err(Failure::retry_after("not yet", std::time::Duration::from_millis(self.after_ms)))
    }
}

/// Fails while the gate is closed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BrokenTask {}

impl Task for BrokenTask {
    const TYPE: &'static str = "broken";
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let open = *cx.state::<Gate>().0.borrow();
        if open { Ok(()) } else { Err(Failure::retry("the gate is closed")) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Leaf {
    pub held: bool,
    pub fails: bool,
    #[serde(default)]
    pub waits_to_fail: bool,
}

impl Task for Leaf {
    const TYPE: &'static str = "leaf";
    const CONCURRENCY: u32 = 50;
    type Output = String;

    async fn run(self, cx: Context) -> TaskResult<String> {
        if self.held {
            cx.state::<Gate>().wait_until_open().await;
        }
        if self.waits_to_fail {
            cx.state::<FailureGate>().0.wait_until_open().await;
        }
        if self.fails { Err(Failure::fail("this one fails")) } else { Ok("done".into()) }
    }
}

/// Running tasks, with the time of their cancellation.
#[derive(Clone, Default)]
pub struct CancelLog(Arc<Mutex<HashMap<String, Option<Instant>>>>);

impl CancelLog {
    pub fn is_running(&self, id: &str) -> bool {
        self.0.lock().contains_key(id)
    }

    pub fn cancelled_at(&self, id: &str) -> Option<Instant> {
        self.0.lock().get(id).copied().flatten()
    }
}

/// Runs until it is cancelled.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cancellable {}

impl Task for Cancellable {
    const TYPE: &'static str = "cancellable";
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let log = cx.state::<CancelLog>();
        log.0.lock().insert(cx.id.to_string(), None);
        cx.cancelled().cancelled().await;
        log.0.lock().insert(cx.id.to_string(), Some(Instant::now()));
        Err(Failure::cancelled())
    }
}
