//! External tasks, params and children.

use serde_json::json;

use crate::cli::client::Dev;
use crate::cli::run::eventually_blocking;

#[test]
fn external_task_is_reported_to_its_end() {
    let dev = Dev::start();
    dev.run(&["submit", "ticket", "--external", "--id", "t"]).exits_with(0);
    dev.wait_until_visible("t");
    dev.run(&["report", "t", "running", "--message", "in progress"]).exits_with(0).stdout_has(&["t is running"]);
    dev.run(&["history", "t"]).exits_with(0).stdout_has(&["in progress"]);
    let done = dev.json(&["report", "t", "succeeded", "--result", r#"{"answer": 42}"#]);
    assert_eq!((&done["ignored"], &done["status"]["result"]), (&json!(false), &json!({"answer": 42})));
    dev.run(&["report", "t", "running"])
        .exits_with(1)
        .stderr_has(&["`t` has already ended", "hint: see `kafleet status t`"]);
    dev.run(&["report", "t", "scheduled"]).exits_with(2).stderr_has(&["possible values: queued, running"]);
    dev.run(&["report", "t", "failed", "--result", "{oops"]).exits_with(2).stderr_has(&["`{oops` is not JSON"]);
    dev.run(&["report", "nobody", "running"]).exits_with(3).stderr_has(&["there is no task `nobody`"]);
    dev.run(&["submit", "echo", "--id", "e", "--wait"]).exits_with(0);
    dev.run(&["report", "e", "running"]).exits_with(1).stderr_has(&["`e` is run by a worker", "--external"]);
}

#[test]
fn children_and_params_are_shown() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", r#"{"of": "the order"}"#, "--id", "order", "--wait"]).exits_with(0);
    for n in 0..5 {
        dev.run(&["submit", "echo", "--parent", "order", "--id", &format!("c{n}"), "--wait"]).exits_with(0);
    }
    let ids = |words: &[&str]| -> Vec<String> {
        let page = dev.json(&[&["children", "order"], words].concat());
        page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    eventually_blocking("all children are visible", || ids(&[]).len() == 5);
    assert_eq!(ids(&["-n", "3"]), ["order:c0", "order:c1", "order:c2"], "oldest first");
    let first = dev
        .run(&["children", "order", "-n", "3"])
        .exits_with(0)
        .stdout_has(&["ID ", "order:c2"])
        .stderr_has(&["there are more: --cursor "]);
    let cursor = first.err.split("--cursor ").nth(1).unwrap().trim();
    assert_eq!(ids(&["--cursor", cursor]), ["order:c3", "order:c4"]);
    dev.run(&["children", "nobody"]).exits_with(3).stderr_has(&["there is no task `nobody`"]);

    assert_eq!(dev.run(&["params", "order"]).exits_with(0).out, "{\n  \"of\": \"the order\"\n}\n");
    assert_eq!(dev.json(&["params", "order"]), json!({"id": "order", "params": {"of": "the order"}}));
    dev.run(&["params", "nobody"]).exits_with(3).stderr_has(&["there is no task `nobody`"]);
    dev.run(&["submit", "ticket", "--external", "--id", "t"]).exits_with(0);
    dev.wait_until_visible("t");
    dev.run(&["params", "t"]).exits_with(3).stderr_has(&["`t` is an external task"]);
}
