//! The fleet: three workers, two trackers, two apis, each a process of its own with the same configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::apis::Apis;
use crate::kafka::Cluster;
use crate::process::{Process, free_ports};
use crate::tasks::{DEEDS, PROGRAM, WORKER};
use crate::until;

pub const PREFIX: &str = "chaos";
pub const EVENTS_PARTITIONS: u32 = 4;
pub const TASK_PARTITIONS: u32 = 6;
/// What recurs: every two seconds.
pub const SCHEDULE: &str = "beat";
pub const SCHEDULE_EVERY_S: i64 = 2;

pub struct Fleet {
    pub workers: Vec<Process>,
    pub trackers: Vec<Process>,
    pub apis: Vec<Process>,
    pub calls: Arc<Apis>,
    pub deeds: PathBuf,
    folder: PathBuf,
    /// Roles that have ended without having been told to.
    pub ended: Vec<String>,
}

impl Fleet {
    pub async fn start(folder: &Path, kafka: &Cluster, redis_url: &str) -> Self {
        let deeds = folder.join("deeds");
        std::fs::write(&deeds, "").unwrap();
        write_configuration(folder, kafka, redis_url);
        let ports = free_ports::<2>();
        let calls = Arc::new(Apis::new(ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()));
        let mut this = Self {
            workers: (1..=3).map(|number| role(folder, "worker", number, None)).collect(),
            trackers: (1..=2).map(|number| role(folder, "tracker", number, None)).collect(),
            apis: (1..=2).map(|number| role(folder, "api", number, Some(ports[number as usize - 1]))).collect(),
            calls,
            deeds,
            folder: folder.to_owned(),
            ended: Vec::new(),
        };
        this.run(&["topics", "apply"]).await;
        this.roles().for_each(Process::start);
        this.schedule().await;
        this
    }

    pub fn roles(&mut self) -> impl Iterator<Item = &mut Process> {
        self.workers.iter_mut().chain(&mut self.trackers).chain(&mut self.apis)
    }

    /// Starts again what has ended by itself, as whoever runs such a fleet would.
    pub fn tend(&mut self) {
        let mut ended = Vec::new();
        for role in self.roles().filter(|role| !role.is_down) {
            if !role.is_alive() {
                ended.push(format!("{}: {}", role.incarnation(), role.last_words()));
                role.start();
            }
        }
        self.ended.extend(ended);
    }

    /// A verb of the workers' binary, which knows all types; again until it succeeds.
    async fn run(&self, arguments: &[&str]) {
        let mut talk = String::new();
        for _ in 0..20 {
            let mut command = command(&self.folder, true);
            command.args(arguments).arg("--config").arg(self.folder.join("kafleet.toml"));
            command.env(DEEDS, &self.deeds);
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            if output.status.success() {
                return;
            }
            talk = String::from_utf8_lossy(&output.stderr).into_owned();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("`{}` does not succeed: {talk}", arguments.join(" "));
    }

    /// The schedule of the configuration, once an api answers.
    async fn schedule(&self) {
        let url = &self.calls.urls[0];
        let ready = || async { self.calls.answers(url, "/readyz").await.then_some(()) };
        until("an api is ready", Duration::from_secs(120), ready, || self.apis[0].last_words()).await;
        self.run(&["schedules", "apply", "--api", url]).await;
    }
}

fn write_configuration(folder: &Path, kafka: &Cluster, redis_url: &str) {
    let program = folder.join("program");
    std::fs::write(&program, PROGRAM).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    let configuration = format!(
        "[kafka]\nbootstrap.servers = \"{}\"\nsession.timeout.ms = 6000\nheartbeat.interval.ms = 1000\n\
         [redis]\nurl = \"{}\"\n\
         [topics]\nprefix = \"{PREFIX}\"\nevents_partitions = {EVENTS_PARTITIONS}\ntask_partitions = {TASK_PARTITIONS}\n\
         [worker]\ninline_retry_max = \"500ms\"\n\
         [types.program]\nhandler = \"exec\"\ncommand = [\"./program\"]\nconcurrency = 4\n\
         [schedules.{SCHEDULE}]\nevery = \"{SCHEDULE_EVERY_S}s\"\noverlap = \"allow\"\n\
         task = {{ type = \"work\", params = {{ end = \"well\" }} }}\n",
        kafka.addresses(),
        redis_url,
    );
    std::fs::write(folder.join("kafleet.toml"), configuration).unwrap();
}

/// The workers are this binary, which has the types' code; the rest of the fleet is kafleet itself.
fn command(folder: &Path, has_types: bool) -> Command {
    let binary = if has_types { std::env::current_exe().unwrap() } else { PathBuf::from(env!("CARGO_BIN_EXE_kafleet")) };
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KAFLEET_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).env("KAFLEET_LOG", "info");
    command
}

fn role(folder: &Path, role: &'static str, number: u32, port: Option<u16>) -> Process {
    let (name, at) = (format!("{role}-{number}"), folder.to_owned());
    let who = name.clone();
    Process::new(&name, folder.join(format!("{name}.log")), move |starts| {
        let mut command = command(&at, role == "worker");
        command.arg(role).arg("--config").arg(at.join("kafleet.toml"));
        command.env(DEEDS, at.join("deeds")).env(WORKER, format!("{who}.{starts}"));
        if let Some(port) = port {
            command.arg("--listen").arg(format!("127.0.0.1:{port}"));
        }
        command
    })
}
