//! Operators' verbs against a whole fleet in memory.

use serde_json::{Value, json};

use crate::client::Dev;
use crate::run::until;

#[test]
fn a_running_program_is_cancelled() {
    let dev = Dev::start();
    dev.run(&["submit", "sleeps", "--id", "long"]).ends(0);
    dev.folded("long");
    until("it runs", || (dev.json(&["status", "long"])["state"] == "running").then_some(()));
    dev.run(&["workers", "--running"]).ends(0);
    dev.run(&["cancel", "long", "--reason", "enough", "--wait"]).ends(0).prints(&["state     cancelled"]);
    dev.run(&["cancel", "long"]).ends(1).tells(&["`long` has already ended", "hint: see `kafleet status long`"]);
    dev.run(&["why", "long"]).ends(0).prints(&["it was cancelled on request: enough"]);
    dev.run(&["cancel", "nobody"]).ends(3).tells(&["there is no task `nobody`"]);
    for verb in ["cancel", "status", "why", "retry"] {
        dev.run(&[verb, ""]).ends(2).tells(&["the id is empty"]);
    }
    let history = dev.json(&["history", "long"]);
    let asked = history["events"].as_array().unwrap().iter().find(|event| event["kind"] == "cancel_requested").unwrap().clone();
    assert_eq!(asked["message"], json!("enough"));
}

#[test]
fn a_type_is_paused_limited_and_resumed() {
    let dev = Dev::start();
    dev.pause("echo", &["--reason", "a look"]).prints(&["paused"]);
    dev.run(&["submit", "echo", "--id", "waits"]).ends(0);
    dev.folded("waits");
    let ran = dev.run(&["types", "limit", "echo", "--slots", "3", "--rate", "100/s"]).ends(0);
    ran.prints(&["paused, slots 3*, rate 100/1s*"]);
    dev.run(&["types", "limit", "echo", "--max-concurrency", "1"]).ends(2).tells(&["below the 2 partitions"]);
    assert_eq!(dev.json(&["status", "waits"])["state"], "queued");
    dev.run(&["types", "limit", "echo", "--reset"]).ends(0);
    dev.run(&["types", "resume", "echo"]).ends(0);
    dev.run(&["status", "waits", "--wait"]).ends(0);
    dev.run(&["types", "pause", "ehco"]).ends(3).tells(&["did you mean `echo`"]);
    let types = dev.json(&["types"]);
    let echo = types["types"].as_array().unwrap().iter().find(|known| known["type"] == "echo").unwrap().clone();
    assert_eq!((&echo["paused"], &echo["limits"]["live"]), (&Value::Null, &json!([])));
}

#[test]
fn a_kill_switch_keeps_tasks_from_starting() {
    let dev = Dev::start();
    dev.run(&["kill", "on", "bad", "--type", "echo", "--reason", "wrong input"]).ends(0).prints(&["bad", "echo", "wrong input"]);
    // The worker reads the control topic in its own time.
    let killed = until("the worker has heard of it", || {
        let ran = dev.run(&["submit", "echo", "--tag", "bad", "--wait"]);
        (ran.code != Some(0)).then_some(ran)
    });
    killed.ends(1).prints(&["cancelled"]);
    dev.run(&["kill", "list"]).ends(0).prints(&["bad"]);
    dev.run(&["types"]).ends(0).prints(&["kill bad"]);
    dev.run(&["kill", "off", "bad"]).ends(0);
    dev.run(&["kill", "off", "bad"]).ends(3).tells(&["there is no kill switch `bad`"]);
}

#[test]
fn the_workers_are_shown() {
    let dev = Dev::start();
    let beat = || dev.json(&["workers"])["workers"].as_array().is_some_and(|workers| workers.len() == 1);
    until("the worker is there", || beat().then_some(()));
    dev.run(&["workers"]).ends(0).prints(&["alive", "echo 0/"]);
    dev.run(&["workers", "--all"]).ends(0).prints(&["alive"]);
}
