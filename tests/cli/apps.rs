//! Apps under `kafleet dev`: results, refusals, and deaths of their processes.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cli::run::{Daemon, RunResult, config_folder, eventually_blocking, kafleet, run, run_with_stdin};

pub(super) fn apps_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/apps")
}

/// A `kafleet dev` process with an app.
pub(super) struct Dev {
    pub(super) daemon: Daemon,
    api: String,
}

impl Dev {
    /// Runs an app as the target.
    pub(super) fn with_target(app: &[&str]) -> Self {
        let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--"]);
        command.args(app).current_dir(apps_folder());
        Self::start(command)
    }

    /// Runs the apps of a configuration.
    pub(super) fn with_config(text: &str) -> Self {
        let folder = config_folder(&text.replace("FOLDER", &apps_folder().to_string_lossy()));
        let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--no-sample", "--config"]);
        command.arg(folder.path().join("kafleet.toml"));
        Self::start(command)
    }

    pub(super) fn start(command: Command) -> Self {
        let mut daemon = Daemon::start(command);
        let api = daemon.wait_for_line("  api ").split_whitespace().nth(1).unwrap().to_owned();
        Self { daemon, api }
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = kafleet(words);
        command.env("KAFLEET_API", &self.api);
        command
    }

    pub(super) fn run(&self, words: &[&str]) -> RunResult {
        run(self.command(words))
    }

    /// Runs a task to its end and returns its status.
    pub(super) fn task(&self, task_type: &str, params: &Value, options: &[&str]) -> Value {
        let params = params.to_string();
        let words = [&["submit", task_type, &params, "--wait", "-o", "json"], options].concat();
        self.run(&words).json()
    }

    pub(super) fn result(&self, task_type: &str, params: &Value) -> Value {
        let status = self.task(task_type, params, &[]);
        assert_eq!(status["state"], "succeeded", "{status}");
        status["result"].clone()
    }

    fn metrics(&self) -> String {
        self.get("/metrics").1
    }

    /// Whether no part of the fleet has a reason for not being ready.
    pub(super) fn is_ready(&self) -> bool {
        self.get("/readyz").0 == 200
    }

    fn get(&self, path: &str) -> (u16, String) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let http = kafleet_testkit::http::client();
        let answer = async {
            let answer = http.get(format!("{}{path}", self.api)).send().await?;
            Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
        };
        runtime.block_on(answer).unwrap()
    }

    /// Waits until all tasks have ended, and returns them.
    pub(super) fn ended(&self, ids: &[String]) -> Vec<Value> {
        eventually_blocking("all tasks have ended", || {
            let page = self.run(&["list", "-n", "1000", "-o", "json"]).exits_with(0).json();
            let tasks = page["tasks"].as_array().unwrap();
            let ended = |id: &String| tasks.iter().find(|task| task["id"] == **id && !task["ended_at"].is_null());
            ids.iter().map(|id| ended(id).cloned()).collect::<Option<Vec<Value>>>()
        })
    }

    /// Submits one task per line of params.
    pub(super) fn submit_many(&self, task_type: &str, params: &[Value]) -> Vec<String> {
        let lines = params.iter().fold(String::new(), |mut lines, params| {
            writeln!(lines, "{params}").unwrap();
            lines
        });
        let ran = run_with_stdin(self.command(&["submit", task_type, "-", "--parallel", "1"]), &lines).exits_with(0);
        ran.out.lines().map(str::to_owned).collect()
    }
}

pub(super) fn pid_of(value: &Value) -> Pid {
    Pid::from_raw(i32::try_from(value.as_i64().unwrap_or_else(|| panic!("{value} is not a pid"))).unwrap())
}

pub(super) fn wait_until_gone(pid: Pid) {
    eventually_blocking("the process is gone", || kill(pid, None).err());
}

const LOOP: &[&str] = &["python3", "loop.py"];
const THREADS: &[&str] = &["python3", "threads.py"];

