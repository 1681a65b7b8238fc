//! Running the binary, with a deadline on everything.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// For whatever a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(300);
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

/// The binary, in a folder without a kafleet.toml and without a fleet's variables.
pub fn kafleet<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kafleet"));
    command.args(words).current_dir(env!("CARGO_TARGET_TMPDIR"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}

/// What a run left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    /// It ended so.
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// stderr says all of these.
    #[track_caller]
    pub fn tells(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.err.contains(text), "`{text}` is not in: {}", self.err);
        }
        self
    }

    /// stdout has all of these.
    #[track_caller]
    pub fn prints(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text), "`{text}` is not in: {}", self.out);
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

/// Runs to the end, with nothing on stdin.
pub fn run(mut command: Command) -> Ran {
    ended(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Runs to the end, with this on stdin.
pub fn fed(mut command: Command, input: &str) -> Ran {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // A process that does not read all of it is no failure.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    ended(child)
}

/// Waits for a child's end and takes what it wrote.
pub fn ended(child: Child) -> Ran {
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

/// A process that goes on until it is told to stop, or until the test ends.
pub struct Daemon {
    child: Child,
    lines: Receiver<String>,
    heard: String,
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
        // To the end, even if nobody listens: a full pipe would hold the process up.
        thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        Self { child, lines, heard: String::new() }
    }

    /// The next line of stderr that has this in it.
    #[track_caller]
    pub fn hears(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) else {
                panic!("it did not say `{text}`, but: {}", self.heard)
            };
            if line.contains(text) {
                return line;
            }
            self.heard.push_str(&line);
            self.heard.push('\n');
        }
    }

    /// SIGTERM; returns the exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        until("it has ended", || self.child.try_wait().unwrap()).code()
    }
}

/// Asks until there is an answer.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A folder with a kafleet.toml.
pub fn configured(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "kafleet.toml", text);
    folder
}

pub fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}
