//! Requests without effect, which show that of others.

use kafleet::documents::{
    BackfillPreview, KillSwitchDocument, KillSwitchPreview, SchedulePreview, Schedules, TaskPage, TaskPreview,
};
use kafleet::model::event::Kind;
use kafleet::model::task::kill::KillMatch;
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, fleet};

async fn preview<T: DeserializeOwned>(fleet: &Fleet, path: &str, body: Value) -> T {
    let (status, answer) = fleet.post(path, body).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer).unwrap()
}

#[tokio::test]
async fn task_is_checked_without_being_created() {
    let fleet = fleet().await;
    let check = async |body: Value| preview::<TaskPreview>(&fleet, "/v1/preview", body).await;
    let good = json!({"type": "resize", "id": "thumb", "params": {"url": "a", "width": 7}, "delay": "1h"});
    let checked = check(good.clone()).await;
    assert_eq!((checked.valid, checked.id.as_deref(), checked.exists), (true, Some("thumb"), false));
    assert!(checked.starts_at.is_some());
    let wrong = check(json!({"type": "resize", "params": {"url": 1, "width": -1}})).await;
    let pointers: Vec<&str> = wrong.problems.iter().filter_map(|problem| problem.pointer.as_deref()).collect();
    assert_eq!((wrong.valid, pointers), (false, vec!["/params/url", "/params/width"]));
    for (body, code) in [
        (json!({"type": "none"}), "unknown_type"),
        (json!({"type": "echo", "parent": "nobody"}), "unknown_parent"),
        (json!({"type": "echo", "id": "a b"}), "bad_id"),
        (json!({"type": "echo", "delay": "900d"}), "bad_field"),
    ] {
        let checked = check(body.clone()).await;
        assert_eq!((checked.valid, checked.problems[0].code.as_str()), (false, code), "{body}");
    }
    assert_eq!(fleet.published("resize") + fleet.published("echo"), 0);
    fleet.create(good.clone()).await;
    fleet.folded().await;
    assert!(check(good).await.exists);
    let other = check(json!({"type": "echo", "id": "thumb"})).await;
    assert_eq!((other.valid, other.problems[0].code.as_str()), (false, "duplicate_id"));
    assert_eq!(fleet.get::<TaskPage>("/v1/tasks").await.tasks.len(), 1);
}

#[tokio::test]
async fn definition_of_a_schedule_is_checked_with_its_times() {
    let fleet = fleet().await;
    let path = "/v1/schedules/nightly/preview";
    let spec = json!({"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task": {"type": "echo"}});
    let checked: SchedulePreview = preview(&fleet, path, spec.clone()).await;
    assert_eq!((checked.valid, checked.exists, checked.times.len()), (true, false, 10));
    assert_eq!(checked.description.as_deref(), Some("at 03:00 every day, Europe/Berlin"));
    let wrong = json!({"cron": "x", "start_at": "y", "task": {"type": "echo"}});
    let checked: SchedulePreview = preview(&fleet, path, wrong).await;
    let pointers: Vec<&str> = checked.problems.iter().filter_map(|problem| problem.pointer.as_deref()).collect();
    assert_eq!((checked.valid, checked.description, checked.times.len()), (false, None, 0));
    assert!(pointers.contains(&"/cron") && pointers.contains(&"/start_at"), "{pointers:?}");
    let params = json!({"every": "1h", "task": {"type": "resize", "params": {}}});
    let checked: SchedulePreview = preview(&fleet, path, params).await;
    assert_eq!((checked.valid, checked.problems[0].code.as_str()), (false, "schema"));
    assert!(fleet.get::<Schedules>("/v1/schedules").await.schedules.is_empty());
    fleet.post("/v1/schedules", json!({"id": "nightly", "spec": spec.clone()})).await;
    assert!(preview::<SchedulePreview>(&fleet, path, spec).await.exists);
    let shown = fleet.get::<Schedules>("/v1/schedules").await.schedules;
    assert_eq!(shown[0].description.as_deref(), Some("at 03:00 every day, Europe/Berlin"));
}