#[test]
fn task_of_an_app_is_run_and_its_result_is_shown() {
    let dev = Dev::with_target(LOOP);
    assert_eq!(dev.result("double", &json!({"x": 21})), json!(42));
    let types = dev.run(&["types"]).exits_with(0);
    assert!(types.out.contains("double") && !types.out.contains("echo"), "{types:?}");
    let ids = dev.submit_many("double", &(0..50).map(|x| json!({"x": x})).collect::<Vec<_>>());
    for (status, x) in dev.ended(&ids).iter().zip(0..) {
        assert_eq!((&status["state"], &status["result"]), (&json!("succeeded"), &json!(x * 2)), "{status}");
    }
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn app_of_the_configuration_has_overridden_policies() {
    let text = "[apps.shop]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n\
                [types.work]\ntimeout = \"1s\"\n[worker]\ngrace = \"50ms\"\n";
    let dev = Dev::with_config(text);
    let status = dev.task("work", &json!({"do": "hang"}), &[]);
    assert_eq!((&status["state"], &status["error"]["kind"]), (&json!("failed"), &json!("timeout")), "{status}");
    assert_eq!(status["attempt"], json!(1), "the app declares no retries: {status}");
    dev.run(&["submit", "work", r#"{"do":3}"#]).exits_with(2).stderr_has(&["`/params/do`"]);
    dev.run(&["submit", "echo", "{}", "--wait"]).exits_with(0);
}

#[test]
fn app_check_shows_types_or_the_reason_of_a_refusal() {
    let check = |command: &[&str]| {
        let mut check = kafleet([&["app", "check", "--"], command].concat());
        check.current_dir(apps_folder());
        run(check)
    };
    check(THREADS).exits_with(0).stdout_has(&["main  work  do?", "retries = 0", "timeout = \"1h\""]);
    let answer = |text: &str| format!("echo '{text}' >&0; cat >/dev/null");
    let ready = |types: &str| answer(&format!(r#"{{"ready":{{"protocol":1,"types":[{types}]}}}}"#));
    let refused = |script: &str, parts: &[&str]| {
        check(&["sh", "-c", script]).exits_with(1).stderr_has(parts);
    };
    refused("echo nothing to serve; exit 3", &["ended before it was ready: exit code 3: nothing to serve"]);
    refused(&answer(r#"{"unable":{"message":"no key"}}"#), &["the app `main` cannot serve: no key"]);
    refused(&ready(r#"{"name":"a"},{"name":"a"}"#), &["declares the type `a` twice"]);
    refused(&ready(r#"{"name":"a","params":{"type":3}}"#), &["`a` with `params` that are not a JSON Schema"]);
    refused(
        &ready(r#"{"name":"a","policy":{"retrys":1}}"#),
        &["`a` with an invalid policy", "did you mean `retries`?"],
    );
    let two = ["a", "b"].map(|app| format!("[apps.{app}]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\n"));
    let folder = config_folder(&two.concat().replace("FOLDER", &apps_folder().to_string_lossy()));
    let mut check_two = kafleet(["app", "check", "--config"]);
    check_two.arg(folder.path().join("kafleet.toml"));
    run(check_two).exits_with(1).stderr_has(&["the app `b` declares the type `double`", "give each its own name"]);
    run(kafleet(["app", "check"])).exits_with(3).stderr_has(&["there is no app", "[apps.NAME]"]);
    run(kafleet(["app", "check", "no_such.py"])).exits_with(3).stderr_has(&["`no_such.py` is not a file"]);
}

#[test]
fn app_that_cannot_serve_is_reported_at_the_start() {
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--", "python3", "-c", "import no_such_module"]);
    command.current_dir(apps_folder());
    run(command).exits_with(1).stderr_has(&[
        "error: the app `main` ended before it was ready: exit code 1: ModuleNotFoundError: No module named 'no_such_module'",
        "hint: started in `",
    ]);
}

#[test]
fn death_in_an_attempt_fails_that_attempt_only() {
    let dev = Dev::with_target(LOOP);
    for (params, how) in [
        (json!({"do": "kill"}), "ended by SIGKILL; last output: about to die"),
        (json!({"do": "abort"}), "ended by SIGABRT"),
        (json!({"do": "exit", "code": 0}), "it exited with code 0; last output: about to exit"),
        (json!({"do": "garble"}), "violates the protocol"),
    ] {
        let status = dev.task("double", &params, &["--retries", "0"]);
        assert_eq!(status["state"], "failed", "{status}");
        assert!(status["error"]["message"].as_str().unwrap().contains(how), "{status}");
        assert_eq!(dev.result("double", &json!({"x": 1})), json!(2));
    }
}

#[test]
fn killed_idle_process_is_replaced() {
    let dev = Dev::with_config("[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n");
    let pid = pid_of(&dev.result("double", &json!({"do": "pid"})));
    kill(pid, Signal::SIGKILL).unwrap();
    let next = pid_of(&dev.result("double", &json!({"do": "pid"})));
    assert_ne!(next, pid);
}

#[test]
fn stopped_process_is_killed_after_the_timeout() {
    let text =
        "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n[worker]\ngrace = \"50ms\"\n";
    let dev = Dev::with_config(text);
    let pid = pid_of(&dev.result("double", &json!({"do": "pid"})));
    kill(pid, Signal::SIGSTOP).unwrap();
    let status = dev.task("double", &json!({"x": 1}), &["--timeout", "1s", "--retries", "0"]);
    assert_eq!(status["error"]["kind"], "timeout", "{status}");
    wait_until_gone(pid);
    assert_eq!(dev.result("double", &json!({"x": 1})), json!(2));
}

/// The type has no retries: a task that is charged with the death of another fails.
#[test]
fn poison_task_among_ten_thousand_charges_no_other_task() {
    let dev = Dev::with_config("[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 2\n");
    let poison = |n| n == 5_000;
    let params = |n| if poison(n) { json!({"do": "exit", "code": 1}) } else { json!({}) };
    let params: Vec<Value> = (0..10_000).map(params).collect();
    assert_eq!(dev.submit_many("work", &params).len(), 10_000);
    let counts = eventually_blocking("all tasks have ended", || {
        let types = dev.run(&["types", "-o", "json"]).exits_with(0).json();
        let work = types["types"].as_array().unwrap().iter().find(|document| document["type"] == "work")?;
        let ended = ["succeeded", "failed"].map(|state| work["counts"][state].as_u64().unwrap_or_default());
        (ended.iter().sum::<u64>() == 10_000).then_some(ended)
    });
    assert_eq!(counts, [9_999, 1]);
    let failed = dev.run(&["list", "--state", "failed", "-o", "json"]).exits_with(0).json();
    let failed = &failed["tasks"][0];
    assert_eq!((&failed["attempt"], &failed["error"]["kind"]), (&json!(1), &json!("crashed")), "{failed}");
}

#[test]
fn poison_tasks_charge_no_other_task() {
    let dev = Dev::with_config("[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 2\n");
    let params: Vec<Value> = (0..400)
        .map(|n| if n % 100 == 50 { json!({"do": "exit", "code": 1}) } else { json!({"do": "nothing"}) })
        .collect();
    let ids = dev.submit_many("work", &params);
    for (status, params) in dev.ended(&ids).iter().zip(&params) {
        let is_poison = params["do"] == "exit";
        let state = if is_poison { "failed" } else { "succeeded" };
        assert_eq!((&status["state"], &status["attempt"]), (&json!(state), &json!(1)), "{params}: {status}");
        assert!(!is_poison || status["error"]["kind"] == "crashed", "{status}");
    }
}

#[test]
fn attempts_beside_a_death_run_again_with_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let dev = Dev::with_config("[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n");
    let pid = pid_of(&dev.result("work", &json!({})));
    let waits: Vec<Value> = (0..9).map(|_| json!({"do": "wait", "file": file})).collect();
    let ids = dev.submit_many("work", &waits);
    for id in &ids {
        eventually_blocking("the attempt is running", || dev.run(&["status", id]).out.contains("running"));
    }
    let poison = dev.submit_many("work", &[json!({"do": "exit", "code": 1})]);
    wait_until_gone(pid);
    std::fs::write(&file, "").unwrap();
    let poison = &dev.ended(&poison)[0];
    assert_eq!((&poison["state"], &poison["error"]["kind"]), (&json!("failed"), &json!("crashed")), "{poison}");
    for status in dev.ended(&ids) {
        assert_eq!((&status["state"], &status["attempt"]), (&json!("succeeded"), &json!(1)), "{status}");
    }
}

#[test]
fn ten_hanging_attempts_end_with_their_process() {
    let text = "[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n[worker]\ngrace = \"50ms\"\n";
    let dev = Dev::with_config(text);
    let pid = pid_of(&dev.result("work", &json!({})));
    let ids: Vec<String> = (0..10).map(|n| format!("hang-{n}")).collect();
    for id in &ids {
        dev.run(&["submit", "work", r#"{"do":"hang"}"#, "--id", id, "--timeout", "2s"]).exits_with(0);
    }
    for status in dev.ended(&ids) {
        assert_eq!((&status["state"], &status["error"]["kind"]), (&json!("failed"), &json!("timeout")), "{status}");
    }
    wait_until_gone(pid);
    assert_ne!(pid_of(&dev.result("work", &json!({}))), pid);
}

/// A process that hangs in C answers no ping: it is killed at the timeout, and the attempts beside run again.
#[test]
fn hang_in_c_costs_only_its_own_attempt() {
    check_hang_in_c("8s");
}

/// The timeout comes before the process counts as blocked.
#[test]
fn short_timeout_of_a_blocked_process_costs_only_its_own_attempt() {
    check_hang_in_c("1s");
}

fn check_hang_in_c(timeout: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let text = "[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n[worker]\ngrace = \"50ms\"\n";
    let dev = Dev::with_config(text);
    let pid = pid_of(&dev.result("work", &json!({})));
    let beside = dev.submit_many("work", &[json!({"do": "wait", "file": file})]);
    eventually_blocking("the attempt is running", || dev.run(&["status", &beside[0]]).out.contains("running"));
    let status = dev.task("work", &json!({"do": "block"}), &["--timeout", timeout]);
    assert_eq!((&status["state"], &status["error"]["kind"]), (&json!("failed"), &json!("timeout")), "{status}");
    wait_until_gone(pid);
    std::fs::write(&file, "").unwrap();
    let beside = &dev.ended(&beside)[0];
    assert_eq!((&beside["state"], &beside["attempt"]), (&json!("succeeded"), &json!(1)), "{beside}");
}

#[test]
fn blocked_event_loop_is_reported() {
    let mut dev = Dev::with_target(THREADS);
    dev.run(&["submit", "work", r#"{"do":"block"}"#]).exits_with(0);
    eventually_blocking("the metric shows the blocked loop", || {
        let metrics = dev.metrics();
        let seconds = metrics.lines().find_map(|line| line.strip_prefix("kafleet_app_blocked_seconds{app=\"main\"} "));
        seconds.is_some_and(|seconds| seconds != "0")
    });
    dev.daemon.wait_for_line("the event loop of a process of an app is blocked");
}

#[test]
fn types_of_an_app_share_a_consumer_group() {
    let dev = Dev::with_config(
        "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n\
         [apps.b]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n\
         [types.work]\ngroup = \"work\"\n",
    );
    let workers = eventually_blocking("the worker has reported its groups", || {
        let workers = dev.run(&["workers", "-o", "json"]).json();
        workers.to_string().contains("app-a").then_some(workers)
    });
    assert!(!workers.to_string().contains("app-b"), "{workers}");
    assert_eq!(dev.result("double", &json!({"x": 2})), json!(4));
    assert!(pid_of(&dev.result("work", &json!({}))).as_raw() > 0);
}

/// A process that never becomes ready stops no other, and is not waited for when the fleet stops.
#[test]
fn process_that_never_becomes_ready_leaves_the_others_serving() {
    let app =
        "import os, time\nif os.environ['KAFLEET_APP_PROCESS'] != '0': time.sleep(3600)\nexec(open('loop.py').read())";
    let head = "[apps.a]\ncwd = \"FOLDER\"\nprocesses = 2\nstart_timeout = \"10s\"\n";
    let dev = Dev::with_config(&format!("{head}command = [\"python3\", \"-c\", \"\"\"{app}\"\"\"]\n"));
    for x in 0..20 {
        assert_eq!(dev.result("double", &json!({"x": x})), json!(x * 2));
    }
    eventually_blocking("the failed start is counted", || {
        dev.metrics().contains("kafleet_app_process_ends_total{app=\"a\",reason=\"not_ready\"}")
    });
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn cancelled_attempt_ends_with_its_process() {
    let text =
        "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n[worker]\ngrace = \"50ms\"\n";
    let dev = Dev::with_config(text);
    let pid = pid_of(&dev.result("double", &json!({"do": "pid"})));
    dev.run(&["submit", "double", r#"{"do":"hang"}"#, "--id", "h"]).exits_with(0);
    eventually_blocking("the attempt is running", || dev.run(&["status", "h"]).out.contains("running"));
    dev.run(&["cancel", "h"]).exits_with(0);
    assert_eq!(dev.ended(&["h".to_owned()])[0]["state"], "cancelled");
    wait_until_gone(pid);
}

#[test]
fn process_is_replaced_after_its_attempts() {
    let dev = Dev::with_config(
        "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\nmax_tasks = 5\n",
    );
    let first = pid_of(&dev.result("double", &json!({"do": "pid"})));
    eventually_blocking("another process runs the attempts", || {
        pid_of(&dev.result("double", &json!({"do": "pid"}))) != first
    });
    wait_until_gone(first);
}

#[test]
fn process_above_its_memory_is_replaced_between_attempts() {
    let text = "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\nmemory = \"64MiB\"\n";
    let dev = Dev::with_config(text);
    let first = pid_of(&dev.result("double", &json!({"do": "grow", "mib": 70})));
    eventually_blocking("another process runs the attempts", || {
        pid_of(&dev.result("double", &json!({"do": "pid"}))) != first
    });
    wait_until_gone(first);
    for metric in ["process_ends_total{app=\"a\",reason=\"replaced\"}", "processes{app=\"a\"}", "slots{app=\"a\"}"] {
        eventually_blocking(metric, || dev.metrics().contains(&format!("kafleet_app_{metric} 1\n")));
    }
}

#[test]
fn process_far_above_its_memory_is_killed() {
    let text = "[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\nmemory = \"64MiB\"\n";
    let dev = Dev::with_config(text);
    let pid = pid_of(&dev.result("double", &json!({"do": "pid"})));
    let status = dev.task("double", &json!({"do": "grow", "mib": 200, "hang": true}), &["--retries", "0"]);
    assert_eq!((&status["state"], &status["error"]["kind"]), (&json!("failed"), &json!("crashed")), "{status}");
    let message = status["error"]["message"].as_str().unwrap();
    assert!(message.contains("of memory, more than 1.5 times `memory` (64MiB)"), "{message}");
    wait_until_gone(pid);
    assert_eq!(dev.result("double", &json!({"x": 1})), json!(2));
    eventually_blocking("the end is counted", || {
        dev.metrics().contains("kafleet_app_process_ends_total{app=\"a\",reason=\"memory\"} 1")
    });
}

#[test]
fn limits_of_isolation_are_refused_for_types_of_apps() {
    for key in ["isolation_tasks = 5", "isolation_memory = \"1GiB\""] {
        let text = format!("[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"FOLDER\"\n[types.double]\n{key}\n");
        let folder = config_folder(&text.replace("FOLDER", &apps_folder().to_string_lossy()));
        let mut check = kafleet(["app", "check", "--config"]);
        check.arg(folder.path().join("kafleet.toml"));
        run(check).exits_with(1).stderr_has(&[
            "declares the type `double`",
            "are for Rust types",
            "set `max_tasks` or `memory`",
        ]);
    }
}

#[test]
fn python_file_named_like_a_standard_module_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("json.py", "raise ImportError('not the standard module')\n");
    write("socket.py", "raise ImportError('not the standard module')\n");
    write("own.py", "NAME = 'greet'\n");
    write(
        "tasks.py",
        "import json\nimport own\nfrom kafleet import App\napp = App()\n@app.task(name=own.NAME)\ndef f() -> None: ...\n",
    );
    let mut check = kafleet(["app", "check", "tasks.py"]);
    let sdk = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sdk/python");
    check.current_dir(folder.path()).env("PYTHONPATH", sdk).env_remove("VIRTUAL_ENV");
    run(check).exits_with(0).stdout_has(&["main  greet"]);
}

#[test]
fn no_process_outlives_a_killed_worker() {
    let dev = Dev::with_target(LOOP);
    let pid = pid_of(&dev.result("double", &json!({"do": "pid"})));
    // Dropping the daemon kills it.
    drop(dev);
    wait_until_gone(pid);
}
