//! Pages while the store or Kafka is away, silent or slow.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kafleet::runtime::now_ms;
use kafleet_testkit::faults::{Rule, read_nodes, store_calls};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};
use crate::ui::browser::{Browser, Page};
use crate::ui::pages::fleet_with_tree;
use crate::ui::shop::shop;
use crate::ui::visits::documents;

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

/// Longest answer of a page while the store is slow: its deadline of 2 s, and patience for a busy machine. A page that waits
/// for each of its reads in turn takes longer.
const LONGEST: Duration = Duration::from_secs(10);
/// Pages requested at once.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn every_page_answers_while_the_store_is_silent() {
    let shop = shop().await;
    let paths = documents(&shop).await;
    let browser = Browser::new(&shop.fleet);
    shop.fleet.faults.on(store_calls).hang();
    let pages = futures::future::join_all(paths.iter().map(|path| browser.get(path))).await;
    for (path, page) in paths.iter().zip(&pages) {
        assert_is_answered(path, page);
    }
    assert!(pages.iter().any(|page| page.text.contains("still work")));
}

#[tokio::test]
async fn every_page_answers_in_time_while_the_store_is_slow() {
    let shop = shop().await;
    let paths = documents(&shop).await;
    let browser = Browser::new(&shop.fleet);
    shop.fleet.faults.on(store_calls).delay(Duration::from_millis(1_500));
    let visit = async |path: String| {
        let begun = Instant::now();
        let page = browser.get(&path).await;
        (path, page, begun.elapsed())
    };
    let pages: Vec<(String, Page, Duration)> =
        futures::stream::iter(paths.into_iter().map(visit)).buffer_unordered(AT_ONCE).collect().await;
    for (path, page, took) in &pages {
        assert_is_answered(path, page);
        assert!(*took < LONGEST, "{path} took {took:?}");
    }
    assert!(pages.iter().any(|(_, page, _)| page.text.contains("store_unavailable")), "what is late is left out");
}

/// Checks that a page has its frame, and contents or a problem that says what has not answered.
fn assert_is_answered(path: &str, page: &Page) {
    let is_answered = matches!(page.status, StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE);
    assert!(is_answered, "{path}: {} {}", page.status, page.text);
    page.has(&["<main", "<h1"]);
}

/// Words of a page's contents. Left out are numbers, which change with the time, the number of a form, and the suggestions of
/// fields, which need no note when they are missing.
fn words_of(page: &Page) -> String {
    let (_, main) = page.text.split_once("<main").unwrap_or_default();
    let mut main = main.split_once("</main>").unwrap_or_default().0.to_owned();
    for (start, end) in [
        // The marks of an axis move with the time.
        ("<line class=\"tick\"", "</line>"),
        ("<text class=\"tick\"", "</text>"),
        ("<datalist", "</datalist>"),
        ("<option", "</option>"),
        (" placeholder=\"", "\""),
        (" list=\"", "\""),
        ("name=\"form\" value=\"", "\""),
    ] {
        while let Some((before, rest)) = main.split_once(start) {
            main = format!("{before} {}", rest.split_once(end).unwrap_or_default().1);
        }
    }
    // Durations grow meanwhile.
    main.replace(|c: char| c.is_ascii_digit() || c == '.', "")
        .replace(" ms", " s")
        .replace(" min", " s")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Words around the first place at which two pages differ.
fn difference(before: &str, after: &str) -> String {
    let same = before.bytes().zip(after.bytes()).take_while(|(before, after)| before == after).count();
    let around = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[same.saturating_sub(60)..text.len().min(same + 120)]).into_owned()
    };
    format!("`{}` was `{}`", around(after), around(before))
}

/// Part of a minute, in milliseconds, in which a comparison of pages begins: the rest of the minute is enough for it.
const BEGINNING_MS: i64 = 30_000;
const MINUTE_MS: i64 = 60_000;
/// Minutes in which a comparison is tried.
const TRIED_MINUTES: usize = 5;

/// Checks of each page that it is as without the outage, or names what is missing by this code, while a service is away.
async fn assert_pages_name_what_is_missing(code: &str, begin_outage: impl Fn(&Fleet) -> Rule) {
    let shop = shop().await;
    let browser = Browser::new(&shop.fleet);
    let mut before = Vec::new();
    for path in documents(&shop).await {
        let words = words_of(&browser.get(&path).await);
        before.push((path, words));
    }
    let outage = begin_outage(&shop.fleet);
    let mut silent = Vec::new();
    for (path, words) in before {
        let page = browser.get(&path).await;
        assert_is_answered(&path, &page);
        if words_of(&page) != words && !page.text.contains(code) {
            silent.push(path);
        }
    }
    // Pages also change with time, at the end of each minute: those that have changed are compared within one.
    let mut outage = Some(outage);
    for _ in 0..TRIED_MINUTES {
        let outage = outage.take().unwrap_or_else(|| begin_outage(&shop.fleet));
        if let Some(changed) = changed_within_a_minute(&browser, &silent, code, outage).await {
            assert!(
                changed.is_empty(),
                "these are others than without the outage, and do not name `{code}`: {changed:#?}"
            );
            return;
        }
    }
    panic!("{} pages took longer than {TRIED_MINUTES} minutes lasted: {silent:?}", silent.len());
}

/// Pages that an outage changes without naming what is missing, each with the difference. Lifts the outage. `None`: a minute
/// has ended meanwhile.
async fn changed_within_a_minute(
    browser: &Browser<'_>,
    paths: &[String],
    code: &str,
    outage: Rule,
) -> Option<Vec<String>> {
    eventually("the beginning of a minute", async || now_ms().rem_euclid(MINUTE_MS) < BEGINNING_MS).await;
    let minute = now_ms() / MINUTE_MS;
    let mut during = Vec::new();
    for path in paths {
        during.push(browser.get(path).await);
    }
    outage.lift();
    let mut changed = Vec::new();
    for (path, during) in paths.iter().zip(during) {
        let (words, without) = (words_of(&during), words_of(&browser.get(path).await));
        if words != without && !during.text.contains(code) {
            changed.push(format!("{path}: {}", difference(&without, &words)));
        }
    }
    (now_ms() / MINUTE_MS == minute).then_some(changed)
}

#[tokio::test]
async fn every_page_names_what_is_missing_without_the_store() {
    assert_pages_name_what_is_missing("store_unavailable", |fleet| fleet.faults.store_outage()).await;
}

#[tokio::test]
async fn every_page_names_what_is_missing_without_kafka() {
    assert_pages_name_what_is_missing("kafka_unavailable", |fleet| fleet.faults.kafka_outage()).await;
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
