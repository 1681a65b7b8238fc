//! Pages while the store or Kafka is away.

use std::time::{Duration, Instant};

use kafleet_testkit::faults::{read_nodes, store_calls};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::{DEADLINE, fleet};
use crate::ui::browser::Browser;
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};

#[tokio::test]
async fn pages_say_that_the_store_is_away_and_what_still_works() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let outage = fleet.faults.store_outage();
    browser.open("/").await.has(&["store_unavailable", "cannot be shown"]);
    for path in ["/tasks", "/tasks/order", "/tasks/order/tree", "/types"] {
        let page = browser.get(path).await;
        assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        page.has(&["store_unavailable", "still work", "<nav"]);
    }
    for path in ["/workers", "/kill-switches", "/help", "/system"] {
        browser.open(path).await;
    }
    outage.lift();
    browser.open("/tasks/order").await.has(&["first order"]);
}

#[tokio::test]
async fn every_page_answers_while_the_store_is_silent() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    fleet.faults.on(store_calls).hang();
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    let paths: Vec<String> = PLAIN.iter().map(|path| (*path).to_owned()).chain(of_task).collect();
    let pages = futures::future::join_all(paths.iter().map(|path| browser.get(path))).await;
    for (path, page) in paths.iter().zip(&pages) {
        let is_answered = matches!(page.status, StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE);
        assert!(is_answered, "{path}: {} {}", page.status, page.text);
        page.has(&["<nav", "<h1"]);
    }
    assert!(pages.iter().any(|page| page.text.contains("still work")));
}

#[tokio::test]
async fn task_page_shows_the_rest_without_kafka() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let outage = fleet.faults.kafka_outage();
    let begun = Instant::now();
    browser.open("/tasks/order").await.has(&[
        "first order",
        "kafka_unavailable",
        "&quot;total&quot;</span>: <span class=\"digits\">7",
    ]);
    assert!(begun.elapsed() < DEADLINE);
    outage.lift();
    fleet.faults.full_control_topic();
    let page = browser.post("/types/echo/pause", "reason=x").await;
    assert!(page.status.is_server_error(), "{}: {}", page.status, page.text);
    page.has(&["role=\"alert\"", "value=\"x\""]);
}

#[tokio::test]
async fn searches_and_previews_show_what_a_slow_store_has_answered_in_time() {
    let fleet = fleet().await;
    let tasks: Vec<Value> = (0..3_000).map(|n| json!({"type": "echo", "id": format!("t{n}")})).collect();
    let answer = fleet.request(Method::POST, "/v1/batches").json(&tasks).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    fleet.folded().await;
    fleet.faults.on(read_nodes).delay(Duration::from_millis(150));
    let browser = Browser::new(&fleet);
    browser.get("/tasks?q=tag:none").await.has(&["No match so far.", "stopped after scanning"]);
    browser.get("/bulk/new?action=cancel&q=type:echo").await.has(&["At least", "would change", "name=\"expected\""]);
}

#[tokio::test]
async fn form_keeps_its_values_while_its_page_cannot_be_read() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    fleet.faults.store_outage();
    let page = browser.post("/tasks/order/attach", "name=notes.txt&text=one%0D%0Atwo").await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    page.has(&["store_unavailable", "action=\"/tasks/order/attach\"", "value=\"notes.txt\"", "one\r\ntwo</textarea>"]);
    let page = browser.get("/tasks/order/attach").await;
    page.has(&["store_unavailable"]).lacks(&["<form class=\"panel"]);
}
