//! What an attempt can see and do.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::blocking_pool::Threads;
use super::{Failure, SharedState, Task, TaskResult};
use crate::model::event::Kind;
use crate::model::json::RawJson;
use crate::model::record::attachment::Attachment;
use crate::model::task::continuation::{Continuation, check_thens, number_of};
use crate::model::task::hash::spawn_hash;
use crate::model::task::id::{TaskId, check_type, clip};
use crate::model::task::{OnFailure, Policy, Trace};
use crate::model::units::duration::Millis;

/// At most this many children of one attempt; one that spawns more fails.
pub const MAX_CHILDREN: usize = 100_000;

/// One attempt at one task. Cheap to clone; fresh for every attempt.
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

/// The shared part of a [`Context`].
pub struct Attempt {
    pub id: TaskId,
    pub run: u32,
    /// 1 for the first attempt.
    pub number: u32,
    pub deadline: Option<Instant>,
    pub trace: Option<Box<Trace>>,
    /// `ce_asof` of the task: its children inherit it.
    pub asof: Option<i64>,
    scene: Arc<TypeEnv>,
    cancel: OnceLock<CancellationToken>,
    /// Counts what shows that the attempt is getting on.
    signs: AtomicU32,
    ended: AtomicBool,
    /// Made by the first thing that is kept until the attempt answers: most have none.
    gathered: OnceLock<Box<Mutex<Spawned>>>,
}

/// What all attempts of one type share in one worker.
pub struct TypeEnv {
    pub task_type: Arc<str>,
    pub worker: Arc<str>,
    pub state: SharedState,
    /// Where progress, log lines and early children go while an attempt runs.
    pub outlet: Arc<dyn AttemptSink>,
    /// For what attempts do that blocks.
    pub(crate) threads: Threads,
}

/// What an attempt wants done when it has answered well.
#[derive(Default)]
pub(super) struct Spawned {
    spawned: Vec<Child>,
    pub(super) thens: Vec<Continuation>,
    /// How many children of this attempt have each default segment.
    named: FxHashMap<String, u32>,
}

/// The worker's side of a context.
pub trait AttemptSink: Send + Sync {
    /// Progress, a log line or a warning; never waits. What comes too fast is merged or dropped and counted.
    fn note(&self, attempt: &Attempt, note: Note);

    /// The attempt shows a sign of life, for whoever is not in its process.
    fn alive(&self, _attempt: &Attempt) {}

    /// Publishes children at once and waits for the acknowledgement.
    fn spawn_now<'a>(
        &'a self,
        attempt: &'a Context,
        children: Vec<Child>,
    ) -> futures::future::BoxFuture<'a, Result<Vec<TaskId>, Failure>>;
}

/// Something an attempt says while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Note {
    Progress(RawJson),
    Log(String),
    Warning(String),
    Attachment(Attachment),
}

impl Note {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Progress(_) => Kind::Progress,
            Self::Log(_) => Kind::Log,
            Self::Warning(_) => Kind::Warned,
            Self::Attachment(_) => Kind::Attached,
        }
    }
}

/// A task to be spawned under the running one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    pub task_type: Arc<str>,
    pub params: Value,
    /// The last segment of the id; by default made from type and params, so that the same work gets the same id.
    pub segment: Option<String>,
    /// The ordering key; by default the child's id.
    pub key: Option<String>,
    pub policy: Policy,
    /// Why it cannot be published; fails the attempt that spawns it.
    #[serde(skip)]
    flaw: Option<String>,
}

impl Child {
    pub fn new(task_type: &str, params: Value) -> Self {
        let (segment, key, flaw) = (None, None, check_type(task_type).err());
        Self { task_type: task_type.into(), params, segment, key, policy: Policy::default(), flaw }
    }

    /// A child of a Rust type.
    pub fn of<T: Task>(task: &T) -> Self {
        match serde_json::to_value(task) {
            Ok(params) => Self::new(T::TYPE, params),
            Err(why) => Self { flaw: Some(format!("the params are not JSON: {why}")), ..Self::new(T::TYPE, Value::Null) },
        }
    }

    /// Its id below the parent's: one segment, 1 to 128 characters of `A-Z a-z 0-9 . _ ~ @ -`.
    pub fn id(mut self, segment: impl Into<String>) -> Self {
        self.segment = Some(segment.into());
        self
    }

