//! Client verbs against a whole fleet in memory.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::run::{Daemon, Ran, configured, ended, fed, kafleet, run, until, write};

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
"#;

/// A fleet of its own for a test.
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
        let folder = configured(TYPES);
        write(folder.path(), "answer.json", r#"{"answer": 42}"#);
        let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(folder.path().join("kafleet.toml")).args(options);
        let mut daemon = Daemon::start(command);
        let api = daemon.hears("  api ").split_whitespace().nth(1).unwrap().to_owned();
        Self { daemon, api, folder }
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = kafleet(words);
        command.env("KAFLEET_API", &self.api);
        command
    }

    pub fn run(&self, words: &[&str]) -> Ran {
        run(self.command(words))
    }

    pub fn json(&self, words: &[&str]) -> Value {
        self.run(&[words, &["-o", "json"]].concat()).ends(0).json()
    }

    /// Waits until what was submitted is in the store too.
    pub fn folded(&self, id: &str) {
        until(&format!("`{id}` is known"), || (self.run(&["status", id]).code == Some(0)).then_some(()));
    }

    /// The tasks that are listed, once there are so many.
    fn listed(&self, words: &[&str], count: usize) -> Vec<Value> {
        until(&format!("{count} tasks are listed"), || {
            let page = self.json(&[&["list"], words].concat());
            page["tasks"].as_array().filter(|tasks| tasks.len() >= count).cloned()
        })
    }

    /// Pauses a type, and waits until the worker has heard of it: it reads the control topic in its own time.
    pub fn pause(&self, task_type: &str, more: &[&str]) -> Ran {
        let ran = self.run(&[&["types", "pause", task_type], more].concat()).ends(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let metrics = || runtime.block_on(async { http.get(format!("{}/metrics", self.api)).send().await?.text().await });
        let paused = format!("kafleet_type_paused{{type=\"{task_type}\"}} 1");
        until("the worker has heard of the pause", || metrics().unwrap().contains(&paused).then_some(()));
        ran
    }
}

