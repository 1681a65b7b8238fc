//! Worker processes on a real Kafka: a folder with their configuration and logs.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::fleet::Fleet;
use crate::isolated::SECRET_VARIABLES;

pub struct LocalWorkers(tempfile::TempDir);

impl LocalWorkers {
    /// Sessions time out after 6 s; revocations arrive within 0.3 s.
    pub fn new(fleet: &Fleet, partitions: u32, types: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brokers = std::env::var("KAFLEET_TEST_KAFKA").unwrap();
        let config = format!(
            "[kafka]\nbootstrap.servers = \"{brokers}\"\nsession.timeout.ms = 6000\nheartbeat.interval.ms = 300\n\
             [topics]\nprefix = \"{}\"\nevents_partitions = 3\ntask_partitions = {partitions}\n{types}",
            fleet.names.prefix
        );
        std::fs::write(folder.path().join("kafleet.toml"), config).unwrap();
        Self(folder)
    }

    pub fn start(&self, number: usize) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("worker").arg("--config").arg(self.0.path().join("kafleet.toml")).stdin(Stdio::null());
        // The values of the tests of secrets are no settings that a worker accepts.
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.stderr(std::fs::File::create(self.log(number)).unwrap()).spawn().unwrap()
    }

    fn log(&self, number: usize) -> PathBuf {
        self.0.path().join(format!("worker-{number}.log"))
    }

    /// Returns the last log lines of the first `workers` workers.
    pub fn log_tails(&self, workers: usize) -> String {
        let logs = (0..workers).map(|n| std::fs::read_to_string(self.log(n)).unwrap_or_default());
        let tails = logs
            .map(|log| log.lines().rev().take(8).map(|line| line.chars().take(300).collect()).collect::<Vec<String>>());
        tails.map(|lines| lines.join("\n")).collect::<Vec<_>>().join("\n---\n")
    }
}
