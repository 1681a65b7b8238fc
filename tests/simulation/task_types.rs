//! Task types of a simulated fleet. The params of a task are a script, from which its expected outcome follows.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::config::Order;
use kafleet::handlers::{
    Child, Context, Continuation, Failure, Joined, On, Registry, Task, TaskResult, TypeRegistration,
};
use kafleet::model::record::state::State;
use kafleet::model::task::Rules;
use kafleet::model::task::action::{Action, Check};
use kafleet::runtime::now_ms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::adaptive::{MeteredCall, metered};
use crate::deliveries::{CallbackTask, EmailTask};
use crate::journal::{Attempt, Execution, Journal, RunningAttempts};
use crate::outages::Caller;
use crate::scenario::Scenario;
use crate::unique::Refresh;

/// Longest wait that a failed attempt chooses, in milliseconds.
const MAX_CHOSEN_WAIT: u64 = 4_000;

/// Behaviour of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Script {
    /// Duration of an attempt; 0 returns at once.
    pub ms: u64,
    /// Number of failing attempts in each run.
    pub fails: u32,
    /// Each failed attempt chooses its own wait, so that two attempts of one number may wait in different places: in
    /// the worker and at the tracker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chooses_wait: bool,
    /// Wait after each failed attempt of the first run, which a client ends; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub long_wait_ms: u64,
    /// First run that succeeds.
    pub succeeds_from_run: u32,
    /// Writes progress and log lines.
    pub reports_progress: bool,
    pub children: Vec<ChildSpec>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// Continuations: first those of the request, then those added by the handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continuations: Vec<ContinuationSpec>,
    /// Expiry after creation (requests over the API only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_timeout_ms: Option<u64>,
    /// Waits of each run, in milliseconds; 0: without a given time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u64>,
    /// Notifications (continuations have none).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChildSpec {
    pub unordered: bool,
    pub script: Script,
    /// The parent ignores its failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_failure: bool,
    /// Delay of a child; continuations have none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Continuation of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContinuationSpec {
    pub on: On,
    pub task: ChildSpec,
    /// The params of the continuation contain the results of the other children.
    pub with_results: bool,
    /// Added by the handler instead of the request.
    pub from_handler: bool,
}

/// Params of a task: its script, alone or with results.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, try_from = "Value")]
pub enum TaskParams {
    Script(Script),
    Joined(Box<Joined<Script>>),
}

impl TryFrom<Value> for TaskParams {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> serde_json::Result<Self> {
        match value.get("results") {
            Some(_) => serde_json::from_value(value).map(|joined| Self::Joined(Box::new(joined))),
            None => serde_json::from_value(value).map(Self::Script),
        }
    }
}

/// Type without ordering; retries wait in the worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnorderedTask(pub TaskParams);

/// Type with ordering by key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeyedTask(pub TaskParams);

impl Task for UnorderedTask {
    const TYPE: &'static str = "unordered";
    const CONCURRENCY: u32 = 4;
    const RETRIES: u32 = 2;
    const MIN_BACKOFF: Duration = Duration::from_millis(300);
    const MAX_BACKOFF: Duration = Duration::from_millis(4_000);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        self.0.run_script::<Self>(cx).await
    }
}

impl Task for KeyedTask {
    const TYPE: &'static str = "keyed";
    const CONCURRENCY: u32 = 3;
    const ORDER: Order = Order::Key;
    const RETRIES: u32 = 1;
    const MIN_BACKOFF: Duration = Duration::from_millis(200);
    const MAX_BACKOFF: Duration = Duration::from_millis(500);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        self.0.run_script::<Self>(cx).await
    }
}

pub fn retries(unordered: bool) -> u32 {
    if unordered { UnorderedTask::RETRIES } else { KeyedTask::RETRIES }
}

pub fn task_type(unordered: bool) -> &'static str {
    if unordered { UnorderedTask::TYPE } else { KeyedTask::TYPE }
}

/// Registers the task types of a scenario.
pub fn registry(journal: &Arc<Journal>, scenario: &Scenario) -> Registry {
    let mut registry = worker_registry(journal, scenario, &Arc::default());
    for unordered in [true, false] {
        if scenario.app_runs(unordered) {
            registry.add(task_type(unordered), registered(unordered));
        }
    }
    registry
}

/// Registers the task types of a worker, without those that its app runs.
pub fn worker_registry(journal: &Arc<Journal>, scenario: &Scenario, running: &Arc<RunningAttempts>) -> Registry {
    let mut registry = Registry::default();
    registry.share(journal.clone()).share(running.clone());
    for unordered in [true, false] {
        if !scenario.app_runs(unordered) {
            registry.add(task_type(unordered), registered(unordered));
        }
    }
    if scenario.has_asks() {
        registry.task::<Refresh>();
    }
    if scenario.has_metered_calls() {
        registry.add(MeteredCall::TYPE, metered());
    }
    if scenario.has_callers() {
        registry.task::<Caller>();
    }
    if scenario.has_notifications() {
        registry
            .add_reserved(CallbackTask::TYPE, TypeRegistration::of::<CallbackTask>())
            .add_reserved(EmailTask::TYPE, TypeRegistration::of::<EmailTask>());
    }
    registry
}

