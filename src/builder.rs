//! Application builder: a binary that registers its own task types and has every verb.
//!
//! ```no_run
//! # use kafleet::handlers::builtin::foreach::Foreach;
//! fn main() -> std::process::ExitCode {
//!     kafleet::app().state(String::from("state shared by all handlers")).task::<Foreach>().main()
//! }
//! ```

use std::process::ExitCode;

use kafleet_handlers::hooks::{Observe, Submission};
use kafleet_handlers::layer::{AttemptRequest, AttemptService, BoxError, Layer, Service};
use kafleet_handlers::{Context, Registry, Task, TaskResult, TypeRegistration, service};
use kafleet_model::json::RawJson;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Function that adds a layer to the types of a registry.
type AddLayer = Box<dyn Fn(&mut Registry)>;

/// Application with Rust task types; types from `kafleet.toml` are added to them.
#[derive(Default)]
pub struct App {
    registry: Registry,
    /// Functions that each add a service to all types.
    services: Vec<fn(&mut Registry)>,
    /// Functions that each add a layer to all types, or to one type.
    layers: Vec<AddLayer>,
}

/// Creates an application without types of its own.
pub fn app() -> App {
    App::default()
}

impl App {
    /// Adds application state, one value per Rust type, available to handlers as `cx.state::<T>()`.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.registry.share(state);
        self
    }

    /// Adds a Rust task type.
    pub fn task<T: Task>(mut self) -> Self {
        self.registry.task::<T>();
        self
    }

    /// Adds a type with a handler that is not a [`Task`].
    pub fn handler(mut self, name: &str, registered: TypeRegistration) -> Self {
        self.registry.add(name, registered);
        self
    }

    /// Adds a type whose attempts call a function or closure of params and context, with the default policy, which
    /// `[types.<name>]` overrides.
    ///
    /// ```no_run
    /// # use kafleet::handlers::Context;
    /// kafleet::app().handle_fn("shout", |text: String, _cx: Context| async move { Ok(text.to_uppercase()) }).main();
    /// ```
    pub fn handle_fn<P, O, A>(self, name: &str, run: impl Fn(P, Context) -> A + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + Send,
        A: Future<Output = TaskResult<O>> + Send + 'static,
    {
        self.handler(name, TypeRegistration::of_fn(run))
    }

    /// Adds a service to all types of this application: a value that is made before each attempt and disposed of after
    /// it, available as `cx.service::<S>()`; see [`kafleet_handlers::service`]. Types from `kafleet.toml` have none.
    pub fn service<S: service::Service>(mut self) -> Self {
        self.services.push(|registry| {
            registry.service::<S>();
        });
        self
    }

    /// Adds a layer, tower middleware around the attempts of all types of this application; see
    /// [`kafleet_handlers::layer`]. The first layer is the outermost; services are inside of all layers. Types from
    /// `kafleet.toml` have none.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<AttemptService> + 'static,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        self.layers.push(Box::new(move |registry| {
            registry.layer(&layer);
        }));
        self
    }

    /// Adds a layer to the attempts of one type. It is ordered among the layers of [`App::layer`] by the order of the
    /// calls.
    pub fn layer_of<T, L>(mut self, layer: L) -> Self
    where
        T: Task,
        L: Layer<AttemptService> + 'static,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        self.layers.push(Box::new(move |registry| {
            registry.layer_of(T::TYPE, &layer);
        }));
        self
    }

    /// Adds a hook that changes or refuses tasks before this process publishes them; see [`kafleet_handlers::hooks`]. It runs
    /// before the params are checked and hashed:
    ///
    /// - for tasks created at an API of this application, singly, in batches and in the UI; a refusal is answered with the
    ///   problem `rejected`;
    /// - for children of its attempts, in the process of the handler; a refusal fails the attempt as `bad_child`. Attempts
    ///   of types from `kafleet.toml` and of apps are included.
    ///
    /// Hooks do not run for tasks that a tracker publishes (continuations, schedules, callbacks, emails, retries and
    /// new runs), for tasks that other producers write to Kafka, and for redriven dead letters.
    pub fn prepare(mut self, hook: impl Fn(&mut Submission) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.registry.prepare(hook);
        self
    }

    /// Adds an observer of the attempts of all types in this application's workers; see [`kafleet_handlers::hooks`].
    pub fn observe(mut self, observer: impl Observe) -> Self {
        self.registry.observe(observer);
        self
    }

    /// Runs the verb on the command line. Invalid registrations give exit code 2.
    pub fn main(mut self) -> ExitCode {
        // The first one is the outermost.
        self.services.iter().rev().for_each(|add| add(&mut self.registry));
        self.layers.iter().rev().for_each(|add| add(&mut self.registry));
        let problems = self.registry.problems();
        if problems.is_empty() {
            return crate::cli::run(self.registry);
        }
        for problem in problems {
            eprintln!("error: {problem}");
        }
        ExitCode::from(2)
    }
}
