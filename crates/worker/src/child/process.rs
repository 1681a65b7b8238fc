//! The worker's side of one child process: the process itself and the exchange of messages with it.

use std::io;
use std::time::{Duration, Instant};

use kafleet_handlers::context::MAX_CHILDREN;
use kafleet_handlers::output_tail::OutputTail;
use kafleet_handlers::process::{ConnectedProgram, OwnedProcess, RunningProgram as _};
use kafleet_handlers::process_guard::describe_status;
use kafleet_handlers::socket::SocketWriter;
use kafleet_handlers::{Answer, Context, Failure};
use kafleet_model::json::RawJson;
use kafleet_telemetry::LOG_FORMAT;
use nix::libc;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

use super::protocol::{FromChild, Handshake, TaskAssignment, ToChild, frame, receive};
use super::{ARGV0, ChildMetrics, Program};

/// Maximum time until a child process is ready: the binary's own set-up may open connections.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// A process that runs one attempt at a time. Dropping it kills its process group.
pub(super) struct ChildProcess {
    pub process: OwnedProcess,
    stderr: OutputTail,
    from: BufReader<pipe::Receiver>,
    to: SocketWriter,
    buffer: Vec<u8>,
    /// Number of attempts run so far.
    pub used: u32,
    pub idle_since: Instant,
    pub metrics: ChildMetrics,
}

/// Reason why an attempt ended without an answer.
pub(super) enum ChildError {
    /// The process ended before the handler had started: not caused by the attempt.
    NotStarted(String),
    /// The handler crashed its process.
    Crashed(String),
    /// The process sent bytes that are not a message.
    Protocol(String),
}

impl ChildProcess {
    /// Starts a child process and waits until it is ready.
    pub(super) async fn start(program: &Program, handshake: Handshake, metrics: ChildMetrics) -> io::Result<Self> {
        let launched = ConnectedProgram::launch(command(program), None).await?;
        let ConnectedProgram { process, output, reader, writer } = launched;
        let mut process = Self {
            process,
            stderr: output,
            from: BufReader::new(reader),
            to: writer,
            buffer: Vec::new(),
            used: 0,
            idle_since: Instant::now(),
            metrics,
        };
        match timeout(START_DEADLINE, process.shake_hands(handshake)).await {
            Ok(ready) => ready.map(|()| process),
            Err(_) => Err(io::Error::other(format!("it was not ready within {} s", START_DEADLINE.as_secs()))),
        }
    }

    async fn shake_hands(&mut self, handshake: Handshake) -> io::Result<()> {
        self.to.write_all(&frame(&ToChild::Handshake(handshake))?).await?;
        match receive(&mut self.from, &mut self.buffer).await {
            Ok(FromChild::Ready) => Ok(()),
            Ok(FromChild::Unsupported(error)) => Err(io::Error::other(error)),
            Ok(_) => Err(io::Error::other("its protocol version differs")),
            Err(_) => Err(io::Error::other(format!("it ended before it was ready: {}", self.describe_end().await))),
        }
    }

    /// Runs one attempt. If this future is dropped before its end, the process cannot be used again.
    pub(super) async fn run(&mut self, message: &[u8], cx: &Context) -> Result<Answer, ChildError> {
        self.used += 1;
        self.stderr.clear();
        if let Err(error) = self.to.write_all(message).await {
            return Err(ChildError::NotStarted(error.to_string()));
        }
        let mut started = false;
        match self.exchange_messages(cx, &mut started).await {
            Ok(answer) => Ok(answer),
            Err(error) if is_disconnect(&error) && started => Err(ChildError::Crashed(self.describe_end().await)),
            Err(error) if is_disconnect(&error) => Err(ChildError::NotStarted(self.describe_end().await)),
            Err(error) => Err(ChildError::Protocol(error.to_string())),
        }
    }

