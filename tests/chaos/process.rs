//! Processes that can be killed, frozen and restarted.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Builds the command, given the number of earlier starts.
type BuildCommand = Box<dyn Fn(u32) -> Command + Send>;

/// Child process, killed on drop.
pub struct Process {
    pub name: String,
    build: BuildCommand,
    child: Option<Child>,
    pub starts: u32,
    log: PathBuf,
    /// Stopped on purpose: not to be restarted by the supervisor.
    pub is_stopped: bool,
}

impl Process {
    pub fn new(name: &str, log: PathBuf, build: impl Fn(u32) -> Command + Send + 'static) -> Self {
        Self { name: name.to_owned(), build: Box::new(build), child: None, starts: 0, log, is_stopped: true }
    }

    /// Name and number of starts, which identify a worker in the file of executions.
    pub fn incarnation(&self) -> String {
        format!("{}.{}", self.name, self.starts)
    }

    pub fn start(&mut self) {
        self.starts += 1;
        let mut command = (self.build)(self.starts);
        let file = || OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        // A separate process group: an interrupt on the terminal reaches only the test, which stops its children.
        command.stdin(Stdio::null()).stdout(file()).stderr(file()).process_group(0);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", self.name)));
        self.is_stopped = false;
    }

    /// Sends SIGKILL, frozen or not.
    pub fn kill(&mut self) {
        self.is_stopped = true;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }

    /// Sends SIGTERM and waits for the exit. Returns false if it had to be killed.
    pub async fn stop(&mut self, timeout: Duration) -> bool {
        self.signal(Signal::SIGTERM);
        self.exited(timeout).await
    }

    async fn exited(&mut self, timeout: Duration) -> bool {
        self.is_stopped = true;
        let deadline = Instant::now() + timeout;
        while self.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let ended = !self.is_alive();
        self.kill();
        ended
    }

    /// Sends SIGQUIT, which ends Postgres without a checkpoint, and waits for the exit. Returns false if it had to be killed.
    pub async fn quit(&mut self, timeout: Duration) -> bool {
        self.signal(Signal::SIGQUIT);
        self.exited(timeout).await
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Unused ports outside of the ephemeral range, not returned before.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock();
    let begun = taken.len();
    while taken.len() < begun + N {
        let port = fastrand::u16(10_000..20_000);
        if !taken.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.push(port);
        }
    }
    taken[begun..].try_into().unwrap()
}
