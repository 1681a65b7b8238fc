//! Runs a single attempt without a fleet, for tests of task types.
//!
//! ```
//! use kafleet::handlers::builtin::foreach::Foreach;
//! use kafleet::handlers::testing::TestRun;
//! use kafleet::model::units::duration::Millis;
//! use serde_json::json;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let outcome = TestRun::new().run(Foreach { count: 2, pause: Millis(1), fail_at: None }).await;
//! assert_eq!(outcome.output(), json!({"steps": 2}));
//! assert_eq!(outcome.progress(), [json!({"step": 1, "of": 2}), json!({"step": 2, "of": 2})]);
//! # });
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use kafleet_model::json::RawJson;
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::limits::TaskLimits;
use kafleet_model::task::{Policy, Trace};
use parking_lot::Mutex;
use serde_json::Value;

use super::batch::check_number;
use super::blocking_pool::BlockingPool;
use super::context::{Attempt, AttemptSink, AttemptStart, MAX_CHILDREN, TypeEnv};
use super::hooks::Submission;
use super::note::Note;
use super::task_labels::TaskLabels;
use super::{
    Answer, BatchContext, BatchTask, Child, Context, Failure, Item, ParamsError, Registry, Task, TypeRegistration,
};

/// Setup of an attempt. Defaults: id `test`, run 1, attempt 1, a deadline in 120 s, no state.
pub struct TestRun {
    id: String,
    number: u32,
    timeout: Duration,
    trace: Option<Box<Trace>>,
    headers: Vec<(Box<str>, Box<str>)>,
    policy: Policy,
    registry: Registry,
}

/// The observed result of an attempt.
#[derive(Debug)]
pub struct Outcome {
    /// Result, or failure.
    pub answer: Answer,
    /// Children of `spawn`, `spawn_all` and `spawn_child`, each with its segment. Empty if the attempt failed.
    pub children: Vec<Child>,
    /// Continuations of `then`.
    pub continuations: Vec<Continuation>,
    /// Children of `spawn_now`.
    pub spawned_now: Vec<Child>,
    /// Progress, log lines, warnings and attachments, in order.
    pub notes: Vec<Note>,
}

/// Records the output and the immediate children of an attempt.
#[derive(Default)]
pub struct Recorder {
    notes: Mutex<Vec<Note>>,
    spawned_now: Mutex<Vec<Child>>,
}

impl Default for TestRun {
    fn default() -> Self {
        Self::new()
    }
}

impl TestRun {
    /// Creates a setup with the defaults.
    pub fn new() -> Self {
        let (timeout, registry) = (Duration::from_secs(120), Registry::default());
        let (headers, policy) = (Vec::new(), Policy::default());
        Self { id: "test".into(), number: 1, timeout, trace: None, headers, policy, registry }
    }

    /// Sets the task's id.
    pub fn id(mut self, id: &str) -> Self {
        self.id = id.to_owned();
        self
    }

