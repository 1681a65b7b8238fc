//! Registry of task types.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_config::TypePolicy;
use kafleet_model::json::RawJson;
use kafleet_model::task::id::{check_own_type, check_type};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::from_fn::FromFn;
use super::hooks::{Observe, Submission};
use super::layer::{AttemptRequest, AttemptService, BoxError, Layer, LayeredHandler, Service};
use super::service::{self, WithService};
use super::shared_state::SharedState;
use super::type_constants::policy_of;
use super::{Context, Handler, ParamsError, Schema, Task, TaskResult};

/// Task type with its handler, params schema and policy.
#[derive(Clone)]
pub struct TypeRegistration {
    /// Handler of the type's attempts.
    pub handler: Arc<dyn Handler>,
    /// JSON Schema of the params.
    pub schema: Schema,
    /// Limits, retries and timeouts, before the overrides of kafleet.toml.
    pub policy: TypePolicy,
    /// Documentation for people and for clients.
    pub details: TypeDetails,
}

/// Documentation of a type, which has no effect on its attempts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeDetails {
    /// Name of the app that declares the type.
    pub app: Option<String>,
    /// Description for people.
    pub doc: Option<String>,
    /// JSON Schema of the result.
    pub output: Option<Value>,
}

impl TypeRegistration {
    /// Describes a type with this handler, any params and the default policy.
    pub fn new(handler: impl Handler) -> Self {
        Self {
            handler: Arc::new(handler),
            schema: Schema::any(),
            policy: TypePolicy::default(),
            details: TypeDetails::default(),
        }
    }

    /// Describes a Rust task type, with the policy of its constants.
    pub fn of<T: Task>() -> Self {
        T::registration()
    }

    pub(super) fn of_handler<T: Task>(handler: impl Handler) -> Self {
        Self { schema: Schema::of::<T>(), policy: policy_of::<T>(), ..Self::new(handler) }
    }

    /// Describes a type whose attempts call a function of params and context, with the default policy. The schema is
    /// that of the params.
    pub fn of_fn<P, O, A>(run: impl Fn(P, Context) -> A + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + Send,
        A: Future<Output = TaskResult<O>> + Send + 'static,
    {
        Self { schema: Schema::of::<P>(), ..Self::new(FromFn::new(run)) }
    }

    /// Returns whether attempts at several tasks may run in one call, which has no services and no layers.
    fn takes_batches(&self) -> bool {
        self.handler.capabilities().takes_batches
    }

    /// Adds a service that is made before each attempt and disposed of after it; see [`super::service`].
    pub fn with_service<S: service::Service>(self) -> Self {
        Self { handler: Arc::new(WithService::<S>::new(self.handler)), ..self }
    }

    /// Adds a layer around the attempts, outside of those that it has; see [`super::layer`].
    pub fn with_layer<L>(self, layer: &L) -> Self
    where
        L: Layer<AttemptService>,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        Self { handler: Arc::new(LayeredHandler::new(layer, self.handler, &self.schema)), ..self }
    }

    /// Validates params against the schema and then with the handler, without running the task. Workers do not call it:
    /// they validate against the schema and leave the rest to [`Handler::run`], so that params are parsed once.
    pub fn validate(&self, params: &RawJson) -> Option<ParamsError> {
        self.schema.validate(params).or_else(|| self.handler.capabilities().check_params?(params))
    }

    /// Lists the errors of params, at most this many: those of the schema, or else that of the handler.
    pub fn errors(&self, params: &RawJson, most: usize) -> Vec<ParamsError> {
        let errors = self.schema.errors(params, most);
        if errors.is_empty() { self.validate(params).into_iter().collect() } else { errors }
    }
}

/// The types of this process, and the state shared by their handlers.
#[derive(Clone, Default)]
pub struct Registry {
    types: BTreeMap<Arc<str>, TypeRegistration>,
    state: SharedState,
    problems: Vec<String>,
}

