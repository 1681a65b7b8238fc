//! Start of a process of an app: by the operating system, or by a simulation.

use std::{fmt, io};

use kafleet_handlers::process::{ConnectedProgram, RunningProgram};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::Command;

use super::process::AppProgram;

/// Replaces the operating system in a simulation.
pub trait Launcher: fmt::Debug + Send + Sync {
    /// Starts process `number` of an app.
    fn launch(&self, number: u32) -> SimulatedProcess;
}

/// Simulated program, and the worker's end of its stream.
pub struct SimulatedProcess {
    pub program: Box<dyn RunningProgram>,
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl AppProgram {
    /// Starts a process without a session.
    pub(super) async fn launch(&self, number: u32) -> io::Result<ConnectedProgram> {
        ConnectedProgram::launch(self.command(number)?, Some(&self.name)).await
    }

    fn command(&self, number: u32) -> io::Result<Command> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::other("the command is empty"));
        };
        let mut command = self.env.command(program);
        command.args(arguments).current_dir(&self.cwd);
        command.env("KAFLEET_APP", &self.name).env("KAFLEET_APP_PROCESS", number.to_string());
        Ok(command)
    }
}
