//! Masked params in the output of attempts, and tags of declared params.

use kafleet::handlers::Failure;
use kafleet::model::event::{Event, Payload};
use kafleet::model::json::MASKED;
use serde_json::{Value, json};

use crate::worker::fleet::memory;
use crate::worker::types::{Kind, ok};

const SECRET: &str = "4111-1111-2222";

fn masked(mut kind: Kind) -> Kind {
    kind.registered.policy.mask = vec!["/card/number".into()];
    kind.registered.policy.retries = 0;
    kind
}

fn params() -> String {
    json!({"card": {"number": SECRET}}).to_string()
}

/// Everything but results, which other tasks need as they are.
fn texts(events: &[Event]) -> String {
    let of_people = events.iter().filter(|event| !matches!(event.payload, Payload::Succeeded { .. }));
    of_people.map(|event| format!("{event:?}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_publishes_no_masked_param_but_in_its_result() {
    let kind = masked(Kind::new("pays", |params: Value, cx| async move {
        let number = params["card"]["number"].as_str().unwrap_or_default().to_owned();
        cx.log(format!("charging {number}"));
        cx.warn(format!("{number} expires soon"));
        cx.progress(json!({"card": number.clone(), "done": 1}));
        ok(json!({"card": {"number": number}}))
    }));
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("pays", "t", &params()).await;
    let worker = fleet.worker();
    let end = fleet.result_of("t").await;
    worker.stop().await;
    assert_eq!(end.payload.output().unwrap().value().unwrap(), json!({"card": {"number": SECRET}}));
    let texts = texts(&fleet.events.all());
    assert!(!texts.contains(SECRET), "{texts}");
    for text in ["charging •••", "••• expires soon", "done"] {
        assert!(texts.contains(text), "{text}: {texts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_contain_no_masked_param() {
    let failing = |name, then: fn(String) -> Failure| {
        masked(Kind::new(name, move |params: Value, _| async move {
            Err(then(format!("the card {} was refused", params["card"]["number"])))
        }))
    };
    let panicking = masked(Kind::new("panics", |params: Value, _| async move {
        assert!(params.is_null(), "the card {} was refused", params["card"]["number"]);
        ok(Value::Null)
    }));
    let kinds = [
        failing("fails", Failure::fail),
        failing("retries", Failure::retry),
        failing("dies", Failure::dead),
        panicking,
    ];
    let (fleet, _) = memory(1, &kinds).await;
    let worker = fleet.worker();
    for kind in &kinds {
        fleet.send(kind.name, kind.name, &params()).await;
        let end = fleet.result_of(kind.name).await;
        let message = &end.payload.error().unwrap().message;
        assert!(message.contains(MASKED) && !message.contains(SECRET), "{}: {message}", kind.name);
    }
    let letters = fleet.dead("dies", 1).await;
    worker.stop().await;
    assert!(!format!("{:?}", letters[0].error).contains(SECRET), "{:?}", letters[0].error);
    let texts = texts(&fleet.events.all());
    assert!(!texts.contains(SECRET), "{texts}");
}

/// A producer without the API does not know which params its type declares.
#[tokio::test(flavor = "multi_thread")]
async fn worker_announces_the_tags_of_declared_params() {
    let mut kind = Kind::new("ships", |_, _| async move { ok(Value::Null) });
    kind.registered.policy.index = vec!["/customer".into(), "/order/id".into()];
    let (fleet, _) = memory(1, &[kind]).await;
    let headers = [("ce_id", "t"), ("ce_tags", "ci,params.customer=forged")];
    let value = br#"{"customer": "Ada", "order": {"id": 42}}"#;
    fleet.send_record("ships", None, None, Some(value), &headers).await;
    let worker = fleet.worker();
    let end = fleet.result_of("t").await;
    worker.stop().await;
    let tags = &end.task.unwrap().policy.unwrap().tags;
    assert_eq!(tags, &["ci", "params.customer=Ada", "params.order.id=42"]);
}
