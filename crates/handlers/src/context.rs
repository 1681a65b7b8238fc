//! The attempt's context: the API available to a handler.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kafleet_model::json::{JsonDefect, RawJson};
use kafleet_model::record::attachment::Attachment;
use kafleet_model::task::Trace;
use kafleet_model::task::continuation::{Continuation, number_of};
use kafleet_model::task::hash::spawn_hash;
use kafleet_model::task::id::{TaskId, clip};
use kafleet_model::task::limits::TaskLimits;
use kafleet_model::trace::MAX_CHILDREN_IN_TRACE;
use kafleet_runtime::now_ms;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::blocking_pool::BlockingPool;
use super::hidden_params::HiddenParams;
pub use super::interruption::{CancelReason, Interruption, Restart};
use super::note::Note;
use super::service::Services;
use super::task_labels::TaskLabels;
use super::{Child, Failure, SharedState, Task, TaskResult};

/// Maximum children spawned by one attempt, and by one call of [`Context::spawn_now`]. Exceeding it fails the attempt
/// or the call.
pub const MAX_CHILDREN: usize = 100_000;

/// Names and values of headers that a type keeps (`keep_headers`).
pub type KeptHeaders = Arc<[(Box<str>, Box<str>)]>;

/// Context of one attempt at a task. Cheap to clone; created for every attempt.
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

/// Identity and state of an attempt, shared by all clones of its [`Context`].
pub struct Attempt {
    /// Task id.
    pub id: TaskId,
    /// Run of the task, from 1: a retry by an operator starts the next one.
    pub run: u32,
    /// Number of the attempt in its run, from 1.
    pub number: u32,
    /// Time at which the attempt is cancelled. `None`: no limit.
    pub deadline: Option<Instant>,
    /// W3C trace context of the attempt's span, or of the task's producer if the attempt has none.
    pub trace: Option<Box<Trace>>,
    /// Number of children that have been named in a traced attempt.
    traced_children: AtomicU32,
    /// Number of children that have been named.
    children: AtomicU32,
    /// Offset in the tree's events partition up to which cancels do not apply to the task (`ce_asof`). Inherited by its
    /// children.
    pub asof: Option<i64>,
    labels: Option<Arc<TaskLabels>>,
    headers: Option<KeptHeaders>,
    env: Arc<TypeEnv>,
    cancel: OnceLock<CancellationToken>,
    /// Cause of a cancellation, and requested repetition.
    pub interruption: Interruption,
    /// Incremented by every activity. Unchanged for `stall_timeout`: the attempt has stalled.
    activity: AtomicU32,
    /// Set when the result is known; later output is ignored.
    ended: AtomicBool,
    /// Texts of masked params, which no message and no line of the log contains.
    #[doc(hidden)]
    pub hidden: HiddenParams,
    /// Created on first use: most attempts spawn nothing and have no services.
    extras: OnceLock<Box<Extras>>,
}

/// State that few attempts have.
#[derive(Default)]
struct Extras {
    spawned: Mutex<SpawnedWork>,
    services: Mutex<Services>,
}

/// State shared by all attempts of a type in a worker.
pub struct TypeEnv {
    /// Name of the type.
    pub task_type: Arc<str>,
    /// Name of the worker, as in events.
    pub worker: Arc<str>,
    /// Application state.
    pub state: SharedState,
    /// Receives progress, log lines and immediate children while an attempt runs.
    pub sink: Arc<dyn AttemptSink>,
    /// Limits of children and continuations.
    pub limits: TaskLimits,
    /// Pool for blocking calls of attempts.
    pub blocking_pool: BlockingPool,
}

impl TypeEnv {
    /// Application state of this Rust type.
    ///
    /// # Panics
    /// If the application has none.
    pub(super) fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        match self.state.get::<T>() {
            Some(state) => state,
            None => panic!("no state of type `{}` was given to the app: add `.state(…)`", std::any::type_name::<T>()),
        }
    }
}

/// Children and continuations to publish when the attempt succeeds.
#[derive(Default)]
pub(super) struct SpawnedWork {
    children: Vec<Child>,
    pub(super) continuations: Vec<Continuation>,
    /// Number of children per default id segment; repeats get a number.
    default_segments: FxHashMap<String, u32>,
}

