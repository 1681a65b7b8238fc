//! `kafleet app test`: the Python SDK, the loop of the documents and the Go app follow the protocol; faulty apps do not.

use std::path::{Path, PathBuf};
use std::process::Command;

use kafleet_testkit::services::skip;
use serde_json::{Value, json};

use crate::cli::run::{RunResult, kafleet, run};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn app_test(folder: &Path, app: &[&str]) -> RunResult {
    let mut command = kafleet([&["app", "test", "-o", "json"], app].concat());
    command.current_dir(folder).env("PYTHONPATH", root().join("sdk/python")).env_remove("VIRTUAL_ENV");
    run(command)
}

/// Checks that all cases are passed, and returns the names of those that were skipped.
fn skipped(ran: RunResult) -> Vec<String> {
    let reports = ran.json();
    let reports = reports.as_array().unwrap();
    let failed: Vec<&Value> = reports.iter().filter(|report| report["result"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:?}");
    ran.exits_with(0);
    let is_skipped = |report: &&Value| report["result"] != "passed";
    assert!(reports.len() > 30, "{}", reports.len());
    reports.iter().filter(is_skipped).map(|report| report["case"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn python_sdk_follows_the_protocol() {
    let apps = root().join("sdk/python/tests/apps");
    let one_slot = skipped(app_test(&apps, &["conformance.py"]));
    assert_eq!(one_slot, ["unable", "slots", "joined-attempts"]);
    let slots = skipped(app_test(
        &apps,
        &["--", "env", "TEST_SLOTS=3", "TEST_THREADS=3", "python3", "-P", "-m", "kafleet", "conformance.py"],
    ));
    assert_eq!(slots, ["unable"]);
}

#[test]
fn loop_of_the_documents_follows_the_protocol() {
    let page = std::fs::read_to_string(root().join("docs/app-protocol.md")).unwrap();
    let text = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = text.replace("\"double\"", "\"t-echo\"").replace("params[\"x\"] * 2", "params");
    std::fs::write(folder.path().join("loop.py"), text).unwrap();
    let skipped = skipped(app_test(folder.path(), &["--", "python3", "loop.py"]));
    assert!(!skipped.iter().any(|case| case.starts_with("ok") || case.starts_with("unreadable")), "{skipped:?}");
}

/// Builds the Go app. `None`, with a skipped test, without Go.
fn go_app(folder: &Path) -> Option<String> {
    let program = folder.join("checksums");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(root().join("examples/go"));
    build.env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
    match build.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip("go is not installed");
            None
        }
        built => {
            let built = built.unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Some(program.to_string_lossy().into_owned())
        }
    }
}

#[test]
fn go_app_follows_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = go_app(folder.path()) else { return };
    assert_eq!(
        skipped(app_test(folder.path(), &["--", &program, "test"])),
        ["sync-async", "unable", "sync-async-in-single-bytes"]
    );
}

#[test]
fn go_app_runs_its_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = go_app(folder.path()) else { return };
    std::fs::create_dir(folder.path().join("in")).unwrap();
    std::fs::write(folder.path().join("in/a"), "hello").unwrap();
    std::fs::write(folder.path().join("in/b"), "").unwrap();
    let dev = super::apps::Dev::with_target(&[&program]);
    let files = dev.task("checksums", &json!({"folder": folder.path().join("in")}), &["--id", "sums"]);
    assert_eq!((&files["state"], &files["result"]), (&json!("succeeded"), &json!(2)), "{files}");
    let sum = dev.result("checksum", &json!({"path": folder.path().join("in/a")}));
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(sum, json!({"sha256": hello, "bytes": 5}));
    let missing = dev.task("checksum", &json!({"path": "/no/such/file"}), &[]);
    assert_eq!((&missing["state"], &missing["error"]["kind"]), (&json!("failed"), &json!("not_found")), "{missing}");
}

#[test]
fn broken_rule_is_shown_with_its_case() {
    let apps = root().join("tests/apps");
    for (rule, case, expected) in [
        ("lines", "ok", "the end of its stream instead of"),
        ("one-answer", "ok", "`/ok/n` is `1` instead of `2`"),
        ("exit-code", "idle-end", "it exited with code 3 instead of 0"),
        ("kind", "ok", "unknown variant `progres`"),
    ] {
        let ran = app_test(&apps, &["--", "python3", "faulty.py", rule]);
        let ran = ran.exits_with(1).stderr_has(&["the app breaks the protocol in ", "docs/app-protocol.md"]);
        let reports = ran.json();
        let report = reports.as_array().unwrap().iter().find(|report| report["case"] == case).unwrap();
        let reason = report["reason"].as_str().unwrap_or_default();
        assert!(report["result"] == "failed" && reason.contains(expected), "{rule}: {report}");
        assert!(!report["rule"].as_str().unwrap().is_empty(), "{report}");
    }
    let mut table = kafleet(["app", "test", "--", "python3", "faulty.py", "exit-code"]);
    table.current_dir(&apps);
    run(table).exits_with(1).stdout_has(&[
        "idle-end",
        "failed",
        "rule: ",
        "it exited with code 3 instead of 0",
        "skipped",
    ]);
    app_test(&apps, &["--", "python3", "faulty.py", "first-message"])
        .exits_with(1)
        .stderr_has(&["violates the app protocol: an invalid message", "`hello`"]);
    run(kafleet(["app", "test"])).exits_with(3).stderr_has(&["there is no app", "kafleet app test tasks.py"]);
}
