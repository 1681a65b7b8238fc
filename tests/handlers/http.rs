//! The `http` handler with a real server.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use kafleet::handlers::builtin::http::{Call, Http, client};
use kafleet::handlers::testing::{Outcome, TestRun};
use kafleet::handlers::{Fail, Failure, Handler, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet_testkit::wait::DEADLINE;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

/// Answers `/status/<code>` with that code, `/seen` with the request, and so on.
async fn serve() -> SocketAddr {
    let app = Router::new()
        .route("/seen", any(seen))
        .route(
            "/status/{code}",
            any(|Path(code): Path<u16>| async move { (StatusCode::from_u16(code).unwrap(), "told you so") }),
        )
        .route("/busy", any(|| async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "later") }))
        .route("/overloaded", any(|| async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "90")]) }))
        .route("/broken", any(|| async { (StatusCode::INTERNAL_SERVER_ERROR, [("retry-after", "8")]) }))
        .route("/moved", any(|| async { (StatusCode::FOUND, [("location", "/seen")]) }))
        .route("/empty", any(|| async { StatusCode::NO_CONTENT }))
        .route("/batch", any(answer_batch))
        .route("/text", any(|| async { "just text" }))
        .route("/endless", any(endless))
        .route(
            "/stuck",
            any(|| async { Body::from_stream(futures::stream::pending::<Result<&str, std::io::Error>>()) }),
        )
        .route("/slow", any(std::future::pending::<()>));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

async fn seen(method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let headers: serde_json::Map<_, _> =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().into())).collect();
    let body: Value = serde_json::from_slice(&body).unwrap();
    axum::Json(json!({"method": method.as_str(), "headers": headers, "body": body})).into_response()
}

async fn endless() -> Body {
    Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(1024))))
}

fn call(address: SocketAddr, path: &str) -> Call {
    let url = format!("http://{address}{path}").parse().unwrap();
    Call { url, method: Method::POST, headers: HeaderMap::new(), max_output: 10_000, resend_on_close: true }
}

async fn attempt(trial: &TestRun, call: Call) -> Outcome {
    let registered = TypeRegistration::new(Http::new(client().unwrap(), call));
    let attempt = trial.handle("resize", &registered, RawJson::parse(br#"{"width":200}"#).unwrap());
    tokio::time::timeout(DEADLINE, attempt).await.expect("an attempt ends")
}

#[tokio::test]
async fn request_has_params_as_body_and_task_headers() {
    let mut call = call(serve().await, "/seen");
    call.method = Method::PUT;
    call.headers.insert("authorization", "Bearer secret".parse().unwrap());
    call.headers.insert("content-type", "application/vnd.resize+json".parse().unwrap());
    let seen = attempt(&TestRun::new().id("order:4").attempt(3).trace("00-ab-cd-01"), call).await.output();
    assert_eq!((&seen["method"], &seen["body"]), (&json!("PUT"), &json!({"width": 200})));
    for (name, value) in [
        ("content-type", "application/vnd.resize+json"),
        ("authorization", "Bearer secret"),
        ("idempotency-key", "order:4/1"),
        ("traceparent", "00-ab-cd-01"),
        ("ce-specversion", "1.0"),
        ("ce-id", "order:4"),
        ("ce-type", "resize"),
        ("kafleet-task-id", "order:4"),
        ("kafleet-attempt", "3"),
        ("kafleet-run", "1"),
    ] {
        assert_eq!(seen["headers"][name], json!(value), "{name}");
    }
}

#[tokio::test]
async fn successful_response_is_the_result() {
    let address = serve().await;
    assert_eq!(attempt(&TestRun::new(), call(address, "/empty")).await.output(), Value::Null);
    assert_eq!(attempt(&TestRun::new(), call(address, "/text")).await.output(), json!("just text"));
    assert_eq!(attempt(&TestRun::new(), call(address, "/status/201")).await.output(), json!("told you so"));
}

#[tokio::test]
async fn status_determines_retry() {
    let address = serve().await;
    for (code, then, kind) in [
        (400, Fail::Final, "http_status"),
        (401, Fail::Final, "http_status"),
        (404, Fail::Final, "http_status"),
        (409, Fail::Final, "http_status"),
        (422, Fail::Final, "http_status"),
        (408, Fail::Retry { after: None }, "http_status"),
        (425, Fail::Retry { after: None }, "http_status"),
        (429, Fail::Wait { after: None }, "rate_limited"),
        (500, Fail::Retry { after: None }, "http_status"),
        (502, Fail::Retry { after: None }, "unreachable"),
        (503, Fail::Retry { after: None }, "overloaded"),
        (504, Fail::Retry { after: None }, "unreachable"),
    ] {
        let outcome = attempt(&TestRun::new(), call(address, &format!("/status/{code}"))).await;
        assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (then, kind), "{code}");
        assert!(
            outcome.failure().message.starts_with(&format!("`127.0.0.1` responded with {code}")),
            "{}",
            outcome.failure()
        );
        assert!(outcome.failure().message.ends_with(": told you so"), "{}", outcome.failure());
    }
    let busy = attempt(&TestRun::new(), call(address, "/busy")).await;
    assert_eq!(busy.failure().then, Fail::Wait { after: Some(Duration::from_secs(7)) });
    let overloaded = attempt(&TestRun::new(), call(address, "/overloaded")).await;
    let failure = overloaded.failure();
    let after = Some(Duration::from_secs(90));
    assert_eq!((failure.then, failure.kind.as_ref()), (Fail::Wait { after }, "overloaded"));
    let broken = attempt(&TestRun::new(), call(address, "/broken")).await;
    assert_eq!(broken.failure().then, Fail::Retry { after: Some(Duration::from_secs(8)) }, "an error is an attempt");
    let moved = attempt(&TestRun::new(), call(address, "/moved")).await;
    assert_eq!(moved.failure().then, Fail::Final);
    assert!(
        moved.failure().message.contains("302 Found to `/seen`; hint: redirects are not followed"),
        "{}",
        moved.failure()
    );
}

#[tokio::test]
async fn endless_response_fails_as_too_large() {
    let outcome = attempt(&TestRun::new(), call(serve().await, "/endless")).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Final, "result_too_large"));
}

