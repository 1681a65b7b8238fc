//! Application builder: a binary that registers its own task types and has every verb.
//!
//! ```no_run
//! # use kafleet::handlers::builtin::foreach::Foreach;
//! fn main() -> std::process::ExitCode {
//!     kafleet::app().state(String::from("state shared by all handlers")).task::<Foreach>().main()
//! }
//! ```

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handlers::service::Service;
use crate::handlers::{Context, Registered, Registry, Task, TaskResult};

/// Application with Rust task types; types from `kafleet.toml` are added to them.
#[derive(Default)]
pub struct App {
    registry: Registry,
    /// Adds a service to all types.
    services: Vec<fn(&mut Registry)>,
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
    pub fn handler(mut self, name: &str, registered: Registered) -> Self {
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
        self.handler(name, Registered::of_fn(run))
    }

    /// Adds a service to all types of this application: a value that is made before each attempt and disposed of after
    /// it, available as `cx.service::<S>()`; see [`crate::handlers::service`]. Types from `kafleet.toml` have none.
    pub fn service<S: Service>(mut self) -> Self {
        self.services.push(|registry| {
            registry.service::<S>();
        });
        self
    }

    /// Runs the verb on the command line. Invalid registrations give exit code 2.
    pub fn main(mut self) -> ExitCode {
        // The first one is the outermost.
        self.services.iter().rev().for_each(|add| add(&mut self.registry));
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
