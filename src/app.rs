//! A fleet of your own: a binary that registers its task types and gets every verb.
//!
//! ```no_run
//! # use kafleet::handlers::foreach::Foreach;
//! fn main() -> std::process::ExitCode {
//!     kafleet::app().state(String::from("shared by all handlers")).task::<Foreach>().main()
//! }
//! ```

use std::process::ExitCode;

use crate::handlers::{Registered, Registry, Task};

/// What a binary consists of. Types from `kafleet.toml` come on top.
#[derive(Default)]
pub struct App {
    registry: Registry,
}

/// An app without any type of its own.
pub fn app() -> App {
    App::default()
}

impl App {
    /// Application state, one value per Rust type, which handlers get with `cx.state::<T>()`.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.registry.share(state);
        self
    }

    /// Adds a Rust task type.
    pub fn task<T: Task>(mut self) -> Self {
        self.registry.task::<T>();
        self
    }

    /// Adds a type whose handler is not a [`Task`].
    pub fn handler(mut self, name: &str, registered: Registered) -> Self {
        self.registry.add(name, registered);
        self
    }

    /// Runs the verb on the command line. A mistake in the registration is exit code 2.
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
