//! Changes of tasks after creation, and attachments.

use kafleet::broker::Broker;
use kafleet::config::{ApiConfig, Role, TokenConfig};
use kafleet::documents::{Attachments, History, Status};
use kafleet::model::event::{Kind, Payload};
use kafleet::model::record::attachment::Attachment;
use kafleet::model::record::state::State;
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet, unfolded};

async fn change(fleet: &Fleet, id: &str, body: Value) -> Status {
    let answer = fleet.request(Method::PATCH, &format!("/v1/tasks/{id}")).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn descriptive_fields_change_in_any_state() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "echo", "id": "a", "name": "old", "link": "l", "tags": ["x"]})).await;
    fleet.folded().await;
    let changed =
        change(&fleet, "a", json!({"name": "new", "tags": ["y", "z"], "options": {"n": 1}, "link": null})).await;
    assert_eq!((changed.fields.name.as_deref(), changed.fields.link.as_deref()), (Some("new"), None));
    let options = &changed.fields.rules.options;
    assert_eq!((changed.fields.tags.join(" ").as_str(), options), ("y z", &Some(json!({"n": 1}).into())));
    fleet.succeed("a", json!(1)).await;
    let ended = change(&fleet, "a", json!({"options": null})).await;
    let fields = &ended.fields;
    assert_eq!((&fields.rules.options, ended.state, fields.name.as_deref()), (&None, State::Succeeded, Some("new")));
    let found: Value = fleet.get("/v1/tasks?tag=z&name=ne").await;
    assert_eq!(found["tasks"][0]["id"], "a");
    assert_eq!(fleet.get::<Value>("/v1/tasks?tag=x").await["tasks"], json!([]));
    assert_eq!(
        change(&fleet, "a", json!({"tags": null})).await.fields.tags,
        Vec::<String>::new(),
        "`null` clears a field"
    );
    let history: History = fleet.get("/v1/tasks/a/history").await;
    let entries: Vec<_> = history.events.iter().filter(|item| item.kind == "patched").collect();
    assert_eq!((entries.len(), entries[2].message.as_deref()), (3, Some("changed: tags")));
    assert_eq!((entries.len(), entries[0].message.as_deref()), (3, Some("changed: name, tags, link, options")));
}

#[tokio::test]
async fn history_names_the_token_of_a_request() {
    let token = TokenConfig { name: "ada".into(), token: "0123456789abcdef".into(), role: Role::Operate };
    let fleet = unfolded(ApiConfig { tokens: vec![token], ..ApiConfig::default() }).await;
    fleet.track();
    let ask = |method, path: &str, body| fleet.request(method, path).bearer_auth("0123456789abcdef").json(&body).send();
    ask(Method::POST, "/v1/tasks", json!({"type": "echo", "id": "a"})).await.unwrap();
    fleet.folded().await;
    assert_eq!(ask(Method::PATCH, "/v1/tasks/a", json!({"name": "n"})).await.unwrap().status(), 200);
    assert_eq!(ask(Method::POST, "/v1/tasks/a/cancel", json!({"reason": "no"})).await.unwrap().status(), 202);
    fleet.folded().await;
    let history: History = ask(Method::GET, "/v1/tasks/a/history", Value::Null).await.unwrap().json().await.unwrap();
    let by = |kind: &str| history.events.iter().find(|item| item.kind == kind).and_then(|item| item.by.as_deref());
    assert_eq!(
        (by("patched"), by("cancel_requested"), by("submitted")),
        (Some("ada"), Some("ada"), None),
        "{history:?}"
    );
}

#[tokio::test]
async fn change_with_an_immutable_field_is_rejected_as_a_whole() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet.create(json!({"type": "job", "id": "e", "external": true})).await;
    for (id, body, status, code, pointer) in [
        ("a", json!({"name": "n", "timeout": "5s"}), 409, "not_changeable", None),
        ("a", json!({"delay": "5s"}), 409, "not_changeable", None),
        ("e", json!({"retries": 1}), 409, "not_changeable", None),
        ("a", json!({"then": []}), 409, "not_changeable", Some("/then")),
        ("a", json!({"colour": "red"}), 400, "unknown_field", None),
        ("a", json!({}), 400, "bad_field", None),
        ("a", json!({"tags": ["a,b"]}), 400, "bad_field", Some("/tags")),
        ("a", json!({"options": 7}), 400, "bad_field", Some("/options")),
        ("a", json!({"options": {"long": "x".repeat(17_000)}}), 413, "too_large", Some("/options")),
        ("nobody", json!({"name": "n"}), 404, "not_found", None),
    ] {
        let answer = problem(fleet.request(Method::PATCH, &format!("/v1/tasks/{id}")).json(&body)).await;
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{body}: {answer:?}");
        assert!(pointer.is_none() || answer.pointer.as_deref() == pointer, "{answer:?}");
    }
    assert_eq!(fleet.get::<Status>("/v1/tasks/a").await.fields.name, None);
}