    /// The ordering key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What people see beside the id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.policy.name = Some(name.into());
        self
    }

    /// Of one attempt; by default the type's.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(Millis::from(timeout));
        self
    }

    /// Of all attempts and waits together; by default the type's.
    pub fn total_timeout(mut self, timeout: Duration) -> Self {
        self.policy.total_timeout = Some(Millis::from(timeout));
        self
    }

    /// Its failure does not fail the parent.
    pub fn ignore_failure(mut self) -> Self {
        self.policy.on_failure = OnFailure::Ignore;
        self
    }

    /// The first of its own children that fails cancels everything still open below it, and itself.
    pub fn fail_fast(mut self) -> Self {
        self.policy.rules.fail_fast = true;
        self
    }

    /// So many of its own children may fail without failing it.
    pub fn max_failed(mut self, number: u32) -> Self {
        self.policy.rules.max_failed = Some(number);
        self
    }
}

/// What a new attempt starts with.
pub struct AttemptStart {
    pub id: TaskId,
    pub run: u32,
    pub number: u32,
    pub deadline: Option<Instant>,
    pub trace: Option<Box<Trace>>,
    pub asof: Option<i64>,
    pub scene: Arc<TypeEnv>,
}

impl Context {
    pub fn begin(with: AttemptStart) -> Self {
        let AttemptStart { id, run, number, deadline, trace, asof, scene } = with;
        let (cancel, signs, ended, gathered) = Default::default();
        Self(Arc::new(Attempt { id, run, number, deadline, trace, asof, scene, cancel, signs, ended, gathered }))
    }

    /// Tells where the task is; the newest value counts. Shown in its status. A sign of life.
    pub fn progress(&self, state: impl Serialize) {
        self.sign();
        self.in_passing().progress(state);
    }

    /// Appends a line to the task's log. A sign of life.
    pub fn log(&self, line: impl Into<String>) {
        self.sign();
        self.in_passing().log(line);
    }

    /// Shows the task as `warning` until it ends. A sign of life.
    pub fn warn(&self, message: impl Into<String>) {
        self.sign();
        self.in_passing().warn(message);
    }

    /// Keeps a small value with the task, under a name, in place of what has that name: at most 64 KiB, and 16 of one
    /// task; what goes beyond that number is dropped. An error where it cannot be kept. A sign of life.
    pub fn attach(&self, name: &str, media: &str, data: impl Into<Vec<u8>>) -> TaskResult<()> {
        let bad = |why| Failure::fail(why).of_kind("bad_attachment");
        let attachment = Attachment::new(name, media, data).map_err(bad)?;
        self.sign();
        self.scene.outlet.note(self, Note::Attachment(attachment));
        Ok(())
    }

    /// A sign of life: the type's `stall_timeout` begins anew. It is seen by the worker alone and costs next to nothing.
    pub fn heartbeat(&self) {
        self.sign();
        self.scene.outlet.alive(self);
    }

    /// For what is said without getting on, such as a line from a timer: it does not count against `stall_timeout`.
    pub fn in_passing(&self) -> Silent<'_> {
        Silent(self)
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

    /// As [`Context::spawn`], for a child of any type, or with an id, a key, a name or a policy of its own.
    pub fn spawn_child(&self, child: Child) {
        let spawned = &mut self.gathered().spawned;
        // One more than the limit is enough to fail the attempt.
        if spawned.len() <= MAX_CHILDREN {
            spawned.push(child);
        }
    }

    /// Publishes children at once, for long parents. They stay, also when this attempt fails later; the ids are the same
    /// in every attempt, so that nothing is doubled.
    pub async fn spawn_now(&self, children: Vec<Child>) -> TaskResult<Vec<TaskId>> {
        if children.len() > MAX_CHILDREN {
            let told = format!("{} children at once: at most {MAX_CHILDREN} are allowed", children.len());
            return Err(Failure::fail(told).of_kind("bad_child"));
        }
        self.scene.outlet.spawn_now(self, children).await
    }

