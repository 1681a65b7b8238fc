//! Processes of programs: started, stopped, killed and waited for in one way, whether they run one attempt (`exec`), the
//! attempts of a type (child processes) or those of an app.
//!
//! Invariant: a program ends with all that it has started. It leads a process group, which is killed when the leader has
//! exited, when the process is dropped, and by the guard process ([`process_guard`]) when the worker dies. Otherwise programs of
//! an attempt that has ended would run beside those of the next one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kafleet_model::event::log_line::LogStream;
use nix::libc;
use nix::sys::signal::Signal;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::output_tail::{OutputPipe, OutputTail};
use super::process_guard::{self, ProcessGroup};
use super::socket::{self, SocketWriter};

/// Maximum time between the end of the stream of a process, or its kill, and its exit.
pub const EXIT_DEADLINE: Duration = Duration::from_secs(2);

/// Running program, of the operating system or of a simulation. Dropping it kills it, with all that it has started.
pub trait RunningProgram: Send {
    /// Process id.
    fn pid(&self) -> u32;

    /// Waits for the exit, and kills what the program has started. May be called again, also after the exit.
    fn exit(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>>;

    /// Signals the program and what it has started, unless it has exited.
    fn signal(&self, signal: Signal);

    /// Asks the program to end, kills it after the grace period, and waits for its exit.
    fn stop(&mut self, grace: Duration) -> BoxFuture<'_, io::Result<ExitStatus>> {
        async move {
            self.signal(Signal::SIGTERM);
            if let Ok(status) = timeout(grace, self.exit()).await {
                return status;
            }
            self.signal(Signal::SIGKILL);
            self.exit().await
        }
        .boxed()
    }

    /// Waits for the exit of a program that has closed its stream or was killed. Kills it if it takes too long; the status
    /// is unknown then.
    fn exit_in_time(&mut self) -> BoxFuture<'_, Option<ExitStatus>> {
        async move {
            match timeout(EXIT_DEADLINE, self.exit()).await {
                Ok(status) => status.ok(),
                Err(_) => {
                    self.signal(Signal::SIGKILL);
                    None
                }
            }
        }
        .boxed()
    }
}

/// Process of the operating system that leads a process group.
pub struct OwnedProcess {
    /// Dropped before `child`: once the leader is reaped, the id of its group may belong to others.
    group: Arc<ProcessGroup>,
    child: Child,
    pid: u32,
}

impl OwnedProcess {
    /// Starts a program, off the threads of the runtime: forking a large process takes milliseconds.
    pub(crate) async fn start(command: Command) -> io::Result<Self> {
        let (child, group) = tokio::task::spawn_blocking(|| process_guard::spawn(command)).await??;
        let pid = child.id().unwrap_or_default();
        Ok(Self { group: Arc::new(group), child, pid })
    }

    /// Process group, to be signalled while the exit is awaited.
    pub(crate) fn group(&self) -> Arc<ProcessGroup> {
        self.group.clone()
    }

    /// Takes stdin, stdout and stderr. `None` if one of them is no pipe.
    pub(crate) fn take_pipes(&mut self) -> Option<(ChildStdin, ChildStdout, ChildStderr)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?, self.child.stderr.take()?))
    }

    /// Returns whether the process has not exited.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl RunningProgram for OwnedProcess {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn exit(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        async {
            let status = self.child.wait().await;
            self.group.finish();
            status
        }
        .boxed()
    }

    fn signal(&self, signal: Signal) {
        self.group.signal(signal);
    }
}

/// Program with a socket to this process, which is its stdin, and with its output.
pub struct ConnectedProgram {
    pub process: OwnedProcess,
    pub output: OutputTail,
    pub reader: pipe::Receiver,
    pub writer: SocketWriter,
}

impl ConnectedProgram {
    /// Starts a program, and forwards what it writes to stderr. `label`: forwards stdout too, and begins each line with the
    /// label and the process id.
    pub async fn launch(mut command: Command, label: Option<&str>) -> io::Result<Self> {
        let (socket, stdin) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut output = Vec::new();
        if label.is_some() {
            let (stdout, stdout_writer) = io::pipe()?;
            command.stdout(stdout_writer);
            output.push(OutputPipe::new(LogStream::Stdout, stdout)?);
        }
        let (stderr, stderr_writer) = io::pipe()?;
        output.push(OutputPipe::new(LogStream::Stderr, stderr)?);
        command.stdin(Stdio::from(OwnedFd::from(stdin))).stderr(stderr_writer);
        // SAFETY: the function makes async-signal-safe calls only.
        unsafe { command.pre_exec(prefer_as_victim) };
        let process = OwnedProcess::start(command).await?;
        let label = label.map(|label| format!("{label}[{}]: ", process.pid));
        let output = OutputTail::start(output, label);
        let (reader, writer) = socket::split(socket)?;
        Ok(Self { process, output, reader, writer })
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::program_env::ProgramEnv;

    fn shell(script: &str) -> Command {
        let mut command = ProgramEnv::default().command("sh");
        command.args(["-c", script]);
        command
    }

    async fn start(script: &str) -> (OwnedProcess, ChildStdout) {
        let mut command = shell(script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = OwnedProcess::start(command).await.unwrap();
        let (_, stdout, _) = process.take_pipes().unwrap();
        (process, stdout)
    }

    #[tokio::test]
    async fn program_that_ignores_sigterm_is_killed_after_the_grace_period() {
        let (mut process, mut stdout) = start("trap '' TERM; echo; sleep 1000; sleep 1000").await;
        stdout.read_u8().await.unwrap();
        let status = process.stop(Duration::from_millis(50)).await.unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    }

    #[tokio::test]
    async fn program_ends_with_all_that_it_has_started() {
        let (mut process, mut stdout) = start("sleep 1000 & exit 3").await;
        assert_eq!(process.exit().await.unwrap().code(), Some(3));
        // Ends when no process has the pipe any more.
        timeout(Duration::from_secs(60), stdout.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
        assert!(!process.is_running());
        assert_eq!(process.exit_in_time().await.and_then(|status| status.code()), Some(3), "the exit is known");
    }

    #[tokio::test]
    async fn connected_program_reads_and_writes_its_socket() {
        let launched = ConnectedProgram::launch(shell("echo a line >&2; exec cat >&0"), None).await.unwrap();
        let ConnectedProgram { mut process, mut output, mut reader, mut writer } = launched;
        writer.write_all(b"message").await.unwrap();
        drop(writer);
        let mut received = String::new();
        reader.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "message");
        assert!(process.exit().await.unwrap().success());
        assert_eq!(output.last_lines().await, "a line");
    }
}
