//! Deaths of processes of apps: the attempts beside run again in spare processes, and an app that dies by itself costs no
//! attempts.

use kafleet_testkit::wait::eventually_blocking;
use serde_json::{Value, json};

use crate::cli::apps::{Dev, pid_of, wait_until_gone};

fn is_running(dev: &Dev, id: &str) -> bool {
    dev.run(&["status", id]).out.contains("running")
}

/// Kinds of the events of a task, with the reasons of interruptions.
fn history(dev: &Dev, id: &str) -> Vec<String> {
    let history = dev.run(&["history", id, "-o", "json"]).exits_with(0).json();
    let text = |event: &Value| match event["error_kind"].as_str() {
        Some(reason) => format!("{} {reason}", event["kind"].as_str().unwrap()),
        None => event["kind"].as_str().unwrap().to_owned(),
    };
    history["events"].as_array().unwrap().iter().map(text).collect()
}

/// Nine attempts that wait for a file run beside one that kills their process. They run again at the same time, each in a
/// process of its own, and another task still has a process.
#[test]
fn attempts_beside_a_death_run_again_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let dev = Dev::with_config("[apps.a]\ncommand = [\"python3\", \"threads.py\"]\ncwd = \"FOLDER\"\nprocesses = 1\n");
    let pid = pid_of(&dev.result("work", &json!({})));
    let waits: Vec<Value> = (0..9).map(|_| json!({"do": "wait", "file": file})).collect();
    let ids = dev.submit_many("work", &waits);
    for id in &ids {
        eventually_blocking("the attempt is running", || is_running(&dev, id));
    }
    let poison = dev.submit_many("work", &[json!({"do": "exit", "code": 1})]);
    wait_until_gone(pid);
    let poison = &dev.ended(&poison)[0];
    assert_eq!((&poison["state"], &poison["error"]["kind"]), (&json!("failed"), &json!("crashed")), "{poison}");
    // Eight in spare processes, and the ninth waits for one of them, because the first process is left to others.
    let running = || ids.iter().filter(|id| is_running(&dev, id)).count();
    eventually_blocking("eight attempts run at the same time", || running() == 8);
    assert!(dev.result("work", &json!({})).is_number());
    std::fs::write(&file, "").unwrap();
    for status in dev.ended(&ids) {
        assert_eq!((&status["state"], &status["attempt"]), (&json!("succeeded"), &json!(1)), "{status}");
        assert_eq!(status["interruptions"], 1, "{status}");
    }
    let again = ["submitted", "started", "interrupted process_died", "started", "succeeded"];
    assert_eq!(history(&dev, &ids[0]), again);
}

/// The type has no retries: a task that is charged with a death fails.
#[test]
fn app_that_dies_by_itself_costs_no_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("unstable");
    let deaths = || std::fs::read_to_string(file.with_extension("deaths")).unwrap_or_default().lines().count();
    std::fs::write(&file, "").unwrap();
    let text = "[apps.a]\ncommand = [\"python3\", \"unstable.py\", \"FILE\"]\ncwd = \"FOLDER\"\nprocesses = 2\n";
    let dev = Dev::with_config(&text.replace("FILE", &file.to_string_lossy()));
    let ids = dev.submit_many("nap", &(0..4).map(|n| json!(n)).collect::<Vec<_>>());
    eventually_blocking("processes have died again and again", || deaths() >= 8);
    std::fs::remove_file(&file).unwrap();
    for status in dev.ended(&ids) {
        assert_eq!((&status["state"], &status["attempt"]), (&json!("succeeded"), &json!(1)), "{status}");
    }
}
