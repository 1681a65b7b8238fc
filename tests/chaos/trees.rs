//! Random trees and their expected outcomes, derived from their shapes.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::tasks::{Outcome, TreeTask, Work};

/// Operation on a tree while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Nothing,
    /// Cancelled once all of its tasks exist.
    Cancel,
    /// Failed tasks are retried once the tree has ended.
    Retry,
}

/// Producer that publishes a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubmitVia {
    Api,
    /// With kafleet's publisher.
    Library,
    /// With a plain Kafka producer.
    PlainProducer,
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub root: TreeTask,
    pub operation: Operation,
    pub via: SubmitVia,
    /// A continuation with results follows.
    pub join: bool,
}

/// Publisher of a task's record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Publisher of the tree.
    Publisher,
    /// Worker that runs its parent.
    Parent,
    /// Timer of the tracker.
    Timer,
    /// Never published: the task is scheduled too far ahead.
    Never,
    /// Effect of the fold.
    Effect,
}

/// Expected outcome of a task.
#[derive(Clone, Debug)]
pub struct ExpectedTask {
    pub id: String,
    pub kind: String,
    pub own: State,
    pub state: State,
    pub run: u32,
    pub source: Source,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// Leaves a dead letter.
    pub dead: bool,
    /// Executed, because it is not cancelled before.
    pub is_run: bool,
    ignored: bool,
}

/// Delay that does not pass within a run.
const NEVER_MS: u64 = 3_600_000;

impl Tree {
    pub fn random(rng: &mut fastrand::Rng, id: String) -> Self {
        let operation = match rng.u32(..100) {
            0..12 => Operation::Cancel,
            12..24 => Operation::Retry,
            _ => Operation::Nothing,
        };
        let mut root = match operation {
            Operation::Cancel => hanging(rng),
            _ => random_task(rng, 3, operation == Operation::Retry),
        };
        root.name = id;
        let via = *rng.choice(&[SubmitVia::Api, SubmitVia::Api, SubmitVia::Library, SubmitVia::PlainProducer]).unwrap();
        let join = via != SubmitVia::PlainProducer
            && operation != Operation::Cancel
            && root.kind == "work"
            && rng.u32(..100) < 30;
        if via != SubmitVia::PlainProducer && rng.u32(..100) < 20 {
            root.delay_ms = rng.u64(500..5_000);
        }
        Self { root, operation, via, join }
    }

    /// Continuations as JSON for the API and the publisher.
    pub fn continuations(&self) -> Value {
        let on = if self.operation == Operation::Retry { "succeeded" } else { "ended" };
        let results = self.root.work.children.len();
        if self.join {
            json!([{"type": "join", "on": on, "with_results": true, "params": {"results": results}}])
        } else {
            json!([])
        }
    }

    /// Expected outcomes of all tasks, parents first.
    pub fn expected_tasks(&self) -> Vec<ExpectedTask> {
        let mut tasks = Vec::new();
        self.add(&self.root, None, &mut tasks);
        let joins = self.join && (self.operation == Operation::Nothing || roll_up(&tasks, 0) == State::Succeeded);
        if joins {
            let mut expected =
                ExpectedTask::new("join", format!("{}:then", tasks[0].id), State::Succeeded, Source::Effect);
            (expected.parent, expected.run) = (Some(0), tasks[0].run);
            tasks.push(expected);
            let index = tasks.len() - 1;
            tasks[0].children.push(index);
        }
        for index in (0..tasks.len()).rev() {
            tasks[index].state = roll_up(&tasks, index);
        }
        tasks
    }

