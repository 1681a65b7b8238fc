//! The command line.

use std::process::ExitCode;

use crate::handlers::Registry;

/// Runs the verb on the command line.
pub fn run(_registry: Registry) -> ExitCode {
    ExitCode::SUCCESS
}
