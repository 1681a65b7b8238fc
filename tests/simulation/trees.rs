//! The tasks of a simulated fleet: what each does is written in its params, so that everybody knows what has to come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::config::Order;
use kafleet::handlers::{Child, Context, Failure, Registry, Task, TaskResult};
use kafleet::model::state::State;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a task does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Script {
    /// How long an attempt takes; 0: it is done on the spot.
    pub ms: u64,
    /// So many attempts of each run fail before one does not.
    pub fails: u32,
    /// Runs before this one end in a failure.
    pub heals_in_run: u32,
    /// It tells how it gets on.
    pub chats: bool,
    pub children: Vec<Kid>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kid {
    pub oak: bool,
    pub script: Script,
}

/// Attempts that have begun, as their handlers saw them.
#[derive(Default)]
pub struct Journal {
    pub begun: Mutex<BTreeMap<(String, u32, u32), u32>>,
    /// Tasks whose first attempts are good: nothing of them waits for another one.
    pub good: Mutex<BTreeSet<String>>,
    /// Hears of each attempt that begins.
    pub check: Mutex<Option<Check>>,
}

/// Called with a task's id and its run.
pub type Check = Box<dyn Fn(&str, u32) + Send>;

/// In no order, with retries that wait in the worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Oak(pub Script);

/// By key, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Elm(pub Script);

impl Task for Oak {
    const TYPE: &'static str = "oak";
    const CONCURRENCY: u32 = 4;
    const RETRIES: u32 = 2;
    const MIN_BACKOFF: Duration = Duration::from_millis(300);
    const MAX_BACKOFF: Duration = Duration::from_millis(4_000);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        self.0.play(cx).await
    }
}

impl Task for Elm {
    const TYPE: &'static str = "elm";
    const CONCURRENCY: u32 = 3;
    const ORDER: Order = Order::Key;
    const RETRIES: u32 = 1;
    const MIN_BACKOFF: Duration = Duration::from_millis(200);
    const MAX_BACKOFF: Duration = Duration::from_millis(500);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        self.0.play(cx).await
    }
}

pub fn retries(oak: bool) -> u32 {
    if oak { Oak::RETRIES } else { Elm::RETRIES }
}

pub fn task_type(oak: bool) -> &'static str {
    if oak { Oak::TYPE } else { Elm::TYPE }
}

pub fn registry(journal: &Arc<Journal>) -> Registry {
    let mut registry = Registry::default();
    registry.share(journal.clone()).task::<Oak>().task::<Elm>();
    registry
}

impl Script {
    pub fn random(dice: &mut Rng, depth: u32) -> Self {
        let width = if depth == 0 || dice.bool() { 0 } else { dice.u32(1..4) };
        let kid = |dice: &mut Rng| Kid { oak: dice.u8(..3) > 0, script: Self::random(dice, depth - 1) };
        Self {
            ms: if dice.bool() { 0 } else { dice.u64(1..1_500) },
            fails: if dice.u8(..3) == 0 { dice.u32(1..4) } else { 0 },
            heals_in_run: if dice.u8(..8) == 0 { dice.u32(2..4) } else { 1 },
            chats: dice.u8(..4) == 0,
            children: (0..width).map(|_| kid(dice)).collect(),
        }
    }

    /// What the task itself has to reach in a run, if nobody cancels it.
    pub fn reaches(&self, run: u32, oak: bool) -> State {
        if run < self.heals_in_run || self.fails > retries(oak) { State::Failed } else { State::Succeeded }
    }

    async fn play(self, cx: Context) -> TaskResult<u32> {
        let journal = cx.state::<Arc<Journal>>();
        *journal.begun.lock().entry((cx.id.to_string(), cx.run, cx.number)).or_default() += 1;
        if let Some(check) = &*journal.check.lock() {
            check(cx.id.as_str(), cx.run);
        }
        if self.fails == 0 {
            journal.good.lock().insert(cx.id.to_string());
        }
        if self.ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.ms)).await;
        }
        if self.chats {
            cx.progress(cx.number);
            cx.log(format!("attempt {}", cx.number));
        }
        if cx.number <= self.fails {
            return Err(Failure::retry("not yet"));
        }
        if cx.run < self.heals_in_run {
            return Err(Failure::fail("not in this run"));
        }
        for (n, kid) in self.children.iter().enumerate() {
            cx.spawn_child(kid.child(n));
        }
        Ok(cx.run)
    }
}

impl Kid {
    fn child(&self, n: usize) -> Child {
        let child = if self.oak { Child::of(&Oak(self.script.clone())) } else { Child::of(&Elm(self.script.clone())) };
        child.id(format!("c{n}"))
    }
}
