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
    for verb in ["cancel", "status", "why", "retry", "start"] {
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
    let ran = dev.run(&["types", "limit", "echo", "--slots", "3", "--rate", "100/s", "--reason", "slow"]).exits_with(0);
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
    dev.run(&["stats", "echo", "--durations"]).exits_with(0).stdout_has(&["ATTEMPTS"]);
    let limits = eventually_blocking("the requests are listed", || {
        let audit = dev.json(&["audit", "--action", "set_limits", "--target", "ECH", "--from", "1h"]);
        let requests = audit["requests"].as_array().unwrap().clone();
        (requests.len() == 2).then_some(requests)
    });
    let reasons: Vec<&str> = limits.iter().filter_map(|request| request["reason"].as_str()).collect();
    assert!(reasons[0].contains("slots 3 → as configured") && reasons[1].contains("rate none → 100/1s"), "{reasons:?}");
    dev.run(&["types", "pause", "ehco"]).exits_with(3).stderr_has(&["did you mean `echo`"]);
    let types = dev.json(&["types"]);
    let echo = types["types"].as_array().unwrap().iter().find(|document| document["type"] == "echo").unwrap().clone();
    assert_eq!((&echo["paused"], &echo["limits"]["live"]), (&Value::Null, &json!([])));
}

#[test]
fn checks_and_previews_change_nothing() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--id", "a", "--dry-run"]).exits_with(0).stdout_has(&["valid"]);
    let wrong = dev.run(&["submit", "foreach", r#"{"count": "x"}"#, "--dry-run"]).exits_with(1);
    wrong.stdout_has(&["not valid: ", "(at /params"]);
    dev.run(&["submit", "ehco", "--dry-run"]).exits_with(1).stdout_has(&["not valid: "]);
    dev.run(&["submit", "-", "--dry-run"]).exits_with(2).stderr_has(&["`--dry-run` is for one task"]);
    dev.run(&["kill-switch", "on", "a", "--preview"]).exits_with(0).stdout_has(&["0 open tasks match"]);
    dev.run(&["kill-switch", "on", "a", "--matches", "odd"]).exits_with(2).stderr_has(&["`tag` nor `id-prefix`"]);
    dev.run(&["schedules", "create", "hourly", "echo", "--every", "1h"]).exits_with(0).stdout_has(&["every 1h"]);
    let past = ["schedules", "backfill", "hourly", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T01:00:00Z"];
    let counted = dev.run(&[&past[..], &["--preview"]].concat()).exits_with(0);
    counted.stdout_has(&["2 tasks would be created for 2 times; 0 have one already", "hourly.20260101T010000Z"]);
    assert_eq!(dev.json(&["list"])["tasks"], json!([]));
    assert_eq!(dev.json(&["kill-switch", "list"])["kills"], json!([]));
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
fn dead_letters_of_a_kind_are_redriven_with_changed_params() {
    let dev = Dev::start();
    for id in ["one", "two"] {
        dev.run(&["submit", "exhausted", "--id", id, "--wait=100s"]).exits_with(1);
    }
    let letters = eventually_blocking("the dead letters are listed", || {
        let page = dev.json(&["dead-letters", "list", "--type", "exhausted"]);
        let letters = page["letters"].as_array().unwrap().clone();
        (letters.len() == 2 && letters.iter().all(|letter| letter["kind"].is_string())).then_some(letters)
    });
    let kind = letters[0]["kind"].as_str().unwrap().to_owned();
    eventually_blocking("the failures count them", || {
        let failures = dev.json(&["failures", "--by", "kind", "--with-dead-letters"]);
        failures["groups"][0]["dead_letters"] == 2
    });
    dev.run(&["failures"]).exits_with(0).stdout_has(&["LETTERS"]);
    let of_kind = ["dead-letters", "redrive", "--type", "exhausted", "--kind", &kind];
    dev.run(&[&of_kind[..], &["--patch", "{\"again\": true}", "--preview"]].concat())
        .exits_with(0)
        .stdout_has(&["2 of 2 matching dead letters would change"]);
    dev.run(&["dead-letters", "redrive", "--type", "exhausted", "--kind", "Other"])
        .exits_with(0)
        .stdout_has(&["0 redriven, 0 refused"]);
    dev.run(&[&of_kind[..], &["--limit", "1"]].concat())
        .exits_with(0)
        .stdout_has(&["1 redriven, 0 refused"])
        .stderr_has(&["more dead letters match"]);
    dev.run(&["audit"]).exits_with(0).stdout_has(&["bulk_redrive"]);
    dev.run(&["bulk", "list"]).exits_with(0).stdout_has(&["redrive type:exhausted kind:"]);
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
fn kill_switch_on_params_cancels_tasks_with_all_of_them() {
    let dev = Dev::start();
    fn on<'a>(options: &[&'a str]) -> Vec<&'a str> {
        [&["kill-switch", "on", "bad-import"][..], options].concat()
    }
    let params = ["--type", "echo", "--param", "/customer/id=42", "--param", "/kind=import"];
    dev.run(&on(&[&params[..], &["--preview"]].concat())).exits_with(0).stdout_has(&["0 open tasks match"]);
    for (options, code, reason) in [
        (&["--param", "/a=1"][..], 2, "--type"),
        (&["--type", "echo", "--param", "/a=1", "--matches", "tag"], 2, "--matches"),
        (&["--type", "echo", "--param", "a=1"], 2, "`a` is not a JSON pointer into the params"),
        (&["--type", "echo", "--param", "/a"], 2, "`/a` is no param: write a JSON pointer and a value"),
    ] {
        dev.run(&on(options)).exits_with(code).stderr_has(&[reason]);
    }
    assert_eq!(dev.json(&["kill-switch", "list"])["kills"], json!([]));
    dev.run(&on(&params)).exits_with(0).stdout_has(&["bad-import", r#"/customer/id=42 /kind="import""#, "echo"]);
    // The worker reads the control topic asynchronously.
    let killed = eventually_blocking("the worker has read the kill switch", || {
        let ran = dev.run(&["submit", "echo", r#"{"customer": {"id": 42}, "kind": "import"}"#, "--wait"]);
        (ran.code != Some(0)).then_some(ran)
    });
    killed.exits_with(1).stdout_has(&["cancelled"]);
    dev.run(&["submit", "echo", r#"{"customer": {"id": 42}, "kind": "export"}"#, "--wait"]).exits_with(0);
    dev.run(&["kill-switch", "off", "bad-import"]).exits_with(0);
}

#[test]
fn delayed_tasks_are_started_now() {
    let dev = Dev::start();
    for id in ["one", "two"] {
        dev.run(&["submit", "echo", "7", "--id", id, "--delay", "1h"]).exits_with(0);
    }
    dev.run(&["start", "one", "--reason", "urgent"]).exits_with(0).stdout_has(&["one was started: it is "]);
    dev.run(&["status", "one", "--wait"]).exits_with(0).stdout_has(&["succeeded"]);
    dev.run(&["history", "one"]).exits_with(0).stdout_has(&["patched", "urgent"]);
    let both = dev.run(&["start", "one", "two", "nobody"]);
    both.exits_with(1).stdout_has(&["two was started"]).stderr_has(&["`one` cannot be started now", "nobody"]);
    dev.run(&["start", "nobody"]).exits_with(3);
    dev.run(&["status", "two", "--wait"]).exits_with(0).stdout_has(&["succeeded"]);
}

#[test]
fn workers_are_listed() {
    let dev = Dev::start();
    let is_listed = || dev.json(&["workers"])["workers"].as_array().is_some_and(|workers| workers.len() == 1);
    eventually_blocking("the worker is listed", is_listed);
    dev.run(&["workers"]).exits_with(0).stdout_has(&["alive", "echo 0/"]);
    dev.run(&["workers", "--all"]).exits_with(0).stdout_has(&["alive"]);
}
