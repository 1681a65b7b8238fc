//! Forms: fields by schema, checks and previews without effect, values kept.

use kafleet::documents::{Audit, KillSwitches, Params, ScheduleDocument, TaskPage, TypeDocument};
use kafleet::model::task::kill::KillMatch;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, fleet};
use crate::ui::browser::{Browser, Page, guarded_fleet};

fn encoded(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

const THUMB: [(&str, &str); 5] =
    [("type", "resize"), ("fields_of", "resize"), ("id", "thumb"), ("p/url", "a & b"), ("p/width", "7")];

async fn post(browser: &Browser<'_>, path: &str, pairs: &[&[(&str, &str)]]) -> Page {
    browser.post(path, &encoded(&pairs.concat())).await
}

fn published(fleet: &Fleet) -> usize {
    fleet.published("echo") + fleet.published("resize")
}

#[tokio::test]
async fn new_task_is_submitted_by_the_fields_of_its_schema() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/new?type=resize").await;
    page.has(&[
        "name=\"fields_of\" value=\"resize\"",
        "name=\"p/url\"",
        "name=\"p/width\" type=\"number\"",
        "min=\"0\"",
    ]);
    page.has(&["Schema of", "<code>width</code>", "whole number, at least 0", "As JSON", "list=\"l-type\""]);
    browser.open("/new?type=echo").await.has(&["name=\"params\""]).lacks(&["fields_of", "without choosing a type"]);
    browser.open("/new").await.has(&["Params as JSON, without choosing a type first", "name=\"params\""]);
    browser.submit("/new", &encoded(&THUMB)).await.has(&["The task was submitted."]);
    let params: Params = fleet.get("/v1/tasks/thumb/params").await;
    assert_eq!(params.params, json!({"url": "a & b", "width": 7}));
    fleet.folded().await;
    browser.open("/new?like=thumb").await.has(&["name=\"p/url\" type=\"text\" value=\"a &amp; b\"", "value=\"7\""]);
}

#[tokio::test]
async fn refused_fields_keep_their_texts_and_name_their_errors() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = post(&browser, "/new", &[&THUMB[..4], &[("p/width", "many"), ("name", "mine")]]).await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    page.has(&["<code>many</code> is not a whole number", "value=\"many\"", "value=\"a &amp; b\"", "value=\"mine\""]);
    page.has(&["/params/width", "aria-invalid=\"true\""]);
    let page = post(&browser, "/new", &[&THUMB[..4]]).await;
    page.has(&["it is required", "/params/width"]);
    let page = post(&browser, "/new", &[&THUMB[..4], &[("p/width", "-1")]]).await;
    assert!(page.status.is_client_error(), "{}", page.text);
    page.has(&["/params/width", "value=\"-1\"", "aria-invalid=\"true\""]);
    assert_eq!(published(&fleet), 0);
}

#[tokio::test]
async fn fields_and_json_carry_their_values_over() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let number = "12345678901234567890123";
    let page = post(&browser, "/new", &[&THUMB[..4], &[("p/width", number), ("show", "json")]]).await;
    assert_eq!(page.status, StatusCode::OK);
    page.has(&["name=\"params\"", &format!("&quot;width&quot;: {number}"), "value=\"thumb\""]).lacks(&["fields_of"]);
    let params = format!("{{\"url\": null, \"width\": {number}, \"more\": [1]}}");
    let json = [("type", "resize"), ("params", params.as_str())];
    let page = post(&browser, "/new", &[&json, &[("show", "fields")]]).await;
    page.has(&[
        &format!("name=\"p/width\" type=\"text\" value=\"{number}\""),
        "name=\"j/url\"",
        "name=\"j\"",
        "&quot;more&quot;",
    ]);
    let page = post(&browser, "/new", &[&[("type", "resize"), ("params", "{odd"), ("show", "fields")]]).await;
    page.has(&["{odd", "not JSON"]);
    let page = post(&browser, "/new", &[&[("type", "resize"), ("params", "{}"), ("show", "type")]]).await;
    page.has(&["name=\"p/url\""]);
    assert_eq!(published(&fleet), 0);
}

