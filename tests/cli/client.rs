//! Client verbs against a fleet in memory.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cli::run::{
    Daemon, RunResult, config_folder, eventually_blocking, kafleet, run, run_with_stdin, wait_for_exit, write,
};

const TYPES: &str = r#"
[types.echo]
handler = "echo"

[types.foreach]
handler = "foreach"
retries = 0

[types.answer]
handler = "exec"
command = ["sh", "-c", "echo '{\"log\": \"reading the file\"}' >&2; cat answer.json"]

[types.sleeps]
handler = "exec"
command = ["sh", "-c", "sleep 600"]

[types.broken]
handler = "exec"
command = ["sh", "-c", "echo no luck >&2; exit 3"]

[types.exhausted]
handler = "exec"
command = ["sh", "-c", "echo no luck >&2; exit 3"]
retry_on = ["*"]
retries = 0
"#;

/// A `kafleet dev` process for one test.
pub struct Dev {
    daemon: Daemon,
    api: String,
    folder: tempfile::TempDir,
}

impl Dev {
    pub fn start() -> Self {
        Self::with(&["--no-sample"])
    }

    pub fn with(options: &[&str]) -> Self {
        Self::of_types(TYPES, options)
    }

    /// Starts with these sections of types.
    pub fn of_types(types: &str, options: &[&str]) -> Self {
        let folder = config_folder(types);
        write(folder.path(), "answer.json", r#"{"answer": 42}"#);
        let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(folder.path().join("kafleet.toml")).args(options);
        let mut daemon = Daemon::start(command);
        let api = daemon.wait_for_line("  api ").split_whitespace().nth(1).unwrap().to_owned();
        Self { daemon, api, folder }
    }

    /// Address of the API.
    pub fn api(&self) -> &str {
        &self.api
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = kafleet(words);
        command.env("KAFLEET_API", &self.api);
        command
    }

    pub fn run(&self, words: &[&str]) -> RunResult {
        run(self.command(words))
    }

    pub fn json(&self, words: &[&str]) -> Value {
        self.run(&[words, &["-o", "json"]].concat()).exits_with(0).json()
    }

    /// Waits until a submitted task is visible.
    pub fn wait_until_visible(&self, id: &str) {
        eventually_blocking(&format!("`{id}` is known"), || self.run(&["status", id]).code == Some(0));
    }

    /// Waits until at least `count` tasks are listed, and returns them.
    fn wait_until_listed(&self, words: &[&str], count: usize) -> Vec<Value> {
        eventually_blocking(&format!("{count} tasks are listed"), || {
            let page = self.json(&[&["list"], words].concat());
            page["tasks"].as_array().filter(|tasks| tasks.len() >= count).cloned()
        })
    }

    /// Pauses a type and waits until the worker has read it from the control topic.
    pub fn pause(&self, task_type: &str, more: &[&str]) -> RunResult {
        let ran = self.run(&[&["types", "pause", task_type], more].concat()).exits_with(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let http = kafleet_testkit::http::client();
        let metrics =
            || runtime.block_on(async { http.get(format!("{}/metrics", self.api)).send().await?.text().await });
        let paused = format!("kafleet_type_paused{{type=\"{task_type}\"}} 1");
        eventually_blocking("the worker has paused the type", || metrics().unwrap().contains(&paused));
        ran
    }
}

#[test]
fn dev_once_prints_the_sample_result_and_exits() {
    let ran = run(kafleet(["dev", "--once"]))
        .exits_with(0)
        .stdout_has(&["state     succeeded", r#"result    {"hello":"world"}"#]);
    assert!(ran.err.contains("api    http://127.0.0.1:") && ran.err.contains("curl"), "{ran:?}");
    let document = run(kafleet(["dev", "--once", "-o", "json"])).exits_with(0).json();
    assert_eq!((&document["state"], &document["result"]), (&json!("succeeded"), &json!({"hello": "world"})));
}

#[test]
fn dev_serves_until_terminated() {
    let mut daemon = Daemon::start(kafleet(["dev", "--listen", "127.0.0.1:0"]));
    daemon.wait_for_line("serving until ctrl-c");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn task_is_submitted_and_its_result_is_shown() {
    let dev = Dev::start();
    let ran = dev.run(&["submit", "echo", r#"{"n":1}"#, "--id", "one", "--name", "first", "--tag", "x"]).exits_with(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("one\n", ""));
    dev.run(&["status", "one", "--wait"]).exits_with(0).stdout_has(&[
        "id        one",
        "type      echo",
        "state     succeeded",
    ]);
    let status = dev.json(&["status", "one"]);
    assert_eq!(
        (&status["result"], &status["name"], &status["tags"]),
        (&json!({"n": 1}), &json!("first"), &json!(["x"]))
    );
    assert!(status["seen_at"].is_string(), "{status}");
    dev.run(&["submit", "echo", r#"{"n":1}"#, "--id", "one"]).exits_with(0);
    dev.run(&["submit", "echo", r#"{"n":2}"#, "--id", "one"]).exits_with(1).stderr_has(&["one", "hint: "]);
    let waited = dev.run(&["submit", "answer", "--wait"]).exits_with(0);
    assert!(
        waited.out.contains(r#"result    {"answer":42}"#),
        "a program starts in the configuration's folder: {waited:?}"
    );
    drop(dev.folder);
}

#[test]
fn missing_permission_is_exit_code_6() {
    let token = |role: &str| format!("a-long-enough-token-to-{role}");
    let section =
        |role: &str| format!("[[api.tokens]]\nname = \"{role}\"\ntoken = \"{}\"\nrole = \"{role}\"\n", token(role));
    let folder = config_folder(&(section("read") + &section("submit")));
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let mut daemon = Daemon::start(command);
    let api = daemon.wait_for_line("  api ").split_whitespace().nth(1).unwrap().to_owned();
    daemon.wait_for_line("serving until ctrl-c");
    let ask = |words: &[&str], token: &str| run(kafleet([words, &["--api", &api, "--token", token]].concat()));
    let none =
        run(kafleet(["list", "--api", &api])).exits_with(6).stderr_has(&["none was given", "--token or KAFLEET_TOKEN"]);
    assert!(!none.err.contains("header"), "{none:?}");
    ask(&["list"], "another-token-that-nobody-knows")
        .exits_with(6)
        .stderr_has(&["does not know the token", "--token or KAFLEET_TOKEN"]);
    ask(&["list"], &token("read")).exits_with(0).stdout_has(&["a first task"]);
    ask(&["submit", "echo"], &token("read")).exits_with(6);
    ask(&["submit", "echo", "--wait"], &token("submit")).exits_with(0);
}

#[test]
fn external_task_needs_no_type() {
    let dev = Dev::start();
    dev.run(&["submit", "ticket", "--external", "--id", "t", "--options", r#"{"number":7}"#]).exits_with(0);
    dev.wait_until_visible("t");
    let status = dev.json(&["status", "t"]);
    assert_eq!((&status["external"], &status["options"]), (&json!(true), &json!({"number": 7})), "{status}");
    dev.run(&["submit", "ticket", "{}", "--external"]).exits_with(2).stderr_has(&["(at `/params`)", "hint: "]);
}

#[test]
fn exit_code_is_the_task_outcome() {
    let dev = Dev::start();
    dev.run(&["submit", "broken", "--wait", "--id", "b"]).exits_with(1).stdout_has(&["state     failed", "no luck"]);
    dev.run(&["watch", "b"]).exits_with(1).stdout_has(&["failed", "no luck"]);
    dev.run(&["tree", "b", "--watch"]).exits_with(1).stdout_has(&["✘ b"]);
    dev.run(&["submit", "foreach", r#"{"count":2,"pause":"1h"}"#, "--id", "slow", "--wait=1ms"])
        .exits_with(5)
        .stderr_has(&["task `slow` is still ", "after 1ms", "hint: follow it with `kafleet watch slow`"]);
    dev.wait_until_visible("slow");
    dev.run(&["watch", "slow", "--timeout", "300ms"])
        .exits_with(5)
        .stderr_has(&["task `slow` has not ended within 300ms"]);
    dev.run(&["status", "slow", "--wait=10ms"]).exits_with(5);
}

#[test]
fn refused_requests_are_reported_with_a_hint() {
    let dev = Dev::start();
    dev.run(&["submit", "nope"]).exits_with(3).stderr_has(&["error: the type `nope` has no topic", "hint: "]);
    dev.run(&["submit", "foreach", r#"{"count":"x"}"#])
        .exits_with(2)
        .stderr_has(&["(at `/params/count`)", "hint: `kafleet types -o json` shows the schema of `foreach`"]);
    dev.run(&["submit", "echo", "--parent", "nobody"]).exits_with(3).stderr_has(&["nobody"]);
    dev.run(&["submit", "echo", "--id", "a:b"])
        .exits_with(2)
        .stderr_has(&["the id `a:b` is a path but no parent is named", "(at `--id`)"]);
    for verb in ["status", "tree", "watch", "history", "log"] {
        dev.run(&[verb, "nobody"]).exits_with(3).stderr_has(&["error: there is no task `nobody`"]);
    }
    dev.run(&["status", "a b"]).exits_with(2).stderr_has(&["the id `a b`"]);
    dev.run(&["list", "--cursor", "nonsense"]).exits_with(2).stderr_has(&["cursor"]);
}

#[test]
fn lines_are_submitted_and_invalid_ones_are_reported() {
    let dev = Dev::start();
    let lines = concat!(
        r#"{"type":"echo","id":"l1","params":1}"#,
        "\n\n",
        "{oops\n",
        r#"{"type":"nope"}"#,
        "\n",
        r#"{"type":"foreach","params":{"count":-1}}"#,
        "\n",
        r#"{"type":"echo","params":2,"colour":"red"}"#,
        "\n",
        r#"{"type":"echo","id":"l7","params":7}"#,
    );
    let expected =
        ["line 3: not JSON", "line 4: the type `nope`", "line 5: ", "line 6: ", "colour", "2 submitted, 4 refused"];
    let ran = run_with_stdin(dev.command(&["submit", "-"]), lines).exits_with(1).stderr_has(&expected);
    assert_eq!(ran.out, "l1\nl7\n", "refused lines print nothing");
    dev.run(&["status", "l7", "--wait"]).exits_with(0);

    let ran = run_with_stdin(dev.command(&["submit", "-", "-o", "json"]), lines).exits_with(1);
    let outcomes: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        outcomes.iter().map(|outcome| outcome["line"].as_u64().unwrap()).collect::<Vec<_>>(),
        [1, 3, 4, 5, 6, 7]
    );
    assert_eq!((&outcomes[0]["id"], &outcomes[1]["problem"]["code"]), (&json!("l1"), &json!("bad_line")));

    let ran = run_with_stdin(dev.command(&["submit", "echo", "-", "--tag", "bulk"]), "1\n2\n")
        .exits_with(0)
        .stderr_has(&["2 submitted in"]);
    let ids: Vec<&str> = ran.out.lines().collect();
    assert_eq!(ids.len(), 2, "each task's id is printed: {ran:?}");
    dev.run(&["status", ids[1], "--wait"]).exits_with(0).stdout_has(&["result    2"]);
    write(dev.folder.path(), "params.ndjson", "3\n");
    let path = dev.folder.path().join("params.ndjson");
    dev.run(&["submit", "echo", "--tag", "bulk", "--file", path.to_str().unwrap()])
        .exits_with(0)
        .stderr_has(&["1 submitted in"]);
    assert_eq!(dev.wait_until_listed(&["--tag", "bulk"], 3).len(), 3);
}

#[test]
fn lists_are_filtered_and_continue_at_a_cursor() {
    let dev = Dev::start();
    let lines: String =
        (0..120).map(|n| format!("{{\"type\":\"echo\",\"id\":\"e{n}\",\"creator\":\"me\"}}\n")).collect();
    run_with_stdin(dev.command(&["submit", "-"]), &lines).exits_with(0);
    dev.wait_until_listed(&["-n", "200"], 120);
    dev.run(&["submit", "broken", "--id", "b", "--name", "doomed one", "--wait"]).exits_with(1);
    let ids = |words: &[&str]| -> Vec<String> {
        let page = dev.json(&[&["list"], words].concat());
        page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["--type", "broken", "--state", "failed"]), ["b"]);
    assert_eq!(ids(&["--name", "doomed"]), ["b"]);
    dev.run(&["submit", "broken", "--id", "below", "--parent", "e7", "--wait"]).exits_with(1);
    assert_eq!(ids(&["--type", "broken", "--state", "failed"]), ["e7:below", "b"], "a type is searched on all levels");
    assert_eq!(ids(&["--type", "broken", "--state", "failed", "--level", "roots"]), ["b"]);
    assert_eq!(ids(&["--name", "doomed"]), ["b"], "names are those of roots by default");
    dev.run(&["list", "--state", "failed"]).exits_with(0).stdout_has(&["ID (ROOTS) "]);
    dev.run(&["list", "--level", "any"]).exits_with(0).stdout_has(&["ID (ALL LEVELS) "]);
    assert_eq!(ids(&["-n", "1"]), ["b"], "newest first");
    assert_eq!(ids(&["--creator", "me", "-n", "115"]).len(), 115, "over several pages");
    assert_eq!(ids(&["--from", "1h"]).len(), 20);
    assert_eq!(ids(&["--to", "1h"]), [""; 0]);
    let table = dev.run(&["list", "-n", "2"]).exits_with(0).stderr_has(&["there are more: --cursor "]);
    assert!(table.out.starts_with("ID ") && table.out.lines().count() == 3, "{table:?}");
    let cursor = table.err.split("--cursor ").nth(1).unwrap().trim();
    let rest = ids(&["-n", "200", "--cursor", cursor]);
    assert_eq!(rest.len(), 119);
    assert!(rest.iter().all(|id| !table.out.contains(&format!("{id} "))), "no task is listed twice");
}

#[test]
fn tree_is_drawn_with_descendants() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--id", "order", "--wait"]).exits_with(0);
    for (id, parent) in [("fetch", "order"), ("page", "order:fetch"), ("pack", "order")] {
        let task = dev.run(&["submit", "echo", "--id", id, "--parent", parent, "--wait"]).exits_with(0);
        assert!(task.out.starts_with(&format!("id        {parent}:{id}\n")), "{task:?}");
    }
    let failing = dev.run(&["submit", "broken", "--id", "last", "--parent", "order:fetch", "--wait"]).exits_with(1);
    assert!(failing.out.contains("id        order:fetch:last"), "{failing:?}");
    let drawn =
        dev.run(&["tree", "order"]).exits_with(0).stderr_has(&["5 tasks: 2 successful, 0 pending, 3 unsuccessful"]);
    let activity: Vec<&str> = drawn.out.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(activity, ["✘ order", "├─ ✘ fetch", "│", "│", "└─ ✔ pack"], "{}", drawn.out);
    let document = dev.json(&["tree", "order", "--depth", "1"]);
    assert_eq!((document["below"].as_array().unwrap().len(), &document["below"][0]["omitted"]), (2, &json!(2)));
    assert_eq!(dev.json(&["list", "--root", "order:fetch"])["tasks"].as_array().unwrap().len(), 3);
    dev.run(&["status", "order"]).exits_with(0).stdout_has(&[
        "(own state: succeeded)",
        "children  2: 1 succeeded, 1 failed",
        "tree      5",
    ]);
}

#[test]
fn watch_shows_changes_until_the_end() {
    let dev = Dev::start();
    dev.pause("foreach", &[]);
    dev.run(&["submit", "foreach", r#"{"count":3,"pause":"300ms"}"#, "--id", "steps"]).exits_with(0);
    dev.wait_until_visible("steps");
    let mut watching = dev.command(&["watch", "steps", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["state"], "queued");
    dev.run(&["types", "resume", "foreach"]).exits_with(0);
    let seen: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(wait_for_exit(watching).exits_with(0).err.is_empty());
    let last = seen.last().unwrap();
    assert_eq!((&last["state"], &last["result"]), (&json!("succeeded"), &json!({"steps": 3})));
    dev.run(&["tree", "steps", "--watch"]).exits_with(0).stdout_has(&["✔ steps"]);
}

#[test]
fn history_log_attachments_and_types_are_shown() {
    let dev = Dev::start();
    dev.run(&["submit", "answer", "--id", "a", "--wait"]).exits_with(0);
    dev.run(&["history", "a"]).exits_with(0).stdout_has(&["AT ", "submitted", "succeeded"]);
    let kinds: Vec<Value> =
        dev.json(&["history", "a"])["events"].as_array().unwrap().iter().map(|e| e["kind"].clone()).collect();
    assert!(kinds.contains(&json!("submitted")) && kinds.contains(&json!("succeeded")), "{kinds:?}");
    assert_eq!(dev.run(&["log", "a"]).exits_with(0).out, "reading the file\n");
    assert_eq!(dev.run(&["params", "a"]).exits_with(0).json(), json!({}));
    write(dev.folder.path(), "note.txt", "a note");
    let file = dev.folder.path().join("note.txt").to_str().unwrap().to_owned();
    dev.run(&["attachments", "put", "a", "note", &file, "--media", "text/plain"])
        .exits_with(0)
        .stdout_has(&["text/plain", "6"]);
    assert_eq!(dev.run(&["attachments", "get", "a", "note"]).exits_with(0).out, "a note");
    assert_eq!(dev.json(&["attachments", "list", "a"])["attachments"][0]["bytes"], json!(6));
    dev.run(&["attachments", "delete", "a", "note"]).exits_with(0);
    dev.run(&["attachments", "get", "a", "note"]).exits_with(3).stderr_has(&["has no attachment `note`", "hint: "]);
    dev.run(&["update", "a", "--name", "renamed", "--tag", "t"])
        .exits_with(0)
        .stdout_has(&["name      renamed", "tags      t"]);
    dev.run(&["update", "a", "--clear", "name"]).exits_with(0);
    assert_eq!(dev.json(&["status", "a"])["name"], Value::Null);
    dev.run(&["log", "a", "--append", "seen by Ada"]).exits_with(0).stderr_has(&["1 line added"]);
    eventually_blocking("the line is visible", || {
        (dev.json(&["log", "a"])["lines"].as_array()?.len() == 2).then_some(())
    });
    assert_eq!(dev.run(&["logs", "a", "--follow", "--from", "1"]).exits_with(0).out, "seen by Ada\n");
    let log = dev.json(&["log", "a"]);
    assert_eq!(
        (&log["lines"][0]["text"], &log["lines"][1]["text"]),
        (&json!("reading the file"), &json!("seen by Ada"))
    );
    let at = log["lines"][1]["at"].as_str().unwrap();
    let timed = dev.run(&["log", "a", "--times", "--from", "1"]).exits_with(0);
    assert_eq!(timed.out, format!("{at}  seen by Ada\n"));
    let types = dev.json(&["types"]);
    let answer =
        types["types"].as_array().unwrap().iter().find(|document| document["type"] == "answer").unwrap().clone();
    assert_eq!((&answer["topic"], &answer["counts"]["succeeded"]), (&json!(true), &json!(1)));
    dev.run(&["types"]).exits_with(0).stdout_has(&["TYPE", "answer", "echo"]);
}

#[test]
fn closed_stdout_of_a_list_is_no_failure() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--wait"]).exits_with(0);
    for words in [&["list"][..], &["list", "-o", "json"], &["types"]] {
        let mut child = dev.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(wait_for_exit(child).exits_with(0).err, "", "{words:?}");
    }
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn tasks_are_delayed_and_retried() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "[1]", "--delay", "300ms", "--wait"]).exits_with(0).stdout_has(&["result    [1]"]);
    dev.run(&["submit", "echo", "[1]", "--at", "2999-01-01T00:00:00Z"])
        .exits_with(2)
        .stderr_has(&["more than 30d from now", "hint: "]);
    let far = dev.json(&["submit", "echo", "[2]", "--delay", "1h", "--id", "far"]);
    assert_eq!(far["state"], "scheduled");
    dev.wait_until_visible("far");
    dev.run(&["retry", "far"])
        .exits_with(1)
        .stderr_has(&["`far` is scheduled: only tasks that have ended can be retried", "hint: "]);
    dev.run(&["retry", "nobody"]).exits_with(3).stderr_has(&["there is no task `nobody`"]);
    dev.run(&["submit", "broken", "{}", "--id", "bad", "--wait"]).exits_with(1);
    dev.run(&["retry", "bad", "--wait"]).exits_with(1).stdout_has(&["failed"]);
    let again = dev.json(&["retry", "bad", "--only-failed", "--reason", "once more"]);
    assert_eq!((&again["run"], &again["status"]["id"]), (&json!(3), &json!("bad")));
    dev.run(&["history", "bad"]).exits_with(0).stdout_has(&["once more"]);
}
