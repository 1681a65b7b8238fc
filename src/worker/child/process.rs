//! One cell, from outside: a process of this binary, and the conversation with it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::protocol::{FromChild, Handshake, TaskAssignment, ToChild, frame, receive};
use super::stderr::StderrReader;
use super::{ARGV0, ChildMetrics, Program};
use crate::handlers::context::MAX_CHILDREN;
use crate::handlers::reaper;
use crate::handlers::reaper::Group;
use crate::handlers::{Answer, Context, Failure};
use crate::model::json::RawJson;
use crate::telemetry::LOG_FORMAT;

/// How long a cell may take to be ready: the binary's own set-up, which may open connections.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long a cell that has closed its end may take to be gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A process that runs one attempt at a time. Killed, with all it has started, when it is dropped.
pub struct ChildProcess {
    child: Child,
    group: Group,
    ear: StderrReader,
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    buffer: Vec<u8>,
    /// Attempts it has had.
    pub used: u32,
    pub idle_since: Instant,
    pub tally: ChildMetrics,
}

/// How an attempt's conversation ended without an answer.
pub enum Broken {
    /// Before the handler had begun: the attempt is not to blame.
    Before(String),
    /// The handler took its process down.
    Crashed(String),
    /// What came is not of this program's making.
    Garbled(String),
}

impl ChildProcess {
    /// Starts a cell and waits until it is ready.
    pub async fn start(program: &Program, purpose: Handshake, tally: ChildMetrics) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let command = command(program, theirs.into());
        // Forking a large process takes milliseconds.
        let (mut child, group) = tokio::task::spawn_blocking(|| reaper::spawn(command)).await??;
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("its stderr cannot be heard"))?;
        let (from, to) = UnixStream::from_std(ours)?.into_split();
        let (from, buffer) = (BufReader::new(from), Vec::new());
        let ear = StderrReader::listen(stderr);
        let mut cell = Self { child, group, ear, from, to, buffer, used: 0, idle_since: Instant::now(), tally };
        match timeout(START_PATIENCE, cell.introduce(purpose)).await {
            Ok(ready) => ready.map(|()| cell),
            Err(_) => Err(io::Error::other(format!("it was not ready within {} s", START_PATIENCE.as_secs()))),
        }
    }

    async fn introduce(&mut self, purpose: Handshake) -> io::Result<()> {
        self.to.write_all(&frame(&ToChild::Handshake(purpose))?).await?;
        match receive(&mut self.from, &mut self.buffer).await {
            Ok(FromChild::Ready) => Ok(()),
            Ok(FromChild::Unsupported(why)) => Err(io::Error::other(why)),
            Ok(_) => Err(io::Error::other("it does not speak as this version does")),
            Err(_) => Err(io::Error::other(format!("it ended before it was ready: {}", self.ending().await))),
        }
    }

    /// It has not ended since its last attempt.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Memory that it holds now; 0 where that cannot be told.
    pub fn resident_bytes(&self) -> u64 {
        let Some(pid) = self.child.id() else { return 0 };
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        pages * page_bytes()
    }

    /// Runs one attempt. Dropped in the middle, the cell is of no more use.
    pub async fn run(&mut self, message: &[u8], cx: &Context) -> Result<Answer, Broken> {
        self.used += 1;
        self.ear.forget();
        if let Err(why) = self.to.write_all(message).await {
            return Err(Broken::Before(why.to_string()));
        }
        let mut begun = false;
        match self.converse(cx, &mut begun).await {
            Ok(answer) => Ok(answer),
            Err(why) if is_end(&why) && begun => Err(Broken::Crashed(self.ending().await)),
            Err(why) if is_end(&why) => Err(Broken::Before(self.ending().await)),
            Err(why) => Err(Broken::Garbled(why.to_string())),
        }
    }

    async fn converse(&mut self, cx: &Context, begun: &mut bool) -> io::Result<Answer> {
        let (mut children, mut told) = (Vec::new(), false);
        loop {
            match self.next_word(cx, &mut told).await? {
                FromChild::Begun => {
                    *begun = true;
                    cx.sign();
                }
                FromChild::Alive => cx.sign(),
                FromChild::Note { note, counts } => {
                    counts.then(|| cx.sign());
                    cx.outlet().note(cx, note);
                }
                // One more than is allowed fails the attempt.
                FromChild::Child(child) if children.len() <= MAX_CHILDREN => children.push(*child),
                FromChild::Child(_) => {}
                FromChild::Continuation(then) => cx.then(*then),
                FromChild::SpawnNow => {
                    let spawned = cx.spawn_now(std::mem::take(&mut children)).await;
                    self.to.write_all(&frame(&ToChild::Spawned(spawned))?).await?;
                }
                FromChild::Answer(answer) => {
                    children.into_iter().for_each(|child| cx.spawn_child(child));
                    return Ok(answer);
                }
                FromChild::Ready | FromChild::Unsupported(_) => return Err(io::Error::other("it speaks out of turn")),
            }
        }
    }

    /// What the cell says next; meanwhile it is told when the attempt is to stop.
    async fn next_word(&mut self, cx: &Context, told: &mut bool) -> io::Result<FromChild> {
        let Self { from, to, buffer, .. } = self;
        // Not to be dropped half-way through a message.
        let mut next = std::pin::pin!(receive(from, buffer));
        loop {
            tokio::select! {
                biased;
                word = &mut next => return word,
                () = cx.cancelled().cancelled(), if !*told => {
                    *told = true;
                    to.write_all(&frame(&ToChild::Cancel)?).await?;
                }
            }
        }
    }

    /// How the process ended, for people.
    async fn ending(&mut self) -> String {
        match timeout(LAST_WORDS, self.child.wait()).await {
            Ok(Ok(status)) => {
                self.group.finish();
                let how = told(status);
                match self.ear.last_words().await {
                    words if words.is_empty() => format!("{how}, and nothing on stderr"),
                    words => format!("{how}; the last it said: {words}"),
                }
            }
            Ok(Err(why)) => format!("its end is unknown: {why}"),
            Err(_) => "it closed its connection to the worker".to_owned(),
        }
    }

    /// Ends it in good order: it may finish what it does in the background, for so long.
    pub async fn retire(mut self, grace: Duration) {
        let _ = self.to.shutdown().await;
        let ended = timeout(grace, self.child.wait()).await;
        if ended.is_ok() {
            self.group.finish();
        }
    }
}

