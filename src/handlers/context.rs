//! What an attempt can see and do.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Failure, SharedState, Task, TaskResult};
use crate::model::duration::Millis;
use crate::model::event::Kind;
use crate::model::hash::spawn_hash;
use crate::model::id::{IdError, TaskId};
use crate::model::json::RawJson;
use crate::model::task::{OnFailure, Policy, Trace};

/// At most this many children of one attempt.
pub const MAX_CHILDREN: usize = 100_000;

/// One attempt at one task. Cheap to clone; fresh for every attempt.
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

/// The shared part of a [`Context`].
pub struct Attempt {
    pub id: TaskId,
    pub task_type: Arc<str>,
    pub run: u32,
    /// 1 for the first attempt.
    pub number: u32,
    pub worker: Arc<str>,
    pub deadline: Option<Instant>,
    pub trace: Option<Box<Trace>>,
    pub state: SharedState,
    /// Where progress, log lines and early children go while the attempt runs.
    pub outlet: Arc<dyn Outlet>,
    cancel: OnceLock<CancellationToken>,
    spawned: Mutex<Vec<Child>>,
    /// How many children of this attempt have each default segment.
    named: Mutex<FxHashMap<String, u32>>,
}

/// The worker's side of a context.
pub trait Outlet: Send + Sync {
    /// Progress, a log line or a warning; never waits. What comes too fast is merged or dropped and counted.
    fn note(&self, attempt: &Attempt, note: Note);

    /// Publishes children at once and waits for the acknowledgement.
    fn spawn_now<'a>(
        &'a self,
        attempt: &'a Context,
        children: Vec<Child>,
    ) -> futures::future::BoxFuture<'a, Result<Vec<TaskId>, Failure>>;
}

/// Something an attempt says while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    Progress(RawJson),
    Log(String),
    Warning(String),
}

impl Note {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Progress(_) => Kind::Progress,
            Self::Log(_) => Kind::Log,
            Self::Warning(_) => Kind::Warned,
        }
    }
}

/// A task to be spawned under the running one.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    pub task_type: Arc<str>,
    pub params: Value,
    /// The last segment of the id; by default made from type and params, so that the same work gets the same id.
    pub segment: Option<String>,
    /// The ordering key; by default the child's id.
    pub key: Option<String>,
    pub policy: Policy,
}

impl Child {
    pub fn new(task_type: &str, params: Value) -> Self {
        Self { task_type: task_type.into(), params, segment: None, key: None, policy: Policy::default() }
    }

    /// A child of a Rust type. Params that are not JSON (a map with keys that are not text) become null and are refused by
    /// the child's schema.
    pub fn of<T: Task>(task: &T) -> Self {
        Self::new(T::TYPE, serde_json::to_value(task).unwrap_or_default())
    }

    pub fn id(mut self, segment: impl Into<String>) -> Self {
        self.segment = Some(segment.into());
        self
    }

    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.policy.name = Some(name.into());
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(Millis::from(timeout));
        self
    }

    /// Its failure does not fail the parent.
    pub fn ignore_failure(mut self) -> Self {
        self.policy.on_failure = OnFailure::Ignore;
        self
    }
}

/// What a new attempt starts with.
pub struct Beginning {
    pub id: TaskId,
    pub task_type: Arc<str>,
    pub run: u32,
    pub number: u32,
    pub worker: Arc<str>,
    pub deadline: Option<Instant>,
    pub trace: Option<Box<Trace>>,
    pub state: SharedState,
    pub outlet: Arc<dyn Outlet>,
}

impl Context {
    pub fn begin(with: Beginning) -> Self {
        let Beginning { id, task_type, run, number, worker, deadline, trace, state, outlet } = with;
        let (cancel, spawned, named) = Default::default();
        Self(Arc::new(Attempt { id, task_type, run, number, worker, deadline, trace, state, outlet, cancel, spawned, named }))
    }

    /// Tells where the task is; the newest value counts. Shown in its status.
    pub fn progress(&self, state: impl Serialize) {
        if let Ok(state) = RawJson::of(&state) {
            self.outlet.note(self, Note::Progress(state));
        }
    }

    /// Appends a line to the task's log.
    pub fn log(&self, line: impl Into<String>) {
        self.outlet.note(self, Note::Log(line.into()));
    }

    /// Shows the task as `warning` until it ends.
    pub fn warn(&self, message: impl Into<String>) {
        self.outlet.note(self, Note::Warning(message.into()));
    }

    /// Spawns a child: published when this attempt answers ok, before its result. A failed attempt has spawned nothing.
    pub fn spawn<T: Task>(&self, task: T) {
        self.spawn_child(Child::of(&task));
    }

    pub fn spawn_all<T: Task>(&self, tasks: impl IntoIterator<Item = T>) {
        for task in tasks {
            self.spawn(task);
        }
    }

    pub fn spawn_child(&self, child: Child) {
        self.spawned.lock().push(child);
    }

    /// Publishes children at once, for long parents. They stay, also when this attempt fails later; the ids are the same
    /// in every attempt, so that nothing is doubled.
    pub async fn spawn_now(&self, children: Vec<Child>) -> TaskResult<Vec<TaskId>> {
        self.outlet.spawn_now(self, children).await
    }

    /// Fires when the attempt should stop: cancelled, timed out, or the worker is shutting down.
    pub fn cancelled(&self) -> &CancellationToken {
        self.cancel.get_or_init(CancellationToken::new)
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// The same for every attempt and redelivery of this run: what to give to other systems.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.id, self.run)
    }

    /// Application state given to the app with `.state(…)`. Panics, and so fails the attempt, where there is none of this
    /// type: that is a mistake of the program, found by its first run.
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        match self.0.state.get::<T>() {
            Some(state) => state,
            None => panic!("no state of type `{}` was given to the app: add `.state(…)`", std::any::type_name::<T>()),
        }
    }

    /// The id of a child: its own segment, or type and hash, numbered from the second equal one of this attempt on.
    pub fn name_child(&self, child: &Child) -> Result<TaskId, IdError> {
        if let Some(segment) = &child.segment {
            return self.id.child(segment);
        }
        let segment = format!("{}-{}", child.task_type, spawn_hash(&child.task_type, &child.params));
        let mut named = self.named.lock();
        let number = named.entry(segment.clone()).or_default();
        *number += 1;
        match *number {
            1 => self.id.child(&segment),
            number => self.id.child(&format!("{segment}-{number}")),
        }
    }

    pub fn has_spawned(&self) -> bool {
        !self.spawned.lock().is_empty()
    }

    /// Takes out what was spawned.
    pub fn take_spawned(&self) -> Vec<Child> {
        std::mem::take(&mut self.spawned.lock())
    }
}

impl Deref for Context {
    type Target = Attempt;
    fn deref(&self) -> &Attempt {
        &self.0
    }
}
