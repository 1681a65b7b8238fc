//! Reading of the log of events that shares no code with the projection or the pages: the tasks with their events, attempts
//! and states.

use std::collections::BTreeMap;

use kafleet::broker::{Broker, Partition};
use serde_json::Value;

use crate::api::fixture::{DEADLINE, Fleet, PARTITIONS};

/// Kinds of events that a history does not list.
const NOT_IN_HISTORY: [&str; 2] = ["progress", "log"];

/// Event as it is written.
pub struct LoggedEvent {
    pub kind: String,
    pub at_ms: i64,
    /// Time of the record in the log.
    pub log_ms: i64,
    run: u64,
    attempt: u64,
    data: Value,
}

/// Attempt of a task.
pub struct LoggedAttempt {
    run: u64,
    pub number: u64,
    pub started_ms: Option<i64>,
    pub ended_ms: Option<i64>,
    pub outcome: &'static str,
}

impl LoggedAttempt {
    /// Milliseconds from start to end.
    pub fn ran_ms(&self) -> Option<i64> {
        Some(self.ended_ms? - self.started_ms?)
    }
}

/// Outcome of a task, or of a task with everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Open,
    Succeeded,
    Failed,
}

#[derive(Default)]
pub struct LoggedTask {
    pub task_type: String,
    pub created_ms: i64,
    pub events: Vec<LoggedEvent>,
}

/// All tasks of a log, by id.
pub struct TaskLog {
    pub tasks: BTreeMap<String, LoggedTask>,
}

impl TaskLog {
    pub fn read(fleet: &Fleet) -> Self {
        let mut tasks: BTreeMap<String, LoggedTask> = BTreeMap::new();
        for number in 0..PARTITIONS {
            let partition = Partition::new(fleet.names.events(), number as i32);
            let ends = fleet.log.watermarks(&partition, DEADLINE).unwrap();
            for record in (ends.low..ends.high).filter_map(|offset| fleet.record(&partition, offset)) {
                let event: Value = serde_json::from_slice(&record.value.unwrap_or_default()).unwrap_or_default();
                add(&mut tasks, event, record.timestamp_ms);
            }
        }
        // What is no task has never been announced.
        tasks.retain(|_, task| !task.task_type.is_empty());
        Self { tasks }
    }

    /// Tasks of a type.
    pub fn of_type<'a>(&'a self, task_type: &'a str) -> impl Iterator<Item = (&'a str, &'a LoggedTask)> {
        let all = self.tasks.iter().map(|(id, task)| (id.as_str(), task));
        all.filter(move |(_, task)| task.task_type == task_type)
    }

    /// Tasks of a tree, with its root.
    pub fn tree<'a>(&'a self, root: &'a str) -> impl Iterator<Item = (&'a str, &'a LoggedTask)> {
        let is_in_tree = move |id: &str| id == root || id.strip_prefix(root).is_some_and(|rest| rest.starts_with(':'));
        self.tasks.iter().map(|(id, task)| (id.as_str(), task)).filter(move |(id, _)| is_in_tree(id))
    }

    /// Outcome of a task and of everything below it: it is open as long as anything is, and fails by any failure.
    pub fn outcome(&self, id: &str) -> Outcome {
        let all: Vec<Outcome> = self.tree(id).map(|(_, task)| task.own_outcome()).collect();
        [Outcome::Open, Outcome::Failed].into_iter().find(|outcome| all.contains(outcome)).unwrap_or(Outcome::Succeeded)
    }
}

/// Adds an event to its task, and the continuations that it names.
fn add(tasks: &mut BTreeMap<String, LoggedTask>, mut event: Value, log_ms: i64) {
    let id = event["id"].as_str().unwrap_or_default().to_owned();
    let kind = event["kind"].as_str().unwrap_or_default().to_owned();
    for (n, continuation) in event["data"]["then"].as_array().into_iter().flatten().enumerate() {
        let step = if n == 0 { "then".to_owned() } else { format!("then-{}", n + 1) };
        let task = tasks.entry(format!("{id}:{step}")).or_default();
        task.task_type = continuation["type"].as_str().unwrap_or_default().to_owned();
    }
    let task = tasks.entry(id).or_default();
    if let Some(task_type) = event["task"]["type"].as_str() {
        task.task_type = task_type.to_owned();
        task.created_ms = event["task"]["created_at_ms"].as_i64().unwrap_or_default();
    }
    task.events.push(LoggedEvent {
        kind,
        at_ms: event["at_ms"].as_i64().unwrap_or_default(),
        log_ms,
        run: event["run"].as_u64().unwrap_or(1),
        attempt: event["attempt"].as_u64().unwrap_or_default(),
        data: event["data"].take(),
    });
}

impl LoggedEvent {
    /// Outcome that ends the task, of an event of a worker.
    fn outcome(&self) -> Option<Outcome> {
        match self.kind.as_str() {
            "succeeded" => Some(Outcome::Succeeded),
            "failed" | "expired" | "cancelled" => Some(Outcome::Failed),
            "retry_requested" => Some(Outcome::Open),
            _ => None,
        }
    }

    /// Word for the outcome of the attempt that the event ends.
    fn end_of_attempt(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "succeeded" => Some("succeeded"),
            "failed" => Some("failed"),
            "interrupted" => Some("interrupted"),
            "cancelled" => Some("cancelled"),
            "retrying" if self.data["waits"].as_u64() > Some(0) => Some("waited"),
            "retrying" => Some("failed"),
            _ => None,
        }
    }
}

impl LoggedTask {
    /// Events that its history lists.
    pub fn history(&self) -> impl Iterator<Item = &LoggedEvent> {
        self.events.iter().filter(|event| !NOT_IN_HISTORY.contains(&event.kind.as_str()))
    }

    /// Outcome of its own work.
    pub fn own_outcome(&self) -> Outcome {
        self.events.iter().filter_map(LoggedEvent::outcome).next_back().unwrap_or(Outcome::Open)
    }

    /// Kind of its last error; empty without one.
    pub fn error_kind(&self) -> &str {
        let mut kinds = self.events.iter().filter_map(|event| event.data["error"]["kind"].as_str());
        kinds.next_back().unwrap_or_default()
    }

    /// Start of its first attempt.
    pub fn started_ms(&self) -> Option<i64> {
        self.attempts().first().and_then(|attempt| attempt.started_ms)
    }

    /// Attempts of the task. One that has waited or was interrupted is followed by another one of its number.
    pub fn attempts(&self) -> Vec<LoggedAttempt> {
        let mut attempts: Vec<LoggedAttempt> = Vec::new();
        for event in self.history().filter(|event| event.attempt > 0) {
            let is_open = attempts.last().is_some_and(|last| {
                let is_over = ["waited", "interrupted"].contains(&last.outcome);
                (last.run, last.number) == (event.run, event.attempt) && !is_over
            });
            if !is_open {
                let (run, number) = (event.run, event.attempt);
                attempts.push(LoggedAttempt { run, number, started_ms: None, ended_ms: None, outcome: "running" });
            }
            let attempt = attempts.last_mut().unwrap();
            // What ends the attempt knows best when it has started.
            let stated = event.data["started_at_ms"].as_i64();
            let begun = (event.kind == "started").then_some(event.at_ms);
            attempt.started_ms = stated.or(attempt.started_ms).or(begun);
            if let Some(outcome) = event.end_of_attempt() {
                (attempt.ended_ms, attempt.outcome) = (Some(event.at_ms), outcome);
            }
        }
        attempts
    }
}
