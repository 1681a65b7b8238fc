//! Watching many: a tree, a type, all.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::client::Dev;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"))).collect()
}

#[test]
fn a_tree_is_watched_until_its_root_has_ended() {
    let dev = Dev::start();
    dev.run(&["submit", "foreach", r#"{"count":4,"pause":"300ms"}"#, "--id", "r"]).ends(0);
    dev.run(&["submit", "echo", "--parent", "r", "--id", "a"]).ends(0);
    dev.run(&["submit", "broken", "--parent", "r", "--id", "b"]).ends(0);
    let ran = dev.run(&["watch", "r", "--tree", "-o", "json"]).ends(1).tells(&["watching `r` and what is below it"]);
    let seen = lines(&ran.out);
    let last = |id: &str| seen.iter().rfind(|status| status["id"] == id).unwrap_or_else(|| panic!("no line of `{id}`: {ran:?}"));
    assert_eq!((&last("r:a")["state"], &last("r:b")["state"]), (&json!("succeeded"), &json!("failed")));
    let root = last("r");
    assert_eq!((&root["state"], &root["children"]["total"]), (&json!("failed"), &json!(2)), "{ran:?}");
    let ended = seen.iter().filter(|status| status["id"] == "r" && status["state"] == "failed").count();
    assert_eq!(ended, 1, "it ends once: {ran:?}");
    dev.run(&["watch", "r", "--tree"]).ends(1).prints(&["  r  foreach  failed", "  r:a  echo  succeeded"]);
}

/// A watch without an end of its own. It gives up by itself, so that nothing waits for ever.
struct Watching(Child);

impl Watching {
    fn start(dev: &Dev, scope: &[&str]) -> Self {
        let mut command = dev.command(&[&["watch", "-o", "json", "--timeout", "5m"], scope].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("watching "), "{said}");
        Self(child)
    }

    /// All lines up to the success of this task.
    fn up_to(&mut self, id: &str) -> Vec<Value> {
        let mut seen = Vec::new();
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            seen.extend(lines(&line.unwrap()));
            if seen.last().is_some_and(|status| status["id"] == id && status["state"] == "succeeded") {
                return seen;
            }
        }
        panic!("no line says that `{id}` has succeeded: {seen:?}");
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_type_and_the_fleet_are_watched_without_an_end() {
    let dev = Dev::start();
    let (mut echoes, mut all) = (Watching::start(&dev, &["--type", "echo"]), Watching::start(&dev, &["--all"]));
    dev.run(&["submit", "foreach", r#"{"count":1}"#, "--id", "steps", "--wait"]).ends(0);
    dev.run(&["submit", "echo", "--id", "last", "--wait"]).ends(0);
    let of_type = echoes.up_to("last");
    assert!(of_type.iter().all(|status| status["type"] == "echo"), "{of_type:?}");
    let of_all = all.up_to("last");
    assert!(of_all.iter().any(|status| status["id"] == "steps" && status["state"] == "succeeded"), "{of_all:?}");
}

#[test]
fn what_cannot_be_watched_is_told() {
    let dev = Dev::start();
    dev.run(&["watch", "nobody", "--tree"]).ends(3).tells(&["error: there is no task `nobody`"]);
    dev.run(&["watch", "--type", "ehco"]).ends(3).tells(&["`ehco`", "hint: "]);
    dev.run(&["watch", "--type", "no type"]).ends(3).tells(&["no type"]);
    dev.run(&["watch"]).ends(2).tells(&["<ID>"]);
    dev.run(&["watch", "a", "--all"]).ends(2).tells(&["cannot be used with"]);
    dev.run(&["watch", "--all", "--timeout", "10ms"]).ends(0);
    dev.run(&["submit", "sleeps", "--id", "long"]).ends(0);
    dev.run(&["watch", "long", "--tree", "--timeout", "100ms"]).ends(5).tells(&["task `long` has not ended within 100ms"]);
}