impl Registry {
    /// Registers a Rust task type.
    pub fn task<T: Task>(&mut self) -> &mut Self {
        self.add(T::TYPE, TypeRegistration::of::<T>())
    }

    /// Adds a service to all types registered so far, except for those whose tasks run in batches.
    pub fn service<S: service::Service>(&mut self) -> &mut Self {
        for registered in self.types.values_mut().filter(|registered| !registered.takes_batches()) {
            *registered = registered.clone().with_service::<S>();
        }
        self
    }

    /// Adds a layer around the attempts of all types registered so far, except for those whose tasks run in batches; see
    /// [`super::layer`].
    pub fn layer<L>(&mut self, layer: &L) -> &mut Self
    where
        L: Layer<AttemptService>,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        for registered in self.types.values_mut().filter(|registered| !registered.takes_batches()) {
            *registered = registered.clone().with_layer(layer);
        }
        self
    }

    /// Adds a layer around the attempts of one type. A type that is not registered, or whose tasks run in batches, is recorded as
    /// a problem.
    pub fn layer_of<L>(&mut self, name: &str, layer: &L) -> &mut Self
    where
        L: Layer<AttemptService>,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        match self.types.get_mut(name) {
            Some(registered) if registered.takes_batches() => self.problems.push(format!(
                "a layer is for the type `{name}`, whose tasks run in batches, which have no layers: remove it, or use `cx.state`"
            )),
            Some(registered) => *registered = registered.clone().with_layer(layer),
            None => self.problems.push(format!("a layer is for the type `{name}`, which is not registered: add it")),
        }
        self
    }

    /// Adds a hook that changes or refuses tasks before they are published; see [`super::hooks`].
    pub fn prepare(
        &mut self,
        hook: impl Fn(&mut Submission) -> Result<(), String> + Send + Sync + 'static,
    ) -> &mut Self {
        self.state.hooks.add_prepare(Arc::new(hook));
        self
    }

    /// Adds an observer of the attempts of all types; see [`super::hooks`].
    pub fn observe(&mut self, observer: impl Observe) -> &mut Self {
        self.state.hooks.add_observer(observer);
        self
    }

    /// Registers a type. An invalid, reserved or duplicate name is recorded as a problem; see [`Registry::problems`].
    pub fn add(&mut self, name: &str, registered: TypeRegistration) -> &mut Self {
        self.insert(name, registered, check_own_type(name))
    }

    /// Registers a built-in type, whose name is reserved.
    #[doc(hidden)]
    pub fn add_reserved(&mut self, name: &str, registered: TypeRegistration) -> &mut Self {
        self.insert(name, registered, check_type(name))
    }

    fn insert(&mut self, name: &str, registered: TypeRegistration, named: Result<(), String>) -> &mut Self {
        if let Err(error) = named {
            self.problems.push(error);
        } else if self.types.contains_key(name) {
            self.problems.push(format!("the type `{name}` is registered twice: give each its own name"));
        } else {
            self.types.insert(name.into(), registered);
        }
        self
    }

    /// Provides application state to handlers as `cx.state::<T>()`.
    pub fn share<T: Send + Sync + 'static>(&mut self, state: T) -> &mut Self {
        self.state.insert(state);
        self
    }

    /// Returns a registered type by its name.
    pub fn get(&self, name: &str) -> Option<&TypeRegistration> {
        self.types.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut TypeRegistration> {
        self.types.get_mut(name)
    }

    /// Registered types, sorted by name.
    pub fn types(&self) -> impl Iterator<Item = (&Arc<str>, &TypeRegistration)> {
        self.types.iter()
    }

    /// Types that no app declares.
    #[doc(hidden)]
    pub fn without_apps(&self) -> Self {
        let mut registry = self.clone();
        registry.types.retain(|_, registered| registered.details.app.is_none());
        registry
    }

    /// Application state of all handlers.
    pub fn state(&self) -> &SharedState {
        &self.state
    }

    /// Registration errors. A process with any refuses to start.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}
