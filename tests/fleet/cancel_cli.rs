//! Cancels with the command line in every state of a task, with roles as processes; a cancel outlives all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use kafleet_testkit::names::unique;
use kafleet_testkit::processes::{Process, ProcessFleet};
use kafleet_testkit::wait::eventually_blocking;
use serde_json::Value;

use crate::fleet::in_process::brokers;

/// `stubborn` ignores SIGTERM until a file exists; `inline-retry` retries in the worker and `timer-retry` by a timer
/// of the tracker.
const TYPES: &str = r#"
[worker]
grace = "5m"
inline_retry_max = "5m"
[types.echo]
handler = "echo"
[types.stubborn]
handler = "exec"
concurrency = 1
command = ["sh", "-c", "trap '' TERM; sleep 600 & echo $! > FOLDER/pid; until test -f FOLDER/end; do sleep 0.1; done; exit 1"]
[types.inline-retry]
handler = "exec"
command = ["sh", "-c", "exit 75"]
min_backoff = "4m"
max_backoff = "4m"
[types.timer-retry]
handler = "exec"
command = ["sh", "-c", "exit 75"]
min_backoff = "6m"
max_backoff = "6m"
"#;

struct CliFleet {
    processes: ProcessFleet,
    running: Vec<Process>,
}

impl CliFleet {
    fn start(&mut self) {
        self.running = ["tracker", "api", "worker"].map(|role| self.processes.start(role)).into();
        self.wait_until("the API responds", |fleet| fleet.output_of(&["types", "-o", "json"]).0 == 0);
    }

    fn wait_until(&mut self, subject: &str, mut condition: impl FnMut(&Self) -> bool) {
        eventually_blocking(subject, || {
            self.running.iter_mut().for_each(Process::assert_running);
            condition(self)
        });
    }

    /// Exit code, and standard output and error.
    fn output_of(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.processes.command(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
    }

    fn has_state(&self, id: &str, state: &str) -> bool {
        let stdout = self.processes.command(&["status", id, "-o", "json"]).output().unwrap().stdout;
        serde_json::from_slice::<Value>(&stdout).is_ok_and(|status| status["state"] == state)
    }

    fn submit(&mut self, arguments: &[&str], id: &str, state: &str) {
        self.processes.run(&[&["submit"][..], arguments, &["--id", id]].concat());
        self.wait_until(&format!("`{id}` is {state}"), |fleet| fleet.has_state(id, state));
    }

    fn cancel(&self, id: &str) {
        let (code, output) = self.output_of(&["cancel", id, "--reason", "enough"]);
        assert!(code == 0 && output.contains(&format!("cancellation of `{id}` requested")), "{code}: {output}");
    }

    fn wait_until_cancelled(&mut self, id: &str) {
        self.wait_until(&format!("`{id}` is cancelled"), |fleet| fleet.has_state(id, "cancelled"));
    }
}

/// Cancel records on the control topic.
struct Control {
    consumer: Box<dyn Consumer>,
    cancels: BTreeSet<String>,
}

impl Control {
    fn of(fleet: &ProcessFleet) -> Self {
        let section = [("bootstrap.servers".to_owned(), fleet.brokers.clone())].into();
        let kafka = Arc::new(Kafka::new(&section).unwrap());
        let mut consumer = kafka.consumer(&ConsumerSpec::default()).unwrap();
        let topic = Names::new(&fleet.prefix).control();
        consumer.assign(&[(Partition::new(topic, 0), StartOffset::Beginning)]).unwrap();
        Self { consumer, cancels: BTreeSet::new() }
    }

    /// Active cancels, after reading all records of the control topic.
    fn cancels(&mut self) -> &BTreeSet<String> {
        let cancels = &mut self.cancels;
        let polled = self.consumer.poll(1_000, Duration::from_millis(50), &mut |record| {
            let key = String::from_utf8_lossy(record.key.unwrap_or_default()).into_owned();
            cancels.remove(&key);
            if key.starts_with("cancel/") && record.value.is_some() {
                cancels.insert(key);
            }
        });
        polled.unwrap();
        &self.cancels
    }

