//! Records for other systems: on the results topic of a type, and on the topic that a task names in `reply_to`.

use std::collections::BTreeMap;

use kafleet::broker::{Record, TopicSpec};
use kafleet::handlers::{Child, Failure};
use kafleet_testkit::names::unique;
use serde_json::{Value, json};

use crate::worker::fleet::{DEADLINE, Fleet, eventually, memory};
use crate::worker::types::{Kind, ok};

/// A type with a results topic. Its params choose the end of the attempt.
pub fn with_results() -> Kind {
    let kind = Kind::new("published", |params: Value, cx| async move {
        match params.as_str() {
            Some("fail") => Err(Failure::fail("no")),
            Some("dead") => Err(Failure::dead("never")),
            Some("retry") if cx.number < 2 => Err(Failure::retry("again")),
            Some("child") => {
                cx.spawn_child(Child::new("published", json!("of the parent")).id("child"));
                ok(Value::Null)
            }
            Some("wait") => {
                cx.cancelled().cancelled().await;
                Err(Failure::cancelled())
            }
            _ => ok(params),
        }
    });
    kind.publish_results()
}

fn header(record: &Record, header_name: &str) -> Option<String> {
    let value = record.headers.iter().find(|(name, _)| name == header_name)?.1.as_ref()?;
    Some(String::from_utf8(value.clone()).unwrap())
}

/// Records by task id.
fn by_id(records: &[Record]) -> BTreeMap<String, &Record> {
    records.iter().map(|record| (header(record, "ce_id").unwrap(), record)).collect()
}

fn value(record: &Record) -> Value {
    serde_json::from_slice(record.value.as_deref().unwrap()).unwrap()
}

async fn create_topic(fleet: &Fleet, name: &str) {
    let spec = TopicSpec { name: name.to_owned(), partitions: 1, replication: None, config: Vec::new() };
    let broker = fleet.broker.clone();
    kafleet::runtime::blocking(move || broker.apply_topics(&[spec], DEADLINE)).await.unwrap().unwrap();
}

