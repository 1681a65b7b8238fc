//! Hooks and layers of an application in a worker, and headers that types keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kafleet::handlers::context::Attempt;
use kafleet::handlers::hooks::{Observe, Submission};
use kafleet::handlers::layer::AttemptRequest;
use kafleet::handlers::{Child, Context, Failure};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::json::RawJson;
use kafleet::model::task::hash::spawn_hash;
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::util::MapRequestLayer;

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::{Kind, ok};

/// Records its calls by task.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn add(&self, cx: &Context, hook: &str) {
        self.0.lock().push(format!("{} {hook}", cx.id));
    }

    fn of(&self, id: &str) -> Vec<String> {
        let beginning = format!("{id} ");
        self.0.lock().iter().filter_map(|line| line.strip_prefix(&beginning)).map(str::to_owned).collect()
    }
}

impl Observe for Recorder {
    fn on_start(&self, cx: &Context) {
        self.add(cx, "start");
    }

    fn on_log(&self, attempt: &Attempt, line: &str) {
        self.0.lock().push(format!("{} log {line}", attempt.id));
    }

    fn on_success(&self, cx: &Context, _took: Duration) {
        self.add(cx, "success");
    }

    fn on_retry(&self, cx: &Context, failure: &Failure, wait: Duration) {
        assert!(wait >= Duration::from_millis(20), "the backoff: {wait:?}");
        self.add(cx, &format!("retry {}", failure.kind));
    }

    fn on_wait(&self, cx: &Context, failure: &Failure, wait: Duration) {
        self.add(cx, &format!("wait {} {}", failure.kind, wait.as_millis()));
    }

    fn on_failure(&self, cx: &Context, failure: &Failure, _took: Duration) {
        self.add(cx, &format!("failure {}", failure.kind));
    }
}