#[tokio::test]
async fn unreachable_server_is_retried() {
    // Bound to reserve the port, without listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = socket.local_addr().unwrap();
    let refused = attempt(&TestRun::new(), call(closed, "/?token=secret")).await;
    assert_eq!((refused.failure().then, refused.failure().kind.as_ref()), (Fail::Retry { after: None }, "unreachable"));
    assert!(refused.failure().message.to_lowercase().contains("connection refused"), "{}", refused.failure());
    assert!(!refused.failure().message.contains("secret"), "the url may contain secrets: {}", refused.failure());

    let slow = attempt(&TestRun::new().timeout(Duration::from_millis(100)), call(serve().await, "/slow")).await;
    assert_eq!(slow.failure().then, Fail::Retry { after: None });
    assert!(slow.failure().message.contains("timed out"), "{}", slow.failure());
}

/// Address with a full accept queue: further connections are neither accepted nor refused.
fn unresponsive() -> (SocketAddr, Vec<std::net::TcpStream>, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300));
    let taken = std::iter::from_fn(|| connect().ok()).take(100).collect();
    (address, taken, listener)
}

#[tokio::test]
async fn timeout_has_kind_timeout() {
    let address = serve().await;
    let (full, _taken, _listener) = unresponsive();
    for (address, path) in [(full, "/connect"), (address, "/slow"), (address, "/stuck")] {
        let outcome = attempt(&TestRun::new().timeout(Duration::from_millis(300)), call(address, path)).await;
        let failure = outcome.failure();
        assert_eq!(
            (failure.then, failure.kind.as_ref()),
            (Fail::Retry { after: None }, "timeout"),
            "{path}: {failure}"
        );
    }
    // The connect timeout is shorter than the attempt's.
    let outcome = attempt(&TestRun::new().timeout(DEADLINE), call(full, "/connect")).await;
    assert_eq!(outcome.failure().kind, "timeout", "{}", outcome.failure());
}

#[tokio::test]
async fn cancelled_call_is_aborted() {
    let (cx, _) = TestRun::new().begin("resize");
    let http = Http::new(client().unwrap(), call(serve().await, "/slow"));
    let answer = tokio::spawn(http.run(&RawJson::null(), cx.clone()).unwrap());
    cx.cancelled().cancel();
    let answer = tokio::time::timeout(DEADLINE, answer).await.expect("it ends").unwrap();
    assert_eq!(answer.unwrap_err().then, Fail::Cancelled);
}

/// Answers a batch of CloudEvents: by its params.
async fn answer_batch(headers: HeaderMap, body: Bytes) -> Response {
    assert_eq!(headers["content-type"], "application/cloudevents-batch+json");
    let events: Vec<Value> = serde_json::from_slice(&body).unwrap();
    assert_eq!(headers["kafleet-batch"], events.len().to_string().as_str());
    let answer = |event: &Value| {
        let (id, data) = (&event["id"], &event["data"]);
        match data.as_str() {
            Some("none") => None,
            Some(outcome) => Some(json!({"id": id, "outcome": outcome, "data": "a reason", "kind": "mine"})),
            None => Some(json!({"specversion": "1.0", "type": "done", "source": "x", "id": id, "data": event})),
        }
    };
    axum::Json(events.iter().filter_map(answer).collect::<Vec<_>>()).into_response()
}

async fn batch(path: &str, params: &[Value]) -> Result<Vec<Outcome>, Failure> {
    let registered = TypeRegistration::new(Http::new(client().unwrap(), call(serve().await, path)).with_batches());
    let params = params.iter().map(|params| RawJson::of(params).unwrap()).collect();
    TestRun::new().handle_batch("resize", &registered, params).await
}

#[tokio::test]
async fn batch_is_answered_by_id() {
    let params = [json!({"n": 1}), json!("retry"), json!("wait"), json!("fail"), json!("dead"), json!("none")];
    let outcomes = batch("/batch", &params).await.unwrap();
    let event = outcomes[0].output();
    assert_eq!(
        (&event["id"], &event["type"], &event["data"], &event["attempt"], &event["idempotencykey"]),
        (&json!("test-1"), &json!("resize"), &json!({"n": 1}), &json!(1), &json!("test-1/1"))
    );
    let ends: Vec<_> = outcomes[1..].iter().map(|outcome| (outcome.failure().then, &*outcome.failure().kind)).collect();
    assert_eq!(
        ends,
        [
            (Fail::Retry { after: None }, "mine"),
            (Fail::Wait { after: None }, "mine"),
            (Fail::Final, "mine"),
            (Fail::Dead, "mine"),
            (Fail::Retry { after: None }, "bad_output"),
        ]
    );
    assert_eq!(outcomes[1].failure().message, "a reason");
}

#[tokio::test]
async fn status_and_body_of_another_form_are_those_of_the_call() {
    let params = [json!(1), json!(2)];
    let empty = batch("/empty", &params).await.unwrap();
    assert!(empty.iter().all(|outcome| outcome.output().is_null()), "{empty:?}");
    for (path, kind) in [("/busy", "rate_limited"), ("/status/500", "http_status"), ("/text", "bad_output")] {
        assert_eq!(&*batch(path, &params).await.unwrap_err().kind, kind);
    }
}
