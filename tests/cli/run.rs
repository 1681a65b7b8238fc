//! Runs the binary, with a deadline on every wait.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub use kafleet_testkit::wait::{DEADLINE, eventually_blocking};

const VARIABLES: [&str; 8] = [
    "KAFLEET_CONFIG",
    "KAFLEET_BROKERS",
    "KAFLEET_REDIS",
    "KAFLEET_PREFIX",
    "KAFLEET_API",
    "KAFLEET_TOKEN",
    "KAFLEET_API_LISTEN",
    "KAFLEET_OPS_LISTEN",
];

/// Command for the binary, in a folder without kafleet.toml and without kafleet's environment variables.
pub fn kafleet<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kafleet"));
    command.args(words).current_dir(env!("CARGO_TARGET_TMPDIR"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}

/// Exit code and output of a run.
#[derive(Debug)]
pub struct RunResult {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for RunResult {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl RunResult {
    /// Asserts the exit code.
    #[track_caller]
    pub fn exits_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Asserts that stderr contains all texts.
    #[track_caller]
    pub fn stderr_has(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.err.contains(text), "`{text}` is not in: {}", self.err);
        }
        self
    }

    /// Asserts that stdout contains all texts.
    #[track_caller]
    pub fn stdout_has(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text), "`{text}` is not in: {}", self.out);
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command without input.
pub fn run(mut command: Command) -> RunResult {
    wait_for_exit(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Runs a command with input on stdin.
pub fn run_with_stdin(mut command: Command, input: &str) -> RunResult {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // The process need not read all of its input.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    wait_for_exit(child)
}

/// Waits for a child's exit and returns its output.
pub fn wait_for_exit(child: Child) -> RunResult {
    let pid = Pid::from_raw(child.id() as i32);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || drop(sender.send(child.wait_with_output())));
    match receiver.recv_timeout(DEADLINE) {
        Ok(output) => output.unwrap().into(),
        Err(_) => {
            let _ = kill(pid, Signal::SIGKILL);
            panic!("a run did not end within {DEADLINE:?}: {:?}", receiver.recv())
        }
    }
}

/// Long-running process, killed when dropped.
pub struct Daemon {
    child: Child,
    lines: Receiver<String>,
    output: String,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        // Reads until the end, because a full pipe would block the process.
        thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        Self { child, lines, output: String::new() }
    }

    /// Waits for the next line of stderr that contains a text.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) else {
                panic!("no line with `{text}` in: {}", self.output)
            };
            if line.contains(text) {
                return line;
            }
            self.output.push_str(&line);
            self.output.push('\n');
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends SIGTERM and returns the exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        eventually_blocking("the process has exited", || self.child.try_wait().unwrap()).code()
    }
}

/// Creates a folder with a kafleet.toml.
pub fn config_folder(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "kafleet.toml", text);
    folder
}

pub fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}
