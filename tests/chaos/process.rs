//! Processes that can be killed, frozen and started again.

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

/// How it is started: it is told how often it has been before.
type Make = Box<dyn Fn(u32) -> Command + Send>;

/// Killed when it is dropped.
pub struct Process {
    pub name: String,
    make: Make,
    child: Option<Child>,
    pub starts: u32,
    log: PathBuf,
    /// Nobody shall start it just now.
    pub is_down: bool,
}

impl Process {
    pub fn new(name: &str, log: PathBuf, make: impl Fn(u32) -> Command + Send + 'static) -> Self {
        Self { name: name.to_owned(), make: Box::new(make), child: None, starts: 0, log, is_down: true }
    }

    /// Its name and how often it was started: what workers call themselves in the file of deeds.
    pub fn incarnation(&self) -> String {
        format!("{}.{}", self.name, self.starts)
    }

    pub fn start(&mut self) {
        self.starts += 1;
        let mut command = (self.make)(self.starts);
        let log = || OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        // A group of its own: an interrupt on the terminal is for the test, which ends what it has started.
        command.stdin(Stdio::null()).stdout(log()).stderr(log()).process_group(0);
        self.child = Some(command.spawn().unwrap_or_else(|why| panic!("{} could not be started: {why}", self.name)));
        self.is_down = false;
    }

    /// SIGKILL, whether it is frozen or not.
    pub fn kill(&mut self) {
        self.is_down = true;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }

    /// Asks it to end, and waits for that. False: it had to be killed.
    pub async fn end(&mut self, patience: Duration) -> bool {
        self.is_down = true;
        self.signal(Signal::SIGTERM);
        let until = Instant::now() + patience;
        while self.is_alive() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let ended = !self.is_alive();
        self.kill();
        ended
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> String {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports that nobody listens on, that no outgoing connection is given, and that were not asked for before.
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
