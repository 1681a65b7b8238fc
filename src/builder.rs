//! Application builder: a binary that registers its own task types and has every verb.
//!
//! ```no_run
//! # use kafleet::handlers::builtin::foreach::Foreach;
//! fn main() -> std::process::ExitCode {
//!     kafleet::app().state(String::from("state shared by all handlers")).task::<Foreach>().main()
//! }
//! ```

use std::process::ExitCode;

use crate::handlers::{Registered, Registry, Task};

/// Application with Rust task types; types from `kafleet.toml` are added to them.
#[derive(Default)]
pub struct App {
    registry: Registry,
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

    /// Runs the verb on the command line. Invalid registrations give exit code 2.
    pub fn main(self) -> ExitCode {
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
