//! `completions`: prints a completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::exit::{Code, Failure, Outcome};
use super::output::Output;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell to complete for
    pub shell: Shell,
}

/// Writes the completion script to stdout.
pub(super) fn completions(args: &CompletionsArgs, output: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), program_name(), &mut script);
    let script = String::from_utf8(script).map_err(Failure::failed)?;
    output.line(script.trim_end())?;
    Ok(Code::Ok)
}

/// File name of this binary: an application built on kafleet has its own.
fn program_name() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    name.unwrap_or("kafleet").to_owned()
}
