//! Batches: task types whose handler takes several tasks in one call, such as rows for one `INSERT`.
//!
//! ```
//! use kafleet::handlers::testing::TestRun;
//! use kafleet::handlers::{Batch, BatchContext, BatchTask, Failure, Item, TaskResult};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Insert {
//!     tenant: String,
//!     amount: i64,
//! }
//!
//! impl BatchTask for Insert {
//!     const TYPE: &'static str = "insert";
//!     const BATCH: Batch = Batch { by: Some("/tenant"), ..Batch::DEFAULT };
//!     type Output = usize;
//!
//!     async fn run_batch(items: Vec<Item<Self>>, _cx: BatchContext) -> TaskResult<Vec<TaskResult<usize>>> {
//!         let insert = |(row, item): (usize, Item<Self>)| match item.params.amount {
//!             0.. => Ok(row),
//!             amount => Err(Failure::fail(format!("an amount of {amount}"))),
//!         };
//!         Ok(items.into_iter().enumerate().map(insert).collect())
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! // In a binary: `kafleet::app().task::<Insert>().main()`
//! let rows = [5, -1, 7].map(|amount| Insert { tenant: "acme".into(), amount });
//! let outcomes = TestRun::new().run_batch(rows.into()).await.unwrap();
//! assert_eq!((outcomes[0].output(), outcomes[2].output()), (0.into(), 2.into()));
//! assert_eq!(outcomes[1].failure().message, "an amount of -1");
//! # });
//! ```
//!
//! Results, failures, children and continuations belong to single tasks: an `Err` of an item fails, retries or delays that task
//! alone. A call that fails as a whole says nothing about single tasks, so the worker runs its halves on their own, and only the
//! failure of a single task counts as an attempt.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet_config::{BatchPolicy, Bytes, with_type_settings};
use kafleet_model::json::RawJson;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::blocking_pool::BlockingPool;
use super::context::{CancelReason, TypeEnv};
use super::type_constants::{batch_constants, constants};
use super::{
    Answer, AnswerFuture, BatchAnswer, BatchFuture, Capabilities, Context, Failure, Handler, InChild, Isolation, Order,
    ParamsError, RunFuture, Task, TaskResult, TypeRegistration, answer, schema,
};

/// Failure kind of a call whose answers are not as many as its items.
const BAD_BATCH: &str = "bad_batch";

/// A task type whose handler takes several tasks in one call. The struct's fields are the params of one task and define the
/// schema. The policy is given by constants with defaults, which `[types.<name>]` in `kafleet.toml` may override. Each such type
/// is a [`Task`] too: it is registered, submitted and spawned like any other.
pub trait BatchTask: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// Name of the type: `[a-z0-9-]{1,64}`.
    const TYPE: &'static str;
    with_type_settings!(constants);
    /// Size of batches, and which tasks form one. `batch` in `kafleet.toml` overrides single members.
    const BATCH: Batch = Batch::DEFAULT;
    /// Set to true if `run_batch` computes or blocks without `await`; see [`Task::BLOCKING`].
    const BLOCKING: bool = false;

    /// Result of one task, any JSON.
    type Output: Serialize + JsonSchema + Send;

    /// Runs one attempt at each of the items, in one call; a single item is a batch of one. Returns an answer for each, in their
    /// order. The future is dropped if it ignores a timeout or a cancellation of all its items.
    ///
    /// # Errors
    /// The failure of the call as a whole. With more than one item its halves run again on their own, and no attempt is
    /// counted; except for a wait, kinds in `trip_on` and `rate_limited`, which are the failure of each item.
    fn run_batch(
        items: Vec<Item<Self>>,
        cx: BatchContext,
    ) -> impl Future<Output = TaskResult<Vec<TaskResult<Self::Output>>>> + Send;
}

/// Size and forming of the batches of a Rust type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Maximum number of tasks in a call, 2 to 10,000. Default: 100.
    pub max: u32,
    /// Time for which the first task of a batch waits for others, at most 10 minutes. Default: 20 ms.
    pub wait: Duration,
    /// Maximum size of the params of a batch, in bytes, up to 1 GiB; a larger task runs alone. Default: 4 MiB.
    pub max_bytes: u64,
    /// JSON pointer into the params: only tasks with equal values there are in a batch. Default: none.
    pub by: Option<&'static str>,
    /// Run the halves of a batch that fails as a whole on their own, down to one task; `false`: the failure counts for each
    /// task. Default: true.
    pub split: bool,
}