    fn wait_until(&mut self, subject: &str, condition: impl Fn(&BTreeSet<String>) -> bool) {
        eventually_blocking(subject, || {
            let cancels = self.cancels();
            if condition(cancels) { Ok(()) } else { Err(cancels.clone()) }
        });
    }
}

fn is_running(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// Starts a fleet with tasks of these states, named after them.
fn start_fleet(brokers: String, folder: &Path) -> CliFleet {
    let types = TYPES.replace("FOLDER", folder.to_str().unwrap());
    let processes = ProcessFleet::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers, unique("fleet"), &types);
    let mut fleet = CliFleet { processes, running: Vec::new() };
    fleet.start();
    fleet.submit(&["stubborn"], "running", "running");
    fleet.submit(&["stubborn"], "queued", "queued");
    fleet.submit(&["inline-retry"], "retrying-inline", "retrying");
    fleet.submit(&["timer-retry"], "retrying-by-timer", "retrying");
    fleet.submit(&["echo", "--delay", "1h"], "scheduled", "scheduled");
    fleet.processes.run(&["types", "pause", "echo"]);
    fleet.wait_until("the worker reports the pause", |fleet| fleet.output_of(&["workers"]).1.contains(" paused"));
    fleet.submit(&["echo"], "paused", "queued");
    fleet.submit(&["echo"], "paused-2", "queued");
    fleet
}

fn assert_messages_of_further_cancels(fleet: &mut CliFleet) {
    for (id, code, expected) in [
        ("running", 0, "cancellation of `running` was already requested"),
        ("queued", 1, "`queued` has already ended: it is cancelled"),
        ("nobody", 3, "there is no task `nobody`"),
        ("a b", 2, "the id `a b` has the character ` `"),
        ("", 2, "the id is empty"),
    ] {
        // An API that is behind the log asks to try again.
        let mut output = String::new();
        fleet.wait_until(&format!("cancelling `{id}` exits with {code}"), |fleet| {
            let (found, text) = fleet.output_of(&["cancel", id]);
            output = text;
            found == code
        });
        assert!(output.contains(expected), "`{id}`: {output}");
    }
}

/// Cancels a task while no worker runs, and loses the store: the cancel is kept in Kafka only.
fn assert_cancel_outlives_all_processes(fleet: &mut CliFleet, control: &mut Control) {
    fleet.running[2].kill();
    fleet.running.remove(2);
    fleet.cancel("paused-2");
    fleet.running.iter_mut().for_each(Process::kill);
    let () = fleet.processes.redis.call(&["FLUSHALL"]).unwrap();
    control.wait_until("the cancel is on the control topic", |cancels| cancels.contains("cancel/paused-2"));
    fleet.start();
    fleet.processes.run(&["types", "resume", "echo"]);
    fleet.wait_until_cancelled("paused-2");
    control.wait_until("the cancel is removed", BTreeSet::is_empty);
    let history: Value = serde_json::from_str(&fleet.processes.run(&["history", "paused-2", "-o", "json"])).unwrap();
    let events = history["events"].as_array().unwrap();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(!kinds.contains(&"started") && !kinds.contains(&"succeeded"), "{kinds:?}");
    let (code, output) = fleet.output_of(&["retry", "paused-2", "--wait=240s"]);
    assert!(code == 0 && output.contains("succeeded"), "a retry after the cancel runs: {code}: {output}");
}

#[test]
fn cancel_ends_tasks_in_every_state_and_outlives_all_processes() {
    let Some(brokers) = brokers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = start_fleet(brokers, folder.path());
    let mut control = Control::of(&fleet.processes);
    for id in ["queued", "retrying-inline", "retrying-by-timer", "scheduled", "paused", "running"] {
        fleet.cancel(id);
    }
    for id in ["queued", "retrying-inline", "retrying-by-timer", "scheduled", "paused"] {
        fleet.wait_until_cancelled(id);
    }
    fleet.wait_until("the task is being cancelled", |fleet| fleet.has_state("running", "cancelling"));
    assert_messages_of_further_cancels(&mut fleet);
    let child = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(is_running(&child));
    std::fs::write(folder.path().join("end"), "").unwrap();
    fleet.wait_until_cancelled("running");
    fleet.wait_until("the program's child process is gone", |_| !is_running(&child));
    assert_cancel_outlives_all_processes(&mut fleet, &mut control);
}
