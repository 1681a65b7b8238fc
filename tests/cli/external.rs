//! External tasks reported from a shell, and what is shown of params and children.

use serde_json::json;

use crate::client::Dev;
use crate::run::until;

#[test]
fn external_task_is_reported_to_its_end() {
    let dev = Dev::start();
    dev.run(&["submit", "ticket", "--external", "--id", "t"]).ends(0);
    dev.folded("t");
    dev.run(&["report", "t", "running", "--message", "somebody looks at it"]).ends(0).prints(&["t is running"]);
    dev.run(&["history", "t"]).ends(0).prints(&["somebody looks at it"]);
    let done = dev.json(&["report", "t", "succeeded", "--result", r#"{"answer": 42}"#]);
    assert_eq!((&done["ignored"], &done["status"]["result"]), (&json!(false), &json!({"answer": 42})));
    dev.run(&["report", "t", "running"]).ends(1).tells(&["`t` has ended already", "hint: see `kafleet status t`"]);
    dev.run(&["report", "t", "scheduled"]).ends(2).tells(&["possible values: queued, running"]);
    dev.run(&["report", "t", "failed", "--result", "{oops"]).ends(2).tells(&["`{oops` is not JSON"]);
    dev.run(&["report", "nobody", "running"]).ends(3).tells(&["there is no task `nobody`"]);
    dev.run(&["submit", "echo", "--id", "e", "--wait"]).ends(0);
    dev.run(&["report", "e", "running"]).ends(1).tells(&["`e` is run by a worker", "--external"]);
}

#[test]
fn children_and_params_are_shown() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", r#"{"of": "the order"}"#, "--id", "order", "--wait"]).ends(0);
    for n in 0..5 {
        dev.run(&["submit", "echo", "--parent", "order", "--id", &format!("c{n}"), "--wait"]).ends(0);
    }
    let ids = |words: &[&str]| -> Vec<String> {
        let page = dev.json(&[&["children", "order"], words].concat());
        page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    until("all children are there", || (ids(&[]).len() == 5).then_some(()));
    assert_eq!(ids(&["-n", "3"]), ["order:c0", "order:c1", "order:c2"], "oldest first");
    let first =
        dev.run(&["children", "order", "-n", "3"]).ends(0).prints(&["ID ", "order:c2"]).tells(&["there are more: --cursor "]);
    let cursor = first.err.split("--cursor ").nth(1).unwrap().trim();
    assert_eq!(ids(&["--cursor", cursor]), ["order:c3", "order:c4"]);
    dev.run(&["children", "nobody"]).ends(3).tells(&["there is no task `nobody`"]);

    assert_eq!(dev.run(&["params", "order"]).ends(0).out, "{\n  \"of\": \"the order\"\n}\n");
    assert_eq!(dev.json(&["params", "order"]), json!({"id": "order", "params": {"of": "the order"}}));
    dev.run(&["params", "nobody"]).ends(3).tells(&["there is no task `nobody`"]);
    dev.run(&["submit", "ticket", "--external", "--id", "t"]).ends(0);
    dev.folded("t");
    dev.run(&["params", "t"]).ends(3).tells(&["`t` is an external task"]);
}
