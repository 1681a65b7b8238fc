//! Types that `kafleet topics apply` has declared and that the API does not have: params, forms, suggestions.

use kafleet::broker::{Broker, TopicSpec};
use kafleet::control::types::{DeclaredLimits, TypeRecord};
use kafleet::control::{CONTROL_VERSION, ControlKey, ControlRecord, put_record};
use kafleet::documents::{BatchOutcome, Suggestions, TypeDocument, Types};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::dead_letters::{LETTER, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};

/// Creates the topic of the type `double` and declares it as an app's.
async fn declare_double(fleet: &Fleet, params: Value) {
    let topic = TopicSpec { name: fleet.names.tasks("double"), partitions: 2, replication: None, config: Vec::new() };
    fleet.log.apply_topics(&[topic], DEADLINE).unwrap();
    let policy = DeclaredLimits { concurrency: Some(3), ..DeclaredLimits::default() };
    let record = TypeRecord {
        v: CONTROL_VERSION,
        at_ms: 7,
        app: Some("shop".into()),
        doc: Some("Doubles a number.".into()),
        params: Some(params),
        output: Some(json!({"type": "integer"})),
        policy,
    };
    let key = ControlKey::Type("double".into());
    put_record(fleet.publisher.producer(), &fleet.names, &key, &ControlRecord::Type(Box::new(record))).await.unwrap();
    eventually("the API knows the type", async || {
        let types: Types = fleet.get("/v1/types").await;
        types.types.iter().any(|document| document.app.as_deref() == Some("shop"))
    })
    .await;
}

/// Returns status, code and pointer of the response to an invalid request.
async fn refused(fleet: &Fleet, path: &str, body: Value) -> (u16, String, Option<String>) {
    let answer = problem(fleet.request(Method::POST, path).json(&body)).await;
    (answer.status, answer.code, answer.pointer)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["x"],
        "properties": {"x": {"type": "integer"}, "unit": {"type": "string"}},
        "additionalProperties": false
    })
}

#[tokio::test]
async fn params_of_a_declared_type_are_checked_wherever_tasks_are_created() {
    let fleet = fleet().await;
    declare_double(&fleet, schema()).await;
    let bad = json!({"type": "double", "params": {"x": "many"}});
    let then = |then: Value| json!({"type": "echo", "then": [then]});
    let spec = json!({"id": "s", "spec": {"every": "1h", "task": bad}});
    for (path, body, pointer) in [
        ("/v1/tasks", bad.clone(), "/params/x"),
        ("/v1/tasks", then(bad.clone()), "/then/0/params/x"),
        ("/v1/tasks", then(then(bad.clone())), "/then/0/then/0/params/x"),
        ("/v1/schedules", spec, "/spec/task/params/x"),
    ] {
        let expected = (422, "schema".to_owned(), Some(pointer.to_owned()));
        assert_eq!(refused(&fleet, path, body).await, expected, "{path}");
    }
    let good = json!({"type": "double", "params": {"x": 21}});
    let (status, answer) = fleet.post("/v1/batches", json!([bad, good])).await;
    let answer: BatchOutcome = serde_json::from_value(answer).unwrap();
    assert_eq!((status, answer.accepted, answer.refused), (200, 1, 1), "{answer:?}");
    assert_eq!(answer.items[0].problem.as_ref().unwrap().pointer.as_deref(), Some("/params/x"));
    fleet.create(good).await;
    assert_eq!(fleet.published("double"), 2, "nothing that was refused is published");
}

#[tokio::test]
async fn params_of_a_redrive_are_checked_against_the_declaration() {
    let fleet = with_letters().await;
    // The API of the fixture does not have the type `echo`.
    let record = TypeRecord { v: 1, params: Some(schema()), ..TypeRecord::default() };
    let key = ControlKey::Type("echo".into());
    put_record(fleet.publisher.producer(), &fleet.names, &key, &ControlRecord::Type(Box::new(record))).await.unwrap();
    eventually("the API knows the type", async || fleet.get::<TypeDocument>("/v1/types/echo").await.schema.is_some())
        .await;
    let letter = fleet.letter(LETTER, 0).await;
    let path = format!("/v1/dead-letters/{letter}/redrive");
    let expected = (422, "schema".to_owned(), Some("/params/x".to_owned()));
    assert_eq!(refused(&fleet, &path, json!({"params": {"x": []}})).await, expected);
}

#[tokio::test]
async fn declared_type_is_described_suggested_and_has_a_form() {
    let fleet = fleet().await;
    declare_double(&fleet, schema()).await;
    let known: TypeDocument = fleet.get("/v1/types/double").await;
    assert_eq!((known.topic, known.doc.as_deref(), known.schema), (true, Some("Doubles a number."), Some(schema())));
    assert_eq!((known.output, known.limits.slots), (Some(json!({"type": "integer"})), Some(3)));
    let suggested: Suggestions = fleet.get("/v1/suggestions?q=type:dou").await;
    let texts: Vec<&str> = suggested.suggestions.iter().map(|suggestion| suggestion.text.as_str()).collect();
    assert_eq!(texts, ["double"]);
    let refused = refused(&fleet, "/v1/tasks", json!({"type": "duoble"})).await;
    assert_eq!((refused.0, refused.1.as_str()), (404, "unknown_type"));

    for (path, texts) in [
        ("/new?type=double", &["name=\"p/x\"", "Schema of", "additionalProperties"][..]),
        ("/types/double", &["Doubles a number.", "shop", "Schema of the params", "Schema of the result"]),
    ] {
        let page = fleet.request(Method::GET, path).header("accept", "text/html").send().await.unwrap();
        let page = page.text().await.unwrap().replace("&quot;", "\"");
        assert!(texts.iter().all(|text| page.contains(text)), "{path}: {page}");
    }
}

#[tokio::test]
async fn forgotten_type_is_not_checked_any_more() {
    let fleet = fleet().await;
    declare_double(&fleet, schema()).await;
    let delete = || fleet.request(Method::DELETE, "/v1/types/double");
    let answer = delete().send().await.unwrap();
    let answer: TypeDocument = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!((answer.topic, answer.schema, answer.app), (true, None, None));
    assert_eq!(fleet.control("type/double"), None);
    fleet.create(json!({"type": "double", "params": {"x": "many"}})).await;
    let again = problem(delete()).await;
    assert_eq!((again.status, again.code.as_str()), (404, "unknown_type"));
}

#[tokio::test]
async fn unusable_schema_is_not_checked() {
    let fleet = fleet().await;
    declare_double(&fleet, json!({"type": "no such type"})).await;
    fleet.create(json!({"type": "double", "params": {"x": "many"}})).await;
}
