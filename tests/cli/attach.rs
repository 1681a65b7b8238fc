//! `app attach`: handlers in the process of the test, at a worker of `dev`; and the workers and folders that it refuses.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::apps::Dev;
use crate::cli::run::{kafleet, run};

/// Longer than the timeout of the type `nap`.
const NAP: Duration = Duration::from_millis(600);

/// App in this process: an attempt of `double` succeeds, one of `nap` sleeps and fails.
struct TestedApp {
    _folder: tempfile::TempDir,
    path: PathBuf,
    connections: Arc<AtomicUsize>,
}

impl TestedApp {
    fn listen() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        let path = folder.path().join("app.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(stream));
            }
        });
        Self { _folder: folder, path, connections }
    }

    /// Command of the relay.
    fn command(&self) -> [&str; 4] {
        [env!("CARGO_BIN_EXE_kafleet"), "app", "attach", self.path.to_str().unwrap()]
    }
}

/// Serves one connection until its end.
fn serve(mut stream: UnixStream) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let types = json!([{"name": "double"}, {"name": "nap", "policy": {"timeout": "100ms", "retries": 0}}]);
    let mut send = |message: &Value| writeln!(stream, "{message}").unwrap();
    send(&json!({"ready": {"protocol": 1, "types": types}}));
    for line in lines {
        let message: Value = serde_json::from_str(&line).unwrap();
        let attempt = &message["attempt"];
        if attempt["type"] == "nap" {
            // The handler takes longer than its timeout.
            sleep(NAP);
            send(&json!({"error": {"n": attempt["n"], "outcome": "fail", "kind": "awake", "message": "slept"}}));
        } else if attempt.is_object() {
            let output = attempt["params"]["x"].as_i64().map(|x| x * 2);
            send(&json!({"ok": {"n": attempt["n"], "output": output}}));
        }
    }
}

#[test]
fn handlers_in_the_process_of_the_test_run_tasks_of_a_fleet() {
    let app = TestedApp::listen();
    let dev = Dev::with_target(&app.command());
    assert_eq!(dev.result("double", &json!({"x": 21})), 42);
    assert_eq!(dev.task("nap", &json!({}), &[])["error"]["kind"], "timeout");
    assert_eq!(app.connections.load(Ordering::SeqCst), 1, "an attached app is one process");
}

#[test]
fn attempts_have_no_timeouts_for_a_debugger() {
    let app = TestedApp::listen();
    let mut command = kafleet(["dev", "--no-timeouts", "--listen", "127.0.0.1:0", "--"]);
    command.args(app.command());
    let dev = Dev::start(command);
    for limit in [&[][..], &["--timeout", "200ms"], &["--total-timeout", "300ms"], &["--stall-timeout", "100ms"]] {
        assert_eq!(dev.task("nap", &json!({}), limit)["error"]["kind"], "awake", "{limit:?}");
    }
}

#[test]
fn section_of_the_same_app_is_not_started_a_second_time() {
    let app = TestedApp::listen();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tasks.py"), "raise SystemExit('started')").unwrap();
    let text = "[apps.shop]\ncommand = [\"python3\", \"tasks.py\"]\nprocesses = 3\n";
    std::fs::write(folder.path().join("kafleet.toml"), text).unwrap();
    let mut command = kafleet(["dev", "--no-sample", "--listen", "127.0.0.1:0", "--"]);
    command.args(app.command()).arg("tasks.py").current_dir(folder.path());
    let dev = Dev::start(command);
    assert_eq!(dev.result("double", &json!({"x": 4})), 8);
    assert_eq!(app.connections.load(Ordering::SeqCst), 1, "an attached app is one process");
}

#[test]
fn other_workers_and_folders_of_others_are_refused_with_the_remedy() {
    let app = TestedApp::listen();
    let direct = run(kafleet(["app", "attach", "/tmp/app.sock"]));
    direct
        .exits_with(2)
        .stderr_has(&["is not the socket of a worker", "`kafleet dev -- kafleet app attach /tmp/app.sock`"]);
    // `app check` starts apps as a worker does that is not `dev`.
    let checked = run(kafleet([&["app", "check", "--"], &app.command()[..]].concat()));
    checked
        .exits_with(1)
        .stderr_has(&["cannot serve: only workers of `kafleet dev`", "hint: run it with `kafleet dev"]);
    std::fs::set_permissions(app.path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let opened = run(kafleet([&["dev", "--listen", "127.0.0.1:0", "--"], &app.command()[..]].concat()));
    opened.exits_with(1).stderr_has(&["others can access it (mode 0755)", "mode 0700"]);
    assert_eq!(app.connections.load(Ordering::SeqCst), 0);
}
