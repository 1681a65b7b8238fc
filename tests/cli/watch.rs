//! Watches of a tree, a type and all tasks.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::cli::client::Dev;
use crate::cli::run::{eventually_blocking, wait_for_exit};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn tree_is_watched_until_its_root_has_ended() {
    let dev = Dev::start();
    // Runs until it is cancelled: by then it is watched, and its children have ended.
    dev.run(&["submit", "foreach", r#"{"count":2,"pause":"1h"}"#, "--id", "r"]).exits_with(0);
    eventually_blocking("it runs", || dev.run(&["status", "r"]).out.contains("state     running"));
    let mut watching = dev.command(&["watch", "r", "--tree", "-o", "json"]);
    let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut talk = BufReader::new(watching.stderr.take().unwrap());
    talk.read_line(&mut line).unwrap();
    assert!(line.contains("watching `r` and its descendants"), "{line}");
    dev.run(&["submit", "echo", "--parent", "r", "--id", "a", "--wait"]).exits_with(0);
    dev.run(&["submit", "broken", "--parent", "r", "--id", "b", "--wait"]).exits_with(1);
    dev.run(&["cancel", "r"]).exits_with(0);
    let ran = wait_for_exit(watching).exits_with(1);
    let seen = lines(&ran.out);
    let last = |id: &str| {
        seen.iter().rfind(|status| status["id"] == id).unwrap_or_else(|| panic!("no line of `{id}`: {ran:?}"))
    };
    assert_eq!((&last("r:a")["state"], &last("r:b")["state"]), (&json!("succeeded"), &json!("failed")));
    let root = last("r");
    assert_eq!((&root["state"], &root["children"]["total"]), (&json!("failed"), &json!(2)), "{ran:?}");
    let ended = seen.iter().filter(|status| status["id"] == "r" && status["state"] == "failed").count();
    assert_eq!(ended, 1, "the end is printed once: {ran:?}");
    dev.run(&["watch", "r", "--tree"]).exits_with(1).stdout_has(&["  r  foreach  failed", "  r:a  echo  succeeded"]);
}

/// Endless watch, with a timeout so that a failing test ends.
struct Watching(Child);

impl Watching {
    fn start(dev: &Dev, scope: &[&str]) -> Self {
        let mut command = dev.command(&[&["watch", "-o", "json", "--timeout", "5m"], scope].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("watching "), "{line}");
        Self(child)
    }

    /// Reads lines until all of these tasks have succeeded, in any order.
    fn read_until_succeeded(&mut self, ids: &[&str]) -> Vec<Value> {
        let mut seen: Vec<Value> = Vec::new();
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            seen.extend(lines(&line.unwrap()));
            let is_done = |id: &&str| seen.iter().any(|status| status["id"] == **id && status["state"] == "succeeded");
            if ids.iter().all(is_done) {
                return seen;
            }
        }
        panic!("not all of {ids:?} have succeeded: {seen:?}");
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn type_and_fleet_are_watched_without_end() {
    let dev = Dev::start();
    let mut echoes = Watching::start(&dev, &["--type", "echo"]);
    let mut all = Watching::start(&dev, &[]);
    dev.run(&["submit", "foreach", r#"{"count":1}"#, "--id", "steps", "--wait"]).exits_with(0);
    dev.run(&["submit", "echo", "--id", "last", "--wait"]).exits_with(0);
    let of_type = echoes.read_until_succeeded(&["last"]);
    assert!(of_type.iter().all(|status| status["type"] == "echo"), "{of_type:?}");
    all.read_until_succeeded(&["steps", "last"]);
}

#[test]
fn invalid_watches_are_refused() {
    let dev = Dev::start();
    dev.run(&["watch", "nobody", "--tree"]).exits_with(3).stderr_has(&["error: there is no task `nobody`"]);
    dev.run(&["watch", "--type", "ehco"]).exits_with(3).stderr_has(&["`ehco`", "hint: "]);
    dev.run(&["watch", "--type", "no type"]).exits_with(3).stderr_has(&["no type"]);
    dev.run(&["watch", "a", "--type", "echo"]).exits_with(2).stderr_has(&["cannot be used with"]);
    dev.run(&["watch", "--timeout", "10ms"]).exits_with(0);
    dev.run(&["submit", "sleeps", "--id", "long"]).exits_with(0);
    dev.wait_until_visible("long");
    dev.run(&["watch", "long", "--tree", "--timeout", "100ms"])
        .exits_with(5)
        .stderr_has(&["task `long` has not ended within 100ms"]);
}

#[test]
fn logs_of_many_tasks_are_printed_and_followed() {
    let dev = Dev::start();
    dev.run(&["submit", "answer", "--id", "a", "--wait"]).exits_with(0);
    dev.run(&["submit", "broken", "--id", "b", "--wait"]).exits_with(1);
    let of_type = dev.run(&["log", "--type", "answer"]).exits_with(0);
    assert_eq!(of_type.out, "answer a │ reading the file\n");
    let failed = dev.run(&["log", "--failed"]).exits_with(0);
    let failed = failed.stdout_has(&["broken b │ no luck\n", "broken b ✗ "]);
    assert!(!failed.out.contains("answer"), "{failed:?}");
    dev.run(&["log", "--type", "anser"]).exits_with(3).stderr_has(&["`anser`", "hint: "]);
    dev.run(&["log", "--failed", "--type", "answer"]).exits_with(0).stderr_has(&["no such task"]);

    let follow = |words: &[&str]| {
        let mut command = dev.command(&[&["log", "--follow"], words].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        (child, line)
    };
    let (mut of_type, begun) = follow(&["--type", "answer"]);
    assert_eq!(begun, "following the logs of tasks of type `answer`\n");
    let (mut failed, begun) = follow(&["--failed"]);
    assert_eq!(begun, "following the logs of all failed tasks\n");
    dev.run(&["submit", "broken", "--id", "b-2", "--wait"]).exits_with(1);
    dev.run(&["submit", "answer", "--id", "a-2", "--wait"]).exits_with(0);
    dev.run(&["log", "a-2", "--append", "later"]).exits_with(0);
    let lines = |child: &mut Child, count: usize| -> Vec<String> {
        BufReader::new(child.stdout.take().unwrap()).lines().take(count).map(Result::unwrap).collect()
    };
    assert_eq!(lines(&mut of_type, 2), ["answer a-2 │ reading the file", "answer a-2 │ later"]);
    let of_failed = lines(&mut failed, 2);
    assert!(of_failed[0] == "broken b-2 │ no luck" && of_failed[1].starts_with("broken b-2 ✗ "), "{of_failed:?}");
    for mut child in [of_type, failed] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn descendant_that_made_a_task_fail_is_named() {
    let dev = Dev::start();
    let mut waiting = dev.command(&["submit", "ticket", "--external", "--id", "r", "--wait"]);
    let waiting = waiting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually_blocking("it is visible", || dev.run(&["status", "r"]).code == Some(0));
    dev.run(&["submit", "broken", "--parent", "r", "--id", "b", "--wait"]).exits_with(1);
    dev.run(&["report", "r", "succeeded"]).exits_with(0);
    wait_for_exit(waiting).exits_with(1).stderr_has(&["`r:b`", "no luck"]);
}
