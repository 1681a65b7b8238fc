//! Hostile text in every field shows as text, on every page.

use std::collections::BTreeSet;

use kafleet::broker::ProducerRecord;
use kafleet::documents::Status;
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};
use crate::ui::browser::Browser;
use crate::ui::pages::OF_TASK;
use crate::ui::shop::{Past, Shop, TYPES};
use crate::ui::visits::visits;

const MARKUP: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";

/// Fields that users, handlers and workers fill. A new one needs a line, and its text in [`hostile_shop`].
const FIELDS: &[&str] = &[
    "name",
    "tag",
    "creator",
    "params",
    "options",
    "result",
    "progress",
    "warning",
    "log",
    "kind-of-error",
    "error",
    "reason-of-cancel",
    "reason-of-retry",
    "reason-of-pause",
    "reason-of-kill-switch",
    "kill-switch",
    "reason-of-bulk-action",
    "schedule",
    "reason-of-schedule",
    "host",
    "version",
    "circuit",
    "letter",
    "header",
];

/// Text of a field: markup, quotes, a colour and a link of terminals, an override of the direction, a character without a
/// width. The first element names the field.
pub fn hostile(field: &str) -> String {
    format!(
        "<x-{field}>\"'><img src=x onerror=alert(1)><script>alert(1)</script>\u{1b}[31mred\u{1b}[0m\
         \u{1b}]8;;http://evil\u{1b}\\\u{202e}fdp\u{2066}\u{200b}"
    )
}

/// Fleet with the addresses of a shop, whose fields all have such texts.
pub async fn hostile_shop() -> Shop {
    let fleet = fleet().await;
    fleet.create_topics(&TYPES);
    add_hostile_tasks(&fleet).await;
    add_hostile_operations(&fleet).await;
    add_hostile_letter(&fleet).await;
    add_hostile_heartbeat(&fleet).await;
    let bulk = json!({"action": "retry", "ids": ["parcel"], "limit": 1, "reason": hostile("reason-of-bulk-action")});
    let answer = fleet.request(Method::POST, "/v1/bulk").json(&bulk).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    let action: Status = answer.json().await.unwrap();
    let path = format!("/v1/tasks/{}?after={}", action.id, action.position);
    eventually("the bulk action", async || fleet.get::<Status>(&path).await.state.is_terminal()).await;
    fleet.folded().await;
    Shop { fleet, bulk: action.id }
}

async fn add_hostile_tasks(fleet: &Fleet) {
    let text = hostile;
    fleet
        .submitted(json!({
            "type": "echo", "id": "order", "name": text("name"), "creator": text("creator"), "link": "javascript:alert(1)",
            "tags": ["<x-tag>\"'><img src=x onerror=alert(1)>"], "params": {"x": text("params"), (text("params")): 1},
            "options": {"x": text("options")}
        }))
        .await;
    for id in ["order:fetch", "parcel", "stopped", "import"] {
        fleet.echo(id).await;
    }
    let output = |field: &str| RawJson::of(&json!({"x": text(field)})).ok();
    fleet.publish_event("order", Kind::Started, |event| event.attempt = 1).await;
    fleet
        .publish_event("order", Kind::Warned, |event| {
            event.attempt = 1;
            event.message = Some(text("warning"));
        })
        .await;
    fleet.post("/v1/tasks/order/log", json!({"lines": [text("log")]})).await;
    fleet.succeed("order", json!({"x": text("result")})).await;
    fleet.publish_event("import", Kind::Started, |event| event.attempt = 1).await;
    let progress = Payload::Progress { output: output("progress") };
    fleet.publish_event("import", progress, |event| event.attempt = 1).await;
    for id in ["order:fetch", "parcel"] {
        let failure = AttemptFailure::new(&text("kind-of-error"), text("error"), 1);
        fleet.publish_event(id, Payload::Failed(failure), |event| event.attempt = 1).await;
    }
    let notes = fleet.request(Method::PUT, "/v1/tasks/order/attachments/notes.txt").body(text("attachment"));
    notes.header("content-type", "text/html").send().await.unwrap();
    fleet.folded().await;
}

async fn add_hostile_operations(fleet: &Fleet) {
    let post = async |path: &str, reason: &str| {
        let (status, answer) = fleet.post(path, json!({"reason": hostile(reason)})).await;
        assert!(status < 300, "{path}: {answer}");
    };
    post("/v1/tasks/stopped/cancel", "reason-of-cancel").await;
    post("/v1/tasks/parcel/retry", "reason-of-retry").await;
    post("/v1/types/echo/pause", "reason-of-pause").await;
    let kill = json!({"reason": hostile("reason-of-kill-switch")});
    fleet.request(Method::PUT, "/v1/kill-switches/batch-7").json(&kill).send().await.unwrap();
    let params = json!({"/x": hostile("kill-switch")});
    let kill = json!({"type": "echo", "params": params, "reason": hostile("reason-of-kill-switch")});
    fleet.request(Method::PUT, "/v1/kill-switches/on-params").json(&kill).send().await.unwrap();
    let task = json!({"type": "echo", "name": hostile("schedule"), "params": {"x": hostile("schedule")}});
    let (status, answer) =
        fleet.post("/v1/schedules", json!({"id": "nightly", "spec": {"every": "1h", "task": task}})).await;
    assert_eq!(status, 201, "{answer}");
    post("/v1/schedules/nightly/pause", "reason-of-schedule").await;
}