#[tokio::test]
async fn check_lists_all_errors_and_submits_nothing() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let check = [("show", "check")];
    let page = post(&browser, "/new", &[&THUMB, &check]).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    page.has(&["<strong>Valid</strong>: nothing was submitted.", "value=\"thumb\""]);
    let wrong = [("type", "resize"), ("params", "{\"url\": 1, \"width\": -1}")];
    let page = post(&browser, "/new", &[&wrong, &check]).await;
    page.has(&[
        "<strong>Not valid</strong>",
        "<code>/params/url</code>",
        "<code>/params/width</code>",
        "&quot;url&quot;: 1",
    ]);
    let page = post(&browser, "/new", &[&[("type", "none"), ("params", "{}")], &check]).await;
    page.has(&["<strong>Not valid</strong>", "<code>none</code>"]);
    assert_eq!(published(&fleet), 0);
    fleet.create(json!({"type": "resize", "id": "thumb", "params": {"url": "a & b", "width": 7}})).await;
    fleet.folded().await;
    post(&browser, "/new", &[&THUMB, &check]).await.has(&["The same task already exists", "href=\"/tasks/thumb\""]);
    assert_eq!(fleet.get::<TaskPage>("/v1/tasks").await.tasks.len(), 1);
}

#[tokio::test]
async fn limits_form_is_one_line_with_the_configured_values() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/types/echo/limits").await;
    page.has(&["slots per worker", "in the fleet", "at most", "starts", "burst", "placeholder=\"cores\""]);
    page.has(&["Nothing is set at run time.", "<h2>Now</h2>"]).lacks(&["Reset to the configuration"]);
    let set = "slots=3&rate_count=100&rate_by=type&reason=the+disk+is+slow";
    browser.submit("/types/echo/limits", set).await.has(&["3 slots a worker"]);
    fleet.folded().await;
    let audit: Audit = fleet.get("/v1/audit").await;
    assert_eq!(audit.requests[0].reason.as_deref(), Some("slots none → 3, rate none → 100/1s; the disk is slow"));
    browser.open("/types/echo/limits").await.has(&["class=\"set\"", "value=\"100\"", "Reset to the configuration"]);
    browser
        .submit("/types/echo/limits", "slots=9&reset=yes")
        .await
        .has(&["The limits of the configuration apply again."]);
    let echo: TypeDocument = fleet.get("/v1/types/echo").await;
    assert_eq!(echo.limits.live, Vec::<String>::new());
}

#[tokio::test]
async fn pauses_name_the_person_and_the_reason() {
    let fleet = guarded_fleet().await;
    let browser = Browser::of_role(&fleet, kafleet::config::Role::Operate);
    browser.submit("/types/echo/pause", "reason=disk+full").await.has(&[" by operate: disk full"]);
    browser.open("/types/echo/resume").await.has(&[" by operate: disk full"]);
    let form = encoded(&[("id", "nightly"), ("cron", "0 3 * * *"), ("type", "echo")]);
    browser.submit("/new-schedule", &form).await.has(&["at 03:00 every day, UTC"]);
    browser.submit("/schedules/nightly/pause", "reason=holiday").await.has(&[" by operate: holiday"]);
    browser.submit("/kill-switches/new", "tag=x").await.has(&[">operate</td>"]);
}

const NIGHTLY: [(&str, &str); 7] = [
    ("id", "nightly"),
    ("cron", "30 2 * * MON-FRI"),
    ("timezone", "Europe/Berlin"),
    ("overlap", "replace"),
    ("type", "resize"),
    ("fields_of", "resize"),
    ("p/url", "a"),
];