/// A type whose params choose the end of the attempt.
fn ending() -> Kind {
    let waited = Arc::new(AtomicBool::new(false));
    Kind::new("ending", move |params: Value, cx| {
        let waited = waited.clone();
        async move {
            match params.as_str().unwrap() {
                "retries" if cx.number < 2 => Err(Failure::retry("again").of_kind("busy")),
                "waits" if !waited.swap(true, Ordering::Relaxed) => {
                    Err(Failure::wait(Some(Duration::from_millis(5)), "later").of_kind("full"))
                }
                "fails" => Err(Failure::fail("no").of_kind("broken")),
                "panics" => panic!("no"),
                "slow" => {
                    tokio::task::yield_now().await;
                    cx.log("awake");
                    ok(params)
                }
                "cancels" => Err(Failure::cancelled()),
                _ => ok(params),
            }
        }
    })
    .schema(json!({"type": "string"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_sees_the_verdicts_about_attempts() {
    let (mut fleet, _) = memory(1, &[ending()]).await;
    let recorder = Recorder::default();
    let observer = recorder.clone();
    fleet.app = Arc::new(move |registry| {
        registry.observe(observer.clone());
    });
    let cases: [(&str, &[&str]); 8] = [
        ("inline", &["start", "success"]),
        ("slow", &["start", "log awake", "success"]),
        ("retries", &["start", "retry busy", "start", "success"]),
        ("waits", &["start", "wait full 5", "start", "success"]),
        ("fails", &["start", "failure broken"]),
        ("panics", &["start", "retry panic", "start", "retry panic", "start", "failure panic"]),
        ("cancels", &["start"]),
        ("invalid", &[]),
    ];
    for (id, _) in cases {
        let params = if id == "invalid" { "7".to_owned() } else { format!("\"{id}\"") };
        fleet.send("ending", id, &params).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(cases.len()).await;
    worker.stop().await;
    for (id, expected) in cases {
        assert_eq!(recorder.of(id), expected, "{id}");
    }
}

/// Panics when it observes its third attempt.
struct Faulty(AtomicUsize);

impl Observe for Faulty {
    fn on_start(&self, _cx: &Context) {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) < 2, "an observer that panics");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_that_panics_is_removed_and_others_remain() {
    let (mut fleet, _) = memory(1, &[Kind::echo("echo").slots(1)]).await;
    let faulty = Arc::new(Faulty(AtomicUsize::new(0)));
    let recorder = Recorder::default();
    let (first, second) = (faulty.clone(), recorder.clone());
    fleet.app = Arc::new(move |registry| {
        registry.observe(first.clone()).observe(second.clone());
    });
    fleet.send_many("echo", "t", 6, "1").await;
    let worker = fleet.worker();
    assert_eq!(worker.metric("kafleet_observers_removed_total", "Faulty"), 0.0);
    let ends = fleet.wait_for_results(6).await;
    assert!(ends.iter().all(|end| end.kind() == EventKind::Succeeded), "{ends:?}");
    assert_eq!(faulty.0.load(Ordering::Relaxed), 3, "it is not called again");
    assert_eq!(worker.metric("kafleet_observers_removed_total", "Faulty"), 1.0);
    worker.stop().await;
    assert_eq!(recorder.0.lock().len(), 12, "a start and a success of each");
}

/// Hook that names the tenant of leaves and counts its runs in their params.
fn add_tenant(task: &mut Submission) -> Result<(), String> {
    if task.params == json!("closed") {
        return Err("the tenant is closed".into());
    }
    let runs = task.params.slice().member("runs").and_then(|runs| runs.text().parse().ok()).unwrap_or(0_u64);
    task.params = json!({"tenant": "acme", "runs": runs + 1}).into();
    task.key = Some("acme".into());
    Ok(())
}

/// A type that spawns a leaf with its params, after its end or at once.
fn spawning() -> Kind {
    Kind::new("spawning", |params: Value, cx| async move {
        let leaf = Child::new("leaf", params["leaf"].clone());
        if params["now"] == json!(true) {
            cx.spawn_now(vec![leaf]).await?;
        } else {
            cx.spawn_child(leaf);
        }
        ok(Value::Null)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_changes_children_before_they_are_named() {
    let (mut fleet, _) = memory(1, &[spawning(), Kind::echo("leaf")]).await;
    fleet.app = Arc::new(|registry| {
        registry.prepare(add_tenant);
    });
    fleet.send("spawning", "later", r#"{"leaf": {}}"#).await;
    fleet.send("spawning", "now", r#"{"leaf": {}, "now": true}"#).await;
    let worker = fleet.worker();
    let prepared = json!({"tenant": "acme", "runs": 1});
    for parent in ["later", "now"] {
        let id = format!("{parent}:leaf-{}", spawn_hash("leaf", &prepared.clone().into()).unwrap());
        let end = fleet.result_of(&id).await;
        assert_eq!(end.payload.output().unwrap().value().unwrap(), prepared, "run once: {id}");
    }
    worker.stop().await;
    let leaves = fleet.records(&fleet.names.tasks("leaf"), 1, 2).await;
    assert!(leaves.iter().all(|leaf| leaf.key.as_deref() == Some(b"acme")), "{leaves:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_child_fails_its_parent() {
    let (mut fleet, _) = memory(1, &[spawning(), Kind::echo("leaf")]).await;
    fleet.app = Arc::new(|registry| {
        registry.prepare(add_tenant);
    });
    fleet.send("spawning", "later", r#"{"leaf": "closed"}"#).await;
    fleet.send("spawning", "now", r#"{"leaf": "closed", "now": true}"#).await;
    let worker = fleet.worker();
    for parent in ["later", "now"] {
        let end = fleet.result_of(parent).await;
        let error = end.payload.error().unwrap();
        assert_eq!((end.kind(), end.attempt, &*error.kind), (EventKind::Failed, 1, "bad_child"));
        assert!(error.message.contains("the tenant is closed"), "{}", error.message);
    }
    worker.stop().await;
    assert_eq!(fleet.end_of(&fleet.names.tasks("leaf"), 0).await, 0, "nothing is published");
}

/// Layer that makes a number of a text; the text `panic` panics.
fn parsed(mut request: AttemptRequest) -> AttemptRequest {
    let text = request.params.value().unwrap();
    assert!(text != "panic", "a layer that panics");
    if let Some(number) = text.as_str().and_then(|text| text.parse::<u32>().ok()) {
        request.params = RawJson::of(&number).unwrap();
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn params_are_checked_after_the_layers_of_the_type() {
    let mut kind = Kind::echo("number").schema(json!({"type": "integer"}));
    kind.registered = kind.registered.with_layer(&MapRequestLayer::new(parsed));
    let (fleet, _) = memory(1, &[kind]).await;
    for (id, params) in [("text", r#""7""#), ("bad", r#""seven""#), ("panics", r#""panic""#)] {
        fleet.send("number", id, params).await;
    }
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("text").await.payload.output().unwrap().value().unwrap(), json!(7));
    let bad = fleet.result_of("bad").await;
    assert_eq!((bad.kind(), &*bad.payload.error().unwrap().kind), (EventKind::Failed, "schema"));
    let panics = fleet.result_of("panics").await;
    assert_eq!((panics.attempt, &*panics.payload.error().unwrap().kind), (3, "panic"), "retried like a handler");
    let mut dead: Vec<String> = fleet.dead("number", 2).await.into_iter().map(|dead| dead.code).collect();
    dead.sort();
    assert_eq!(dead, ["exhausted", "schema"]);
    worker.stop().await;
}

/// A layer that is never ready: its attempt ends with the timeout of the type.
#[tokio::test(flavor = "multi_thread")]
async fn layer_that_waits_runs_within_the_attempt() {
    let waiting = tower::layer::layer_fn(|_| {
        tower::service_fn(|_: AttemptRequest| std::future::pending::<Result<RawJson, Failure>>())
    });
    let mut kind = Kind::echo("echo").timeout(Millis(30)).retries(0, Millis(1));
    kind.registered = kind.registered.with_layer(&waiting);
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("echo", "t", "1").await;
    let worker = fleet.worker();
    let end = fleet.result_of("t").await;
    assert_eq!((end.kind(), &*end.payload.error().unwrap().kind), (EventKind::Failed, "timeout"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handler_sees_the_labels_of_its_task() {
    let kind = Kind::new("labels", |_, cx| async move {
        let header = cx.header("X-TENANT");
        ok(json!([cx.name(), cx.tags(), cx.creator(), cx.options().map(RawJson::text), header]))
    });
    let (fleet, _) = memory(1, &[kind]).await;
    let policy = r#"{"options": {"n": 1}, "headers": {"x-tenant": "acme"}}"#;
    let headers =
        [("ce_id", "all"), ("ce_name", "cover"), ("ce_tags", "a,b"), ("ce_creator", "ada"), ("ce_policy", policy)];
    fleet.send_record("labels", None, None, Some(b"1"), &headers).await;
    fleet.send("labels", "none", "1").await;
    let worker = fleet.worker();
    let of_none = json!([null, [], null, null, null]);
    for (id, labels) in [("all", json!(["cover", ["a", "b"], "ada", "{\"n\": 1}", "acme"])), ("none", of_none)] {
        assert_eq!(fleet.result_of(id).await.payload.output().unwrap().value().unwrap(), labels, "{id}");
    }
    worker.stop().await;
}

/// A type that returns two headers; its first attempt fails.
fn reading_headers() -> Kind {
    Kind::new("headers", |_, cx| async move {
        if cx.number == 1 {
            return Err(Failure::retry("again"));
        }
        ok(json!([cx.header("x-tenant"), cx.header("x-other")]))
    })
}

async fn send_with_headers(fleet: &Fleet, id: &str, tenant: &str) {
    let headers = [("ce_id", id), ("X-Tenant", tenant), ("x-other", "1"), ("x-tenant", "second")];
    fleet.send_record("headers", None, None, Some(b"1"), &headers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_headers_reach_every_attempt() {
    let mut kind = reading_headers();
    kind.registered.policy.keep_headers = vec!["x-tenant".into()];
    let (fleet, _) = memory(1, &[kind]).await;
    send_with_headers(&fleet, "acme", "acme").await;
    // One too long to be kept, so that the next one of its name counts.
    send_with_headers(&fleet, "long", &"x".repeat(1_100)).await;
    fleet.send("headers", "none", "1").await;
    let worker = fleet.worker();
    for (id, tenant) in [("acme", json!("acme")), ("long", json!("second")), ("none", json!(null))] {
        let end = fleet.result_of(id).await;
        assert_eq!(end.payload.output().unwrap().value().unwrap(), json!([tenant, null]), "{id}");
    }
    worker.stop().await;
}