async fn add_hostile_letter(fleet: &Fleet) {
    let (value, header) = (json!({"x": hostile("letter")}).to_string(), hostile("header"));
    let headers: &[(&str, &[u8])] = &[("x", header.as_bytes()), (&header, b"x")];
    let task = Some(("order:fetch", 1));
    fleet.letter(NewLetter { task, key: "order:fetch", value: value.as_bytes(), headers, ..LETTER }, 0).await;
}

async fn add_hostile_heartbeat(fleet: &Fleet) {
    let now = now_ms();
    let part = json!({"type": "echo", "slots": 1, "in_flight": 0, "waiting": 0, "paused": false, "partitions": [0],
        "finished": {}, "circuit": hostile("circuit"), "stopped": hostile("circuit"), "app_down": hostile("circuit"),
        "open_hosts": 1, "hosts": [{"host": hostile("circuit"), "reason": hostile("circuit"), "waiting": 1}]});
    let beat = json!({"v": 1, "id": "node-7", "host": hostile("host"), "pid": 42, "version": hostile("version"), "state": "running",
        "started_ms": now, "at_ms": now, "every_ms": 60_000, "held_bytes": 0, "types": [part], "running": []});
    let (topic, value) = (fleet.names.workers(), beat.to_string());
    let (key, value) = (Some(&b"node-7"[..]), Some(value.as_bytes()));
    let record = ProducerRecord { topic: &topic, partition: Some(0), key, value, headers: &[] };
    fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
    eventually("the heartbeat", async || Browser::new(fleet).get("/workers/node-7").await.status.is_success()).await;
}

/// Whether a page shows values as they were written, for people who change them.
fn is_editor(path: &str) -> bool {
    path.ends_with("/edit") || path.starts_with("/new") || path.starts_with("/bulk/new")
}

#[tokio::test]
async fn markup_in_every_field_is_text_on_every_page() {
    let shop = hostile_shop().await;
    let browser = Browser::new(&shop.fleet);
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    for path in visits(&shop) {
        let page = browser.get(&path).await;
        if !page.is_document() {
            let policy = page.header("content-security-policy");
            assert!(page.status.is_redirection() || policy.starts_with("sandbox"), "{path}: {policy}");
            continue;
        }
        page.lacks(&["<x-", "<img", "<script>"]);
        // The value of an input is inert; nothing else may hold such an address.
        assert!(!page.text.replace(" value=\"javascript:", "").contains("=\"javascript:"), "{path}: {}", page.text);
        if !is_editor(&path) {
            page.lacks(&["\u{1b}", "\u{202e}", "\u{2066}", "\u{200b}"]);
        }
        shown.extend(FIELDS.iter().copied().filter(|field| page.text.contains(&format!("&lt;x-{field}&gt;"))));
    }
    let unseen: Vec<&str> = FIELDS.iter().copied().filter(|field| !shown.contains(field)).collect();
    assert!(unseen.is_empty(), "no page shows these, so that this test proves nothing about them: {unseen:?}");
}

#[tokio::test]
async fn markup_in_every_field_is_escaped() {
    let fleet = fleet().await;
    let task = json!({
        "type": "echo", "id": "order", "name": MARKUP, "creator": MARKUP, "link": "javascript:alert(1)",
        "tags": ["<script>tag</script>"], "params": {"html": MARKUP}, "options": {"html": MARKUP}
    });
    fleet.create(task).await;
    let browser = Browser::new(&fleet);
    let markup: String = url::form_urlencoded::byte_serialize(MARKUP.as_bytes()).collect();
    browser.submit("/tasks/order/append", &format!("lines={markup}%0A%1B%5B31mred%1B%5B0m")).await;
    browser.submit("/types/echo/pause", &format!("reason={markup}")).await;
    browser.submit("/kill-switches/new", &format!("tag=other&reason={markup}")).await;
    let params = format!("name=named&type=echo&params=%2Fx%3D{markup}");
    browser.submit("/kill-switches/new", &params).await;
    fleet.succeed("order", json!({"html": MARKUP})).await;
    fleet.echo("order:child").await;
    fleet.fail("order:child", MARKUP).await;
    fleet.folded().await;
    assert_eq!(fleet.get::<Status>("/v1/tasks/order").await.fields.name.as_deref(), Some(MARKUP));
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    let others = ["/", "/tasks", "/tasks/order:child", "/types", "/types/echo", "/kill-switches", "/new?like=order"];
    let with_markup = ["/tasks?name=X", "/tasks?tag=X", "/tasks/X", "/types/X", "/workers/X", "/new?name=X&params=X"];
    let with_markup = with_markup.map(|path| path.replace('X', &markup.replace('+', "%20")));
    for path in of_task.chain(others.map(str::to_owned)).chain(with_markup) {
        let page = browser.get(&path).await;
        page.lacks(&["<script>", "<img", "onerror=alert(1)>", "href=\"javascript:", "\u{1b}"]);
    }
    let post =
        browser.send(Method::POST, "/new", &[("sec-fetch-site", "same-origin")], Some(&format!("type={markup}"))).await;
    post.lacks(&["<script>", "<img"]);
}

