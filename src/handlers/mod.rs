//! What a task type is: the trait that user code implements, the registry, and the built-in types.
//!
//! A Rust task type is one struct, whose fields are the params, with one `run`, and one line where it is registered.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::{Order, TypePolicy};
use crate::model::json::RawJson;
use crate::model::retry::RetryPolicy;

pub mod context;
mod failure;
mod schema;

pub use context::{Child, Context};
pub use failure::{Fail, Failure, OrFail, TaskResult};
pub use schema::{Misfit, Schema};

/// A task type. The struct is the task: its fields are the params and the schema, the policy is constants with defaults.
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

    type Output: Serialize + JsonSchema + Send;

    /// One attempt. Dropped at a timeout or a cancellation that it does not heed.
    fn run(self, cx: Context) -> impl Future<Output = TaskResult<Self::Output>> + Send;
}

/// The answer of one attempt: JSON, or why not.
pub type Answer = Result<RawJson, Failure>;
pub type AnswerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What runs attempts of one type. [`Task`]s are wrapped into it; `exec` and `http` implement it themselves.
pub trait Handler: Send + Sync + 'static {
    /// Begins an attempt. Params are JSON and fit the schema.
    fn start(&self, params: RawJson, cx: Context) -> AnswerFuture;

    /// Whether params fit beyond their schema (a typed handler reads them). None: they do.
    fn refuses(&self, _params: &RawJson) -> Option<Misfit> {
        None
    }
}

/// One registered type.
#[derive(Clone)]
pub struct Registered {
    pub handler: Arc<dyn Handler>,
    pub schema: Schema,
    pub policy: TypePolicy,
}

impl Registered {
    /// What in the params does not fit: the schema first, then what the handler reads.
    pub fn misfit(&self, params: &RawJson) -> Option<Misfit> {
        if self.schema.takes_anything() {
            return self.handler.refuses(params);
        }
        self.schema.misfit(&params.value()).or_else(|| self.handler.refuses(params))
    }
}

/// The types that this process knows, and the state that handlers share.
#[derive(Clone, Default)]
pub struct Registry {
    types: BTreeMap<Arc<str>, Registered>,
    state: SharedState,
}

/// Application state, by type.
#[derive(Clone, Default)]
pub struct SharedState(Arc<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl SharedState {
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>()).cloned().and_then(|state| state.downcast().ok())
    }
}

impl Registry {
    /// Registers a Rust task type.
    pub fn task<T: Task>(&mut self) -> &mut Self {
        let policy = TypePolicy {
            concurrency: if T::CONCURRENCY == 0 { TypePolicy::default().concurrency } else { T::CONCURRENCY },
            order: T::ORDER,
            retry: RetryPolicy { retries: T::RETRIES, min_backoff: T::MIN_BACKOFF.into(), max_backoff: T::MAX_BACKOFF.into() },
            timeout: T::TIMEOUT.into(),
            publish_results: false,
        };
        let typed = Registered { handler: Arc::new(Typed::<T>(std::marker::PhantomData)), schema: Schema::of::<T>(), policy };
        self.add(T::TYPE, typed)
    }

    pub fn add(&mut self, name: &str, registered: Registered) -> &mut Self {
        self.types.insert(name.into(), registered);
        self
    }

    /// Makes application state available to handlers as `cx.state::<T>()`.
    pub fn share<T: Send + Sync + 'static>(&mut self, state: T) -> &mut Self {
        let mut shared = (*self.state.0).clone();
        shared.insert(TypeId::of::<T>(), Arc::new(state));
        self.state = SharedState(Arc::new(shared));
        self
    }

    pub fn get(&self, name: &str) -> Option<&Registered> {
        self.types.get(name)
    }

    pub fn types(&self) -> impl Iterator<Item = (&Arc<str>, &Registered)> {
        self.types.iter()
    }

    pub fn state(&self) -> &SharedState {
        &self.state
    }
}

/// A [`Task`] as a [`Handler`].
struct Typed<T>(std::marker::PhantomData<fn() -> T>);

impl<T: Task> Handler for Typed<T> {
    fn start(&self, params: RawJson, cx: Context) -> AnswerFuture {
        Box::pin(async move {
            let task: T =
                serde_json::from_str(params.text()).map_err(|why| Failure::fail(format!("params do not fit: {why}")))?;
            drop(params);
            let output = task.run(cx).await?;
            RawJson::of(&output).map_err(|why| Failure::fail(format!("the result is not JSON: {why}")))
        })
    }

    fn refuses(&self, params: &RawJson) -> Option<Misfit> {
        let why = serde_json::from_str::<T>(params.text()).err()?;
        Some(Misfit { pointer: String::new(), message: why.to_string() })
    }
}