/// The record published by the tracker at the start time contains the change.
#[tokio::test]
async fn scheduled_task_takes_new_start_time_and_limits() {
    let fleet = fleet().await;
    let body = json!({"type": "echo", "id": "a", "delay": "1h", "retries": 9, "creator": "c", "name": "old"});
    let made = fleet.create(body).await;
    let _: Status = fleet.get(&format!("/v1/tasks/a?after={}", made.position)).await;
    let later =
        change(&fleet, "a", json!({"at": time_text(now_ms() + 7_200_000), "retries": 2, "timeout": "5s"})).await;
    assert_eq!(later.state, State::Scheduled);
    assert!(later.due_at.as_ref().unwrap() > made.due_at.as_ref().unwrap(), "{later:?}");
    let now = change(&fleet, "a", json!({"delay": "0s", "name": null})).await;
    assert_eq!(now.fields.name, None);
    eventually("the task is released", async || fleet.get::<Status>("/v1/tasks/a").await.state == State::Queued).await;
    let topic = fleet.names.tasks("echo");
    let records = fleet.log.topics(&topic, DEADLINE).unwrap()[0].partitions;
    let found = (0..records as i32)
        .find_map(|number| fleet.record(&kafleet::broker::Partition::new(topic.as_str(), number), 0));
    let headers = found.expect("its record").headers;
    let entries = |name: &str| {
        let value = headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.clone());
        value.map(|value| String::from_utf8(value).unwrap())
    };
    assert_eq!(
        (entries("ce_retries").as_deref(), entries("ce_timeout").as_deref()),
        (Some("2"), Some("5s")),
        "{headers:?}"
    );
    assert_eq!(
        (entries("ce_creator").as_deref(), entries("ce_name"), entries("ce_notbefore")),
        (Some("c"), None, None),
        "{headers:?}"
    );
    let answer = problem(fleet.request(Method::PATCH, "/v1/tasks/a").json(&json!({"delay": "1h"}))).await;
    assert_eq!(answer.code, "not_changeable", "a released task cannot be changed");
}

async fn put_attachment(fleet: &Fleet, path: &str, media: &str, data: Vec<u8>) -> reqwest::Response {
    fleet.request(Method::PUT, path).header("content-type", media).body(data).send().await.unwrap()
}

#[tokio::test]
async fn attachment_round_trips() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(
        put_attachment(&fleet, "/v1/tasks/a/attachments/raw.bin", "image/png", bytes.clone()).await.status(),
        200
    );
    let put_by_publisher = Attachment::new("note", "text/plain", "from Kafka").unwrap();
    fleet.publisher.attach(&"a".parse().unwrap(), put_by_publisher).await.unwrap();
    fleet
        .publish_event("a", Kind::Attached, |event| {
            (event.worker, event.attempt) = (Some("w".into()), 1);
            let attachment = Attachment::new("of-worker", "text/html", "<b>").unwrap();
            event.payload = Payload::Attached { attachment: Some(Box::new(attachment)) };
        })
        .await;
    fleet.folded().await;
    let found: Attachments = fleet.get("/v1/tasks/a/attachments").await;
    let answer: Vec<_> =
        found.attachments.iter().map(|known| (known.name.as_str(), known.media.as_str(), known.bytes)).collect();
    assert_eq!(answer, [("raw.bin", "image/png", 256), ("note", "text/plain", 10), ("of-worker", "text/html", 3)]);
    let answer = fleet.request(Method::GET, "/v1/tasks/a/attachments/raw.bin").send().await.unwrap();
    assert_eq!((answer.headers()["content-type"].to_str().unwrap(), answer.status().as_u16()), ("image/png", 200));
    assert_eq!(answer.headers()["content-disposition"], "attachment", "browsers must not render an attachment");
    assert_eq!(answer.bytes().await.unwrap(), bytes);
    assert_eq!(
        put_attachment(&fleet, "/v1/tasks/a/attachments/raw.bin", "text/plain", b"new".to_vec()).await.status(),
        200
    );
    let again = fleet.request(Method::GET, "/v1/tasks/a/attachments/raw.bin").send().await.unwrap();
    assert_eq!(again.bytes().await.unwrap(), "new", "the newest attachment replaces earlier ones");
    let gone = fleet.request(Method::DELETE, "/v1/tasks/a/attachments/raw.bin").send().await.unwrap();
    assert_eq!(gone.status(), 200);
    let answer = fleet.problem("/v1/tasks/a/attachments/raw.bin").await;
    assert_eq!((answer.status, answer.code.as_str()), (404, "unknown_attachment"));
    let history: History = fleet.get("/v1/tasks/a/history").await;
    let kinds: Vec<&str> = history.events.iter().map(|item| item.kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["submitted", "attached", "attached", "attached", "detached"],
        "the history excludes attachments of attempts"
    );
}

#[tokio::test]
async fn attachments_are_bounded_in_size_and_number() {
    let config = ApiConfig { max_attachment: kafleet::config::Bytes(1_000), ..ApiConfig::default() };
    let fleet = unfolded(config).await;
    fleet.track();
    fleet.echo("a").await;
    let answer = async |answer: reqwest::Response| {
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap()["code"].as_str().unwrap_or_default().to_owned())
    };
    for n in 0..16 {
        assert_eq!(
            put_attachment(&fleet, &format!("/v1/tasks/a/attachments/n{n}"), "text/plain", vec![7; 1_000])
                .await
                .status(),
            200
        );
    }
    for (path, media, bytes, status, code) in [
        ("/v1/tasks/a/attachments/n16", "text/plain", 1, 409, "too_many_attachments"),
        ("/v1/tasks/a/attachments/n15", "text/plain", 1, 200, ""),
        ("/v1/tasks/a/attachments/n1", "text/plain", 1_001, 413, "too_large"),
        ("/v1/tasks/a/attachments/n1", "plain", 1, 415, "unsupported_media_type"),
        ("/v1/tasks/a/attachments/a%20b", "text/plain", 1, 400, "bad_field"),
        ("/v1/tasks/nobody/attachments/n1", "text/plain", 1, 404, "not_found"),
    ] {
        assert_eq!(
            answer(put_attachment(&fleet, path, media, vec![1; bytes]).await).await,
            (status, code.to_owned()),
            "{path}"
        );
    }
}
