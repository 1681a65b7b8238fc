//! Atomic submission of the lines of one tree.

use serde_json::{Value, json};

use crate::cli::client::Dev;
use crate::cli::run::run_with_stdin;

fn line(task: Value) -> String {
    task.to_string() + "\n"
}

#[test]
fn lines_of_one_tree_are_submitted_atomically() {
    let dev = Dev::start();
    let root = line(json!({"type": "echo", "id": "r"}));
    let child = |id: &str| line(json!({"type": "echo", "id": id, "parent": "r"}));
    let send =
        |lines: &str, more: &[&str]| run_with_stdin(dev.command(&[&["submit", "--atomic", "-"], more].concat()), lines);

    // A single invalid line refuses all, whether the client or the API finds it.
    let broken = send(&(root.clone() + "{oops\n" + &child("a")), &[]).exits_with(1);
    broken.stderr_has(&["line 2: not JSON", "nothing was submitted"]);
    let foreign = line(json!({"type": "echo", "id": "other"}));
    let refused = send(&(root.clone() + &child("a") + &foreign), &[]).exits_with(2);
    refused.stderr_has(&[
        "`other` is not in the tree of `r`",
        "nothing of the batch was published",
        "(at `/2`)",
        "hint: ",
    ]);
    send(&(root.clone() + &line(json!({"type": "nope", "id": "a", "parent": "r"}))), &[])
        .exits_with(3)
        .stderr_has(&["`nope`"]);
    let many: String = (0..1_001).map(|n| child(&format!("c{n}"))).collect();
    send(&many, &[]).exits_with(2).stderr_has(&["an atomic submission has at most 1000 lines", "hint: "]);
    dev.run(&["status", "r"]).exits_with(3);

    let whole = root + &child("a") + &child("b");
    send(&whole, &[]).exits_with(0).stderr_has(&["3 submitted atomically"]);
    dev.run(&["status", "r", "--wait"]).exits_with(0).stdout_has(&["children  2: 2 succeeded"]);
    let again = send(&whole, &["-o", "json"]).exits_with(0);
    let ids: Vec<Value> =
        again.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["r", "r:a", "r:b"], "the same tasks");

    // Lines of params, below an existing task.
    let below = ["submit", "echo", "-", "--atomic", "--parent", "r", "--tag", "late"];
    run_with_stdin(dev.command(&below), "1\n2\n").exits_with(0).stderr_has(&["2 submitted atomically"]);
    assert_eq!(dev.json(&["list", "--root", "r", "--tag", "late"])["tasks"].as_array().unwrap().len(), 2);
    dev.run(&["submit", "echo", "--atomic"]).exits_with(2).stderr_has(&["--atomic"]);
}
