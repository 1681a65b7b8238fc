//! `kafleet schedules` against a whole fleet in memory.

use serde_json::{Value, json};

use crate::client::Dev;
use crate::run::{configured, until, write};

#[test]
fn a_schedule_from_its_creation_to_its_end() {
    let dev = Dev::start();
    let made = dev.run(&["schedules", "create", "tick", "echo", r#"{"n":1}"#, "--every", "1s", "--tag", "x"]).ends(0);
    made.prints(&["id        tick", "when      every 1s", "overlap   skip", "next      "]);
    let fired = |least: u64| {
        until("it has fired, and its task is known", || {
            let shown = dev.json(&["schedules", "show", "tick"]);
            (shown["fired"].as_u64()? >= least && shown["last"]["state"].is_string()).then_some(shown)
        })
    };
    let task = fired(1)["last"]["task"].as_str().unwrap().to_owned();
    dev.run(&["status", &task, "--wait"]).ends(0).prints(&["state     succeeded", r#"result    {"n":1}"#]);
    assert_eq!(dev.json(&["status", &task])["options"]["schedule"], "tick");
    dev.run(&["schedules", "pause", "tick", "--reason", "enough"]).ends(0).prints(&["paused    since", "enough"]);
    dev.run(&["schedules", "list"]).ends(0).prints(&["tick  echo  every 1s", "paused"]);
    dev.run(&["schedules", "run", "tick", "--wait"]).ends(0).prints(&["id        tick.run-", "state     succeeded"]);
    dev.run(&["schedules", "change", "tick", "--cron", "0 3 * * *", "--timezone", "Asia/Tokyo"])
        .ends(0)
        .prints(&["0 3 * * * Asia/Tokyo"]);
    let next = dev.run(&["schedules", "next", "tick", "--count", "2", "--after", "2026-01-01T00:00:00Z"]).ends(0);
    assert_eq!(next.out, "2026-01-01T18:00:00.000Z\n2026-01-02T18:00:00.000Z\n");
    let past = ["schedules", "backfill", "tick", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-02T00:00:00Z"];
    assert_eq!(dev.run(&past).ends(0).out, "tick.20260101T180000Z\n");
    until("the past time has its task", || {
        let page = dev.json(&["list", "--creator", "schedule/tick"]);
        page["tasks"].as_array()?.iter().any(|task| task["id"] == "tick.20260101T180000Z").then_some(())
    });
    dev.run(&["schedules", "resume", "tick"]).ends(0);
    dev.run(&["schedules", "delete", "tick"]).ends(0).prints(&["tick is deleted"]);
    dev.run(&["schedules", "show", "tick"]).ends(3).tells(&["there is no schedule `tick`"]);
    dev.run(&["schedules", "create", "bad", "echo", "--cron", "61 * * * *"])
        .ends(2)
        .tells(&["no cron expression", "five fields"]);
    dev.run(&["schedules", "create", "bad", "ehco", "--every", "1h"]).ends(3).tells(&["did you mean `echo`"]);
}

#[test]
fn the_configuration_is_applied() {
    let dev = Dev::start();
    let folder = configured(
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
    let told = |changes: &[(&str, &str)]| changes.iter().map(|(id, what)| (id.to_string(), what.to_string())).collect::<Vec<_>>();
    dev.run(&["schedules", "create", "own", "echo", "--every", "1d"]).ends(0);
    let created = told(&[("hourly", "created"), ("nightly", "created")]);
    assert_eq!(apply(&["--dry-run"]), created);
    assert_eq!(apply(&[]), created);
    assert_eq!(apply(&[]), told(&[("hourly", "unchanged"), ("nightly", "unchanged")]));
    write(folder.path(), "kafleet.toml", "[schedules.hourly]\nevery = \"2h\"\ntask = { type = \"echo\" }\n");
    assert_eq!(apply(&[]), told(&[("hourly", "changed"), ("nightly", "left")]));
    assert_eq!(apply(&["--prune"]), told(&[("hourly", "unchanged"), ("nightly", "deleted")]));
    let ids = dev.json(&["schedules", "list"]);
    let ids: Vec<&Value> = ids["schedules"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&json!("hourly"), &json!("own")], "what people have made by other means stays");
    write(folder.path(), "kafleet.toml", "[schedules.a]\ncron = \"x\"\ntask = { type = \"echo\" }\n");
    dev.run(&["schedules", "apply", "--config", &file])
        .ends(2)
        .tells(&["kafleet.toml:2: `schedules.a.cron`: `x` is no cron expression"]);
}