impl Batch {
    /// Defaults of all members.
    pub const DEFAULT: Self =
        Self { max: 100, wait: Duration::from_millis(20), max_bytes: 4 << 20, by: None, split: true };

    fn policy(self) -> BatchPolicy {
        BatchPolicy {
            max: self.max,
            wait: self.wait.into(),
            max_bytes: Bytes(self.max_bytes),
            by: self.by.map(str::to_owned),
            split: self.split,
        }
    }
}

/// Task of a batch, with the context of its attempt. It dereferences to the params.
pub struct Item<T> {
    /// Params of the task.
    pub params: T,
    /// Context of the attempt at this task: its id, children, log and progress, and the token that is cancelled when this task is.
    pub cx: Context,
}

impl<T> Deref for Item<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.params
    }
}

/// Context of one call with several tasks. Cheap to clone. What belongs to a task, such as its log, is in the context of its
/// [`Item`].
#[derive(Clone)]
pub struct BatchContext(Arc<BatchCall>);

struct BatchCall {
    items: Vec<Context>,
    deadline: Option<Instant>,
    cancel: CancellationToken,
    env: Arc<TypeEnv>,
}

impl BatchContext {
    /// Creates the context of a call with attempts at these tasks. `deadline`: time at which it is cancelled; `None`: no limit.
    #[doc(hidden)]
    pub fn begin(items: Vec<Context>, deadline: Option<Instant>, env: Arc<TypeEnv>) -> Self {
        Self(Arc::new(BatchCall { items, deadline, cancel: CancellationToken::new(), env }))
    }

    /// Creates the context of a call with a single attempt, which ends with it.
    fn of_one(cx: &Context) -> Self {
        let (deadline, cancel, env) = (cx.deadline, cx.cancelled().clone(), cx.env().clone());
        Self(Arc::new(BatchCall { items: vec![cx.clone()], deadline, cancel, env }))
    }

    /// Number of tasks in the call.
    pub fn size(&self) -> usize {
        self.0.items.len()
    }

    /// Name of the type.
    pub fn task_type(&self) -> &str {
        &self.0.env.task_type
    }

    /// Time at which the call is cancelled. `None`: no limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Returns the token that is cancelled when the call should stop: on a timeout, on shutdown of the worker, or because all of
    /// its tasks were cancelled.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.0.cancel
    }

    /// Returns whether the call should stop; see [`BatchContext::cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Returns an error if the call should stop. Use `cx.check()?` in long loops.
    ///
    /// # Errors
    /// The call should stop.
    pub fn check(&self) -> TaskResult<()> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// Reports activity, which restarts the type's `stall_timeout`. Nothing is published, so it may be called often.
    pub fn heartbeat(&self) {
        self.0.items.iter().take(1).for_each(Context::heartbeat);
    }

    /// Runs blocking work on a thread of the type; see [`Context::blocking`].
    ///
    /// # Errors
    /// That of the work, or the call should stop.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> TaskResult<T> + Send + 'static,
    ) -> TaskResult<T> {
        self.check()?;
        self.0.env.blocking_pool.call(work).await?
    }

    /// Returns the application state passed to `.state(…)`.
    ///
    /// # Panics
    /// If the application has no state of this type. The panic fails the call as a whole.
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        self.0.env.state()
    }

    /// Returns the activity counter of all items. If it does not change between two checks, the call has stalled.
    #[doc(hidden)]
    pub fn activity(&self) -> u32 {
        self.0.items.iter().fold(0, |sum, cx| sum.wrapping_add(cx.activity()))
    }

    /// Cancels the call, and the attempts at its tasks.
    #[doc(hidden)]
    pub fn interrupt(&self, reason: CancelReason) {
        for cx in &self.0.items {
            cx.interruption.set_cancel_reason(reason);
            cx.cancelled().cancel();
        }
        self.0.cancel.cancel();
    }
}