/// Receiver of an attempt's output: the worker, a child process that passes it on, or a test.
pub trait AttemptSink: Send + Sync {
    /// Accepts output without waiting. Excess output is merged, or dropped and counted.
    fn note(&self, attempt: &Attempt, note: Note);

    /// Passes activity on to the worker, if the attempt runs in a child process.
    fn report_activity(&self, _attempt: &Attempt) {}

    /// Publishes children immediately and waits for the acknowledgement.
    fn spawn_now<'a>(
        &'a self,
        attempt: &'a Context,
        children: Vec<Child>,
    ) -> futures::future::BoxFuture<'a, Result<Vec<TaskId>, Failure>>;
}

/// Initial values of an attempt.
pub struct AttemptStart {
    /// Task id.
    pub id: TaskId,
    /// Run of the task, from 1.
    pub run: u32,
    /// Number of the attempt within the run, from 1.
    pub number: u32,
    /// Time at which the attempt is cancelled. `None`: no limit.
    pub deadline: Option<Instant>,
    /// W3C trace context of the attempt's span, or of the task's producer if the attempt has none.
    pub trace: Option<Box<Trace>>,
    /// The task's `ce_asof`, inherited by its children.
    pub asof: Option<i64>,
    /// Labels of the task, if it has any.
    pub labels: Option<Arc<TaskLabels>>,
    /// Headers of the task's record that its type keeps.
    pub headers: Option<KeptHeaders>,
    /// State of the type.
    pub env: Arc<TypeEnv>,
}

impl Context {
    /// Creates the context of a new attempt.
    pub fn begin(with: AttemptStart) -> Self {
        let AttemptStart { id, run, number, deadline, trace, asof, labels, headers, env } = with;
        Self(Arc::new(Attempt {
            id,
            run,
            number,
            deadline,
            trace,
            traced_children: AtomicU32::new(0),
            children: AtomicU32::new(0),
            asof,
            labels,
            headers,
            env,
            cancel: OnceLock::new(),
            interruption: Interruption::default(),
            activity: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            hidden: HiddenParams::default(),
            extras: OnceLock::new(),
        }))
    }

    /// Publishes the task's progress, shown in its status; the newest value replaces earlier ones. Counts as
    /// activity.
    pub fn progress(&self, state: impl Serialize) {
        self.record_activity();
        self.silent().progress(state);
    }

    /// Appends a line to the task's log. Counts as activity.
    pub fn log(&self, line: impl Into<String>) {
        self.record_activity();
        self.silent().log(line);
    }

    /// Marks the task with a warning until it ends. Counts as activity.
    pub fn warn(&self, message: impl Into<String>) {
        self.record_activity();
        self.silent().warn(message);
    }

    /// Stores a small value of at most 64 KiB with the task, replacing an earlier one of the same name. A task has at
    /// most 16; further ones are dropped. Counts as activity.
    ///
    /// # Errors
    /// The attachment is invalid or too large.
    pub fn attach(&self, name: &str, media: &str, data: impl Into<Vec<u8>>) -> TaskResult<()> {
        let bad = |error| Failure::fail(error).of_kind("bad_attachment");
        let attachment = Attachment::new(name, media, data).map_err(bad)?;
        self.record_activity();
        self.env.sink.note(self, Note::Attachment(attachment));
        Ok(())
    }

    /// Reports activity, which restarts the type's `stall_timeout`. Nothing is published, so it may be called often.
    pub fn heartbeat(&self) {
        self.record_activity();
        self.env.sink.report_activity(self);
    }