/// Type with its handler in Rust.
pub fn registered(unordered: bool) -> TypeRegistration {
    if unordered { TypeRegistration::of::<UnorderedTask>() } else { TypeRegistration::of::<KeyedTask>() }
}

impl TaskParams {
    async fn run_script<T: Task>(self, cx: Context) -> TaskResult<u32> {
        let journal = cx.state::<Arc<Journal>>();
        self.script(cx.id.as_str(), &journal).run_script::<T>(cx).await
    }

    /// Returns the script of a task, and records the results that it has received.
    pub fn script(self, id: &str, journal: &Journal) -> Script {
        match self {
            Self::Script(script) => script,
            Self::Joined(joined) => {
                let Joined { params, task, results } = *joined;
                let results = results.into_iter().map(|ended| (ended.id.to_string(), ended.state)).collect();
                journal.joined.lock().insert(id.to_owned(), (task.state, results));
                params
            }
        }
    }
}

impl Script {
    pub fn random(rng: &mut Rng, depth: u32) -> Self {
        let width = if depth == 0 || rng.bool() { 0 } else { rng.u32(1..4) };
        let children: Vec<ChildSpec> = (0..width).map(|_| ChildSpec::random(rng, depth - 1)).collect();
        let continuation_count = if depth == 0 || rng.u8(..6) > 0 { 0 } else { rng.u32(1..3) };
        let mut continuations: Vec<ContinuationSpec> =
            (0..continuation_count).map(|_| ContinuationSpec::random(rng, (depth - 1).min(1))).collect();
        continuations.sort_by_key(|then| then.from_handler);
        let wide = children.len() > 1;
        Self {
            ms: if rng.bool() { 0 } else { rng.u64(1..1_500) },
            fails: if rng.u8(..3) == 0 { rng.u32(1..4) } else { 0 },
            chooses_wait: rng.u8(..4) == 0,
            long_wait_ms: 0,
            succeeds_from_run: if rng.u8(..8) == 0 { rng.u32(2..4) } else { 1 },
            reports_progress: rng.u8(..4) == 0,
            children,
            fail_fast: wide && rng.u8(..4) == 0,
            max_failed: (wide && rng.u8(..4) == 0).then(|| rng.u32(1..3)),
            continuations,
            expires_ms: (rng.u8(..12) == 0).then(|| rng.u64(200..10_000)),
            total_timeout_ms: (rng.u8(..12) == 0).then(|| rng.u64(500..10_000)),
            waits: Vec::new(),
            actions: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Adds waits to some of the tasks.
    pub fn add_waits(&mut self, rng: &mut Rng) {
        if rng.u8(..4) == 0 {
            self.waits = (0..rng.usize(1..5)).map(|_| if rng.bool() { 0 } else { rng.u64(1..2_000) }).collect();
        }
        self.children.iter_mut().for_each(|child| child.script.add_waits(rng));
        self.continuations.iter_mut().for_each(|then| then.task.script.add_waits(rng));
    }

    /// Script of a short task.
    pub fn short(rng: &mut Rng) -> Self {
        Self { ms: rng.u64(..2_500), fails: u32::from(rng.u8(..4) == 0), succeeds_from_run: 1, ..Self::default() }
    }

    /// Scripts with one part removed.
    pub fn simpler(&self) -> Vec<Self> {
        let mut all = vec![Self { succeeds_from_run: 1, ..Self::default() }];
        let without = |change: &dyn Fn(&mut Self)| {
            let mut simpler = self.clone();
            change(&mut simpler);
            simpler
        };
        for n in 0..self.children.len() {
            all.push(without(&|simpler| drop(simpler.children.remove(n))));
        }
        for n in 0..self.continuations.len() {
            all.push(without(&|simpler| drop(simpler.continuations.remove(n))));
        }
        all.extend([
            without(&|simpler| simpler.fails = 0),
            without(&|simpler| simpler.chooses_wait = false),
            without(&|simpler| simpler.long_wait_ms = 0),
            without(&|simpler| simpler.ms = 0),
            without(&|simpler| simpler.waits.truncate(simpler.waits.len().saturating_sub(1))),
            without(&|simpler| simpler.reports_progress = false),
            without(&|simpler| (simpler.expires_ms, simpler.total_timeout_ms) = (None, None)),
            without(&|simpler| (simpler.fail_fast, simpler.max_failed) = (false, None)),
            without(&|simpler| drop(simpler.actions.pop())),
            without(&|simpler| drop(simpler.checks.pop())),
        ]);
        for (n, child) in self.children.iter().enumerate() {
            all.push(without(&|simpler| simpler.children[n].delay_ms = 0));
            all.extend(
                child
                    .script
                    .simpler()
                    .into_iter()
                    .map(|script| without(&|simpler| simpler.children[n].script = script.clone())),
            );
        }
        for (n, then) in self.continuations.iter().enumerate() {
            let scripts = then.task.script.simpler().into_iter();
            all.extend(scripts.map(|script| without(&|simpler| simpler.continuations[n].task.script = script.clone())));
        }
        all.retain(|simpler| simpler != self);
        all
    }

    /// Own state that a run reaches without cancels and timeouts.
    pub fn expected_state(&self, run: u32, unordered: bool) -> State {
        if run < self.succeeds_from_run || self.fails > retries(unordered) { State::Failed } else { State::Succeeded }
    }

    /// Continuations of the request.
    pub fn requested_continuations(&self) -> Vec<Continuation> {
        self.continuations.iter().filter(|then| !then.from_handler).map(ContinuationSpec::continuation).collect()
    }

    pub fn rules(&self) -> Rules {
        let (actions, checks) = (self.actions.clone(), self.checks.clone());
        Rules {
            fail_fast: self.fail_fast,
            max_failed: self.max_failed,
            then: self.requested_continuations(),
            actions,
            checks,
            ..Rules::default()
        }
    }

    async fn run_script<T: Task>(self, cx: Context) -> TaskResult<u32> {
        let (journal, execution) = (cx.state::<Arc<Journal>>(), Execution::of::<T>(&cx));
        let _running = journal.record_attempt(&execution);
        if self.ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.ms)).await;
        }
        if self.reports_progress {
            cx.progress(cx.number);
            cx.log(format!("attempt {}", cx.number));
        }
        match self.outcome(&journal, &execution.attempt) {
            Outcome::Wait { after_ms } => Err(Failure::wait(after_ms.map(Duration::from_millis), "not now")),
            Outcome::Retry { after_ms } => {
                journal.charge(&execution.attempt);
                let retry = |ms| Failure::retry_after("not yet", Duration::from_millis(ms));
                Err(after_ms.map_or_else(|| Failure::retry("not yet"), retry))
            }
            Outcome::Fail => Err(Failure::fail("not in this run")),
            Outcome::Succeed => {
                self.children.iter().enumerate().for_each(|(n, child)| cx.spawn_child(child.child(n)));
                self.added_continuations().for_each(|then| cx.then(then));
                Ok(cx.run)
            }
        }
    }

    /// Decides the end of an attempt, once for each execution.
    pub fn outcome(&self, journal: &Journal, attempt: &Attempt) -> Outcome {
        if let Some(wait_ms) = journal.next_wait(attempt, self) {
            return Outcome::Wait { after_ms: Some(wait_ms).filter(|ms| *ms > 0) };
        }
        if attempt.number <= self.fails {
            let wait_ms = fastrand::u64(..=MAX_CHOSEN_WAIT);
            let long_ms = Some(self.long_wait_ms).filter(|ms| *ms > 0 && attempt.run == 1);
            return Outcome::Retry { after_ms: long_ms.or(self.chooses_wait.then_some(wait_ms)) };
        }
        if attempt.run < self.succeeds_from_run { Outcome::Fail } else { Outcome::Succeed }
    }

    /// Continuations that the handler adds.
    pub fn added_continuations(&self) -> impl Iterator<Item = Continuation> {
        self.continuations.iter().filter(|then| then.from_handler).map(ContinuationSpec::continuation)
    }
}