    /// Fires when the attempt should stop: cancelled, timed out, or the worker is shutting down.
    pub fn cancelled(&self) -> &CancellationToken {
        self.cancel.get_or_init(CancellationToken::new)
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// An error when the attempt should stop: `cx.check()?` in long loops.
    pub fn check(&self) -> TaskResult<()> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// Runs blocking work (files, long computations) on a thread of its type, at most 512 at a time. It cannot be
    /// interrupted: long work asks `cx.check()?` on a clone of this context now and then; what goes on when its attempt is
    /// over holds a slot until it ends. A panic in it is a panic of the attempt.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> TaskResult<T> + Send + 'static) -> TaskResult<T> {
        self.check()?;
        self.scene.threads.call(work).await?
    }

    /// The same for every attempt and redelivery of this run: what to give to other systems.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.id, self.run)
    }

    /// Application state given to the app with `.state(…)`. Panics, and so fails the attempt, where there is none of this
    /// type: that is a mistake of the program, found by its first run.
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        match self.0.scene.state.get::<T>() {
            Some(state) => state,
            None => panic!("no state of type `{}` was given to the app: add `.state(…)`", std::any::type_name::<T>()),
        }
    }

    /// The id of a child: its own segment, or type and hash, numbered from the second equal one of this attempt on. An
    /// error where the child cannot be published.
    pub fn name_child(&self, child: &Child) -> TaskResult<TaskId> {
        let bad = |why: String| Failure::fail(format!("child of type `{}`: {why}", clip(&child.task_type))).of_kind("bad_child");
        if let Some(flaw) = &child.flaw {
            return Err(bad(flaw.clone()));
        }
        let segment = child.segment.clone().unwrap_or_else(|| self.default_segment(child));
        if number_of(&segment).is_some() {
            return Err(bad(format!("`{segment}` is what a continuation is called (hint: choose another id, or use `cx.then`)")));
        }
        check_thens(&child.policy.rules.then).map_err(|(at, why)| bad(format!("`then{at}`: {why}")))?;
        self.id.child(&segment).map_err(|why| bad(why.to_string()))
    }

    fn default_segment(&self, child: &Child) -> String {
        let base = format!("{}-{}", child.task_type, spawn_hash(&child.task_type, &child.params));
        let mut gathered = self.gathered();
        let number = gathered.named.entry(base.clone()).or_default();
        *number += 1;
        if *number == 1 { base } else { format!("{base}-{number}") }
    }

    /// The attempt is over: whatever a clone of this context says from now on is not heard.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// It has children or continuations to publish.
    pub fn has_spawned(&self) -> bool {
        let unsaid = |gathered: &Spawned| !gathered.spawned.is_empty() || !gathered.thens.is_empty();
        self.gathered.get().is_some_and(|gathered| unsaid(&gathered.lock()))
    }

    /// Takes out what was spawned.
    pub fn take_spawned(&self) -> Vec<Child> {
        std::mem::take(&mut self.gathered().spawned)
    }
}

/// Speaks without showing a sign of life.
pub struct Silent<'a>(&'a Context);

impl Silent<'_> {
    pub fn progress(&self, state: impl Serialize) {
        match RawJson::of(&state) {
            Ok(state) => self.0.scene.outlet.note(self.0, Note::Progress(state)),
            Err(why) => self.warn(format!("progress that is not JSON: {why}")),
        }
    }

    pub fn log(&self, line: impl Into<String>) {
        self.0.scene.outlet.note(self.0, Note::Log(line.into()));
    }

    pub fn warn(&self, message: impl Into<String>) {
        self.0.scene.outlet.note(self.0, Note::Warning(message.into()));
    }
}

impl Attempt {
    pub fn task_type(&self) -> &str {
        &self.scene.task_type
    }

    /// The name of the worker.
    pub fn worker(&self) -> &Arc<str> {
        &self.scene.worker
    }

    /// Where what it says goes.
    pub fn outlet(&self) -> &dyn AttemptSink {
        &*self.scene.outlet
    }

    pub(super) fn gathered(&self) -> MutexGuard<'_, Spawned> {
        self.gathered.get_or_init(Box::default).lock()
    }

    /// Counts a sign of life, here only.
    pub fn sign(&self) {
        self.signs.fetch_add(1, Ordering::Relaxed);
    }

    /// Signs of life so far: a number that has not changed between two looks tells of a stalled attempt.
    pub fn signs(&self) -> u32 {
        self.signs.load(Ordering::Relaxed)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

impl Deref for Context {
    type Target = Attempt;
    fn deref(&self) -> &Attempt {
        &self.0
    }
}