/// Returns the answers of a call if there is one for each of its items.
///
/// # Errors
/// The failure of the call: its answers cannot be attributed.
#[doc(hidden)]
pub fn check_number<T>(answers: Vec<T>, items: usize) -> Result<Vec<T>, Failure> {
    if answers.len() == items { Ok(answers) } else { Err(wrong_number(answers.len(), items)) }
}

/// Runs an attempt as a call with one task.
pub(crate) async fn run_one<P, O, F>(
    params: P,
    cx: Context,
    call: impl FnOnce(Vec<Item<P>>, BatchContext) -> F,
) -> TaskResult<O>
where
    F: Future<Output = TaskResult<Vec<TaskResult<O>>>>,
{
    let of_one = BatchContext::of_one(&cx);
    let mut answers = check_number(call(vec![Item { params, cx }], of_one).await?, 1)?;
    answers.pop().unwrap_or_else(|| Err(wrong_number(0, 1)))
}

fn wrong_number(answers: usize, items: usize) -> Failure {
    let message = format!("the handler gave {answers} answers for {items} tasks: return one for each, in their order");
    Failure::retry(message).of_kind(BAD_BATCH)
}

/// Each type with batches is a task type; a single attempt is a batch of one.
impl<T: BatchTask> Task for T {
    const TYPE: &'static str = <T as BatchTask>::TYPE;
    with_type_settings!(batch_constants);
    const BLOCKING: bool = <T as BatchTask>::BLOCKING;

    type Output = <T as BatchTask>::Output;

    async fn run(self, cx: Context) -> TaskResult<Self::Output> {
        run_one(self, cx, T::run_batch).await
    }

    fn registration() -> TypeRegistration {
        let blocking_pool = <T as BatchTask>::BLOCKING.then(|| BlockingPool::new(<T as BatchTask>::TYPE));
        let handler = BatchHandler::<T> { blocking_pool, _task: std::marker::PhantomData };
        let mut registered = TypeRegistration::of_handler::<T>(handler);
        registered.policy.batch = Some(T::BATCH.policy());
        registered
    }
}

/// Adapts a [`BatchTask`] to a [`Handler`].
struct BatchHandler<T> {
    blocking_pool: Option<BlockingPool>,
    _task: std::marker::PhantomData<fn() -> T>,
}

impl<T> BatchHandler<T> {
    fn on_threads<O: Send + 'static>(&self, run: RunFuture<O>) -> RunFuture<O> {
        match &self.blocking_pool {
            Some(blocking_pool) => blocking_pool.run(run),
            None => run,
        }
    }
}

impl<T: BatchTask> Handler for BatchHandler<T> {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let task: T = schema::read(params.text())?;
        Ok(self.on_threads(Box::pin(async move { answer(&Task::run(task, cx).await?) })))
    }

    fn run_batch(&self, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchFuture {
        self.on_threads(Box::pin(run_items::<T>(items, cx)))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            takes_batches: true,
            in_child: InChild::Type(<T as BatchTask>::TYPE),
            check_params: schema::check_as::<T>(),
            stuck: self.blocking_pool.as_ref().map(BlockingPool::stuck_counter),
            ..Capabilities::default()
        }
    }
}

/// Calls the handler with the items whose params it accepts; the others fail on their own.
async fn run_items<T: BatchTask>(items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchAnswer {
    let (mut rejected, mut accepted) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for Item { params, cx } in items {
        match schema::read::<T>(params.text()) {
            Ok(params) => {
                accepted.push(Item { params, cx });
                rejected.push(None);
            }
            Err(error) => rejected.push(Some(Failure::of_params(&error))),
        }
    }
    let number = accepted.len();
    let answers = if number == 0 { Vec::new() } else { T::run_batch(accepted, cx).await? };
    let mut answers = check_number(answers, number)?.into_iter();
    let answer_of = |rejected: Option<Failure>| -> Answer {
        match rejected {
            Some(failure) => Err(failure),
            None => answer(&answers.next().unwrap_or_else(|| Err(wrong_number(0, number)))?),
        }
    };
    Ok(rejected.into_iter().map(answer_of).collect())
}
