//! Types of an app in an API that does not have the app: each role in its own process, on a real Kafka and Redis.

use std::process::Command;

use serde_json::{Value, json};

use crate::cli::run::{Daemon, RunResult, config_folder, kafleet, run, write};
use crate::support::names::unique;

/// App of one type, whose param `x` is a number.
const APP: &str = r#"
import json, os, socket
line = socket.socket(fileno=os.dup(0)).makefile("rwb")
def send(**message): line.write(json.dumps(message).encode() + b"\n"); line.flush()
params = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}
send(ready={"protocol": 1, "types": [{"name": "double", "doc": "Doubles a number.", "params": params}]})
for text in line:
    if attempt := json.loads(text).get("attempt"):
        send(ok={"n": attempt["n"], "output": attempt["params"]["x"] * 2})
"#;
const TARGET: &[&str] = &["--", "python3", "app.py"];

struct Fleet {
    kafka: String,
    redis: String,
    prefix: String,
    folder: tempfile::TempDir,
    api: String,
}

impl Fleet {
    /// `None` if no services are running.
    fn new() -> Option<Self> {
        let (kafka, redis) = crate::support::services::kafka_and_redis()?;
        let types = "[types.echo]\nhandler = \"echo\"\n";
        let folder = config_folder(&format!("[topics]\nevents_partitions = 3\ntask_partitions = 2\n{types}"));
        write(folder.path(), "app.py", APP);
        Some(Self { kafka, redis, prefix: unique("cli"), folder, api: "http://127.0.0.1:1".into() })
    }

    /// Command of a role or verb; `target`: with the app.
    fn command(&self, words: &[&str], target: &[&str]) -> Command {
        let mut command = kafleet(words);
        command.current_dir(self.folder.path()).env("KAFLEET_API", &self.api);
        command.args(["--brokers", &self.kafka, "--redis", &self.redis, "--prefix", &self.prefix]).args(target);
        command
    }

    fn run(&self, words: &[&str], target: &[&str]) -> RunResult {
        run(self.command(words, target))
    }
}

#[test]
fn api_without_the_app_refuses_invalid_params_of_its_types() {
    let Some(mut fleet) = Fleet::new() else { return };
    fleet.run(&["topics", "apply"], TARGET).exits_with(0).stdout_has(&["type double", "created"]);
    fleet.run(&["topics", "apply"], TARGET).exits_with(0).stdout_has(&["type double", "unchanged"]);
    let mut api = Daemon::start(fleet.command(&["api", "--listen", "127.0.0.1:0"], &[]));
    let _roles = [
        Daemon::start(fleet.command(&["tracker"], &[])),
        Daemon::start(fleet.command(&["worker", "--types", "double"], TARGET)),
    ];
    let listens: Value = serde_json::from_str(&api.wait_for_line("API listening")).expect("a log line as JSON");
    fleet.api = format!("http://{}", listens["address"].as_str().unwrap());

    // The first request after the start is checked too.
    let refused = fleet.run(&["submit", "double", r#"{"x":"many"}"#], &[]).exits_with(2);
    refused.stderr_has(&["\"many\" is not of type \"integer\"", "/params/x"]);
    let status = fleet.run(&["submit", "double", r#"{"x":21}"#, "--wait=100s", "-o", "json"], &[]).exits_with(0).json();
    assert_eq!(status["result"], json!(42));
    let types = fleet.run(&["types", "-o", "json"], &[]).exits_with(0).json();
    let double = types["types"].as_array().unwrap().iter().find(|known| known["type"] == "double").unwrap();
    assert_eq!((&double["app"], &double["doc"]), (&json!("main"), &json!("Doubles a number.")));

    // A worker with other code warns, and writes nothing.
    write(fleet.folder.path(), "app.py", &APP.replace("integer", "number"));
    let mut other = Daemon::start(fleet.command(&["worker", "--types", "double"], TARGET));
    let warning = other.wait_for_line("differ from those that `kafleet topics apply` has declared");
    assert!(warning.contains("double") && warning.contains("WARN"), "{warning}");
    let found = fleet.run(&["doctor", "--no-api"], TARGET).exits_with(0);
    found.stdout_has(&["warning  type double", "differs in params", "hint: run `kafleet topics apply`"]);
    fleet.run(&["topics", "apply"], TARGET).exits_with(0).stdout_has(&["altered", "params"]);
    fleet.run(&["submit", "double", r#"{"x":0.5}"#], &[]).exits_with(0);

    // A type that is gone from the configuration is named, and deleted on request.
    let kept = fleet.run(&["topics", "apply"], &[]).exits_with(0).stdout_has(&["type double", "kept"]);
    kept.stderr_has(&[
        "`kafleet types forget double` deletes its declaration",
        &format!("{}.tasks.double", fleet.prefix),
    ]);
    fleet.run(&["types", "forget", "double"], &[]).exits_with(0).stderr_has(&["the topics of the type remain"]);
    assert!(!fleet.run(&["topics", "apply"], &[]).exits_with(0).out.contains("type double"));
    fleet.run(&["types", "forget", "double"], &[]).exits_with(3).stderr_has(&["`double` is not declared"]);
}
