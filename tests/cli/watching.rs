//! Watching many: a tree, a type, all.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::client::Dev;
use crate::run::{ended, until};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"))).collect()
}

#[test]
fn a_tree_is_watched_until_its_root_has_ended() {
    let dev = Dev::start();
    // It goes on until it is told to stop: by then it is watched, and its children have ended.
    dev.run(&["submit", "foreach", r#"{"count":2,"pause":"1h"}"#, "--id", "r"]).ends(0);
    until("it runs", || (dev.run(&["status", "r"]).out.contains("state     running")).then_some(()));
    let mut watching = dev.command(&["watch", "r", "--tree", "-o", "json"]);
    let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut said, mut talk) = (String::new(), BufReader::new(watching.stderr.take().unwrap()));
    talk.read_line(&mut said).unwrap();
    assert!(said.contains("watching `r` and what is below it"), "{said}");
    dev.run(&["submit", "echo", "--parent", "r", "--id", "a", "--wait"]).ends(0);
    dev.run(&["submit", "broken", "--parent", "r", "--id", "b", "--wait"]).ends(1);
    dev.run(&["cancel", "r"]).ends(0);
    let ran = ended(watching).ends(1);
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

    /// All lines up to the success of these tasks, in whatever order that is seen.
    fn up_to(&mut self, ids: &[&str]) -> Vec<Value> {
        let mut seen: Vec<Value> = Vec::new();
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            seen.extend(lines(&line.unwrap()));
            let is_done = |id: &&str| seen.iter().any(|status| status["id"] == **id && status["state"] == "succeeded");
            if ids.iter().all(is_done) {
                return seen;
            }
        }
        panic!("no lines say that all of {ids:?} have succeeded: {seen:?}");
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
    let of_type = echoes.up_to(&["last"]);
    assert!(of_type.iter().all(|status| status["type"] == "echo"), "{of_type:?}");
    all.up_to(&["steps", "last"]);
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
    dev.folded("long");
    dev.run(&["watch", "long", "--tree", "--timeout", "100ms"]).ends(5).tells(&["task `long` has not ended within 100ms"]);
}