    /// Returns a handle for output that does not count as activity, such as a line from a timer.
    pub fn silent(&self) -> Silent<'_> {
        Silent(self)
    }

    /// Spawns a child. It is published before this attempt's result, if the attempt succeeds; a failed attempt spawns
    /// nothing.
    pub fn spawn<T: Task>(&self, task: T) {
        self.spawn_child(Child::of(&task));
    }

    /// Spawns a child per task; see [`Context::spawn`].
    pub fn spawn_all<T: Task>(&self, tasks: impl IntoIterator<Item = T>) {
        for task in tasks {
            self.spawn(task);
        }
    }

    /// Spawns a child of any type, or with an id, a key, a name or a policy of its own; see [`Context::spawn`].
    pub fn spawn_child(&self, mut child: Child) {
        self.env.state.hooks.prepare_child(&mut child);
        let children = &mut self.spawned().children;
        // One child more than the limit is enough to fail the attempt.
        if children.len() <= MAX_CHILDREN {
            children.push(child);
        }
    }

    /// Publishes children immediately, for long-running parents. They remain if this attempt fails later. Their ids
    /// are the same in every attempt, so that none is created twice.
    pub async fn spawn_now(&self, mut children: Vec<Child>) -> TaskResult<Vec<TaskId>> {
        if children.len() > MAX_CHILDREN {
            let error = format!("{} children at once: at most {MAX_CHILDREN} are allowed", children.len());
            return Err(Failure::fail(error).of_kind("bad_child"));
        }
        children.iter_mut().for_each(|child| self.env.state.hooks.prepare_child(child));
        self.env.sink.spawn_now(self, children).await
    }

    /// Returns the token that is cancelled when the attempt should stop: on cancellation, timeout or shutdown of the
    /// worker.
    pub fn cancelled(&self) -> &CancellationToken {
        self.cancel.get_or_init(CancellationToken::new)
    }

    /// Returns whether the attempt should stop; see [`Context::cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.cancel.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// Returns an error if the attempt should stop. Use `cx.check()?` in long loops.
    pub fn check(&self) -> TaskResult<()> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// Runs blocking work (files, long computations) on a thread of the type, at most 512 calls at a time. It cannot
    /// be interrupted: long work should call `cx.check()?` on a clone of this context. A call that outlives its
    /// attempt occupies a slot until it returns. A panic in it is a panic of the attempt.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> TaskResult<T> + Send + 'static,
    ) -> TaskResult<T> {
        self.check()?;
        self.env.blocking_pool.call(work).await?
    }

    /// Idempotency key for calls to other systems: the same in every attempt and redelivery of this run.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.id, self.run)
    }

    /// Returns the application state passed to `.state(…)`.
    ///
    /// # Panics
    /// If the application has no state of this type. The panic fails the attempt.
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        self.0.env.state()
    }

    /// Returns the id of a child. Its last segment is the child's own, or else `<type>-<hash>` of type and params,
    /// followed by `-2`, `-3` and so on for further equal children of this attempt.
    ///
    /// # Errors
    /// The child cannot be published.
    pub fn child_id(&self, child: &Child) -> TaskResult<TaskId> {
        let bad = |reason: String| {
            Failure::fail(format!("child of type `{}`: {reason}", clip(&child.task_type))).of_kind("bad_child")
        };
        if let Some(error) = &child.error {
            return Err(bad(error.clone()));
        }
        let segment = match &child.segment {
            Some(segment) => segment.clone(),
            None => self.default_segment(child).map_err(|error| bad(error.to_string()))?,
        };
        if number_of(&segment).is_some() {
            return Err(bad(format!(
                "`{segment}` is reserved for continuations; hint: choose another id, or use `cx.then`"
            )));
        }
        let id = self.id.child(&segment).map_err(|error| bad(error.to_string()))?;
        let checked = self.limits().check(&id, &child.policy, now_ms());
        checked.map_err(|(at, reason)| bad(format!("`{}`: {reason}", at.trim_start_matches('/'))))?;
        Ok(id)
    }

    fn default_segment(&self, child: &Child) -> Result<String, JsonDefect> {
        let base = format!("{}-{}", child.task_type, spawn_hash(&child.task_type, &child.params)?);
        let mut spawned = self.spawned();
        let number = spawned.default_segments.entry(base.clone()).or_default();
        *number += 1;
        Ok(if *number == 1 { base } else { format!("{base}-{number}") })
    }

    /// Ends the attempt. Later output of a clone of this context is ignored.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Returns whether there are children or continuations to publish.
    pub fn has_spawned(&self) -> bool {
        let has_any = |spawned: &SpawnedWork| !spawned.children.is_empty() || !spawned.continuations.is_empty();
        self.extras.get().is_some_and(|extras| has_any(&extras.spawned.lock()))
    }

    /// Takes the spawned children.
    pub fn take_spawned(&self) -> Vec<Child> {
        std::mem::take(&mut self.spawned().children)
    }
}

