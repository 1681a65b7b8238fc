//! Cancels with the command line, wherever a task is, over real processes; they outlive all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::kafka::Kafka;
use kafleet::broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use serde_json::Value;

use crate::inside::{brokers, unique_prefix};
use crate::processes::{HandlerEnv, Process};

const DEADLINE: Duration = Duration::from_secs(240);

/// A program that does not listen until a file is there; programs that want to be tried again, in the worker and by a timer.
const TYPES: &str = r#"
[worker]
grace = "5m"
inline_retry_max = "5m"
[types.echo]
handler = "echo"
[types.deaf]
handler = "exec"
concurrency = 1
command = ["sh", "-c", "trap '' TERM; sleep 600 & echo $! > FOLDER/pid; until test -f FOLDER/end; do sleep 0.1; done; exit 1"]
[types.busy]
handler = "exec"
command = ["sh", "-c", "exit 75"]
min_backoff = "4m"
max_backoff = "4m"
[types.distant]
handler = "exec"
command = ["sh", "-c", "exit 75"]
min_backoff = "6m"
max_backoff = "6m"
"#;

struct Bench {
    fleet: HandlerEnv,
    running: Vec<Process>,
}

impl Bench {
    fn start(&mut self) {
        self.running = ["tracker", "api", "worker"].map(|role| self.fleet.start(role)).into();
        self.until("the api answers", |bench| bench.says(&["types", "-o", "json"]).0 == 0);
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds(self) {
            self.running.iter_mut().for_each(Process::check);
            assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The exit code, and all that is said.
    fn says(&self, arguments: &[&str]) -> (i32, String) {
        let told = self.fleet.command(arguments).output().unwrap();
        let said = [told.stdout, told.stderr].concat();
        (told.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
    }

    fn is(&self, id: &str, state: &str) -> bool {
        let told = self.fleet.command(&["status", id, "-o", "json"]).output().unwrap().stdout;
        serde_json::from_slice::<Value>(&told).is_ok_and(|status| status["state"] == state)
    }

    fn submit(&mut self, words: &[&str], id: &str, state: &str) {
        self.fleet.run(&[&["submit"][..], words, &["--id", id]].concat());
        self.until(&format!("`{id}` is {state}"), |bench| bench.is(id, state));
    }

    fn cancel(&self, id: &str) {
        let (code, said) = self.says(&["cancel", id, "--reason", "enough"]);
        assert!(code == 0 && said.contains(&format!("cancellation of `{id}` is asked for")), "{code}: {said}");
    }

    fn ends_cancelled(&mut self, id: &str) {
        self.until(&format!("`{id}` is cancelled"), |bench| bench.is(id, "cancelled"));
    }
}

/// What workers are told of cancels.
struct Control {
    consumer: Box<dyn Consumer>,
    cancels: BTreeSet<String>,
}

impl Control {
    fn of(fleet: &HandlerEnv) -> Self {
        let section = [("bootstrap.servers".to_owned(), fleet.brokers.clone())].into();
        let kafka = Arc::new(Kafka::new(&section).unwrap());
        let mut consumer = kafka.consumer(&ConsumerSpec::default()).unwrap();
        let topic = Names::new(&fleet.prefix).control();
        consumer.assign(&[(Partition::new(topic, 0), StartOffset::Beginning)]).unwrap();
        Self { consumer, cancels: BTreeSet::new() }
    }

    /// Those that hold, as far as they are read.
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

    fn until(&mut self, what: &str, holds: impl Fn(&BTreeSet<String>) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds(self.cancels()) {
            assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}: {:?}", self.cancels);
        }
    }
}

fn runs(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn whatever_a_task_does_a_cancel_ends_it_and_outlives_all_processes() {
    let Some(brokers) = brokers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let types = TYPES.replace("FOLDER", folder.path().to_str().unwrap());
    let fleet = HandlerEnv::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers, unique_prefix(), &types);
    let mut control = Control::of(&fleet);
    let mut bench = Bench { fleet, running: Vec::new() };
    bench.start();
    bench.submit(&["deaf"], "runs", "running");
    bench.submit(&["deaf"], "waits", "queued");
    bench.submit(&["busy"], "backs-off", "retrying");
    bench.submit(&["distant"], "by-timer", "retrying");
    bench.submit(&["echo", "--delay", "1h"], "later", "scheduled");
    bench.fleet.run(&["types", "pause", "echo"]);
    bench.until("its worker has heard", |bench| bench.says(&["workers"]).1.contains(" paused"));
    bench.submit(&["echo"], "paused", "queued");
    bench.submit(&["echo"], "again", "queued");
    for id in ["waits", "backs-off", "by-timer", "later", "paused", "runs"] {
        bench.cancel(id);
    }
    for id in ["waits", "backs-off", "by-timer", "later", "paused"] {
        bench.ends_cancelled(id);
    }
    // The first is still ending: each has an answer of its own.
    bench.until("it is being cancelled", |bench| bench.is("runs", "cancelling"));
    for (id, code, words) in [
        ("runs", 0, "cancellation of `runs` had been asked for already"),
        ("waits", 1, "`waits` has ended already: it is cancelled"),
        ("nobody", 3, "there is no task `nobody`"),
        ("a b", 2, "the id `a b` has the character ` `"),
        ("", 2, "the id is empty"),
    ] {
        // Where the fold is behind it asks for patience.
        let mut said = String::new();
        bench.until(&format!("`{id}` has an answer"), |bench| {
            let (found, told) = bench.says(&["cancel", id]);
            said = told;
            found == code
        });
        assert!(said.contains(words), "`{id}`: {said}");
    }
    let child = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(runs(&child));
    std::fs::write(folder.path().join("end"), "").unwrap();
    bench.ends_cancelled("runs");
    bench.until("what the program has started is gone", |_| !runs(&child));

    // Nobody is there to hear it but Kafka.
    bench.running[2].kill();
    bench.running.remove(2);
    bench.cancel("again");
    bench.running.iter_mut().for_each(Process::kill);
    let () = bench.fleet.redis.call(&["FLUSHALL"]).unwrap();
    control.until("it is kept for workers", |cancels| cancels.contains("cancel/again"));
    bench.start();
    bench.fleet.run(&["types", "resume", "echo"]);
    bench.ends_cancelled("again");
    control.until("workers need not know any more", BTreeSet::is_empty);
    let history: Value = serde_json::from_str(&bench.fleet.run(&["history", "again", "-o", "json"])).unwrap();
    let kinds: Vec<&str> = history["events"].as_array().unwrap().iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(!kinds.contains(&"started") && !kinds.contains(&"succeeded"), "{kinds:?}");
    let (code, said) = bench.says(&["retry", "again", "--wait=240s"]);
    assert!(code == 0 && said.contains("succeeded"), "what is asked for after it runs: {code}: {said}");
}
