//! Task types: the trait implemented by user code, the registry, and the built-in types.
//!
//! In: the params of an attempt, with its [`Context`]. Out: a [`TaskResult`], the children that the attempt spawned,
//! and its continuations. A Rust task type is a struct whose fields are the params, with a `run` method, and is
//! registered in one line. The handlers `echo`, `foreach`, `exec` and `http` define types in `kafleet.toml` alone;
//! `callback` and `email` deliver notifications about tasks. [`builtin`] creates them from the configuration.
//! [`testing`] runs a single attempt without a fleet.
//!
//! Invariant: a handler knows neither Kafka nor the store. What it asks for, such as a child, goes through the services
//! of its [`Context`], and the worker publishes it before the result of the attempt. A handler that published by itself
//! would leave children of attempts that are repeated.
//!
//! Read next: [`Task`] in this file, `context.rs`, `registry.rs`, then `builtin/mod.rs`.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use kafleet_client::NewTask;
use kafleet_config::with_type_settings;
use kafleet_model::json::RawJson;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub mod batch;
#[doc(hidden)]
pub mod blocking_pool;
#[doc(hidden)]
pub mod builtin;
mod child;
pub mod context;
mod continuations;
#[doc(hidden)]
pub mod egress;
mod failure;
mod from_fn;
#[doc(hidden)]
pub mod hidden_params;
pub mod hooks;
mod interruption;
pub mod layer;
#[doc(hidden)]
pub mod note;
#[doc(hidden)]
pub mod output_tail;
pub mod permit;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod process_guard;
#[doc(hidden)]
pub mod program_env;
mod registry;
#[doc(hidden)]
pub mod resident_memory;
mod schema;
pub mod service;
mod shared_state;
#[doc(hidden)]
pub mod socket;
pub mod task_labels;
pub mod testing;
mod type_constants;

pub use batch::{Batch, BatchContext, BatchTask, Item};
pub use child::Child;
pub use context::Context;
#[doc(hidden)]
pub use continuations::BAD_THEN;
#[doc(hidden)]
pub use failure::excerpt;
pub use failure::{BUSY, CRASHED, Fail, Failure, OrFail, RATE_LIMITED, TIMEOUT, TaskResult, UNREACHABLE, UNSUCCESSFUL};
pub use registry::{Registry, TypeDetails, TypeRegistration};
pub use schema::{ParamsError, Schema};
pub use shared_state::SharedState;

use blocking_pool::BlockingPool;
pub use kafleet_config::{Isolation, Order};
pub use kafleet_model::record::attachment::Attachment;
pub use kafleet_model::record::state::State;
pub use kafleet_model::task::continuation::{Continuation, Ended, Joined, On};
use permit::PermitSource;
use type_constants::constants;

/// A task type. The struct's fields are the params and define the schema. The policy is given by constants with
/// defaults, which `[types.<name>]` in `kafleet.toml` may override.
pub trait Task: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// Name of the type: `[a-z0-9-]{1,64}`.
    const TYPE: &'static str;
    with_type_settings!(constants);
    /// Set to true if `run` computes or blocks without `await`: each attempt then runs on its own thread, one per
    /// slot, and does not delay other types. A thread cannot be interrupted: if it ignores [`Context::cancelled`], it
    /// keeps its slot until it returns, even after its attempt is over; with `ISOLATION` it is killed with its
    /// process.
    const BLOCKING: bool = false;

    /// Result of the task, any JSON. For work that completed without success see [`Failure::unsuccessful`].
    type Output: Serialize + JsonSchema + Send;

    /// Runs one attempt. The future is dropped if it ignores a timeout or a cancellation.
    fn run(self, cx: Context) -> impl Future<Output = TaskResult<Self::Output>> + Send;

    /// Returns a task with these params, for [`Client::submit`](kafleet_client::Client::submit).
    fn to_new_task(&self) -> NewTask<Self::Output> {
        NewTask::of(Self::TYPE, self)
    }

    /// Returns a continuation that runs a task with these params.
    ///
    /// # Errors
    /// The params cannot be encoded as JSON, for example because a map has keys that are not strings. The failure is final.
    fn to_continuation(&self) -> TaskResult<Continuation> {
        Ok(Continuation::new(Self::TYPE, continuations::encode(self)?))
    }

    /// Returns a continuation whose params are a [`Joined`]: the given params and the results of the tasks it follows.
    ///
    /// # Errors
    /// The params cannot be encoded as JSON. The failure is final.
    fn join(params: impl Serialize) -> TaskResult<Continuation> {
        Ok(Continuation::new(Self::TYPE, continuations::encode(params)?).with_results())
    }

    /// Describes the type for a registry.
    #[doc(hidden)]
    fn registration() -> TypeRegistration
    where
        Self: Sized,
    {
        TypeRegistration::of_handler::<Self>(TypedHandler::<Self>::new())
    }
}

