//! Types of an app in an API that does not have the app: each role in its own process, on a real Kafka and Redis.

use std::process::Command;

use serde_json::json;

use super::services::Fleet;
use crate::cli::run::{Daemon, run, write};

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

/// Command of a role or verb with the app.
fn with_app(fleet: &Fleet, words: &[&str]) -> Command {
    let mut command = fleet.command(words);
    command.args(TARGET);
    command
}

#[test]
fn api_without_the_app_refuses_invalid_params_of_its_types() {
    let Some(mut fleet) = Fleet::new() else { return };
    write(fleet.folder.path(), "app.py", APP);
    run(with_app(&fleet, &["topics", "apply"])).exits_with(0).stdout_has(&["type double", "created"]);
    run(with_app(&fleet, &["topics", "apply"])).exits_with(0).stdout_has(&["type double", "unchanged"]);
    let _api = fleet.start_api();
    let tracker = Daemon::start(fleet.command(&["tracker"]));
    let worker = Daemon::start(with_app(&fleet, &["worker", "--types", "double"]));

    // The first request after the start is checked too.
    let refused = fleet.run(&["submit", "double", r#"{"x":"many"}"#]).exits_with(2);
    refused.stderr_has(&["\"many\" is not of type \"integer\"", "/params/x"]);
    let status = fleet.run(&["submit", "double", r#"{"x":21}"#, "--wait=100s", "-o", "json"]).exits_with(0).json();
    assert_eq!(status["result"], json!(42));
    let types = fleet.run(&["types", "-o", "json"]).exits_with(0).json();
    let double = types["types"].as_array().unwrap().iter().find(|document| document["type"] == "double").unwrap();
    assert_eq!((&double["app"], &double["doc"]), (&json!("main"), &json!("Doubles a number.")));

    // A worker with other code warns, and writes nothing.
    write(fleet.folder.path(), "app.py", &APP.replace("integer", "number"));
    let mut other = Daemon::start(with_app(&fleet, &["worker", "--types", "double"]));
    let warning = other.wait_for_line("differ from those that `kafleet topics apply` has declared");
    assert!(warning.contains("double") && warning.contains("WARN"), "{warning}");
    let found = run(with_app(&fleet, &["doctor", "--no-api"])).exits_with(0);
    found.stdout_has(&["warning  type double", "differs in params", "hint: run `kafleet topics apply`"]);
    run(with_app(&fleet, &["topics", "apply"])).exits_with(0).stdout_has(&["altered", "params"]);
    // A worker refuses what the schema of its own code does not permit.
    worker.stop();
    fleet.run(&["submit", "double", r#"{"x":0.5}"#, "--wait=100s"]).exits_with(0);

    // A type that is gone from the configuration is named with the tasks that wait for it, and deleted on request.
    drop((other, tracker));
    fleet.run(&["submit", "double", r#"{"x":1}"#]).exits_with(0);
    let gone = "this configuration does not have the type `double`; about 1 of its tasks wait";
    fleet.run(&["doctor", "--no-api"]).exits_with(0).stdout_has(&["warning  type double", gone, "`aliases`"]);
    let kept = fleet.run(&["topics", "apply"]).exits_with(0).stdout_has(&["type double", "kept"]);
    kept.stderr_has(&[
        gone,
        "`kafleet types forget double` deletes its declaration",
        &format!("{}.tasks.double", fleet.prefix),
    ]);
    fleet.run(&["types", "forget", "double"]).exits_with(0).stderr_has(&["the topics of the type remain"]);
    assert!(!fleet.run(&["topics", "apply"]).exits_with(0).out.contains("type double"));
    fleet.run(&["types", "forget", "double"]).exits_with(3).stderr_has(&["`double` is not declared"]);
}