    fn add(&self, task: &TreeTask, parent: Option<usize>, expected_tasks: &mut Vec<ExpectedTask>) {
        let id = parent.map_or(task.name.clone(), |parent| format!("{}:{}", expected_tasks[parent].id, task.name));
        let is_retried = self.operation == Operation::Retry && matches!(task.work.outcome, Outcome::FailFirstRun);
        let own = match task.work.outcome {
            Outcome::Succeed if task.delay_ms < NEVER_MS => State::Succeeded,
            Outcome::Succeed | Outcome::Hang => State::Cancelled,
            Outcome::FailFirstRun if is_retried => State::Succeeded,
            Outcome::FailFirstRun | Outcome::Fail | Outcome::DeadLetter => State::Failed,
        };
        let source = match (task.delay_ms, parent) {
            (NEVER_MS.., _) => Source::Never,
            (1.., _) => Source::Timer,
            (0, None) => Source::Publisher,
            (0, Some(_)) => Source::Parent,
        };
        let mut expected = ExpectedTask::new(&task.kind, id, own, source);
        (expected.parent, expected.ignored, expected.run) = (parent, task.ignored, 1 + u32::from(is_retried));
        (expected.dead, expected.is_run) = (task.work.outcome == Outcome::DeadLetter, own != State::Cancelled);
        expected_tasks.push(expected);
        let index = expected_tasks.len() - 1;
        if let Some(parent) = parent {
            expected_tasks[parent].children.push(index);
        }
        for child in &task.work.children {
            self.add(child, Some(index), expected_tasks);
        }
    }
}

impl ExpectedTask {
    pub fn new(kind: &str, id: String, own: State, source: Source) -> Self {
        let (parent, children, dead, is_run, ignored) = (None, Vec::new(), false, true, false);
        Self { id, kind: kind.to_owned(), own, state: own, run: 1, source, parent, children, dead, is_run, ignored }
    }
}

/// Worst of a task's own state and its children's states.
fn roll_up(expected_tasks: &[ExpectedTask], index: usize) -> State {
    let order = [State::Succeeded, State::Cancelled, State::Expired, State::Failed];
    let rank = |state: State| order.iter().position(|other| *other == state).unwrap();
    let expected = &expected_tasks[index];
    let children = expected
        .children
        .iter()
        .filter(|child| !expected_tasks[**child].ignored)
        .map(|child| roll_up(expected_tasks, *child));
    children.chain([expected.own]).max_by_key(|state| rank(*state)).unwrap()
}

/// Tree whose leaves do not end by themselves.
fn hanging(rng: &mut fastrand::Rng) -> TreeTask {
    let child = |n: u32, rng: &mut fastrand::Rng| {
        let (outcome, delay_ms) = if rng.bool() { (Outcome::Hang, 0) } else { (Outcome::Succeed, NEVER_MS) };
        let work = Work { outcome, ..Work::default() };
        TreeTask { name: format!("c{n}"), kind: "work".into(), ignored: false, delay_ms, work }
    };
    let children = (0..rng.u32(1..4)).map(|n| child(n, rng)).collect();
    TreeTask { kind: "work".into(), work: Work { children, ..Work::default() }, ..TreeTask::default() }
}

fn random_task(rng: &mut fastrand::Rng, depth: u32, retried: bool) -> TreeTask {
    let width = if depth == 0 { 0 } else { rng.u32(0..=depth + 1) };
    let is_leaf = width == 0;
    let kind = match rng.u32(..100) {
        0..8 if is_leaf => "program",
        8..16 if is_leaf => "app",
        16..32 => "keyed",
        _ => "work",
    };
    let mut work = Work { duration_ms: rng.u64(..40), ..Work::default() };
    if rng.u32(..100) < 20 {
        work.failures = rng.u32(1..3);
        // Longer than `inline_retry_max`.
        work.retry_delay_ms = if kind == "work" && rng.bool() { rng.u64(1_000..2_500) } else { 0 };
    }
    if is_leaf && !matches!(kind, "program" | "app") && rng.u32(..100) < 12 {
        work.outcome =
            if retried { Outcome::FailFirstRun } else { *rng.choice(&[Outcome::Fail, Outcome::DeadLetter]).unwrap() };
    }
    let child =
        |n: u32, rng: &mut fastrand::Rng| TreeTask { name: format!("c{n}"), ..random_task(rng, depth - 1, retried) };
    work.children = (0..width).map(|n| child(n, rng)).collect();
    let delay_ms = if depth < 3 && rng.u32(..100) < 8 { rng.u64(500..4_000) } else { 0 };
    let ignored = work.outcome != Outcome::Succeed && rng.u32(..100) < 40;
    TreeTask { name: String::new(), kind: kind.into(), ignored, delay_ms, work }
}
