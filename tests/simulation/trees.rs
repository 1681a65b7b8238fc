//! The tasks of a simulated fleet: what each does is written in its params, so that everybody knows what has to come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::config::Order;
use kafleet::handlers::{Child, Context, Continuation, Failure, Joined, On, Registered, Registry, Task, TaskResult};
use kafleet::model::record::state::State;
use kafleet::model::task::Rules;
use kafleet::model::task::action::{Action, Check};
use kafleet::runtime::now_ms;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::deliveries::{Call, Mail};

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
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// What follows it: first what whoever makes it asks for, then what its handler says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thens: Vec<Follow>,
    /// It is not to begin later than so long after it was made (asked for over the api only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<u64>,
    /// Who is told of it, and when (what follows another task tells nobody).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kid {
    pub oak: bool,
    pub script: Script,
    /// Its failure does not matter to its parent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignored: bool,
    /// It is to begin so much later than it is made; a continuation never is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub later_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Follow {
    pub on: On,
    pub kid: Kid,
    /// Its params hold what has come of the others.
    pub joins: bool,
    /// The handler says so, and nobody before.
    pub said: bool,
}

/// Attempts that have begun, as their handlers saw them.
#[derive(Default)]
pub struct Journal {
    pub begun: Mutex<BTreeMap<(String, u32, u32), u32>>,
    /// When attempts of a run have begun, epoch milliseconds.
    pub times: Mutex<Vec<(String, u32, i64)>>,
    /// Tasks whose first attempts are good: nothing of them waits for another one.
    pub good: Mutex<BTreeSet<String>>,
    /// What continuations were told of what they follow: the ids and states, by their own id.
    pub joined: Mutex<BTreeMap<String, Told>>,
    /// What callbacks and mails have said, attempt by attempt, by the id of the delivery.
    pub heard: Mutex<BTreeMap<String, Vec<Value>>>,
    /// Hears of each attempt that begins.
    pub listener: Mutex<Option<Listener>>,
}

/// The state of the task that a continuation follows, and its other children.
pub type Told = (State, BTreeMap<String, State>);

/// Called with a task's id, its run and the number of the attempt.
pub type Listener = Box<dyn Fn(&str, u32, u32) + Send>;

/// What a task is given: its script, alone or with results.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, try_from = "Value")]
pub enum Given {
    Script(Script),
    Joined(Box<Joined<Script>>),
}

impl TryFrom<Value> for Given {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> serde_json::Result<Self> {
        match value.get("results") {
            Some(_) => serde_json::from_value(value).map(|joined| Self::Joined(Box::new(joined))),
            None => serde_json::from_value(value).map(Self::Script),
        }
    }
}

/// In no order, with retries that wait in the worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Oak(pub Given);

/// By key, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Elm(pub Given);

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

/// `tells`: with the types of deliveries, which take time of every worker.
pub fn registry(journal: &Arc<Journal>, tells: bool) -> Registry {
    let mut registry = Registry::default();
    registry.share(journal.clone()).task::<Oak>().task::<Elm>();
    if tells {
        registry.add_reserved(Call::TYPE, Registered::of::<Call>()).add_reserved(Mail::TYPE, Registered::of::<Mail>());
    }
    registry
}

impl Journal {
    /// An attempt begins; `good`: it will not fail.
    pub fn begins(&self, cx: &Context, good: bool) {
        *self.begun.lock().entry((cx.id.to_string(), cx.run, cx.number)).or_default() += 1;
        self.times.lock().push((cx.id.to_string(), cx.run, now_ms()));
        if let Some(listener) = &*self.listener.lock() {
            listener(cx.id.as_str(), cx.run, cx.number);
        }
        if good {
            self.good.lock().insert(cx.id.to_string());
        }
    }
}

impl Given {
    async fn play(self, cx: Context) -> TaskResult<u32> {
        match self {
            Self::Script(script) => script.play(cx).await,
            Self::Joined(joined) => {
                let Joined { params, task, results } = *joined;
                let results = results.into_iter().map(|ended| (ended.id.to_string(), ended.state)).collect();
                let journal = cx.state::<Arc<Journal>>();
                journal.joined.lock().insert(cx.id.to_string(), (task.state, results));
                params.play(cx).await
            }
        }
    }
}

