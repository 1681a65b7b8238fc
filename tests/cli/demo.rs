//! `kafleet dev --demo`: every verb has something to show, and few trees are open at once.

use serde_json::Value;

use crate::cli::client::Dev;
use crate::cli::run::{config_folder, eventually_blocking, kafleet, run};

/// Maximum number of open trees of the demo and its schedule.
const MAX_OPEN: usize = 24 + 4;

fn list(dev: &Dev, words: &[&str]) -> Vec<Value> {
    let page = dev.json(&[&["list", "-n", "500"], words].concat());
    page["tasks"].as_array().unwrap().clone()
}

fn open_roots(dev: &Dev) -> usize {
    let ended = ["succeeded", "failed", "cancelled", "expired"];
    list(dev, &[]).iter().filter(|task| !ended.contains(&task["state"].as_str().unwrap())).count()
}

#[test]
fn demo_shows_something_in_every_verb() {
    let dev = Dev::with(&["--demo", "--no-sample"]);
    for state in [
        "scheduled",
        "queued",
        "running",
        "retrying",
        "warning",
        "waiting_for_children",
        "succeeded",
        "failed",
        "cancelled",
        "expired",
    ] {
        eventually_blocking(&format!("a task is {state}"), || {
            assert!(open_roots(&dev) <= MAX_OPEN);
            (!list(&dev, &["--level", "any", "--state", state]).is_empty()).then_some(())
        });
    }
    let shows = |words: &[&str], text: &str| {
        eventually_blocking(&format!("`{words:?}` shows `{text}`"), || {
            let ran = dev.run(words);
            (ran.code == Some(0) && ran.out.contains(text)).then_some(())
        });
    };
    shows(&["tree", "parts-1"], "then");
    shows(&["children", "order-1"], "order-1:pack");
    shows(&["params", "order-1"], "children");
    shows(&["log", "order-1:fetch"], "looking on the shelf");
    shows(&["attachments", "list", "order-1:pack"], "slip");
    shows(&["history", "flaky-1"], "the demo shows a retry");
    eventually_blocking("why reports the pause", || {
        let imports = list(&dev, &["--type", "demo-import", "--state", "queued"]);
        let id = imports.first()?["id"].as_str()?.to_owned();
        dev.run(&["why", &id]).out.contains("paused").then_some(())
    });
    eventually_blocking("progress is shown", || {
        list(&dev, &["--level", "any"]).iter().any(|task| !task["progress"].is_null()).then_some(())
    });
    shows(&["dead-letters", "list"], "the address `nowhere` does not exist");
    shows(&["dead-letters", "list"], "exhausted");
    shows(&["kill-switch", "list"], "demo-recalled");
    shows(&["schedules", "list"], "succeeded");
    shows(&["types"], "paused");
    shows(&["workers"], "alive");
    shows(&["workers", "--running"], "demo-");
    shows(&["status", "ticket-1"], r#"{"answered":true}"#);
    shows(&["status", "flaky-1"], "succeeded");
    eventually_blocking("all changes are watched", || {
        let seen = dev.run(&["watch", "--timeout", "5s"]).exits_with(0);
        (seen.out.lines().count() >= 3).then_some(())
    });
}

#[test]
fn demo_needs_an_operator_token() {
    let folder =
        config_folder("[[api.tokens]]\nname = \"reader\"\ntoken = \"a-long-enough-token-to-read\"\nrole = \"read\"\n");
    let mut command = kafleet(["dev", "--demo", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    run(command).exits_with(2).stderr_has(&["the demo needs one of `api.tokens` to have the role `operate`", "hint: "]);
}
