//! Roles as processes of the built binary (or of an example), which tests may kill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::redis::{Server, free_port};
use crate::wait::{Check, eventually, eventually_blocking};

/// Configuration and services shared by the processes of a fleet.
pub struct ProcessFleet {
    pub brokers: String,
    pub prefix: String,
    pub redis: Server,
    pub events_partitions: u32,
    pub api: String,
    binary: PathBuf,
    folder: tempfile::TempDir,
}

impl ProcessFleet {
    /// Writes the configuration and creates the topics. Sessions are as short as Kafka allows, so that a killed
    /// process is noticed soon.
    pub fn new(binary: &Path, brokers: String, prefix: String, types: &str) -> Self {
        let (redis, folder) = (Server::start(), tempfile::tempdir().unwrap());
        let api = format!("127.0.0.1:{}", free_port());
        let events_partitions = 4;
        let config = format!(
            "[kafka]\nbootstrap.servers = \"{brokers}\"\nsession.timeout.ms = 6000\nheartbeat.interval.ms = 1000\n\
             [redis]\nurl = \"{}\"\n\
             [topics]\nprefix = \"{prefix}\"\nevents_partitions = {events_partitions}\ntask_partitions = 4\n\
             [api]\nlisten = \"{api}\"\n{types}",
            redis.url()
        );
        std::fs::write(folder.path().join("kafleet.toml"), config).unwrap();
        let this = Self {
            brokers,
            prefix,
            redis,
            events_partitions,
            api: format!("http://{api}"),
            binary: binary.into(),
            folder,
        };
        this.run(&["topics", "apply"]);
        this
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KAFLEET_")) {
            command.env_remove(name);
        }
        command.args(arguments).arg("--config").arg(self.folder.path().join("kafleet.toml")).args(["--api", &self.api]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "`{}` exited with {status}: {stdout}{stderr}", arguments.join(" "));
        stdout.into_owned()
    }

    /// Starts a role; its log is available from [`Process::log_tail`].
    pub fn start(&self, role: &str) -> Process {
        self.start_with(role, &[])
    }

    pub fn start_with(&self, role: &str, arguments: &[&str]) -> Process {
        let number = fastrand::u32(..);
        let log = self.folder.path().join(format!("{role}-{number}.log"));
        let file = std::fs::File::create(&log).unwrap();
        let arguments: Vec<&str> = [role].iter().chain(arguments).copied().collect();
        let child = self.command(&arguments).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Process { child, log }
    }
}

/// Running role, killed on drop.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.assert_running();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub fn stop(&mut self) {
        self.assert_running();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGTERM)
            .unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.log_tail());
    }

    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Panics if the process has exited.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("a process exited unexpectedly with {status}:\n{}", self.log_tail());
        }
    }

    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log_tail());
        }
    }
}

/// Waits like [`eventually`], and panics as soon as one of the processes has exited.
pub async fn eventually_running<C: Check>(
    subject: &str,
    processes: &mut [Process],
    mut condition: impl AsyncFnMut() -> C,
) -> C::Value {
    eventually(subject, async || {
        processes.iter_mut().for_each(Process::assert_running);
        condition().await
    })
    .await
}

/// Waits like [`eventually_running`], on this thread.
#[track_caller]
pub fn eventually_running_blocking<C: Check>(
    subject: &str,
    processes: &mut [Process],
    mut condition: impl FnMut() -> C,
) -> C::Value {
    eventually_blocking(subject, || {
        processes.iter_mut().for_each(Process::assert_running);
        condition()
    })
}