pub async fn every_end_is_published(fleet: Fleet) {
    for (id, params) in [
        ("good", "{\"x\":1}"),
        ("failed", "\"fail\""),
        ("dead", "\"dead\""),
        ("retried", "\"retry\""),
        ("parent", "\"child\""),
        ("malformed", "{"),
        ("cancelled", "\"wait\""),
    ] {
        fleet.send("published", id, params).await;
    }
    let expired = [("ce_id", "expired"), ("ce_time", "2026-01-01T00:00:00Z"), ("ce_expires", "1s")];
    fleet.send_record("published", None, None, Some(b"1"), &expired).await;
    let worker = fleet.worker();
    fleet.cancel("cancelled", 7, true).await;
    // With the parent's child.
    fleet.wait_for_results(9).await;
    worker.stop().await;

    let results = fleet.records(&fleet.names.results("published"), 1, 9).await;
    assert_eq!(fleet.end_of(&fleet.names.results("published"), 0).await, 9, "each end is published once");
    let ends = by_id(&results);
    let end = |id: &str| {
        let record = ends[id];
        let text = |name| header(record, name).unwrap_or_default();
        (text("kafleet_state"), text("kafleet_code"), text("kafleet_dead_letter"))
    };
    let expected = |state: &str, code: &str, dead: &str| (state.to_owned(), code.to_owned(), dead.to_owned());
    assert_eq!(end("good"), expected("succeeded", "", ""));
    assert_eq!(end("retried"), expected("succeeded", "", ""), "only the end of the last attempt");
    assert_eq!(end("parent:child"), expected("succeeded", "", ""));
    assert_eq!(end("failed"), expected("failed", "error", ""));
    assert_eq!(end("dead"), expected("failed", "error", "dead"));
    assert_eq!(end("malformed"), expected("failed", "bad_json", "bad_json"));
    assert_eq!(end("cancelled"), expected("cancelled", "cancelled", ""));
    assert_eq!(end("expired"), expected("expired", "expired", ""));

    let good = ends["good"];
    assert_eq!((good.key.as_deref(), value(good)), (Some(&b"good"[..]), json!({"x": 1})));
    let names = ["ce_specversion", "ce_type", "ce_run", "ce_attempt", "content-type"];
    let texts = names.map(|name| header(good, name).unwrap());
    assert_eq!(texts, ["1.0", "published", "1", "1", "application/json"]);
    assert!(header(good, "ce_source").unwrap().starts_with("kafleet/"), "{good:?}");
    assert_eq!(header(ends["retried"], "ce_attempt").unwrap(), "2");
    assert_eq!(value(ends["dead"]), json!({"kind": "error", "message": "never", "attempt": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn results_topic_has_every_end() {
    every_end_is_published(memory(1, &[with_results()]).await.0).await;
}

pub async fn replies_are_correlated(mut fleet: Fleet) {
    let replies = unique("replies");
    fleet.names = fleet.names.clone().with_reply_topics(&[format!("{}*", &replies[..replies.len() - 1])]);
    create_topic(&fleet, &replies).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let foreign = [("X-Correlation-Id", "c-1"), ("ce_subject", "order"), ("x-tenant", "acme"), ("traceparent", trace)];
    for (id, task_type, params) in [("a", "plain", "1"), ("b", "plain", "\"fail\""), ("c", "published", "3")] {
        let task_headers = [("ce_id", id), ("ce_replyto", &*replies)];
        let headers = [&task_headers[..], &foreign[..]].concat();
        fleet.send_record(task_type, None, Some(id), Some(params.as_bytes()), &headers).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(3).await;
    worker.stop().await;

    let records = fleet.records(&replies, 1, 3).await;
    let results = fleet.records(&fleet.names.results("published"), 1, 1).await;
    for record in records.iter().chain(&results) {
        let names = ["X-Correlation-Id", "ce_subject", "traceparent"];
        let texts = names.map(|name| header(record, name).unwrap_or_default());
        assert_eq!(texts, ["c-1", "order", trace], "{record:?}");
        assert_eq!(header(record, "x-tenant"), None, "only headers that name a correlation are copied");
    }
    let replies = by_id(&records);
    assert_eq!(value(replies["a"]), json!(1));
    assert_eq!(header(replies["b"], "kafleet_state").unwrap(), "failed");
    assert_eq!(value(replies["c"]), json!(3));
}

/// A type without a results topic.
pub fn plain() -> Kind {
    Kind::new("plain", |params: Value, _| async move {
        if params == json!("fail") { Err(Failure::fail("no")) } else { ok(params) }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_have_the_headers_of_the_producer_that_name_a_correlation() {
    replies_are_correlated(memory(1, &[plain(), with_results()]).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_with_a_reply_topic_that_is_not_allowed_becomes_a_dead_letter() {
    let (mut fleet, _) = memory(1, &[with_results()]).await;
    fleet.names = fleet.names.clone().with_reply_topics(&["shop.replies".to_owned()]);
    for (id, topic) in [("other", "team.replies"), ("own", "kafleet.events"), ("bad", "a b")] {
        let headers = [("ce_id", id), ("ce_replyto", topic)];
        fleet.send_record("published", None, Some(id), Some(b"1"), &headers).await;
    }
    let worker = fleet.worker();
    let mut dead = fleet.dead("published", 3).await;
    // Dead letters are written at the same time.
    dead.sort_by_key(|dead| header(&dead.record, "kafleet_offset"));
    let results = fleet.records(&fleet.names.results("published"), 1, 3).await;
    worker.stop().await;
    let errors: Vec<_> = dead.iter().map(|dead| (dead.code.as_str(), dead.error.as_str())).collect();
    let allowed =
        "header `ce_replyto`: `team.replies` is not allowed for replies; `topics.reply_to` allows: `shop.replies`";
    assert_eq!(errors[0], ("bad_header", allowed));
    assert!(errors[1].1.contains("`kafleet.events` is a topic of kafleet itself"), "{errors:?}");
    assert!(errors[2].1.contains("`a b` is not a topic"), "{errors:?}");
    assert_eq!(dead[0].record.value.as_deref(), Some(&b"1"[..]), "the record is kept");
    assert_eq!(header(by_id(&results)["other"], "kafleet_dead_letter").unwrap(), "bad_header");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_reply_topic_is_a_warning_and_holds_nothing_back() {
    let (mut fleet, _) = memory(1, &[plain()]).await;
    fleet.names = fleet.names.clone().with_reply_topics(&["shop.replies".to_owned()]);
    let headers = [("ce_id", "a"), ("ce_replyto", "shop.replies")];
    fleet.send_record("plain", None, Some("a"), Some(b"1"), &headers).await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    worker.stop().await;
    assert_eq!(end.kind().name(), "succeeded");
    let warning = fleet.events.all().into_iter().find(|event| event.kind().name() == "warned").unwrap();
    let message = warning.message.as_deref().unwrap();
    assert!(message.starts_with("the reply to `shop.replies` could not be published: unknown topic"), "{message}");
    fleet.assert_clean("plain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_ends_only_after_its_result_is_acknowledged() {
    let (fleet, _) = memory(1, &[plain()]).await;
    let topic = fleet.names.results("plain");
    fleet.send("plain", "a", "1").await;
    let worker = fleet.worker_of(&[plain().publish_results()]);
    let reports = || worker.health.reasons().iter().any(|(part, _)| part == "results of plain");
    eventually("the missing topic is reported", async || reports()).await;
    assert!(fleet.results().is_empty(), "the task has not ended");
    create_topic(&fleet, &topic).await;
    assert_eq!(fleet.result_of("a").await.kind().name(), "succeeded");
    eventually("the report is cleared", async || !reports()).await;
    worker.stop().await;
    assert_eq!(fleet.end_of(&topic, 0).await, 1);
}