    async fn exchange_messages(&mut self, cx: &Context, started: &mut bool) -> io::Result<Answer> {
        let mut children = Vec::new();
        let mut cancel_sent = false;
        loop {
            match self.next_message(cx, &mut cancel_sent).await? {
                FromChild::Begun => {
                    *started = true;
                    cx.record_activity();
                }
                FromChild::Alive => cx.record_activity(),
                FromChild::Note { note, counts } => {
                    counts.then(|| cx.record_activity());
                    cx.sink().note(cx, note);
                }
                // One child more than allowed is enough to fail the attempt.
                FromChild::Child(child) if children.len() <= MAX_CHILDREN => children.push(*child),
                FromChild::Child(_) => {}
                FromChild::Continuation(continuation) => cx.then(*continuation),
                FromChild::SpawnNow => {
                    let spawned = cx.spawn_now(std::mem::take(&mut children)).await;
                    self.to.write_all(&frame(&ToChild::Spawned(spawned))?).await?;
                }
                FromChild::Answer(answer) => {
                    children.into_iter().for_each(|child| cx.spawn_child(child));
                    return Ok(answer);
                }
                FromChild::Ready | FromChild::Unsupported(_) => {
                    return Err(io::Error::other("unexpected handshake message"));
                }
            }
        }
    }

    /// Receives the next message; sends `Cancel` once if the attempt is cancelled meanwhile.
    async fn next_message(&mut self, cx: &Context, cancel_sent: &mut bool) -> io::Result<FromChild> {
        let Self { from, to, buffer, .. } = self;
        // Pinned outside the loop, so that a partly received message is not dropped.
        let mut next = std::pin::pin!(receive(from, buffer));
        loop {
            tokio::select! {
                biased;
                message = &mut next => return message,
                () = cx.cancelled().cancelled(), if !*cancel_sent => {
                    *cancel_sent = true;
                    to.write_all(&frame(&ToChild::Cancel)?).await?;
                }
            }
        }
    }

    /// Describes the end of the process for failure messages.
    async fn describe_end(&mut self) -> String {
        let Some(status) = self.process.exit_in_time().await else {
            return "it closed its connection to the worker".to_owned();
        };
        let how = describe_status(status);
        match self.stderr.last_lines().await {
            lines if lines.is_empty() => format!("{how}, and nothing on stderr"),
            lines => format!("{how}; last lines on stderr: {lines}"),
        }
    }

    /// Ends the process gracefully: background work may continue for `grace`.
    pub(super) async fn retire(mut self, grace: Duration) {
        let _ = self.to.shutdown().await;
        let _ = timeout(grace, self.process.exit()).await;
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

/// Encodes the message that starts an attempt.
pub(super) fn assignment_message(params: &RawJson, cx: &Context) -> Result<Vec<u8>, Failure> {
    let assignment = TaskAssignment {
        id: cx.id.clone(),
        run: cx.run,
        number: cx.number,
        worker: cx.worker().to_string(),
        left: cx.deadline.map(|at| at.saturating_duration_since(Instant::now())),
        trace: cx.trace.as_ref().map(|trace| (trace.parent.clone(), trace.state.clone())),
        asof: cx.asof,
        labels: cx.labels().cloned(),
        headers: cx.kept_headers().cloned(),
        params: params.clone(),
    };
    frame(&ToChild::Attempt(Box::new(assignment)))
        .map_err(|error| Failure::fail(error.to_string()).of_kind("too_large"))
}

/// This binary with this process's arguments, so that it registers the same types.
fn command(program: &Program) -> Command {
    let mut command = program.env.command(&program.file);
    command.arg0(ARGV0).args(std::env::args_os().skip(1));
    if kafleet_telemetry::logs_are_text() {
        // The child's log lines are forwarded to this process's stderr.
        command.env(LOG_FORMAT, "text");
    }
    let memory = program.memory_bytes;
    // SAFETY: setrlimit(2) is async-signal-safe and touches this process alone.
    unsafe { command.pre_exec(move || limit_memory(memory)) };
    command
}

/// Limits the memory that the process writes to; mapped files and reserved address space do not count.
fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes as libc::rlim_t, rlim_max: bytes as libc::rlim_t };
    // SAFETY: the structure is valid for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
