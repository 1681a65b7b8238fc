//! Lines of one tree, all or none.

use serde_json::{Value, json};

use crate::client::Dev;
use crate::run::fed;

fn line(task: Value) -> String {
    task.to_string() + "\n"
}

#[test]
fn lines_of_one_tree_become_tasks_together_or_not_at_all() {
    let dev = Dev::start();
    let root = line(json!({"type": "echo", "id": "r"}));
    let child = |id: &str| line(json!({"type": "echo", "id": id, "parent": "r"}));
    let send = |lines: &str, more: &[&str]| fed(dev.command(&[&["submit", "--atomic", "-"], more].concat()), lines);

    // One that is wrong is enough, whoever finds it.
    let broken = send(&(root.clone() + "{oops\n" + &child("a")), &[]).ends(1);
    broken.tells(&["line 2: not JSON", "nothing was submitted"]);
    let foreign = line(json!({"type": "echo", "id": "other"}));
    let refused = send(&(root.clone() + &child("a") + &foreign), &[]).ends(2);
    refused.tells(&["`other` is not of the tree of `r`", "nothing of the batch was published", "(at `/2`)", "hint: "]);
    send(&(root.clone() + &line(json!({"type": "nope", "id": "a", "parent": "r"}))), &[]).ends(3).tells(&["`nope`"]);
    let many: String = (0..1_001).map(|n| child(&format!("c{n}"))).collect();
    send(&many, &[]).ends(2).tells(&["more than 1000 lines cannot go together", "hint: "]);
    dev.run(&["status", "r"]).ends(3);

    let whole = root + &child("a") + &child("b");
    send(&whole, &[]).ends(0).tells(&["3 submitted together"]);
    dev.run(&["status", "r", "--wait"]).ends(0).prints(&["children  2: 2 succeeded"]);
    let again = send(&whole, &["-o", "json"]).ends(0);
    let ids: Vec<Value> = again.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["r", "r:a", "r:b"], "the same tasks");

    // Bare params, below a task that there is.
    let below = ["submit", "echo", "-", "--atomic", "--parent", "r", "--tag", "late"];
    fed(dev.command(&below), "1\n2\n").ends(0).tells(&["2 submitted together"]);
    assert_eq!(dev.json(&["list", "--root", "r", "--tag", "late"])["tasks"].as_array().unwrap().len(), 2);
    dev.run(&["submit", "echo", "--atomic"]).ends(2).tells(&["--atomic"]);
}
