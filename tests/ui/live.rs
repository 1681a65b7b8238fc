//! Live updates: streams, and refreshes of open tabs.

use std::time::Instant;

use kafleet::config::Role;
use kafleet::documents::Problem;
use kafleet::model::event::Kind;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::api::fixture::DEADLINE;
use crate::ui::browser::{Browser, guarded_fleet};
use crate::ui::pages::fleet_with_tree;

const PART: &[(&str, &str)] = &[("kafleet-part", "main")];

#[tokio::test]
async fn stream_reports_that_the_page_may_be_stale() {
    let fleet = fleet_with_tree().await;
    for topic in ["fleet", "type:echo", "tree:order", "workers", "control"] {
        let request = fleet.request(Method::GET, &format!("/ui/live?on={topic}")).timeout(DEADLINE);
        let mut stream = request.send().await.unwrap();
        assert_eq!(stream.status(), StatusCode::OK, "{topic}");
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        assert_eq!(stream.headers()["x-accel-buffering"], "no", "proxies must not collect events");
        assert!(!stream.headers().contains_key("content-encoding"));
        fleet.publish_event("order:fetch", Kind::Started, |event| event.attempt = 2).await;
        let mut received = String::new();
        while !received.contains("\n\n") || received.starts_with(':') {
            received = String::from_utf8(stream.chunk().await.unwrap().expect(topic).to_vec()).unwrap();
        }
        assert_eq!(received, "event: stale\ndata: null\n\n", "{topic}");
    }
}

#[tokio::test]
async fn stream_of_an_unknown_topic_is_refused() {
    let fleet = fleet_with_tree().await;
    for topic in ["", "other", "tree:", "type:A%20B", "fleet:1"] {
        let page = Browser::new(&fleet).get(&format!("/ui/live?on={topic}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{topic}: {}", page.text);
        assert_eq!(serde_json::from_str::<Problem>(&page.text).unwrap().code, "bad_parameter");
    }
}

#[tokio::test]
async fn streams_and_refreshes_need_a_session() {
    let fleet = guarded_fleet().await;
    let stranger = Browser::new(&fleet);
    assert_eq!(stranger.get("/ui/live?on=fleet").await.status, StatusCode::UNAUTHORIZED);
    let part = stranger.send(Method::GET, "/", PART, None).await;
    assert_eq!(part.status, StatusCode::UNAUTHORIZED, "tabs show `signed out` instead of the login");
    let part = Browser::of_role(&fleet, Role::Read).send(Method::GET, "/", PART, None).await;
    assert_eq!(part.status, StatusCode::OK, "{}", part.text);
}

#[tokio::test]
async fn refresh_names_the_build_and_the_interval() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order").await;
    let part = browser.send(Method::GET, "/tasks/order", PART, None).await;
    assert_eq!(part.status, StatusCode::OK);
    let build = part.header("kafleet-build");
    page.has(&[&format!("data-build=\"{build}\"")]);
    assert!(part.header("kafleet-again").parse::<u64>().unwrap() >= 2_000, "{}", part.header("kafleet-again"));
    part.has(&["data-topic=\"tree:order\"", "data-title=\"✘\u{fe0e} first order · kafleet\"", "data-state=\"failed\""]);
}

#[tokio::test]
async fn refresh_does_not_read_params_again() {
    let fleet = fleet_with_tree().await;
    fleet.create(json!({"type": "echo", "id": "painted", "params": {"colour": "blue"}})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let begun = Instant::now();
    while !browser.open("/tasks/painted").await.text.contains("&quot;colour&quot;") {
        assert!(begun.elapsed() < DEADLINE, "the params are shown");
    }
    fleet.faults.kafka_outage();
    browser.send(Method::GET, "/tasks/painted", PART, None).await.has(&["&quot;colour&quot;"]);
}

#[tokio::test]
async fn refreshes_of_roles_are_not_mixed() {
    let fleet = guarded_fleet().await;
    for (role, sees_actions) in [(Role::Operate, true), (Role::Read, false), (Role::Operate, true)] {
        let part = Browser::of_role(&fleet, role).send(Method::GET, "/types/echo", PART, None).await;
        assert_eq!(part.text.contains("Pause…"), sees_actions, "{role:?}: {}", part.text);
    }
}

#[tokio::test]
async fn forms_open_as_dialogs() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order").await.has(&["href=\"/tasks/order/retry\" data-dialog", "<dialog id=\"action\""]);
    let form = browser.send(Method::GET, "/tasks/order/retry", PART, None).await;
    form.has(&["<main id=\"main\" data-topic=\"\"", "action=\"/tasks/order/retry\"", "data-close"]);
    assert!(form.text.starts_with("<main"), "{}", form.text);
}
