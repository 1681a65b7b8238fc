//! What a task type is: the trait that user code implements, the registry, and the built-in types.
//!
//! A Rust task type is one struct, whose fields are the params, with one `run`, and one line where it is registered.
//! `echo`, `foreach`, `exec` and `http` make types from `kafleet.toml` alone, `callback` and `email` make those by which tasks tell others; [`builtin`] reads them from there.
//! [`testing`] runs one attempt without a fleet.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::{Isolation, Order};
use crate::model::json::RawJson;

pub(crate) mod blocking_pool;
pub mod builtin;
pub mod context;
mod continuations;
pub mod egress;
mod failure;
mod registry;
mod schema;
pub mod testing;

pub use context::{Child, Context};
pub use failure::{Fail, Failure, OrFail, TIMEOUT, TaskResult, UNSUCCESSFUL};
pub use registry::{Registered, Registry, SharedState};
pub use schema::{ParamsError, Schema};

pub use crate::model::task::continuation::{Continuation, Ended, Joined, On};
use blocking_pool::Threads;

/// A task type. The struct is the task: its fields are the params and the schema, the policy is constants with defaults,
/// which `[types.<name>]` in `kafleet.toml` may override.
pub trait Task: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// `[a-z0-9-]{1,64}`.
    const TYPE: &'static str;
    /// Attempts at once in one worker; 0 is the number of cores.
    const CONCURRENCY: u32 = 0;
    const ORDER: Order = Order::None;
    /// Attempts after the first.
    const RETRIES: u32 = 5;
    const MIN_BACKOFF: Duration = Duration::from_secs(1);
    const MAX_BACKOFF: Duration = Duration::from_secs(3);
    /// Of one attempt.
    const TIMEOUT: Duration = Duration::from_secs(120);
    /// Of all attempts and waits together, from the task's creation.
    const TOTAL_TIMEOUT: Option<Duration> = None;
    /// Without progress, a log line or [`Context::heartbeat`]: the attempt fails as `stalled`.
    const STALL_TIMEOUT: Option<Duration> = None;
    /// `Process`: in child processes, so that an attempt that crashes takes down nothing else.
    const ISOLATION: Isolation = Isolation::None;
    /// `run` computes or waits without `await`: each attempt has a thread of its own, as many as there are slots, and holds
    /// up no other type. A thread cannot be interrupted: one that does not heed [`Context::cancelled`] keeps its slot
    /// until it is done, also when its attempt is over; with `ISOLATION` it is killed with its process.
    const BLOCKING: bool = false;

    /// The result, any JSON. For work that is done without success see [`Failure::unsuccessful`].
    type Output: Serialize + JsonSchema + Send;

    /// One attempt. Dropped at a timeout or a cancellation that it does not heed.
    fn run(self, cx: Context) -> impl Future<Output = TaskResult<Self::Output>> + Send;
}

/// The answer of one attempt: JSON, or why not.
pub type Answer = Result<RawJson, Failure>;
pub type AnswerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What runs attempts of one type. [`Task`]s are wrapped into it; `exec` and `http` implement it themselves.
pub trait Handler: Send + Sync + 'static {
    /// Begins an attempt. Params are JSON and fit the schema; what does not fit beyond it is refused here, before
    /// anything has run, so that params are read once. User code may panic in it as in the future.
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError>;

    /// Whether `start` would refuse these params: for whoever checks a task without running it. None: they fit.
    fn refuses(&self, _params: &RawJson) -> Option<ParamsError> {
        None
    }

    /// Whether what it logs is worth a span with the task's id, type and attempt. A span costs more than a task that does
    /// next to nothing: a handler that logs nothing itself says no.
    fn logs(&self) -> bool {
        true
    }

    /// The name by which a child process of this binary finds the handler of this type. None: nothing that it runs can take
    /// down its process, so that it needs no other one.
    fn name_in_child<'a>(&'a self, task_type: &'a str) -> Option<&'a str> {
        Some(task_type)
    }

    /// Attempts that are over and cannot be stopped: each takes a slot until it is done.
    fn stuck(&self) -> usize {
        0
    }

    /// Called by a worker before it takes tasks of the type, early in its life. The error says what is missing.
    fn prepare(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A [`Task`] as a [`Handler`].
struct Typed<T> {
    threads: Option<Threads>,
    _task: PhantomData<fn() -> T>,
}

impl<T: Task> Typed<T> {
    fn new() -> Self {
        Self { threads: T::BLOCKING.then(|| Threads::new(T::TYPE)), _task: PhantomData }
    }
}

impl<T: Task> Handler for Typed<T> {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let task: T = schema::read(params.text())?;
        let attempt = Box::pin(async move { answer(&task.run(cx).await?) });
        Ok(match &self.threads {
            Some(threads) => threads.run(attempt),
            None => attempt,
        })
    }

    fn stuck(&self) -> usize {
        self.threads.as_ref().map_or(0, Threads::stuck)
    }

    fn refuses(&self, params: &RawJson) -> Option<ParamsError> {
        schema::read::<T>(params.text()).err()
    }

    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        Some(T::TYPE)
    }
}

fn answer(output: &impl Serialize) -> Answer {
    RawJson::of(output).map_err(|why| Failure::fail(format!("the result is not JSON: {why}")))
}