#[tokio::test]
async fn schedule_is_made_of_fields() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/new-schedule").await;
    page.has(&[
        "name=\"cron\"",
        "name=\"every\"",
        "value=\"Europe/Berlin\"",
        "name=\"jitter\"",
        "at 03:00 every day, UTC",
    ]);
    let more = [("p/width", "7"), ("tags", "a, b"), ("task_fields", "{\"retries\": 2}"), ("jitter", "5m")];
    let page = post(&browser, "/new-schedule", &[&NIGHTLY, &more, &[("show", "preview")]]).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    page.has(&[
        "<strong>Valid</strong>: nothing was changed.",
        "at 02:30, on Monday to Friday, Europe/Berlin, up to 5 minutes later",
    ]);
    page.has(&["value=\"nightly\""]);
    let in_its_zone = [" CET</span>", " CEST</span>"].map(|zone| page.text.matches(zone).count());
    assert_eq!(in_its_zone.iter().sum::<usize>(), 10, "the next ten times, in the zone of the schedule");
    let page = browser.submit("/new-schedule", &encoded(&[&NIGHTLY[..], &more].concat())).await;
    page.has(&["at 02:30, on Monday to Friday", "30 2 * * MON-FRI"]);
    let made: ScheduleDocument = fleet.get("/v1/schedules/nightly").await;
    assert_eq!(made.spec.task.params, json!({"url": "a", "width": 7}));
    assert_eq!((made.spec.overlap.name(), made.spec.task.policy.tags.len()), ("replace", 2));
    let page = browser.open("/schedules/nightly/edit").await;
    page.has(&[
        "value=\"30 2 * * MON-FRI\"",
        "name=\"p/width\"",
        "value=\"a, b\"",
        "&quot;retries&quot;: 2",
        "<h2>Now</h2>",
    ]);
    browser.open("/schedules").await.has(&["at 02:30, on Monday to Friday"]);
}