/// The result of an attempt: JSON, or a failure.
pub type Answer = Result<RawJson, Failure>;
/// Future of an attempt.
pub type AnswerFuture = RunFuture<RawJson>;

/// The result of a call with several tasks: an answer for each, or the failure of the call as a whole.
pub type BatchAnswer = Result<Vec<Answer>, Failure>;
/// Future of a call with several tasks.
pub type BatchFuture = RunFuture<Vec<Answer>>;
/// Future of what a handler runs: an attempt, or a call with several tasks.
pub type RunFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Runs the attempts of one type. [`Task`]s are wrapped in an implementation; `exec` and `http` implement it
/// directly.
pub trait Handler: Send + Sync + 'static {
    /// Called by a worker at startup, before it takes tasks of the type. The error names the missing prerequisite.
    fn prepare(&self) -> Result<(), String> {
        Ok(())
    }

    /// Runs an attempt. The params are valid JSON according to the schema. Params rejected by the handler itself
    /// are reported here, before anything runs, so that they are parsed once. User code may panic here as well as in
    /// the future.
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError>;

    /// Runs attempts at several tasks in one call; only for handlers with [`Capabilities::takes_batches`]. The answers are in the
    /// order of the items. Params that the handler rejects are a failure of their item. User code may panic here as well as in
    /// the future.
    fn run_batch(&self, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchFuture {
        let (task_type, number) = (cx.task_type().to_owned(), items.len());
        let message = format!("the handler of `{task_type}` takes one task a call, and was given {number}");
        Box::pin(std::future::ready(Err(Failure::fail(message))))
    }

    /// Returns what the handler can do and needs, apart from its attempts. It does not change.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// Abilities and needs of a handler.
#[derive(Clone, Default)]
pub struct Capabilities {
    /// The handler checks params against the schema of the type itself, because they may change before they reach it.
    pub checks_schema: bool,
    /// The handler takes several tasks in one call ([`Handler::run_batch`]).
    pub takes_batches: bool,
    /// Attempts log nothing. Those of other handlers run in a tracing span with the task's id, type and attempt, which costs
    /// more than a trivial task.
    pub is_silent: bool,
    /// Handler of the attempts in a child process of this binary.
    pub in_child: InChild,
    /// Returns the error with which `run` would reject params, without running the task. `None`: it rejects none.
    pub check_params: Option<CheckParams>,
    /// Returns the host that an attempt with these params calls. A worker then has a circuit for each host. `None`: all
    /// attempts call the same service, or none.
    pub host: Option<HostOf>,
    /// Number of ended attempts that still block their threads; each occupies a slot.
    pub stuck: Option<Arc<AtomicUsize>>,
    /// Source of permits, if attempts of several types share capacity. A worker then takes a permit before it takes a task,
    /// and runs the attempt with the permit.
    pub permits: Option<Arc<dyn PermitSource>>,
}

/// Host that an attempt with these params calls, such as `hooks.example.com` or `10.0.0.7:8443`; `None` if it calls none.
pub type HostOf = Arc<dyn Fn(&RawJson) -> Option<String> + Send + Sync>;

/// Check of params.
pub type CheckParams = Arc<dyn Fn(&RawJson) -> Option<ParamsError> + Send + Sync>;

/// Handler that a child process of this binary finds for the attempts of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InChild {
    /// Handler of the type itself.
    #[default]
    SameType,
    /// Handler of the type with this name.
    Type(&'static str),
    /// No handler: that of the type cannot crash its process and needs no child process.
    Never,
}

impl InChild {
    /// Name of the type whose handler a child process uses.
    #[doc(hidden)]
    pub fn type_name<'a>(&self, task_type: &'a str) -> Option<&'a str> {
        match self {
            Self::SameType => Some(task_type),
            Self::Type(name) => Some(name),
            Self::Never => None,
        }
    }
}

/// Adapts a [`Task`] to a [`Handler`].
struct TypedHandler<T> {
    blocking_pool: Option<BlockingPool>,
    _task: PhantomData<fn() -> T>,
}

impl<T: Task> TypedHandler<T> {
    fn new() -> Self {
        Self { blocking_pool: T::BLOCKING.then(|| BlockingPool::new(T::TYPE)), _task: PhantomData }
    }
}

impl<T: Task> Handler for TypedHandler<T> {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let task: T = schema::read(params.text())?;
        let attempt = Box::pin(async move { answer(&task.run(cx).await?) });
        Ok(match &self.blocking_pool {
            Some(blocking_pool) => blocking_pool.run(attempt),
            None => attempt,
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            in_child: InChild::Type(T::TYPE),
            check_params: schema::check_as::<T>(),
            stuck: self.blocking_pool.as_ref().map(BlockingPool::stuck_counter),
            ..Capabilities::default()
        }
    }
}

fn answer(output: &impl Serialize) -> Answer {
    RawJson::of(output).map_err(|error| Failure::fail(format!("the result is not JSON: {error}")).of_kind("bad_output"))
}
