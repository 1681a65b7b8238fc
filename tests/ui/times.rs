//! Times of tasks: attempts with continuations, open trees, and how long a task has been in its state.

use kafleet::model::event::{Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::task::continuation::Continuation;
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;
use serde_json::json;

use crate::api::fixture::{Fleet, fleet};
use crate::ui::browser::Browser;

/// Publishes an event of the first attempt of a task, this long ago.
async fn event(fleet: &Fleet, id: &str, payload: impl Into<Payload>, ago_ms: i64) {
    let change = |event: &mut kafleet::model::event::Event| {
        (event.attempt, event.worker, event.at_ms) = (1, Some("w-1".into()), now_ms() - ago_ms);
    };
    fleet.publish_event(id, payload, change).await;
}

#[tokio::test]
async fn attempt_that_adds_continuations_has_one_start() {
    let fleet = fleet().await;
    let begun = now_ms() - 9_000;
    let at = |event: &mut kafleet::model::event::Event, ms: i64| {
        (event.attempt, event.worker, event.at_ms) = (1, Some("w-1".into()), begun + ms);
    };
    fleet.echo("order").await;
    fleet.publish_event("order", Kind::Started, |event| at(event, 0)).await;
    let then = vec![Continuation::new("echo", json!(1))];
    fleet.publish_event("order", Payload::Started { then }, |event| at(event, 2_500)).await;
    let succeeded = Payload::Succeeded { started_at_ms: Some(begun), output: None };
    fleet.publish_event("order", succeeded, |event| at(event, 2_510)).await;
    fleet.folded().await;
    let history: kafleet::documents::History = fleet.get("/v1/tasks/order/history").await;
    let kinds: Vec<&str> = history.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["submitted", "started", "continuations_added", "succeeded"]);
    let browser = Browser::new(&fleet);
    let start = time_text(begun);
    browser.open("/tasks/order").await.has(&[">continuations added</td>", "2.5 s", &start[11..23]]);
    browser.open("/tasks/order/timeline").await.has(&["attempt 1: succeeded, 2.5 s"]);
}

#[tokio::test]
async fn timeline_of_an_open_tree_ends_now() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    event(&fleet, "order", Kind::Started, 0).await;
    fleet.succeed("order", json!(1)).await;
    fleet.announce("order:a", "echo", None).await;
    event(&fleet, "order:a", Kind::Started, 120_000).await;
    fleet.announce("order:b", "echo", None).await;
    fleet.succeed("order:b", json!(1)).await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/order/timeline").await;
    page.has(&[
        "up to now, ",
        ">now ",
        "attempt 1: running, 2 min ",
        "so far",
        "<path class=\"fill running\"",
        ">a</a>",
    ]);
    let (open, all) = page.text.split_once("All tasks, by creation").unwrap();
    assert!(open.contains("id=\"o-order:a\"") && !open.contains("id=\"o-order:b\""), "{open}");
    assert!(all.contains("id=\"t-order:b\""), "{all}");
    page.has(&["first half"]).lacks(&["whole timeline"]);
    let (from, to) = (time_text(now_ms() - 100_000), time_text(now_ms() - 90_000));
    let part = Browser::new(&fleet).open(&format!("/tasks/order/timeline?from={from}&to={to}")).await;
    part.has(&["10.0 s in total.", "whole timeline", "attempt 1: running"]).lacks(&[">now "]);
    assert_eq!(Browser::new(&fleet).get("/tasks/order/timeline?from=odd").await.status, 400);
}

#[tokio::test]
async fn lists_show_how_long_tasks_have_been_in_their_state() {
    let fleet = fleet().await;
    fleet.echo("fetch").await;
    event(&fleet, "fetch", Kind::Started, 140_000).await;
    let progress = RawJson::of(&json!({"done": 281, "total": 6_000, "message": "page 281"})).ok();
    event(&fleet, "fetch", Payload::Progress { output: progress }, 0).await;
    fleet.folded().await;
    let status: kafleet::documents::Status = fleet.get("/v1/tasks/fetch").await;
    assert!(status.state_since.is_some_and(|since| since < time_text(now_ms() - 139_000)));
    let browser = Browser::new(&fleet);
    browser.open("/tasks").await.has(&["running <time ", "data-clock=\"1\">2 min 2", "281 of 6,000", "page 281"]);
    let page = browser.open("/tasks/fetch").await;
    page.has(&["<strong>281 of 6,000</strong>", " left</span>", "As JSON"]);
}

#[tokio::test]
async fn task_page_shows_what_is_empty_in_one_row() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order").await;
    page.has(&["id=\"log\">Log: no lines", "id=\"attachments\">Attachments: none", "Append…", "Attach…"]);
    page.lacks(&["<dt>Attempt</dt>", "<dt>State</dt>", "<h2>Log</h2>", "<h2>Attachments</h2>"]);
    fleet.post("/v1/tasks/order/log", json!({"lines": ["only one"]})).await;
    fleet.folded().await;
    browser.open("/tasks/order").await.has(&["<h2>Log</h2>", "only one"]).lacks(&["Log: no lines"]);
    browser.open("/tasks/order/log").await.has(&["Lines 1 to 1 of 1", "id=\"l1\"", "value=\"1\""]);
}

#[tokio::test]
async fn lines_of_a_log_are_separated_by_attempts() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let of = |attempt: u32, ago_ms: i64| {
        move |event: &mut kafleet::model::event::Event| {
            (event.attempt, event.worker) = (attempt, Some("w-1".into()));
            event.at_ms -= ago_ms;
        }
    };
    let line = |text: &str| Payload::log(vec![text.to_owned()]);
    fleet.publish_event("order", Kind::Started, of(1, 9_000)).await;
    fleet.publish_event("order", line("first"), of(1, 8_000)).await;
    let failure = kafleet::model::event::AttemptFailure::new("timeout", "too slow", 1);
    let retrying = Payload::Retrying { failure, due_ms: None, record: None, waits: 0 };
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order/log").await.lacks(&["attempt 1 · started"]);
    fleet.publish_event("order", retrying, of(1, 7_000)).await;
    fleet.publish_event("order", Kind::Started, of(2, 6_000)).await;
    fleet.publish_event("order", line("second"), of(2, 5_000)).await;
    fleet.publish_event("order", line("third"), of(2, 4_000)).await;
    fleet.folded().await;
    let page = browser.open("/tasks/order/log").await;
    let positions = ["attempt 1 · started ", ">first<", "attempt 2 · started ", ">second<", ">third<"];
    let positions =
        positions.map(|text| page.text.find(text).unwrap_or_else(|| panic!("{text} is missing: {}", page.text)));
    assert!(positions.is_sorted(), "{}", page.text);
    assert_eq!(page.text.matches(" · started ").count(), 2);
    browser.open("/tasks/order/log?from=2").await.has(&["Lines 3 to 3 of 3", "attempt 2 · started "]);
}

#[tokio::test]
async fn reason_of_a_failed_task_does_not_repeat_its_error() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.fail("order", "the card was declined").await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/order").await;
    page.has(&["it failed: see the error above"]);
    let (_, reason) = page.text.split_once("id=\"why\"").unwrap();
    let (reason, _) = reason.split_once("</details>").unwrap();
    assert!(!reason.contains("declined"), "{reason}");
}