#[tokio::test]
async fn definition_of_a_schedule_changes_between_fields_and_json() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let width = [("p/width", "7")];
    let page = post(&browser, "/new-schedule", &[&NIGHTLY, &width, &[("show", "definition_json")]]).await;
    page.has(&[
        "name=\"spec\"",
        "&quot;cron&quot;: &quot;30 2 * * MON-FRI&quot;",
        "&quot;width&quot;: 7",
        "value=\"nightly\"",
    ]);
    let spec = r#"{"every": "10m", "task": {"type": "resize", "params": {"url": "b"}}}"#;
    let page = post(&browser, "/new-schedule", &[&[("spec", spec), ("show", "definition_fields")]]).await;
    page.has(&["name=\"every\" value=\"10m\"", "name=\"p/url\" type=\"text\" value=\"b\""]).lacks(&["name=\"spec\""]);
    let odd = r#"{"evry": "10m"}"#;
    let page = post(&browser, "/new-schedule", &[&[("spec", odd), ("show", "definition_fields")]]).await;
    page.has(&["no field for `evry`", "name=\"spec\""]);
    let page = post(&browser, "/new-schedule", &[&NIGHTLY, &[("cron", ""), ("show", "preview")]]).await;
    page.has(&["<strong>Not valid</strong>", "/task/params/width"]);
    let wrong = [("id", "nightly"), ("cron", "61 * * * *"), ("type", "echo"), ("show", "preview")];
    post(&browser, "/new-schedule", &[&wrong]).await.has(&["is not a cron expression", "value=\"61 * * * *\""]);
    assert!(fleet.get::<Value>("/v1/schedules").await["schedules"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn backfill_shows_its_number_of_tasks_before() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let form = encoded(&[("id", "hourly"), ("every", "1h"), ("type", "echo"), ("params", "{}")]);
    browser.submit("/new-schedule", &form).await;
    let range = [("from", "2026-01-01T00:00:00Z"), ("to", "2026-01-01T02:00:00Z")];
    let page = post(&browser, "/schedules/hourly/backfill", &[&range, &[("show", "preview")]]).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    page.has(&["<strong>3 tasks</strong> for 3 times", "hourly.20260101T000000Z", "value=\"2026-01-01T02:00:00Z\""]);
    let future = [("from", "2026-01-01T00:00:00Z"), ("to", "2999-01-01T00:00:00Z"), ("show", "preview")];
    post(&browser, "/schedules/hourly/backfill", &[&future]).await.has(&["it is in the future"]);
}

#[tokio::test]
async fn kill_switch_counts_its_tasks_and_confirms_many() {
    let fleet = fleet().await;
    let many: Vec<Value> = (0..101).map(|n| json!({"type": "echo", "id": format!("batch-{n}")})).collect();
    fleet.post("/v1/batches", Value::from(many)).await;
    fleet.create(json!({"type": "echo", "id": "batch-x", "tags": ["a"]})).await;
    fleet.create(json!({"type": "echo", "id": "a-first"})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.open("/kill-switches/new?tag=a").await.has(&["<strong>1 open task</strong>", "/tasks/batch-x"]);
    let page = browser.post("/kill-switches/new", "prefix=batch-&show=count").await;
    assert_eq!(page.status, StatusCode::OK);
    page.has(&["<strong>102 open tasks</strong>", "To confirm, type 102", "name=\"expected\" value=\"102\""]);
    for form in ["prefix=batch-", "prefix=batch-&expected=3&expected_of=tag+*+a&confirm=3", "prefix=batch-&confirm=10"]
    {
        let page = browser.post("/kill-switches/new", form).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{form}");
        page.has(&["type this number to confirm it", "value=\"batch-\""]);
    }
    let both = browser.post("/kill-switches/new", "tag=a&prefix=b").await;
    both.has(&["not both", "value=\"a\"", "value=\"b\""]);
    assert!(fleet.get::<KillSwitches>("/v1/kill-switches").await.kills.is_empty());
    let form = "prefix=batch-&expected=102&expected_of=id_prefix+*+batch-&confirm=102&reason=bad";
    browser.submit("/kill-switches/new", form).await.has(&["batch-", "prefix of ids"]);
    let kills = fleet.get::<KillSwitches>("/v1/kill-switches").await.kills;
    assert_eq!(kills[0].matches, Some(KillMatch::IdPrefix));
    browser.open("/kill-switches/new").await.has(&["Active now"]);
}

#[tokio::test]
async fn kill_switch_on_params_is_counted_set_and_shown() {
    let fleet = fleet().await;
    for (id, customer) in [("hit", 42), ("other", 7)] {
        fleet.create(json!({"type": "echo", "id": id, "params": {"customer": customer, "kind": "import"}})).await;
    }
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let form = "name=bad-import&type=echo&params=%2Fcustomer%3D42%0D%0A%2Fkind%3Dimport";
    let page = browser.post("/kill-switches/new", &format!("{form}&show=count")).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    page.has(&["<strong>1 open task</strong>", "/tasks/hit", "/customer=42\r\n/kind=import", "value=\"bad-import\""]);
    for (form, reason) in [
        ("name=a&params=%2Fa%3D1", "need the type"),
        ("type=echo&params=%2Fa%3D1", "needs a name"),
        ("name=a&type=echo", "a name is for params"),
        ("name=a&type=echo&params=customer%3D1", "it must begin with"),
        ("name=a&type=echo&params=%2Fcustomer", "is no param"),
        ("name=a&type=echo&tag=b&params=%2Fa%3D1", "not both"),
        ("type=echo&tag=b&params=%2Fa%3D1", "not both"),
    ] {
        let page = browser.post("/kill-switches/new", form).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{form}");
        page.has(&[reason]);
    }
    assert!(fleet.get::<KillSwitches>("/v1/kill-switches").await.kills.is_empty());
    let shown = ["bad-import", "<code>/customer=42</code>", "<code>/kind=&quot;import&quot;</code>"];
    browser.submit("/kill-switches/new", &format!("{form}&reason=bad")).await.has(&shown);
    browser.open("/kill-switches/new").await.has(&shown);
    browser.open("/kill-switches/bad-import/off").await.has(&shown);
}