/// Handle for output that does not count as activity.
pub struct Silent<'a>(&'a Context);

impl Silent<'_> {
    /// Publishes the task's progress; see [`Context::progress`]. A state that is not JSON is reported as a warning.
    pub fn progress(&self, state: impl Serialize) {
        match RawJson::of(&state) {
            Ok(state) => self.0.env.sink.note(self.0, Note::Progress(state)),
            Err(error) => self.warn(format!("progress that is not JSON: {error}")),
        }
    }

    /// Appends a line to the task's log; see [`Context::log`].
    pub fn log(&self, line: impl Into<String>) {
        self.0.env.sink.note(self.0, Note::Log(line.into()));
    }

    /// Marks the task with a warning; see [`Context::warn`].
    pub fn warn(&self, message: impl Into<String>) {
        self.0.env.sink.note(self.0, Note::Warning(message.into()));
    }
}

impl Attempt {
    /// Name of the type.
    pub fn task_type(&self) -> &str {
        &self.env.task_type
    }

    /// Limits of children and continuations.
    pub fn limits(&self) -> &TaskLimits {
        &self.env.limits
    }

    /// Name of the worker.
    pub fn worker(&self) -> &Arc<str> {
        &self.env.worker
    }

    /// Returns the value of a header of the task's record, if the type keeps it (`keep_headers`), or else of one that was
    /// given with the task (`headers`). Upper and lower case are the same; of several headers with the name the first
    /// counts.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter().flat_map(|headers| headers.iter());
        let kept = headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| &**value);
        kept.or_else(|| self.labels.as_ref()?.header(name))
    }

    /// Labels of the task. `None` if it has none.
    pub fn labels(&self) -> Option<&TaskLabels> {
        self.labels.as_deref()
    }

    /// Display name of the task.
    pub fn name(&self) -> Option<&str> {
        self.labels()?.name.as_deref()
    }

    /// Tags of the task.
    pub fn tags(&self) -> &[String] {
        self.labels().map_or(&[], |labels| &labels.tags)
    }

    /// Creator of the task.
    pub fn creator(&self) -> Option<&str> {
        self.labels()?.creator.as_deref()
    }

    /// Options of the task: the JSON object that was stored with it.
    pub fn options(&self) -> Option<&RawJson> {
        self.labels()?.options.as_ref()
    }

    /// Headers of the task's record that its type keeps.
    pub fn kept_headers(&self) -> Option<&KeptHeaders> {
        self.headers.as_ref()
    }

    /// Receiver of the attempt's output.
    pub fn sink(&self) -> &dyn AttemptSink {
        &*self.env.sink
    }

    pub(super) fn env(&self) -> &Arc<TypeEnv> {
        &self.env
    }

    pub(super) fn spawned(&self) -> MutexGuard<'_, SpawnedWork> {
        self.extras.get_or_init(Box::default).spawned.lock()
    }

    pub(super) fn services(&self) -> MutexGuard<'_, Services> {
        self.extras.get_or_init(Box::default).services.lock()
    }

    /// Counts a child of a traced attempt. Returns whether it belongs to the attempt's trace, as the first ones do.
    #[doc(hidden)]
    pub fn admit_to_trace(&self) -> bool {
        self.traced_children.fetch_add(1, Ordering::Relaxed) < MAX_CHILDREN_IN_TRACE
    }

    /// Counts a child, and returns its place among the children of the attempt, from 0.
    #[doc(hidden)]
    pub fn count_child(&self) -> u32 {
        self.children.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of children that the attempt has published.
    pub fn published_children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }

    /// Counts activity, in this process only.
    pub fn record_activity(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the activity counter. If it does not change between two checks, the attempt has stalled.
    pub fn activity(&self) -> u32 {
        self.activity.load(Ordering::Relaxed)
    }

    /// Returns whether the attempt has ended, so that its output is ignored.
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