impl Script {
    pub fn random(dice: &mut Rng, depth: u32) -> Self {
        let width = if depth == 0 || dice.bool() { 0 } else { dice.u32(1..4) };
        let children: Vec<Kid> = (0..width).map(|_| Kid::random(dice, depth - 1)).collect();
        let follows = if depth == 0 || dice.u8(..6) > 0 { 0 } else { dice.u32(1..3) };
        let mut thens: Vec<Follow> = (0..follows).map(|_| Follow::random(dice, (depth - 1).min(1))).collect();
        thens.sort_by_key(|then| then.said);
        let wide = children.len() > 1;
        Self {
            ms: if dice.bool() { 0 } else { dice.u64(1..1_500) },
            fails: if dice.u8(..3) == 0 { dice.u32(1..4) } else { 0 },
            heals_in_run: if dice.u8(..8) == 0 { dice.u32(2..4) } else { 1 },
            chats: dice.u8(..4) == 0,
            children,
            fail_fast: wide && dice.u8(..4) == 0,
            max_failed: (wide && dice.u8(..4) == 0).then(|| dice.u32(1..3)),
            thens,
            expires_ms: (dice.u8(..12) == 0).then(|| dice.u64(200..10_000)),
            total_ms: (dice.u8(..12) == 0).then(|| dice.u64(500..10_000)),
            actions: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// One that is soon done.
    pub fn brief(dice: &mut Rng) -> Self {
        Self { ms: dice.u64(..2_500), fails: u32::from(dice.u8(..4) == 0), heals_in_run: 1, ..Self::default() }
    }

    /// Without one of the things that it does, or that something below it does.
    pub fn lesser(&self) -> Vec<Self> {
        let mut all = vec![Self { heals_in_run: 1, ..Self::default() }];
        let without = |change: &dyn Fn(&mut Self)| {
            let mut lesser = self.clone();
            change(&mut lesser);
            lesser
        };
        for n in 0..self.children.len() {
            all.push(without(&|lesser| drop(lesser.children.remove(n))));
        }
        for n in 0..self.thens.len() {
            all.push(without(&|lesser| drop(lesser.thens.remove(n))));
        }
        all.extend([
            without(&|lesser| lesser.fails = 0),
            without(&|lesser| lesser.ms = 0),
            without(&|lesser| lesser.chats = false),
            without(&|lesser| (lesser.expires_ms, lesser.total_ms) = (None, None)),
            without(&|lesser| (lesser.fail_fast, lesser.max_failed) = (false, None)),
            without(&|lesser| drop(lesser.actions.pop())),
            without(&|lesser| drop(lesser.checks.pop())),
        ]);
        for (n, kid) in self.children.iter().enumerate() {
            all.push(without(&|lesser| lesser.children[n].later_ms = 0));
            all.extend(
                kid.script.lesser().into_iter().map(|script| without(&|lesser| lesser.children[n].script = script.clone())),
            );
        }
        for (n, then) in self.thens.iter().enumerate() {
            let scripts = then.kid.script.lesser().into_iter();
            all.extend(scripts.map(|script| without(&|lesser| lesser.thens[n].kid.script = script.clone())));
        }
        all.retain(|lesser| lesser != self);
        all
    }

    /// What the task itself has to reach in a run, if nobody cancels it and there is time.
    pub fn reaches(&self, run: u32, oak: bool) -> State {
        if run < self.heals_in_run || self.fails > retries(oak) { State::Failed } else { State::Succeeded }
    }

    /// What whoever makes it asks to follow it.
    pub fn asked(&self) -> Vec<Continuation> {
        self.thens.iter().filter(|then| !then.said).map(Follow::then).collect()
    }

    pub fn rules(&self) -> Rules {
        let (actions, checks) = (self.actions.clone(), self.checks.clone());
        Rules { fail_fast: self.fail_fast, max_failed: self.max_failed, then: self.asked(), actions, checks, ..Rules::default() }
    }

    async fn play(self, cx: Context) -> TaskResult<u32> {
        let journal = cx.state::<Arc<Journal>>();
        journal.begins(&cx, self.fails == 0);
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
        self.thens.iter().filter(|then| then.said).for_each(|then| cx.then(then.then()));
        Ok(cx.run)
    }
}

impl Kid {
    fn random(dice: &mut Rng, depth: u32) -> Self {
        let (oak, script, ignored) = (dice.u8(..3) > 0, Script::random(dice, depth), dice.u8(..6) == 0);
        Self { oak, script, ignored, later_ms: if dice.u8(..6) == 0 { dice.u64(1..6_000) } else { 0 } }
    }

    fn child(&self, n: usize) -> Child {
        let mut child = Child::new(task_type(self.oak), json!(self.script)).id(format!("c{n}"));
        if self.ignored {
            child = child.ignore_failure();
        }
        if let Some(ms) = self.script.total_ms {
            child = child.total_timeout(Duration::from_millis(ms));
        }
        if self.later_ms > 0 {
            child.policy.not_before_ms = Some(kafleet::runtime::now_ms() + self.later_ms as i64);
        }
        child.policy.rules = self.script.rules();
        child
    }
}

impl Follow {
    fn random(dice: &mut Rng, depth: u32) -> Self {
        let on = [On::Succeeded, On::Failed, On::Ended][dice.usize(..3)];
        // What it is made of says nothing of how long it may take.
        let mut kid = Kid::random(dice, depth);
        kid.script.total_ms = None;
        Self { on, kid, joins: dice.bool(), said: dice.bool() }
    }

    fn then(&self) -> Continuation {
        let script = &self.kid.script;
        let mut then = Continuation::new(task_type(self.kid.oak), json!(script)).on(self.on);
        (then.with_results, then.fail_fast, then.max_failed) = (self.joins, script.fail_fast, script.max_failed);
        then.then = script.asked();
        if self.kid.ignored { then.ignore_failure() } else { then }
    }
}
