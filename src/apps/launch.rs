//! Program behind a process of an app: started by the operating system, or by a simulation.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{ExitStatus, Stdio};

use futures::FutureExt;
use futures::future::BoxFuture;
use nix::libc;
use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use super::process::AppProgram;
use crate::handlers::output_tail::OutputTail;
use crate::handlers::reaper::{self, Group};

/// Running program, with all that it has started. Dropping it kills it.
pub trait RunningProgram: Send {
    fn pid(&self) -> u32;

    /// Waits for the exit. May be called again, also after the exit.
    fn exit(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>>;

    /// Signals the program, unless it has ended.
    fn signal(&self, signal: Signal);

    /// Kills the rest after the exit.
    fn finish(&self);

    /// Returns the last output of a program that has ended.
    fn output(&mut self) -> BoxFuture<'_, String>;
}

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

/// Program that the operating system has started. Dropping it kills its process group.
pub(super) struct OsProcess {
    pub child: Child,
    pub group: Group,
    pub output: OutputTail,
    /// The worker's end of the socket, in non-blocking mode.
    pub socket: Option<UnixStream>,
}

impl RunningProgram for OsProcess {
    fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    fn exit(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        self.child.wait().boxed()
    }

    fn signal(&self, signal: Signal) {
        self.group.signal(signal);
    }

    fn finish(&self) {
        self.group.finish();
    }

    fn output(&mut self) -> BoxFuture<'_, String> {
        self.output.text().boxed()
    }
}

impl AppProgram {
    /// Starts a process without a session.
    pub(super) async fn launch(&self, number: u32) -> io::Result<OsProcess> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (output, output_writer) = io::pipe()?;
        let command = self.command(number, theirs.into(), output_writer.into())?;
        // Forking a large process takes milliseconds.
        let (child, group) = tokio::task::spawn_blocking(|| reaper::spawn(command)).await??;
        let label = format!("{}[{}]: ", self.name, child.id().unwrap_or_default());
        let output = OutputTail::start(pipe::Receiver::from_owned_fd(output.into())?, Some(label));
        Ok(OsProcess { child, group, output, socket: Some(ours) })
    }

    fn command(&self, number: u32, socket: OwnedFd, output: OwnedFd) -> io::Result<Command> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::other("the command is empty"));
        };
        let mut command = self.env.command(program);
        command.args(arguments).current_dir(&self.cwd);
        command.env("KAFLEET_APP", &self.name).env("KAFLEET_APP_PROCESS", number.to_string());
        command.stdin(Stdio::from(socket)).stdout(Stdio::from(output.try_clone()?)).stderr(Stdio::from(output));
        // SAFETY: the function makes async-signal-safe calls only.
        unsafe { command.pre_exec(prefer_as_victim) };
        Ok(command)
    }
}

/// Makes the process the preferred victim of the kernel's OOM killer. Async-signal-safe.
fn prefer_as_victim() -> io::Result<()> {
    const SCORE: &[u8] = b"1000";
    // SAFETY: the path is a C string and the buffer is valid for its size; a failure has no effect.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, SCORE.as_ptr().cast(), SCORE.len());
            libc::close(file);
        }
    }
    Ok(())
}
