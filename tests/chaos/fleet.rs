//! Fleet of three workers, two trackers and two APIs, each a process, with one configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::apis::Apis;
use crate::kafka::Cluster;
use crate::process::{Process, free_ports};
use crate::tasks::{APP, EXECUTIONS_FILE, OUTAGE_FILE, PROGRAM, WORKER};
use crate::wait_until;

pub const PREFIX: &str = "chaos";
pub const EVENTS_PARTITIONS: u32 = 4;
pub const TASK_PARTITIONS: u32 = 6;
/// Schedule that creates a task every two seconds.
pub const SCHEDULE: &str = "periodic";
pub const SCHEDULE_EVERY_S: i64 = 2;

/// Name of the file that exists while the service of remote tasks is away.
const OUTAGE: &str = "outage";

pub struct Fleet {
    pub workers: Vec<Process>,
    pub trackers: Vec<Process>,
    pub apis: Vec<Process>,
    pub calls: Arc<Apis>,
    pub executions: PathBuf,
    /// Exists while the service of remote tasks is away.
    pub outage: PathBuf,
    folder: PathBuf,
    /// Roles that exited without being stopped.
    pub unexpected_exits: Vec<String>,
}

impl Fleet {
    /// Starts the fleet. With an even seed its types share a consumer group.
    pub async fn start(folder: &Path, kafka: &Cluster, redis_url: &str, seed: u64) -> Self {
        let executions = folder.join("executions");
        std::fs::write(&executions, "").unwrap();
        write_configuration(folder, kafka, redis_url, seed.is_multiple_of(2));
        let ports = free_ports::<2>();
        let calls = Arc::new(Apis::new(ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()));
        let mut this = Self {
            workers: (1..=3).map(|number| role(folder, "worker", number, None)).collect(),
            trackers: (1..=2).map(|number| role(folder, "tracker", number, None)).collect(),
            apis: (1..=2).map(|number| role(folder, "api", number, Some(ports[number as usize - 1]))).collect(),
            calls,
            executions,
            outage: folder.join(OUTAGE),
            folder: folder.to_owned(),
            unexpected_exits: Vec::new(),
        };
        this.run(&["topics", "apply"]).await;
        this.roles().for_each(Process::start);
        this.schedule().await;
        this
    }

    pub fn roles(&mut self) -> impl Iterator<Item = &mut Process> {
        self.workers.iter_mut().chain(&mut self.trackers).chain(&mut self.apis)
    }

    /// Restarts roles that have exited by themselves, as a supervisor would.
    pub fn restart_exited(&mut self) {
        let mut exited = Vec::new();
        for role in self.roles().filter(|role| !role.is_stopped) {
            if !role.is_alive() {
                exited.push(format!("{}: {}", role.incarnation(), role.log_tail()));
                role.start();
            }
        }
        self.unexpected_exits.extend(exited);
    }

    /// Runs a command of the workers' binary, which knows all types, until it succeeds.
    async fn run(&self, arguments: &[&str]) {
        let mut stderr = String::new();
        for _ in 0..20 {
            let mut command = command(&self.folder, true);
            command.args(arguments).arg("--config").arg(self.folder.join("kafleet.toml"));
            command.env(EXECUTIONS_FILE, &self.executions);
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            if output.status.success() {
                return;
            }
            stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("`{}` does not succeed: {stderr}", arguments.join(" "));
    }

    /// Creates the schedule from the configuration once an API is ready.
    async fn schedule(&self) {
        let url = &self.calls.urls[0];
        let ready = || async { self.calls.responds(url, "/readyz").await.then_some(()) };
        wait_until("an API is ready", Duration::from_secs(120), ready, || self.apis[0].log_tail()).await;
        self.run(&["schedules", "apply", "--api", url]).await;
    }
}

fn write_configuration(folder: &Path, kafka: &Cluster, redis_url: &str, shares_group: bool) {
    let group = if shares_group { "group = \"shared\"\n" } else { "" };
    println!("chaos: types {}", if shares_group { "share a group" } else { "have groups of their own" });
    let program = folder.join("program");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::write(folder.join("app.py"), APP).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    let configuration = format!(
        "[kafka]\nbootstrap.servers = \"{}\"\nsession.timeout.ms = 6000\nheartbeat.interval.ms = 1000\n\
         [redis]\nurl = \"{}\"\n\
         [topics]\nprefix = \"{PREFIX}\"\nevents_partitions = {EVENTS_PARTITIONS}\ntask_partitions = {TASK_PARTITIONS}\n\
         [worker]\ninline_retry_max = \"500ms\"\n{group}\
         [types.program]\nhandler = \"exec\"\ncommand = [\"./program\"]\nconcurrency = 4\n\
         [apps.chaos]\ncommand = [\"python3\", \"app.py\"]\nprocesses = 2\n\
         [schedules.{SCHEDULE}]\nevery = \"{SCHEDULE_EVERY_S}s\"\noverlap = \"allow\"\n\
         task = {{ type = \"work\", params = {{ outcome = \"succeed\" }} }}\n",
        kafka.addresses(),
        redis_url,
    );
    std::fs::write(folder.join("kafleet.toml"), configuration).unwrap();
}

/// Command of this binary, which has the task types, for workers, and of kafleet itself for other roles.
fn command(folder: &Path, has_types: bool) -> Command {
    let binary =
        if has_types { std::env::current_exe().unwrap() } else { PathBuf::from(env!("CARGO_BIN_EXE_kafleet")) };
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KAFLEET_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).env("KAFLEET_LOG", "info");
    command
}

fn role(folder: &Path, role: &'static str, number: u32, port: Option<u16>) -> Process {
    let (name, at) = (format!("{role}-{number}"), folder.to_owned());
    let incarnation = name.clone();
    Process::new(&name, folder.join(format!("{name}.log")), move |starts| {
        let mut command = command(&at, role == "worker");
        command.arg(role).arg("--config").arg(at.join("kafleet.toml"));
        command.env(EXECUTIONS_FILE, at.join("executions")).env(OUTAGE_FILE, at.join(OUTAGE));
        command.env(WORKER, format!("{incarnation}.{starts}"));
        if let Some(port) = port {
            command.arg("--listen").arg(format!("127.0.0.1:{port}"));
        }
        command
    })
}