    /// Adds application state, like `kafleet::app().state(…)`.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.registry.share(state);
        self
    }

    /// Sets the number of the attempt; the first is 1.
    pub fn attempt(mut self, number: u32) -> Self {
        self.number = number;
        self
    }

    /// Sets the attempt's deadline, relative to its start. Nothing enforces it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the attempt's `traceparent`.
    pub fn trace(mut self, parent: &str) -> Self {
        self.trace = Some(Box::new(Trace { parent: parent.to_owned(), state: None }));
        self
    }

    /// Sets the name, tags, creator, options and headers of the task, as its creator would.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Adds a header of the task's record, as if `KEEP_HEADERS` of the type listed it.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a hook, like `kafleet::app().prepare(…)`.
    pub fn prepare(mut self, hook: impl Fn(&mut Submission) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.registry.prepare(hook);
        self
    }

    /// Creates a context and the recorder of its output, for driving a handler by hand, for example to cancel
    /// `cx.cancelled()` midway.
    ///
    /// # Panics
    /// If the id is invalid.
    pub fn begin(&self, task_type: &str) -> (Context, Arc<Recorder>) {
        self.begin_as(&self.id, task_type)
    }

    fn begin_as(&self, id: &str, task_type: &str) -> (Context, Arc<Recorder>) {
        let recorder = Arc::new(Recorder::default());
        let id = TaskId::parse(id).unwrap_or_else(|error| panic!("{error}"));
        let cx = Context::begin(AttemptStart {
            id,
            run: 1,
            number: self.number,
            deadline: Instant::now().checked_add(self.timeout),
            trace: self.trace.clone(),
            asof: None,
            labels: TaskLabels::of(&self.policy),
            headers: (!self.headers.is_empty()).then(|| self.headers.clone().into()),
            env: Arc::new(TypeEnv {
                task_type: task_type.into(),
                worker: "test".into(),
                state: self.registry.state().clone(),
                sink: recorder.clone(),
                limits: TaskLimits::default(),
                blocking_pool: BlockingPool::new(task_type),
            }),
        });
        (cx, recorder)
    }

    /// Runs one attempt of a Rust task. The params pass through JSON and the schema as in a fleet.
    pub async fn run<T: Task>(&self, task: T) -> Outcome {
        match RawJson::of(&task) {
            Ok(params) => self.handle(T::TYPE, &TypeRegistration::of::<T>(), params).await,
            Err(error) => Outcome::failed(Failure::fail(format!("the params are not JSON: {error}"))),
        }
    }

    /// Runs one call with tasks of a Rust type that takes batches, whatever their number. Their ids are that of the setup with `-1`,
    /// `-2` and so on. The params pass through JSON and the schema as in a fleet; a task whose params are invalid is not in the
    /// call, and fails.
    ///
    /// # Errors
    /// The failure of the call as a whole. A worker runs the halves of the tasks on their own then.
    pub async fn run_batch<T: BatchTask>(&self, tasks: Vec<T>) -> Result<Vec<Outcome>, Failure> {
        let params: Result<Vec<_>, _> = tasks.iter().map(RawJson::of).collect();
        let params = params.map_err(|error| Failure::fail(format!("the params are not JSON: {error}")))?;
        self.handle_batch(<T as BatchTask>::TYPE, &TypeRegistration::of::<T>(), params).await
    }

    /// Runs one call with tasks of a registered type; see [`TestRun::run_batch`].
    ///
    /// # Errors
    /// The failure of the call as a whole.
    pub async fn handle_batch(
        &self,
        task_type: &str,
        registered: &TypeRegistration,
        params: Vec<RawJson>,
    ) -> Result<Vec<Outcome>, Failure> {
        let (mut started, mut items) = (Vec::with_capacity(params.len()), Vec::with_capacity(params.len()));
        for (n, params) in params.into_iter().enumerate() {
            let error = registered.validate(&params);
            let (cx, recorder) = self.begin_as(&format!("{}-{}", self.id, n + 1), task_type);
            if error.is_none() {
                items.push(Item { params, cx: cx.clone() });
            }
            started.push((error, cx, recorder));
        }
        let contexts: Vec<Context> = items.iter().map(|item| item.cx.clone()).collect();
        let number = items.len();
        let answers = match contexts.first().map(|cx| (cx.deadline, cx.env().clone())) {
            Some((deadline, env)) => {
                let call = BatchContext::begin(contexts, deadline, env);
                check_number(registered.handler.run_batch(items, call).await?, number)?
            }
            None => Vec::new(),
        };
        let mut answers = answers.into_iter();
        let outcome = |(error, cx, recorder): (Option<ParamsError>, Context, Arc<Recorder>)| match error {
            Some(error) => Outcome::failed(Failure::of_params(&error)),
            None => match answers.next() {
                Some(answer) => Outcome::of(answer, &cx, &recorder),
                None => Outcome::failed(Failure::fail("the call has no answer for the task")),
            },
        };
        Ok(started.into_iter().map(outcome).collect())
    }

    /// Runs one attempt of a registered type. Invalid params are a failure of kind `schema`.
    pub async fn handle(&self, task_type: &str, registered: &TypeRegistration, params: RawJson) -> Outcome {
        let (cx, recorder) = self.begin(task_type);
        let checked = !registered.handler.capabilities().checks_schema;
        let started = match registered.schema.validate(&params).filter(|_| checked) {
            Some(error) => Err(error),
            None => registered.handler.run(&params, cx.clone()),
        };
        match started {
            Ok(attempt) => Outcome::of(attempt.await, &cx, &recorder),
            Err(error) => Outcome::failed(Failure::of_params(&error)),
        }
    }
}