/// End of an attempt.
pub enum Outcome {
    Wait { after_ms: Option<u64> },
    Retry { after_ms: Option<u64> },
    Fail,
    Succeed,
}

impl ChildSpec {
    fn random(rng: &mut Rng, depth: u32) -> Self {
        let (unordered, script, ignore_failure) = (rng.u8(..3) > 0, Script::random(rng, depth), rng.u8(..6) == 0);
        Self { unordered, script, ignore_failure, delay_ms: if rng.u8(..6) == 0 { rng.u64(1..6_000) } else { 0 } }
    }

    pub fn child(&self, n: usize) -> Child {
        let mut child = Child::new(task_type(self.unordered), json!(self.script)).id(format!("c{n}"));
        if self.ignore_failure {
            child = child.ignore_failure();
        }
        if let Some(ms) = self.script.total_timeout_ms {
            child = child.total_timeout(Duration::from_millis(ms));
        }
        if self.delay_ms > 0 {
            child.policy.not_before_ms = Some(now_ms() + self.delay_ms as i64);
        }
        child.policy.rules = self.script.rules();
        child
    }
}

impl ContinuationSpec {
    fn random(rng: &mut Rng, depth: u32) -> Self {
        let on = [On::Succeeded, On::Failed, On::Ended][rng.usize(..3)];
        // Continuation params have no timeout.
        let mut child = ChildSpec::random(rng, depth);
        child.script.total_timeout_ms = None;
        Self { on, task: child, with_results: rng.bool(), from_handler: rng.bool() }
    }

    fn continuation(&self) -> Continuation {
        let script = &self.task.script;
        let mut then = Continuation::new(task_type(self.task.unordered), json!(script)).on(self.on);
        then.with_results = self.with_results;
        let rules = &mut then.policy.rules;
        (rules.fail_fast, rules.max_failed) = (script.fail_fast, script.max_failed);
        rules.then = script.requested_continuations();
        if self.task.ignore_failure { then.ignore_failure() } else { then }
    }
}