#[tokio::test]
async fn backfill_is_counted_without_the_times_that_have_tasks() {
    let fleet = fleet().await;
    let spec = json!({"every": "1h", "task": {"type": "echo"}});
    fleet.post("/v1/schedules", json!({"id": "hourly", "spec": spec})).await;
    fleet.create(json!({"type": "echo", "id": "hourly.20260101T010000Z"})).await;
    fleet.folded().await;
    let range = "from=2026-01-01T00:00:00Z&to=2026-01-01T12:00:00Z";
    let counted: BackfillPreview = fleet.get(&format!("/v1/schedules/hourly/backfill?{range}")).await;
    assert_eq!((counted.times, counted.existing, counted.missing, counted.tasks.len()), (13, 1, 12, 10));
    assert_eq!(counted.tasks[..2], ["hourly.20260101T000000Z", "hourly.20260101T020000Z"]);
    let path = "/v1/schedules/hourly/backfill?from=2020-01-01T00:00:00Z";
    assert_eq!(fleet.problem(path).await.code, "too_many_times");
    assert_eq!(fleet.problem("/v1/schedules/none/backfill?from=2026-01-01T00:00:00Z").await.code, "unknown_schedule");
}

#[tokio::test]
async fn kill_switch_counts_tags_and_prefixes_apart() {
    let fleet = fleet().await;
    for task in [
        json!({"type": "echo", "id": "import-1"}),
        json!({"type": "echo", "id": "import-2", "tags": ["import-"]}),
        json!({"type": "echo", "id": "other", "tags": ["import-"]}),
        json!({"type": "resize", "id": "import-3", "params": {"url": "a", "width": 1}}),
        json!({"type": "echo", "id": "import-4"}),
        json!({"type": "echo", "id": "important", "name": "import-"}),
    ] {
        fleet.create(task).await;
    }
    fleet.succeed("import-4", json!(null)).await;
    fleet.publish_event("import-1", Kind::Started, |event| event.attempt = 1).await;
    fleet.folded().await;
    let count = async |query: &str| {
        let path = format!("/v1/kill-switches/import-/preview{query}");
        let counted: KillSwitchPreview = fleet.get(&path).await;
        assert!(counted.exact);
        (counted.tagged, counted.prefixed, counted.running)
    };
    assert_eq!(count("").await, (2, 2, 1));
    assert_eq!(count("?type=echo").await, (2, 1, 1));
    assert_eq!(count("?matches=tag").await, (2, 0, 0));
    assert_eq!(count("?matches=id_prefix").await, (1, 2, 1));
    assert_eq!(fleet.problem("/v1/kill-switches/import-/preview?matches=odd").await.code, "bad_parameter");
    let body = json!({"matches": "id_prefix"});
    let set = fleet.request(Method::PUT, "/v1/kill-switches/import-").json(&body).send().await.unwrap();
    assert!(set.status().is_success(), "{}", set.status());
    let kills = fleet.get::<Value>("/v1/kill-switches").await;
    let kill: KillSwitchDocument = serde_json::from_value(kills["kills"][0].clone()).unwrap();
    assert_eq!(kill.matches, Some(KillMatch::IdPrefix));
}

#[tokio::test]
async fn kill_switch_on_params_counts_open_tasks_of_its_type() {
    let fleet = fleet().await;
    for (id, params) in [
        ("one", json!({"customer": 42, "kind": "import"})),
        ("two", json!({"customer": 42.0, "kind": "import", "more": [1]})),
        ("ended", json!({"customer": 42, "kind": "import"})),
        ("first", json!({"customer": 42, "kind": "export"})),
        ("second", json!({"customer": 7, "kind": "import"})),
        ("none", json!(null)),
    ] {
        fleet.create(json!({"type": "echo", "id": id, "params": params})).await;
    }
    let of_other_type = json!({"url": "a", "width": 1, "customer": 42, "kind": "import"});
    fleet.create(json!({"type": "resize", "id": "other", "params": of_other_type})).await;
    fleet.succeed("ended", json!(null)).await;
    fleet.publish_event("two", Kind::Started, |event| event.attempt = 1).await;
    fleet.folded().await;
    let count = async |params: Value| {
        let params: String = url::form_urlencoded::byte_serialize(params.to_string().as_bytes()).collect();
        let counted: KillSwitchPreview =
            fleet.get(&format!("/v1/kill-switches/bad/preview?type=echo&params={params}")).await;
        assert!(counted.exact && counted.tagged + counted.prefixed == 0, "{counted:?}");
        let mut ids: Vec<String> = counted.tasks.into_iter().map(|task| task.id).collect();
        ids.sort();
        (counted.matched, counted.running, ids.join(" "))
    };
    assert_eq!(count(json!({"/customer": 42, "/kind": "import"})).await, (2, 1, "one two".into()));
    assert_eq!(count(json!({"/kind": "import"})).await, (3, 1, "one second two".into()));
    assert_eq!(count(json!({"": null})).await, (1, 0, "none".into()));
    assert_eq!(count(json!({"/customer": "42"})).await, (0, 0, String::new()));
}