impl Outcome {
    fn failed(failure: Failure) -> Self {
        Self {
            answer: Err(failure),
            children: Vec::new(),
            continuations: Vec::new(),
            spawned_now: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Evaluates the attempt like a worker: children that cannot be published fail it.
    fn of(answer: Answer, cx: &Context, recorder: &Recorder) -> Self {
        let settled =
            answer.and_then(|output| Ok((output, name_all(cx, cx.take_spawned())?, cx.take_continuations(0)?)));
        let (answer, children, continuations) = match settled {
            Ok((output, children, continuations)) => (Ok(output), children, continuations),
            Err(failure) => (Err(failure), Vec::new(), Vec::new()),
        };
        Self {
            answer,
            children,
            continuations,
            spawned_now: std::mem::take(&mut recorder.spawned_now.lock()),
            notes: recorder.notes(),
        }
    }

    /// Returns the result.
    ///
    /// # Panics
    /// If the attempt failed.
    pub fn output(&self) -> Value {
        match &self.answer {
            Ok(output) => output.value().unwrap_or_else(|error| panic!("the result cannot be read: {error}")),
            Err(failure) => panic!("the attempt failed: {failure:?}"),
        }
    }

    /// Returns the failure.
    ///
    /// # Panics
    /// If the attempt succeeded.
    pub fn failure(&self) -> &Failure {
        match &self.answer {
            Ok(output) => panic!("the attempt succeeded: {output:?}"),
            Err(failure) => failure,
        }
    }

    /// Returns the published progress, in order.
    pub fn progress(&self) -> Vec<Value> {
        let progress = |note: &Note| if let Note::Progress(state) = note { state.value().ok() } else { None };
        self.notes.iter().filter_map(progress).collect()
    }

    /// Returns the lines of the log, in order.
    pub fn log(&self) -> Vec<&str> {
        fn line(note: &Note) -> Option<&str> {
            if let Note::Log(line) | Note::Output(_, line) = note { Some(line) } else { None }
        }
        self.notes.iter().filter_map(line).collect()
    }
}

impl Recorder {
    /// Returns the output so far.
    pub fn notes(&self) -> Vec<Note> {
        self.notes.lock().clone()
    }
}

impl AttemptSink for Recorder {
    fn note(&self, _attempt: &Attempt, note: Note) {
        self.notes.lock().push(note);
    }

    fn spawn_now<'a>(
        &'a self,
        attempt: &'a Context,
        children: Vec<Child>,
    ) -> BoxFuture<'a, Result<Vec<TaskId>, Failure>> {
        Box::pin(async move {
            let children = name_all(attempt, children)?;
            let ids = children.iter().map(|child| attempt.child_id(child)).collect();
            self.spawned_now.lock().extend(children);
            ids
        })
    }
}

/// Sets the id segment of each child to the one with which it would be published.
fn name_all(cx: &Context, mut children: Vec<Child>) -> Result<Vec<Child>, Failure> {
    if children.len() > MAX_CHILDREN {
        let error = format!("the attempt spawned {} children: at most {MAX_CHILDREN} are allowed", children.len());
        return Err(Failure::fail(error).of_kind("bad_child"));
    }
    for child in &mut children {
        child.segment = Some(cx.child_id(child)?.segment().to_owned());
    }
    Ok(children)
}
