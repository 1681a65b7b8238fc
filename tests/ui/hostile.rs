//! Hostile text in every field shows as text.

use kafleet::broker::ProducerRecord;
use kafleet::documents::Status;
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};
use crate::ui::browser::Browser;
use crate::ui::pages::OF_TASK;

const MARKUP: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";

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
        "finished": {}, "stopped": DISGUISED, "circuit": DISGUISED, "app_down": DISGUISED, "group": DISGUISED});
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