/// Markup, an escape code of terminals, and an override of the text direction.
const DISGUISED: &str = "<b>x</b>\"'\u{1b}[31mred\u{1b}[0m\u{202e}fdp.exe\u{2066}";

/// Publishes a task that fails with such a text.
async fn fail_disguised(fleet: &Fleet) {
    fleet.create(json!({"type": "echo", "id": "order", "name": DISGUISED, "creator": DISGUISED})).await;
    fleet
        .publish_event("order", Kind::Started, |event| {
            event.attempt = 1;
            event.worker = Some(DISGUISED.into());
        })
        .await;
    let failure = AttemptFailure::new("error", DISGUISED, 1);
    let retrying = Payload::Retrying { failure, due_ms: None, record: None, waits: 0 };
    fleet.publish_event("order", retrying, |event| event.attempt = 1).await;
    fleet.fail("order", DISGUISED).await;
    fleet.post("/v1/tasks/order/log", json!({"lines": [DISGUISED]})).await;
}

/// Publishes a heartbeat whose texts are such a text.
async fn beat_disguised(fleet: &Fleet) {
    let now = now_ms();
    let part = json!({"type": "echo", "slots": 1, "in_flight": 0, "waiting": 0, "paused": false, "partitions": [0],
        "finished": {}, "stopped": DISGUISED, "circuit": DISGUISED, "app_down": DISGUISED, "group": DISGUISED,
        "open_hosts": 1, "hosts": [{"host": DISGUISED, "reason": DISGUISED, "waiting": 1}]});
    let beat = json!({"v": 1, "id": DISGUISED, "host": DISGUISED, "pid": 42, "version": DISGUISED, "state": "running",
        "started_ms": now, "at_ms": now, "every_ms": 60_000, "held_bytes": 0, "types": [part], "running": []});
    let (topic, value) = (fleet.names.workers(), beat.to_string());
    let (key, value) = (Some(DISGUISED.as_bytes()), Some(value.as_bytes()));
    let record = ProducerRecord { topic: &topic, partition: Some(0), key, value, headers: &[] };
    fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
}

#[tokio::test]
async fn text_of_workers_letters_schedules_and_attempts_shows_as_text() {
    let fleet = with_letters().await;
    fail_disguised(&fleet).await;
    beat_disguised(&fleet).await;
    let headers: &[(&str, &[u8])] = &[("x", DISGUISED.as_bytes()), (DISGUISED, b"x")];
    let letter = NewLetter { task: Some(("order", 1)), key: DISGUISED, value: DISGUISED.as_bytes(), headers, ..LETTER };
    let letter = format!("/dead-letters/{}", fleet.letter(letter, 0).await);
    let spec = json!({"every": "1h", "task": {"type": "echo", "params": {"x": DISGUISED}}});
    let (status, answer) = fleet.post("/v1/schedules", json!({"id": "nightly", "spec": spec})).await;
    assert_eq!(status, 201, "{answer}");
    fleet.post("/v1/schedules/nightly/pause", json!({"reason": DISGUISED})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    eventually("the heartbeat", async || browser.open("/workers").await.text.contains("&lt;b&gt;x")).await;
    let worker: String = url::form_urlencoded::byte_serialize(DISGUISED.as_bytes()).collect();
    let worker = format!("/workers/{}", worker.replace('+', "%20"));
    let of_task = ["", "/log", "/tree", "/timeline"].map(|page| format!("/tasks/order{page}"));
    let others = [
        "/",
        "/tasks",
        "/failures",
        "/types",
        "/types/echo",
        "/workers",
        "/schedules",
        "/schedules/nightly",
        "/audit",
        "/dead-letters",
        "/system",
        &worker,
        &letter,
    ];
    for path in others.into_iter().chain(of_task.iter().map(String::as_str)) {
        browser.open(path).await.lacks(&["<b>x", "\u{1b}", "\u{202e}", "\u{2066}"]);
    }
    browser.open("/").await.has(&["app down</span>", "stopped</span>", "circuit open</span>"]);
    browser.open("/schedules/nightly/edit").await.has(&["\u{202e}"]).lacks(&["<b>x"]);
}