#[test]
fn dev_once_prints_the_first_result_and_ends() {
    let ran = run(kafleet(["dev", "--once"])).ends(0).prints(&["state     succeeded", r#"result    {"hello":"world"}"#]);
    assert!(ran.err.contains("api    http://127.0.0.1:") && ran.err.contains("curl"), "{ran:?}");
    let document = run(kafleet(["dev", "--once", "-o", "json"])).ends(0).json();
    assert_eq!((&document["state"], &document["result"]), (&json!("succeeded"), &json!({"hello": "world"})));
}

#[test]
fn dev_serves_until_it_is_told_to_stop() {
    let mut daemon = Daemon::start(kafleet(["dev", "--listen", "127.0.0.1:0"]));
    daemon.hears("serving until ctrl-c");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_task_from_submission_to_result() {
    let dev = Dev::start();
    let ran = dev.run(&["submit", "echo", r#"{"n":1}"#, "--id", "one", "--name", "first", "--tag", "x"]).ends(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("one\n", ""));
    dev.run(&["status", "one", "--wait"]).ends(0).prints(&["id        one", "type      echo", "state     succeeded"]);
    let status = dev.json(&["status", "one"]);
    assert_eq!((&status["result"], &status["name"], &status["tags"]), (&json!({"n": 1}), &json!("first"), &json!(["x"])));
    assert!(status["seen_at"].is_string(), "{status}");
    dev.run(&["submit", "echo", r#"{"n":1}"#, "--id", "one"]).ends(0);
    dev.run(&["submit", "echo", r#"{"n":2}"#, "--id", "one"]).ends(1).tells(&["one", "hint: "]);
    let waited = dev.run(&["submit", "answer", "--wait"]).ends(0);
    assert!(waited.out.contains(r#"result    {"answer":42}"#), "a program starts where the configuration is: {waited:?}");
    drop(dev.folder);
}

#[test]
fn who_has_no_right_is_told_with_code_6() {
    let token = |role: &str| format!("a-long-enough-token-to-{role}");
    let section = |role: &str| format!("[[api.tokens]]\nname = \"{role}\"\ntoken = \"{}\"\nrole = \"{role}\"\n", token(role));
    let folder = configured(&(section("read") + &section("submit")));
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let mut daemon = Daemon::start(command);
    let api = daemon.hears("  api ").split_whitespace().nth(1).unwrap().to_owned();
    daemon.hears("serving until ctrl-c");
    let ask = |words: &[&str], token: &str| run(kafleet([words, &["--api", &api, "--token", token]].concat()));
    let none = run(kafleet(["list", "--api", &api])).ends(6).tells(&["none was given", "--token or KAFLEET_TOKEN"]);
    assert!(!none.err.contains("header"), "{none:?}");
    ask(&["list"], "another-token-that-nobody-knows").ends(6).tells(&["does not know the token", "--token or KAFLEET_TOKEN"]);
    ask(&["list"], &token("read")).ends(0).prints(&["a first task"]);
    ask(&["submit", "echo"], &token("read")).ends(6);
    ask(&["submit", "echo", "--wait"], &token("submit")).ends(0);
}

#[test]
fn a_task_of_someone_else_needs_no_type_here() {
    let dev = Dev::start();
    dev.run(&["submit", "ticket", "--external", "--id", "t", "--options", r#"{"number":7}"#]).ends(0);
    dev.folded("t");
    let status = dev.json(&["status", "t"]);
    assert_eq!((&status["external"], &status["options"]), (&json!(true), &json!({"number": 7})), "{status}");
    dev.run(&["submit", "ticket", "{}", "--external"]).ends(2).tells(&["(at `/params`)", "hint: "]);
}

#[test]
fn the_exit_code_says_how_a_task_ended() {
    let dev = Dev::start();
    dev.run(&["submit", "broken", "--wait", "--id", "b"]).ends(1).prints(&["state     failed", "no luck"]);
    dev.run(&["watch", "b"]).ends(1).prints(&["failed", "no luck"]);
    dev.run(&["tree", "b", "--watch"]).ends(1).prints(&["✘ b"]);
    dev.run(&["submit", "foreach", r#"{"count":2,"pause":"1h"}"#, "--id", "slow", "--wait=1ms"]).ends(5).tells(&[
        "task `slow` is still ",
        "after 1ms",
        "hint: follow it with `kafleet watch slow`",
    ]);
    dev.folded("slow");
    dev.run(&["watch", "slow", "--timeout", "300ms"]).ends(5).tells(&["task `slow` has not ended within 300ms"]);
    dev.run(&["status", "slow", "--wait=10ms"]).ends(5);
}

#[test]
fn what_the_api_refuses_is_told_with_a_hint() {
    let dev = Dev::start();
    dev.run(&["submit", "nope"]).ends(3).tells(&["error: the type `nope` has no topic", "hint: "]);
    dev.run(&["submit", "foreach", r#"{"count":"x"}"#])
        .ends(2)
        .tells(&["(at `/params/count`)", "hint: `kafleet types -o json` shows the schema of `foreach`"]);
    dev.run(&["submit", "echo", "--parent", "nobody"]).ends(3).tells(&["nobody"]);
    dev.run(&["submit", "echo", "--id", "a:b"]).ends(2).tells(&["the id `a:b` is a path but no parent is named", "(at `/id`)"]);
    for verb in ["status", "tree", "watch", "history", "log"] {
        dev.run(&[verb, "nobody"]).ends(3).tells(&["error: there is no task `nobody`"]);
    }
    dev.run(&["status", "a b"]).ends(2).tells(&["the id `a b`"]);
    dev.run(&["list", "--cursor", "nonsense"]).ends(2).tells(&["cursor"]);
}

#[test]
fn lines_are_submitted_and_each_bad_one_is_told() {
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
    let told = ["line 3: not JSON", "line 4: the type `nope`", "line 5: ", "line 6: ", "colour", "2 submitted, 4 refused"];
    let ran = fed(dev.command(&["submit", "-"]), lines).ends(1).tells(&told);
    assert_eq!(ran.out, "l1\nl7\n", "refused lines print nothing");
    dev.run(&["status", "l7", "--wait"]).ends(0);

    let ran = fed(dev.command(&["submit", "-", "-o", "json"]), lines).ends(1);
    let outcomes: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.iter().map(|one| one["line"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 7]);
    assert_eq!((&outcomes[0]["id"], &outcomes[1]["problem"]["code"]), (&json!("l1"), &json!("bad_line")));

    let ran = fed(dev.command(&["submit", "echo", "-", "--tag", "bulk"]), "1\n2\n").ends(0).tells(&["2 submitted in"]);
    let ids: Vec<&str> = ran.out.lines().collect();
    assert_eq!(ids.len(), 2, "each task's id is printed: {ran:?}");
    dev.run(&["status", ids[1], "--wait"]).ends(0).prints(&["result    2"]);
    write(dev.folder.path(), "params.ndjson", "3\n");
    let path = dev.folder.path().join("params.ndjson");
    dev.run(&["submit", "echo", "--tag", "bulk", "--file", path.to_str().unwrap()]).ends(0).tells(&["1 submitted in"]);
    assert_eq!(dev.listed(&["--tag", "bulk"], 3).len(), 3);
}

#[test]
fn lists_are_filtered_and_go_on_at_a_cursor() {
    let dev = Dev::start();
    let lines: String = (0..120).map(|n| format!("{{\"type\":\"echo\",\"id\":\"e{n}\",\"creator\":\"me\"}}\n")).collect();
    fed(dev.command(&["submit", "-"]), &lines).ends(0);
    dev.listed(&["-n", "200"], 120);
    dev.run(&["submit", "broken", "--id", "b", "--name", "doomed one", "--wait"]).ends(1);
    let ids = |words: &[&str]| -> Vec<String> {
        let page = dev.json(&[&["list"], words].concat());
        page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["--type", "broken", "--state", "failed"]), ["b"]);
    assert_eq!(ids(&["--name", "doomed"]), ["b"]);
    dev.run(&["submit", "broken", "--id", "below", "--parent", "e7", "--wait"]).ends(1);
    assert_eq!(ids(&["--type", "broken", "--state", "failed"]), ["b"], "roots, whatever the other options are");
    assert_eq!(ids(&["--type", "broken", "--state", "failed", "--level", "any"]), ["e7:below", "b"]);
    dev.run(&["list", "--state", "failed"]).ends(0).prints(&["ID (ROOTS) "]);
    dev.run(&["list", "--level", "any"]).ends(0).prints(&["ID (ALL LEVELS) "]);
    assert_eq!(ids(&["-n", "1"]), ["b"], "newest first");
    assert_eq!(ids(&["--creator", "me", "-n", "115"]).len(), 115, "over several pages");
    assert_eq!(ids(&["--from", "1h"]).len(), 20);
    assert_eq!(ids(&["--to", "1h"]), [""; 0]);
    let table = dev.run(&["list", "-n", "2"]).ends(0).tells(&["there are more: --cursor "]);
    assert!(table.out.starts_with("ID ") && table.out.lines().count() == 3, "{table:?}");
    let cursor = table.err.split("--cursor ").nth(1).unwrap().trim();
    let rest = ids(&["-n", "200", "--cursor", cursor]);
    assert_eq!(rest.len(), 119);
    assert!(rest.iter().all(|id| !table.out.contains(&format!("{id} "))), "no task is listed twice");
}

#[test]
fn a_tree_is_drawn_with_what_is_below() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--id", "order", "--wait"]).ends(0);
    for (id, parent) in [("fetch", "order"), ("page", "order:fetch"), ("pack", "order")] {
        let task = dev.run(&["submit", "echo", "--id", id, "--parent", parent, "--wait"]).ends(0);
        assert!(task.out.starts_with(&format!("id        {parent}:{id}\n")), "{task:?}");
    }
    let failing = dev.run(&["submit", "broken", "--id", "last", "--parent", "order:fetch", "--wait"]).ends(1);
    assert!(failing.out.contains("id        order:fetch:last"), "{failing:?}");
    let drawn = dev.run(&["tree", "order"]).ends(0).tells(&["5 tasks: 2 successful, 0 pending, 3 failed"]);
    let signs: Vec<&str> = drawn.out.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(signs, ["✘ order", "├─ ✘ fetch", "│", "│", "└─ ✔ pack"], "{}", drawn.out);
    let document = dev.json(&["tree", "order", "--depth", "1"]);
    assert_eq!((document["below"].as_array().unwrap().len(), &document["below"][0]["omitted"]), (2, &json!(2)));
    assert_eq!(dev.json(&["list", "--root", "order:fetch"])["tasks"].as_array().unwrap().len(), 3);
    dev.run(&["status", "order"]).ends(0).prints(&[
        "(the task itself: succeeded)",
        "children  2: 1 succeeded, 1 failed",
        "tree      5",
    ]);
}

#[test]
fn watching_shows_every_change_up_to_the_end() {
    let dev = Dev::start();
    dev.pause("foreach", &[]);
    dev.run(&["submit", "foreach", r#"{"count":3,"pause":"300ms"}"#, "--id", "steps"]).ends(0);
    dev.folded("steps");
    let mut watching = dev.command(&["watch", "steps", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["state"], "queued");
    dev.run(&["types", "resume", "foreach"]).ends(0);
    let seen: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(ended(watching).ends(0).err.is_empty());
    let last = seen.last().unwrap();
    assert_eq!((&last["state"], &last["result"]), (&json!("succeeded"), &json!({"steps": 3})));
    dev.run(&["tree", "steps", "--watch"]).ends(0).prints(&["✔ steps"]);
}

#[test]
fn history_log_and_types_tell_what_there_is() {
    let dev = Dev::start();
    dev.run(&["submit", "answer", "--id", "a", "--wait"]).ends(0);
    dev.run(&["history", "a"]).ends(0).prints(&["AT ", "submitted", "succeeded"]);
    let kinds: Vec<Value> = dev.json(&["history", "a"])["events"].as_array().unwrap().iter().map(|e| e["kind"].clone()).collect();
    assert!(kinds.contains(&json!("submitted")) && kinds.contains(&json!("succeeded")), "{kinds:?}");
    assert_eq!(dev.run(&["log", "a"]).ends(0).out, "reading the file\n");
    assert_eq!(dev.run(&["params", "a"]).ends(0).json(), json!({}));
    write(dev.folder.path(), "note.txt", "a note");
    let file = dev.folder.path().join("note.txt").to_str().unwrap().to_owned();
    dev.run(&["attachments", "put", "a", "note", &file, "--media", "text/plain"]).ends(0).prints(&["text/plain", "6"]);
    assert_eq!(dev.run(&["attachments", "get", "a", "note"]).ends(0).out, "a note");
    assert_eq!(dev.json(&["attachments", "list", "a"])["attachments"][0]["bytes"], json!(6));
    dev.run(&["attachments", "delete", "a", "note"]).ends(0);
    dev.run(&["attachments", "get", "a", "note"]).ends(3).tells(&["has no attachment `note`", "hint: "]);
    dev.run(&["set", "a", "--name", "renamed", "--tag", "t"]).ends(0).prints(&["name      renamed", "tags      t"]);
    dev.run(&["set", "a", "--clear", "name"]).ends(0);
    assert_eq!(dev.json(&["status", "a"])["name"], Value::Null);
    dev.run(&["log", "a", "--append", "seen by Ada"]).ends(0).tells(&["1 line added"]);
    until("the line is there", || (dev.json(&["log", "a"])["lines"].as_array()?.len() == 2).then_some(()));
    assert_eq!(dev.run(&["logs", "a", "--follow", "--from", "1"]).ends(0).out, "seen by Ada\n");
    assert_eq!(dev.json(&["log", "a"])["lines"], json!(["reading the file", "seen by Ada"]));
    let types = dev.json(&["types"]);
    let answer = types["types"].as_array().unwrap().iter().find(|one| one["type"] == "answer").unwrap().clone();
    assert_eq!((&answer["topic"], &answer["counts"]["succeeded"]), (&json!(true), &json!(1)));
    dev.run(&["types"]).ends(0).prints(&["TYPE", "answer", "echo"]);
}

#[test]
fn a_reader_that_leaves_a_list_is_no_failure() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "--wait"]).ends(0);
    for words in [&["list"][..], &["list", "-o", "json"], &["types"]] {
        let mut child = dev.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(ended(child).ends(0).err, "", "{words:?}");
    }
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn a_task_for_later_and_a_task_once_more() {
    let dev = Dev::start();
    dev.run(&["submit", "echo", "[1]", "--delay", "300ms", "--wait"]).ends(0).prints(&["result    [1]"]);
    dev.run(&["submit", "echo", "[1]", "--at", "2999-01-01T00:00:00Z"]).ends(2).tells(&["more than 30d from now", "hint: "]);
    let far = dev.json(&["submit", "echo", "[2]", "--delay", "1h", "--id", "far"]);
    assert_eq!(far["state"], "scheduled");
    dev.folded("far");
    dev.run(&["retry", "far"]).ends(1).tells(&["`far` is scheduled: only what has ended can be retried", "hint: "]);
    dev.run(&["retry", "nobody"]).ends(3).tells(&["there is no task `nobody`"]);
    dev.run(&["submit", "broken", "{}", "--id", "bad", "--wait"]).ends(1);
    dev.run(&["retry", "bad", "--wait"]).ends(1).prints(&["failed"]);
    let again = dev.json(&["retry", "bad", "--only-failed", "--reason", "once more"]);
    assert_eq!((&again["run"], &again["status"]["id"]), (&json!(3), &json!("bad")));
    dev.run(&["history", "bad"]).ends(0).prints(&["once more"]);
}
