//! The daily work with an app under `kafleet dev`: lines about tasks, capacity for attempts, schedules from code, the address.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cli::apps::{Dev, apps_folder};
use crate::cli::run::{Daemon, eventually_blocking, kafleet, run};

const DAILY: &[&str] = &["python3", "daily.py"];

#[test]
fn dev_prints_what_tasks_do() {
    let mut dev = Dev::with_target(DAILY);
    dev.task("report", &json!({"do": "log", "name": "Ada"}), &["--id", "r-1"]);
    for line in ["report r-1 ▸ attempt 1", "report r-1 │ hello Ada", "report r-1 ✓ succeeded in "] {
        dev.daemon.wait_for_line(line);
    }
    dev.task("report", &json!({"do": "fail"}), &["--id", "r-2"]);
    dev.daemon.wait_for_line("report r-2 ✗ broken: no paper (failed for good after ");
}

#[test]
fn output_of_a_process_is_in_the_log_of_its_only_attempt() {
    let dev = Dev::with_target(DAILY);
    let log = |id: &str, action: &str| {
        dev.task("report", &json!({"do": action}), &["--id", id, "--retries", "0"]);
        dev.run(&["log", id]).exits_with(0).out
    };
    assert_eq!(log("shell", "shell"), "one\nstderr │ two\n");
    assert_eq!(log("crash", "crash"), "stderr │ last words\nstderr │ in two lines\n");
    // With further attempts in the process, the output may be of any of them.
    dev.run(&["submit", "report", r#"{"do":"block"}"#, "--id", "block"]).exits_with(0);
    eventually_blocking("it runs", || dev.run(&["status", "block"]).out.contains("running"));
    let beside = dev.submit_many("report", &[json!({"do": "shell"}), json!({"do": "shell"}), json!({"do": "shell"})]);
    assert!(dev.ended(&beside).iter().all(|task| task["state"] == "succeeded"));
    assert_eq!(dev.run(&["log", "block"]).exits_with(0).out, "");
}

#[test]
fn dev_shows_the_places_of_an_app_and_a_concurrency_without_effect() {
    let mut dev = Dev::with_target(DAILY);
    dev.daemon.wait_for_line("× 2 slots = ");
    dev.daemon.wait_for_line("at once for crunch");
    let checked = run({
        let mut check = kafleet(["app", "check", "--"]);
        check.args(DAILY).current_dir(apps_folder());
        check
    })
    .exits_with(0);
    checked.stderr_has(&[
        "slots = ",
        "1 thread = ",
        "at once for crunch",
        "the type `report`: its concurrency of 7 has no effect",
        "hint: raise `processes` or `slots` of the app",
    ]);
    let types = eventually_blocking("the worker has sent a heartbeat", || {
        let workers = dev.run(&["workers", "-o", "json"]).exits_with(0).json();
        workers["workers"][0]["types"].as_array().filter(|types| types.len() == 2).cloned()
    });
    let capacity = |name: &str| types.iter().find(|status| status["type"] == name).unwrap()["capacity"].clone();
    assert_eq!((&capacity("report")["per_process"], &capacity("report")["threads"]), (&json!(2), &json!(false)));
    assert_eq!((&capacity("crunch")["per_process"], &capacity("crunch")["threads"]), (&json!(1), &json!(true)));
    dev.run(&["workers"]).exits_with(0).stdout_has(&["× 2 slots = ", "report 0/7 above its capacity"]);
}

/// All slots are taken by attempts that only end when a sync one has run.
#[test]
fn sync_attempts_have_places_of_their_own() {
    let text = "[apps.a]\ncommand = [\"python3\", \"daily.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n";
    let dev = Dev::with_config(text);
    let ids = dev.submit_many("report", &[json!({"do": "block"}), json!({"do": "block"})]);
    assert_eq!(dev.task("crunch", &json!({"do": "release"}), &[])["state"], "succeeded");
    assert!(dev.ended(&ids).iter().all(|task| task["state"] == "succeeded"));
}

#[test]
fn schedules_of_an_app_are_applied_from_its_code() {
    let dev = Dev::with_target(DAILY);
    let nightly = dev.run(&["schedules", "show", "nightly", "-o", "json"]).exits_with(0).json();
    assert_eq!((&nightly["owner"], &nightly["spec"]["cron"]), (&json!("app/daily.py"), &json!("0 3 * * *")));
    let apply = |words: &[&str]| -> Value {
        let mut command = dev.command(&[&["schedules", "apply", "-o", "json"], words].concat());
        command.current_dir(apps_folder());
        run(command).exits_with(0).json()
    };
    let change = |change: &str| json!([{"id": "nightly", "change": change}]);
    assert_eq!(apply(&["--", "python3", "daily.py"]), change("unchanged"));
    dev.run(&["schedules", "delete", "nightly"]).exits_with(0);
    assert_eq!(apply(&["--dry-run", "--", "python3", "daily.py"]), change("created"));
    assert_eq!(apply(&["--", "python3", "daily.py"]), change("created"));
    assert_eq!(apply(&["--prune", "--", "python3", "loop.py"]), json!([]), "schedules of another app are kept");
    dev.run(&["schedules", "show", "nightly"]).exits_with(0).stdout_has(&["nightly"]);
}

#[test]
fn verbs_find_the_dev_of_their_folder_on_its_free_port() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = format!("[api]\nlisten = \"127.0.0.1:{port}\"\n");
    std::fs::write(folder.path().join("kafleet.toml"), config).unwrap();
    let in_folder = |words: &[&str]| {
        let mut command = kafleet(words);
        command.current_dir(folder.path()).env_remove("KAFLEET_API");
        command
    };
    let mut daemon = Daemon::start(in_folder(&["dev", "--no-sample"]));
    daemon.wait_for_line("is taken: trying the next one");
    daemon.wait_for_line("serving until ctrl-c");
    run(in_folder(&["types"])).exits_with(0).stdout_has(&["echo"]);
    let mut second = Daemon::start(in_folder(&["dev", "--no-sample"]));
    second.wait_for_line("another `kafleet dev` of this folder serves at http://127.0.0.1:");
    second.wait_for_line("serving until ctrl-c");
    assert_eq!(second.stop(), Some(0));
    run(in_folder(&["types"])).exits_with(0).stdout_has(&["echo"]);
    assert_eq!(daemon.stop(), Some(0));
    assert!(!folder.path().join(".kafleet-dev.json").exists());
}

/// `worker.grace` is for the workers of a fleet: the end of `dev` is that of a terminal.
#[test]
fn end_of_dev_does_not_wait_for_attempts_that_ignore_it() {
    let text = "[worker]\ngrace = \"10m\"\n[apps.a]\ncommand = [\"python3\", \"daily.py\"]\ncwd = \"FOLDER\"\n";
    let mut dev = Dev::with_config(text);
    dev.run(&["submit", "report", r#"{"do":"block"}"#, "--id", "block"]).exits_with(0);
    eventually_blocking("it runs", || dev.run(&["status", "block"]).out.contains("running"));
    dev.daemon.signal(Signal::SIGINT);
    dev.daemon.wait_for_line("waiting 1 s for running attempts (report 1)");
    eventually_blocking("dev has ended", || dev.daemon.has_ended());
}
