//! Commands of docs/runbook.md, carried out against a fleet of processes that has what they name: a type whose tasks
//! fail, dead letters, a task that waits, a schedule and an app.

use std::collections::BTreeSet;

use crate::cli::run::{Daemon, eventually_blocking, write};
use crate::cli::services::Fleet;

const TYPES: &str = concat!(
    r#"
[types.broken]
handler = "exec"
command = ["sh", "-c", "echo no luck >&2; exit 75"]
adaptive = { min = 1 }
retries = 1
min_backoff = "1ms"

[types.sleeps]
handler = "exec"
command = ["sh", "-c", "sleep 600"]
concurrency = 1

[apps.pics]
command = ["python3", "loop.py"]
processes = 1
cwd = ""#,
    env!("CARGO_MANIFEST_DIR"),
    r#"/tests/apps"

[schedules.nightly]
cron = "0 3 * * *"
task = { type = "echo" }
"#
);

/// Commands of the runbook, each once, in the order of their first mention.
fn commands() -> Vec<String> {
    let mut seen = BTreeSet::new();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbook.md")).unwrap();
    let spans = text.split('`').skip(1).step_by(2);
    // Those of the outbox need a database of their own; the tests of its crate have one.
    let is_run = |span: &&str| span.starts_with("kafleet ") && !span.starts_with("kafleet outbox");
    let commands = spans.filter(is_run).map(|span| span.replace('\n', " "));
    commands.filter(|command| seen.insert(command.clone())).collect()
}

/// Arguments of a command. Words in single quotes stay together.
fn arguments(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in command.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words.split_off(1)
}

/// Runs a command with the names of the fleet. Returns the output of one that fails.
fn failure(fleet: &Fleet, command: &str) -> Option<String> {
    let mut command = command.replace("TYPE", "broken").replace("ID", "waits").replace("OFFSET", "0");
    command = if command.starts_with("kafleet schedules") {
        command.replace("NAME", "nightly")
    } else {
        command.replace("NAME/3", "broken/0").replace("NAME", "broken")
    };
    if command.contains("LETTER") {
        let page = fleet.run(&["dead-letters", "list", "-o", "json"]).exits_with(0).json();
        command = command.replace("LETTER", page["letters"][0]["id"].as_str().unwrap());
    }
    let words = arguments(&command);
    let ran = fleet.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    (ran.code != Some(0)).then(|| format!("`{command}`: {ran:?}"))
}

#[test]
fn commands_of_the_runbook_succeed() {
    let Some(mut fleet) = Fleet::new() else { return };
    let path = fleet.folder.path().join("kafleet.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    write(fleet.folder.path(), "kafleet.toml", &(text + TYPES));
    fleet.run(&["topics", "apply"]).exits_with(0);
    let _api = fleet.start_api();
    let _tracker = Daemon::start(fleet.command(&["tracker"]));
    let worker = Daemon::start(fleet.command(&["worker"]));
    fleet.run(&["schedules", "apply"]).exits_with(0);
    for _ in 0..3 {
        fleet.run(&["submit", "broken", "--wait=100s"]).exits_with(1);
    }
    for id in ["runs", "waits"] {
        fleet.run(&["submit", "sleeps", "--id", id]).exits_with(0);
    }
    eventually_blocking("the task is visible", || fleet.run(&["status", "waits"]).code == Some(0));
    eventually_blocking("the dead letters are listed", || {
        let page = fleet.run(&["dead-letters", "list", "-o", "json"]).exits_with(0).json();
        (page["letters"].as_array()?.len() >= 3).then_some(())
    });

    // Offsets change while no worker serves the type.
    let (offsets, others): (Vec<_>, Vec<_>) = commands().into_iter().partition(|command| command.contains("offsets"));
    assert!(others.len() > 25 && !offsets.is_empty(), "{others:?} {offsets:?}");
    let mut failures: Vec<_> = others.iter().filter_map(|command| failure(&fleet, command)).collect();
    assert_eq!(worker.stop(), Some(0));
    failures.extend(offsets.iter().filter_map(|command| failure(&fleet, command)));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
