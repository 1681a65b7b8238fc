//! `kafleet schedules` against a fleet in memory.

use serde_json::{Value, json};

use crate::cli::client::Dev;
use crate::cli::run::{config_folder, eventually_blocking, write};

#[test]
fn schedule_is_created_triggered_changed_and_deleted() {
    let dev = Dev::start();
    let made =
        dev.run(&["schedules", "create", "tick", "echo", r#"{"n":1}"#, "--every", "1s", "--tag", "x"]).exits_with(0);
    made.stdout_has(&["id        tick", "when      every 1s", "overlap   skip", "next      "]);
    let fired = |least: u64| {
        eventually_blocking("the schedule has fired and its task is visible", || {
            let shown = dev.json(&["schedules", "show", "tick"]);
            (shown["fired"].as_u64()? >= least && shown["last"]["state"].is_string()).then_some(shown)
        })
    };
    let task = fired(1)["last"]["task"].as_str().unwrap().to_owned();
    dev.run(&["status", &task, "--wait"]).exits_with(0).stdout_has(&["state     succeeded", r#"result    {"n":1}"#]);
    assert_eq!(dev.json(&["status", &task])["options"]["schedule"], "tick");
    dev.run(&["schedules", "pause", "tick", "--reason", "enough"])
        .exits_with(0)
        .stdout_has(&["paused    since", "enough"]);
    dev.run(&["schedules", "list"]).exits_with(0).stdout_has(&["tick  echo  every 1s", "paused"]);
    dev.run(&["schedules", "trigger", "tick", "--wait"])
        .exits_with(0)
        .stdout_has(&["id        tick.run-", "state     succeeded"]);
    dev.run(&["schedules", "change", "tick", "--cron", "0 3 * * *", "--timezone", "Asia/Tokyo"])
        .exits_with(0)
        .stdout_has(&["0 3 * * * Asia/Tokyo", "in words  at 03:00 every day, Asia/Tokyo"]);
    let next = dev.run(&["schedules", "next", "tick", "--count", "2", "--after", "2026-01-01T00:00:00Z"]).exits_with(0);
    assert_eq!(next.out, "2026-01-01T18:00:00.000Z\n2026-01-02T18:00:00.000Z\n");
    let past = ["schedules", "backfill", "tick", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-02T00:00:00Z"];
    assert_eq!(dev.run(&past).exits_with(0).out, "tick.20260101T180000Z\n");
    eventually_blocking("the past time has its task", || {
        let page = dev.json(&["list", "--creator", "schedule/tick"]);
        page["tasks"].as_array()?.iter().any(|task| task["id"] == "tick.20260101T180000Z").then_some(())
    });
    dev.run(&["schedules", "resume", "tick"]).exits_with(0);
    dev.run(&["schedules", "delete", "tick"]).exits_with(0).stdout_has(&["tick is deleted"]);
    dev.run(&["schedules", "show", "tick"]).exits_with(3).stderr_has(&["there is no schedule `tick`"]);
    dev.run(&["schedules", "create", "bad", "echo", "--cron", "61 * * * *"])
        .exits_with(2)
        .stderr_has(&["is not a cron expression", "five fields"]);
    dev.run(&["schedules", "create", "bad", "ehco", "--every", "1h"])
        .exits_with(3)
        .stderr_has(&["did you mean `echo`"]);
}

#[test]
fn schedules_of_the_configuration_are_applied() {
    let dev = Dev::start();
    let folder = config_folder(
        "[schedules.hourly]\nevery = \"1h\"\ntask = { type = \"echo\", params = { n = 1 } }\n\
         [schedules.nightly]\ncron = \"0 3 * * *\"\n[schedules.nightly.task]\ntype = \"echo\"\n",
    );
    let file = folder.path().join("kafleet.toml").to_str().unwrap().to_owned();
    let apply = |more: &[&str]| -> Vec<(String, String)> {
        let words = [&["schedules", "apply", "--config", &file], more].concat();
        let changes: Vec<Value> = serde_json::from_value(dev.json(&words)).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        changes.iter().map(|change| (text(&change["id"]), text(&change["change"]))).collect()
    };
    let expected = |changes: &[(&str, &str)]| {
        changes.iter().map(|(id, change)| (id.to_string(), change.to_string())).collect::<Vec<_>>()
    };
    dev.run(&["schedules", "create", "own", "echo", "--every", "1d"]).exits_with(0);
    let created = expected(&[("hourly", "created"), ("nightly", "created")]);
    assert_eq!(apply(&["--dry-run"]), created);
    assert_eq!(apply(&[]), created);
    assert_eq!(apply(&[]), expected(&[("hourly", "unchanged"), ("nightly", "unchanged")]));
    write(folder.path(), "kafleet.toml", "[schedules.hourly]\nevery = \"2h\"\ntask = { type = \"echo\" }\n");
    assert_eq!(apply(&[]), expected(&[("hourly", "changed"), ("nightly", "kept")]));
    assert_eq!(apply(&["--prune"]), expected(&[("hourly", "unchanged"), ("nightly", "deleted")]));
    let ids = dev.json(&["schedules", "list"]);
    let ids: Vec<&Value> = ids["schedules"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&json!("hourly"), &json!("own")], "schedules created by other means are kept");
    write(folder.path(), "kafleet.toml", "[schedules.a]\ncron = \"x\"\ntask = { type = \"echo\" }\n");
    dev.run(&["schedules", "apply", "--config", &file])
        .exits_with(2)
        .stderr_has(&["kafleet.toml:2: `schedules.a.cron`: `x` is not a cron expression"]);
}