fn is_end(why: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(why.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

fn told(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => match Signal::try_from(number) {
            Ok(signal) => format!("ended by {signal}"),
            Err(_) => format!("ended by signal {number}"),
        },
        (None, Some(code)) => format!("it exited with code {code}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// An attempt as the message that begins it.
pub fn assign(params: &RawJson, cx: &Context) -> Result<Vec<u8>, Failure> {
    let assignment = TaskAssignment {
        id: cx.id.clone(),
        run: cx.run,
        number: cx.number,
        worker: cx.worker().to_string(),
        left: cx.deadline.map(|at| at.saturating_duration_since(Instant::now())),
        trace: cx.trace.as_ref().map(|trace| (trace.parent.clone(), trace.state.clone())),
        asof: cx.asof,
        params: params.clone(),
    };
    frame(&ToChild::Attempt(Box::new(assignment))).map_err(|why| Failure::fail(why.to_string()).of_kind("too_large"))
}

/// This binary again, with the arguments that this process has, so that it comes to know the same types; its standard input
/// is the line to the worker.
fn command(program: &Program, line: OwnedFd) -> Command {
    let mut command = Command::new(&program.file);
    command.arg0(ARGV0).args(std::env::args_os().skip(1)).stdin(Stdio::from(line)).stderr(Stdio::piped());
    if crate::telemetry::logs_are_text() {
        // What it logs is shown where this process' own is.
        command.env(LOG_FORMAT, "text");
    }
    let memory = program.memory_bytes;
    // SAFETY: setrlimit(2) is async-signal-safe and touches this process alone.
    unsafe { command.pre_exec(move || limit_memory(memory)) };
    command
}

/// What it writes to, that is: mapped files and reserved address space do not count.
fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes as libc::rlim_t, rlim_max: bytes as libc::rlim_t };
    // SAFETY: the structure is valid for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn page_bytes() -> u64 {
    // SAFETY: a question without side effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
