//! Operators' verbs against a fleet in memory.

use serde_json::{Value, json};

use crate::cli::client::Dev;
use crate::cli::run::eventually_blocking;

#[test]
fn running_program_is_cancelled() {
    let dev = Dev::start();
    dev.run(&["submit", "sleeps", "--id", "long"]).exits_with(0);
    dev.wait_until_visible("long");
    eventually_blocking("it runs", || dev.json(&["status", "long"])["state"] == "running");
    dev.run(&["workers", "--running"]).exits_with(0);
    dev.run(&["cancel", "long", "--reason", "enough", "--wait"]).exits_with(0).stdout_has(&["state     cancelled"]);
    dev.run(&["cancel", "long"])
        .exits_with(1)
        .stderr_has(&["`long` has already ended", "hint: see `kafleet status long`"]);
    dev.run(&["why", "long"]).exits_with(0).stdout_has(&["Job was cancelled. On request: enough"]);
    dev.run(&["cancel", "nobody"]).exits_with(3).stderr_has(&["there is no task `nobody`"]);
    for verb in ["cancel", "status", "why", "retry"] {
        dev.run(&[verb, ""]).exits_with(2).stderr_has(&["the id is empty"]);
    }
    let history = dev.json(&["history", "long"]);
    let asked =
        history["events"].as_array().unwrap().iter().find(|event| event["kind"] == "cancel_requested").unwrap().clone();
    assert_eq!(asked["message"], json!("enough"));
}

#[test]
fn type_is_paused_limited_and_resumed() {
    let dev = Dev::start();
    dev.pause("echo", &["--reason", "a look"]).stdout_has(&["paused"]);
    dev.run(&["submit", "echo", "--id", "waits"]).exits_with(0);
    dev.wait_until_visible("waits");
    let ran = dev.run(&["types", "limit", "echo", "--slots", "3", "--rate", "100/s"]).exits_with(0);
    ran.stdout_has(&["paused, slots 3*, rate 100/1s*"]);
    dev.run(&["types", "limit", "echo", "--max-concurrency", "1"])
        .exits_with(2)
        .stderr_has(&["below the number of partitions of the topic, 2"]);
    assert_eq!(dev.json(&["status", "waits"])["state"], "queued");
    dev.run(&["backlog"]).exits_with(0).stdout_has(&["DRAINED IN", "echo", "paused"]);
    dev.run(&["backlog", "echo"]).exits_with(0).stdout_has(&["paused"]);
    dev.run(&["stats", "echo", "--compare", "yesterday"]).exits_with(0).stdout_has(&["CHANGE", "echo"]);
    dev.run(&["types", "limit", "echo", "--reset"]).exits_with(0);
    dev.run(&["types", "resume", "echo"]).exits_with(0);
    dev.run(&["status", "waits", "--wait"]).exits_with(0);
    dev.run(&["types", "pause", "ehco"]).exits_with(3).stderr_has(&["did you mean `echo`"]);
    let types = dev.json(&["types"]);
    let echo = types["types"].as_array().unwrap().iter().find(|document| document["type"] == "echo").unwrap().clone();
    assert_eq!((&echo["paused"], &echo["limits"]["live"]), (&Value::Null, &json!([])));
}

#[test]
fn views_are_saved_listed_and_used() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--id", "tagged", "--tag", "x"]).exits_with(0);
    dev.run(&["submit", "echo", "--id", "other"]).exits_with(0);
    dev.wait_until_visible("other");
    dev.run(&["views"]).exits_with(0).stderr_has(&["kafleet views set NAME QUERY"]);
    let options = ["--columns", "id,tags", "--description", "those of x"];
    let set = dev.run(&[&["views", "set", "of-x", "tag:x"][..], &options].concat()).exits_with(0);
    set.stdout_has(&["of-x", "tag:x", "id,tags", "those of x"]);
    dev.run(&["views", "set", "of-x", "tga:x"]).exits_with(2).stderr_has(&["did you mean `tag`?"]);
    let listed = dev.run(&["list", "--view", "of-x"]).exits_with(0).stdout_has(&["ID      TAGS", "tagged  x"]);
    assert!(!listed.out.contains("other"), "{listed:?}");
    dev.run(&["list", "--view", "of-y"]).exits_with(3).stderr_has(&["did you mean `of-x`"]);
    dev.run(&["views", "delete", "of-x"]).exits_with(0).stdout_has(&["deleted the view `of-x`"]);
}

#[test]
fn tasks_are_sorted_and_exported() {
    let dev = Dev::start();
    for id in ["one", "two", "three"] {
        dev.run(&["submit", "echo", "--id", id, "--name", "=1", "--tag", "x"]).exits_with(0);
        dev.wait_until_visible(id);
    }
    let oldest = dev.json(&["list", "tag:x from:1h", "--sort", "oldest"]);
    assert_eq!((&oldest["tasks"][0]["id"], &oldest["sorted"]["all"]), (&json!("one"), &json!(true)));
    dev.run(&["list", "--sort", "oldest"]).exits_with(2).stderr_has(&["no index has these tasks"]);
    let csv = dev.run(&["tasks", "tag:x", "--export", "csv", "--columns", "id,name"]).exits_with(0);
    assert_eq!(csv.out, "id,name\r\nthree,'=1\r\ntwo,'=1\r\none,'=1\r\n# complete: 3 tasks\r\n");
    let first = dev.run(&["list", "tag:x", "--export", "jsonl", "-n", "1"]).exits_with(0);
    let first = first.stderr_has(&["the limit of 1 tasks is reached; continue with --cursor"]);
    let end: Value = serde_json::from_str(first.out.lines().last().unwrap()).unwrap();
    assert_eq!((&end["end"]["complete"], &end["end"]["tasks"]), (&json!(false), &json!(1)));
}

#[test]
fn kill_switch_cancels_tasks() {
    let dev = Dev::start();
    dev.run(&["kill-switch", "on", "bad", "--type", "echo", "--reason", "wrong input"]).exits_with(0).stdout_has(&[
        "bad",
        "echo",
        "wrong input",
    ]);
    // The worker reads the control topic asynchronously.
    let killed = eventually_blocking("the worker has read the kill switch", || {
        let ran = dev.run(&["submit", "echo", "--tag", "bad", "--wait"]);
        (ran.code != Some(0)).then_some(ran)
    });
    killed.exits_with(1).stdout_has(&["cancelled"]);
    dev.run(&["kill-switch", "list"]).exits_with(0).stdout_has(&["bad"]);
    dev.run(&["types"]).exits_with(0).stdout_has(&["kill bad"]);
    dev.run(&["kill-switch", "off", "bad"]).exits_with(0);
    dev.run(&["kill-switch", "off", "bad"]).exits_with(3).stderr_has(&["there is no kill switch `bad`"]);
}

#[test]
fn workers_are_listed() {
    let dev = Dev::start();
    let is_listed = || dev.json(&["workers"])["workers"].as_array().is_some_and(|workers| workers.len() == 1);
    eventually_blocking("the worker is listed", is_listed);
    dev.run(&["workers"]).exits_with(0).stdout_has(&["alive", "echo 0/"]);
    dev.run(&["workers", "--all"]).exits_with(0).stdout_has(&["alive"]);
}
