//! Types, health, metrics, OpenAPI description.

use kafleet::api::run_ops;
use kafleet::config::ApiConfig;
use kafleet::documents::{Backlog, TypeDocument, Types};
use kafleet::model::event::Kind;
use kafleet::model::record::state::State;
use kafleet::runtime::Shutdown;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{fleet, unfolded};

#[tokio::test]
async fn types_show_counts_and_backlog() {
    let fleet = fleet().await;
    for id in ["a", "b", "c", "d"] {
        fleet.echo(id).await;
    }
    fleet.create(json!({"type": "review", "external": true})).await;
    fleet.publish_event("a", Kind::Started, |event| event.attempt = 1).await;
    fleet.succeed("b", json!(1)).await;
    fleet.folded().await;
    let types: Types = fleet.get("/v1/types").await;
    let find =
        |name: &str| -> TypeDocument { types.types.iter().find(|document| document.name == name).unwrap().clone() };
    let names: Vec<&str> = types.types.iter().map(|document| document.name.as_str()).collect();
    assert_eq!(names, ["echo", "resize", "review"]);
    let echo = find("echo");
    let alone: TypeDocument = fleet.get("/v1/types/echo").await;
    assert_eq!(alone.queue.as_ref().map(|queue| queue.lag), Some(4), "no worker has completed a record");
    assert_eq!(TypeDocument { queue: None, ..alone }, echo);
    assert_eq!(fleet.problem("/v1/types/nothing").await.code, "unknown_type");
    assert_eq!((echo.topic, echo.backlog, echo.counts[&State::Succeeded]), (true, 3, 1));
    assert_eq!(find("resize").schema.unwrap()["required"], json!(["url", "width"]));
    assert!(!find("review").topic);
    let made = fleet.create(json!({"type": "resize", "id": "now", "params": {"url": "u", "width": 1}})).await;
    let now: Backlog = fleet.get(&format!("/v1/types/resize/backlog?after={}", made.position)).await;
    assert_eq!(now.backlog, 1, "the backlog includes the new task");
    fleet.succeed("now", json!(null)).await;
    fleet.folded().await;
    for (name, backlog) in [("echo", 3), ("resize", 0), ("review", 1)] {
        assert_eq!(fleet.get::<Backlog>(&format!("/v1/types/{name}/backlog")).await.backlog, backlog, "{name}");
    }
}

#[tokio::test]
async fn readiness_names_unavailable_services() {
    let fleet = fleet().await;
    let ready = async |part: &str| {
        let answer = fleet.problem("/readyz").await;
        assert_eq!((answer.status, answer.code.as_str()), (503, "not_ready"));
        assert!(answer.detail.contains(part), "{}", answer.detail);
    };
    assert_eq!(fleet.get::<Value>("/readyz").await["status"], "ready");
    let outage = fleet.faults.store_outage();
    ready("store unavailable").await;
    outage.lift();
    let outage = fleet.faults.kafka_outage();
    ready("cut off on purpose").await;
    outage.lift();
    fleet.health.set("tracker", "behind by a day");
    ready("tracker: behind by a day").await;
    fleet.health.clear("tracker");
    assert_eq!(fleet.get::<Value>("/readyz").await["status"], "ready");
    assert_eq!(fleet.get::<Value>("/healthz").await["status"], "ok");
}

#[tokio::test]
async fn requests_are_counted_by_route() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "echo", "id": "a"})).await;
    fleet.folded().await;
    let _: Value = fleet.get("/v1/tasks/a").await;
    fleet.problem("/v1/tasks/b").await;
    fleet.problem("/nowhere/at/all").await;
    let answer = fleet.request(Method::GET, "/metrics").send().await.unwrap();
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/plain"));
    let text = answer.text().await.unwrap();
    for line in [
        r#"kafleet_http_requests_total{route="POST /v1/tasks",status="201"} 1"#,
        r#"kafleet_http_requests_total{route="GET /v1/tasks/{id}",status="200"} 1"#,
        r#"kafleet_http_requests_total{route="GET /v1/tasks/{id}",status="404"} 1"#,
        r#"kafleet_http_requests_total{route="unmatched",status="404"} 1"#,
        r#"kafleet_http_request_seconds_count{route="GET /v1/tasks/{id}"} 2"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("/nowhere"), "unknown paths do not become labels");
}

#[tokio::test]
async fn responses_match_the_openapi_description() {
    let fleet = fleet().await;
    let status = serde_json::to_value(fleet.echo("a").await).unwrap();
    let description: Value = fleet.get("/openapi.json").await;
    assert_eq!(description["openapi"], "3.1.0");
    let of = |name: &str| {
        let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": description["components"]});
        jsonschema::validator_for(&schema).unwrap()
    };
    assert!(of("Status").is_valid(&status), "{status}");
    assert!(of("TaskPage").is_valid(&fleet.get("/v1/tasks").await));
    assert!(of("TreeNode").is_valid(&fleet.get("/v1/tasks/a/tree").await));
    assert!(of("History").is_valid(&fleet.get("/v1/tasks/a/history").await));
    assert!(of("Types").is_valid(&fleet.get("/v1/types").await));
    let refusal = fleet.request(Method::GET, "/v1/tasks/b").send().await.unwrap().json::<Value>().await.unwrap();
    assert!(of("Problem").is_valid(&refusal), "{refusal}");
}

#[tokio::test]
async fn index_lists_the_endpoints() {
    let fleet = unfolded(ApiConfig::default()).await;
    let page = fleet.request(Method::GET, "/").send().await.unwrap().text().await.unwrap();
    for path in ["/v1/tasks", "/openapi.json", "/metrics"] {
        assert!(page.contains(path), "{page}");
    }
}

#[tokio::test]
async fn http_2_is_supported() {
    let fleet = unfolded(ApiConfig::default()).await;
    let client = kafleet_testkit::http::builder().http2_prior_knowledge().build().unwrap();
    let answer = client.post(format!("{}/v1/tasks", fleet.base)).json(&json!({"type": "echo"})).send().await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::CREATED, reqwest::Version::HTTP_2));
}

#[tokio::test]
async fn roles_without_api_serve_health_endpoints() {
    let fleet = unfolded(ApiConfig::default()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let stop = Shutdown::new();
    let running = tokio::spawn(run_ops(listener, fleet.metrics.clone(), fleet.health.clone(), stop.clone()));
    let get = |path: &str| fleet.http.get(format!("{base}{path}"));
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(path).send().await.unwrap().status(), StatusCode::OK, "{path}");
    }
    fleet.health.set("tracker", "no partitions yet");
    assert!(problem(get("/readyz")).await.detail.contains("no partitions yet"));
    assert_eq!(problem(get("/v1/tasks")).await.code, "unknown_route");
    assert_eq!(problem(fleet.http.post(format!("{base}/healthz"))).await.code, "method_not_allowed");
    stop.begin();
    running.await.unwrap().unwrap();
}
