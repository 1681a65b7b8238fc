//! Traces of tasks, as a collector gets them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kafleet::config::OtelConfig;
use kafleet::handlers::builtin::callback::TYPE as CALLBACK;
use kafleet::handlers::{Context, Failure, Task, TaskResult};
use kafleet::model::record::state::State;
use kafleet::model::trace::{SpanId, TraceId};
use kafleet::telemetry::otel::{self, Exporter, Span, SpanKind};
use kafleet::telemetry::{Metrics, Tracer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fleet::collector::{Behaviour, Collector, SeenSpan};
use crate::fleet::http_receiver::Receiver;
use crate::fleet::in_process::{Fleet, eventually};
use crate::fleet::notifications::callbacks;
use crate::fleet::task_types::Leaf;

const INTERNAL: u64 = 1;
const PRODUCER: u64 = 4;
const CONSUMER: u64 = 5;
const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Fails once, then has a child and returns its own trace context.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Family {}

impl Task for Family {
    const TYPE: &'static str = "family";
    type Output = Option<String>;

    async fn run(self, cx: Context) -> TaskResult<Option<String>> {
        if cx.number == 1 {
            return Err(Failure::retry_after("not yet", Duration::from_millis(20)).of_kind("busy"));
        }
        cx.spawn(Leaf { held: false, fails: false, waits_to_fail: false });
        Ok(cx.trace.as_ref().map(|trace| trace.parent.clone()))
    }
}

/// Fleet whose roles share a tracer, with its collector.
struct TracedFleet {
    fleet: Fleet,
    collector: Collector,
    exporter: Exporter,
    metrics: Metrics,
}

impl TracedFleet {
    async fn start(behaviour: Behaviour, sample: f64) -> Self {
        let collector = Collector::start(behaviour).await;
        let (tracer, exporter, metrics) = tracer(&collector.url, sample);
        let mut fleet = Fleet::traced(tracer).await;
        fleet.registry.task::<Family>();
        fleet.add_type(CALLBACK, callbacks()).await;
        fleet.start_worker();
        Self { fleet, collector, exporter, metrics }
    }

    async fn submit(&self, task: Value, trace: Option<&str>) -> Value {
        let client = kafleet_testkit::http::client();
        let mut request = client.post(format!("{}/v1/tasks", self.fleet.api)).json(&task);
        if let Some(trace) = trace {
            request = request.header("traceparent", trace).header("tracestate", "v=1");
        }
        let response = request.send().await.unwrap();
        let (status, document) = (response.status(), response.json().await.unwrap());
        assert_eq!(status, 201, "{document}");
        document
    }

    /// Stops the fleet and returns the spans.
    async fn stop(self) -> (Vec<SeenSpan>, Metrics) {
        self.fleet.stop().await;
        self.exporter.stop().await;
        (self.collector.spans(), self.metrics)
    }
}

fn tracer(url: &str, sample: f64) -> (Tracer, Exporter, Metrics) {
    let config = OtelConfig {
        endpoint: Some(url.to_owned()),
        sample,
        service_name: "orders".into(),
        headers: [("x-team".to_owned(), "a".to_owned())].into(),
        timeout: "500ms".parse().unwrap(),
        ..OtelConfig::default()
    };
    let (settings, warnings) = otel::settings(&config, &|_| None);
    assert_eq!(warnings, Vec::<String>::new());
    let metrics = Metrics::new().unwrap();
    let (tracer, exporter) = otel::start(settings.unwrap(), &metrics.traces).unwrap();
    (tracer, exporter, metrics)
}

fn dropped(metrics: &Metrics, reason: &str) -> u64 {
    metrics.traces.dropped.with_label_values(&[reason]).get()
}

/// Returns the only span with a name and a task.
fn one<'a>(spans: &'a [SeenSpan], name: &str, task: &str) -> &'a SeenSpan {
    let matching: Vec<_> = spans.iter().filter(|span| span.is(name, task)).collect();
    assert_eq!(matching.len(), 1, "`{name}` of `{task}`: {matching:?}");
    matching[0]
}

/// Checks that every parent and every linked span was received, except those from outside, and that no id is used twice.
fn assert_connected(spans: &[SeenSpan], outside: &[&str]) {
    let mut by_id = BTreeMap::new();
    for span in spans {
        assert_eq!(by_id.insert((&span.trace, &span.id), span), None, "an id is used twice");
        assert!(span.end_ns >= span.start_ns && span.start_ns > 0, "{span:?}");
        assert_eq!(span.flags & 1, 1, "{span:?}");
    }
    for span in spans {
        let is_known = span.parent.is_empty() || outside.contains(&&*span.parent);
        assert!(is_known || by_id.contains_key(&(&span.trace, &span.parent)), "without its parent: {span:#?}");
        for (trace, id) in &span.links {
            assert!(by_id.contains_key(&(trace, id)) || outside.contains(&&**id), "a link leads nowhere: {span:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_has_retries_children_continuations_and_callbacks() {
    let traced = TracedFleet::start(Behaviour::Accept, 0.0).await;
    let receiver = Receiver::start().await;
    let callback = json!({"url": format!("{}/ok", receiver.url)});
    let task = json!({
        "type": "family", "id": "top", "params": {}, "then": [{"type": "echo", "params": 1}],
        "actions": [{"on": ["succeeded"], "callback": callback}],
    });
    let created = traced.submit(task, Some(GIVEN)).await;
    assert_eq!(created["trace_id"], GIVEN[3..35]);
    let root = traced.fleet.wait_for_end("top").await;
    assert_eq!(root.state, State::Succeeded);
    assert_eq!(traced.fleet.get("/v1/tasks/top").await["trace_id"], GIVEN[3..35]);
    let output = root.outcome.output.unwrap().value().unwrap();
    let child = traced.fleet.get("/v1/tasks/top/children").await["tasks"][0]["id"].as_str().unwrap().to_owned();
    eventually("the callback has arrived", || async { !receiver.calls("ok").is_empty() }).await;
    let called = receiver.calls("ok").remove(0);
    eventually("the callback task has ended", || async {
        traced.fleet.record(called.id()).await.filter(|record| record.state.is_terminal())
    })
    .await;
    let requests = traced.collector.clone();
    let (spans, metrics) = traced.stop().await;
    assert_connected(&spans, &[&GIVEN[36..52]]);
    assert!(spans.iter().all(|span| span.trace == GIVEN[3..35]), "{spans:#?}");
    // The API publishes the task for its client, whose state goes with it.
    let send = one(&spans, "send family", "top");
    assert_eq!((send.kind, &*send.parent, &*send.state), (PRODUCER, &GIVEN[36..52], "v=1"));
    assert_eq!((&*send.attributes["kafleet.source"], &send.links), ("kafleet/api", &Vec::new()));
    let last = assert_attempts(&spans, send);
    let context = format!("00-{}-{}-01", send.trace, last.id);
    assert_eq!(output, json!(context), "the handler has the attempt's context");
    // A child belongs to the attempt that spawned it; what follows the task, to the task.
    assert_eq!(one(&spans, "send leaf", &child).parent, last.id);
    assert_eq!(one(&spans, "send echo", "top:then").parent, send.id);
    let delivery = one(&spans, &format!("send {CALLBACK}"), called.id());
    assert_eq!(delivery.parent, send.id);
    let delivered = one(&spans, &format!("process {CALLBACK}"), called.id());
    assert_eq!(delivered.parent, delivery.id);
    // What is exported says who exports it, and nothing was lost.
    assert!(spans.iter().all(|span| span.resource["service.name"] == "orders"));
    let headers = &requests.requests()[0];
    assert!(headers["x-team"] == "a" && headers["content-type"] == "application/x-protobuf", "{headers:?}");
    assert_eq!(metrics.traces.exported.get(), spans.len() as u64);
    assert!(
        ["queue_full", "export_failed", "rejected", "shutdown"].iter().all(|reason| dropped(&metrics, reason) == 0)
    );
}

/// Checks the spans of the two attempts of `top`, and returns the second.
fn assert_attempts<'a>(spans: &'a [SeenSpan], send: &SeenSpan) -> &'a SeenSpan {
    // Both attempts hang from it, each after a wait.
    let in_order = |name: &str| {
        let mut matching: Vec<_> = spans.iter().filter(|span| span.is(name, "top")).collect();
        matching.sort_by_key(|span| span.attributes["kafleet.task.attempt"].clone());
        matching
    };
    let (waits, attempts) = (in_order("wait family"), in_order("process family"));
    assert_eq!((waits.len(), attempts.len()), (2, 2), "{spans:#?}");
    for span in waits.iter().chain(&attempts) {
        assert_eq!(span.parent, send.id);
    }
    assert!(waits.iter().all(|wait| wait.kind == INTERNAL) && waits[1].start_ns >= attempts[0].end_ns);
    assert!(attempts.iter().all(|span| span.kind == CONSUMER));
    assert!(attempts.iter().all(|span| span.links == [(send.trace.clone(), send.id.clone())]));
    let outcome = |span: &SeenSpan| span.attributes["kafleet.outcome"].clone();
    assert_eq!((outcome(attempts[0]), attempts[0].status), ("retried".to_owned(), 2));
    assert_eq!((attempts[0].error.as_deref(), &*attempts[0].attributes["error.type"]), (Some("not yet"), "busy"));
    assert_eq!((outcome(attempts[1]), attempts[1].status, attempts[1].error.as_deref()), ("succeeded".into(), 0, None));
    assert_attributes(attempts[1]);
    attempts[1]
}

fn assert_attributes(attempt: &SeenSpan) {
    let topic = attempt.attributes["messaging.destination.name"].clone();
    assert!(topic.ends_with(".tasks.family"), "{topic}");
    let expected = [
        ("messaging.system", "kafka"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
        ("messaging.message.id", "top"),
        ("messaging.message.body.size", "2"),
        ("kafleet.task.id", "top"),
        ("kafleet.task.type", "family"),
        ("kafleet.task.root", "top"),
        ("kafleet.task.run", "1"),
        ("kafleet.task.attempt", "2"),
        ("kafleet.outcome", "succeeded"),
    ];
    for (name, value) in expected {
        assert_eq!(attempt.attributes.get(name).map(String::as_str), Some(value), "{name}");
    }
    for name in ["messaging.destination.partition.id", "messaging.kafka.offset", "kafleet.worker"] {
        assert!(attempt.attributes.contains_key(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_record_has_its_wait_as_the_root() {
    let traced = TracedFleet::start(Behaviour::Accept, 1.0).await;
    let then = br#"{"then":[{"type":"echo","params":1}]}"#;
    traced.fleet.publish_bare("echo", &[("ce_id", b"bare"), ("ce_policy", then)], "1").await;
    traced.fleet.publish_bare("echo", &[("ce_id", b"given"), ("traceparent", GIVEN.as_bytes())], "1").await;
    traced
        .fleet
        .publish_bare("echo", &[("ce_id", b"off"), ("traceparent", GIVEN.replace("-01", "-00").as_bytes())], "1")
        .await;
    for id in ["bare", "given", "off"] {
        assert_eq!(traced.fleet.wait_for_end(id).await.state, State::Succeeded);
    }
    eventually("the continuation has ended", || async {
        traced.fleet.record("bare:then").await.filter(|record| record.state.is_terminal())
    })
    .await;
    assert_eq!(traced.fleet.get("/v1/tasks/off").await["trace_id"], Value::Null);
    let (spans, _) = traced.stop().await;
    assert_connected(&spans, &[&GIVEN[36..52]]);
    let wait = one(&spans, "wait echo", "bare");
    assert_eq!((wait.parent.as_str(), &one(&spans, "process echo", "bare").parent), ("", &wait.id));
    assert_eq!(one(&spans, "send echo", "bare:then").parent, wait.id);
    assert_eq!(one(&spans, "wait echo", "given").parent, GIVEN[36..52]);
    assert!(!spans.iter().any(|span| span.attributes["kafleet.task.id"] == "off"), "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_by_hand_and_late_children_are_linked_traces() {
    let traced = TracedFleet::start(Behaviour::Accept, 1.0).await;
    traced.submit(json!({"type": "leaf", "id": "a", "params": {"held": false, "fails": true}}), None).await;
    assert_eq!(traced.fleet.wait_for_end("a").await.state, State::Failed);
    let client = kafleet_testkit::http::client();
    let retried = client.post(format!("{}/v1/tasks/a/retry", traced.fleet.api)).json(&json!({})).send().await.unwrap();
    assert_eq!(retried.status(), 202);
    eventually("the second run has ended", || async {
        traced.fleet.record("a").await.filter(|record| record.run == 2 && record.state.is_terminal())
    })
    .await;
    let shown = traced.fleet.get("/v1/tasks/a").await["trace_id"].clone();
    let wide = json!({"widths": [102], "held": null, "failing": null});
    traced.submit(json!({"type": "branch", "id": "wide", "params": wide}), None).await;
    assert_eq!(traced.fleet.wait_for_end("wide").await.state, State::Succeeded);
    let (spans, _) = traced.stop().await;
    assert_connected(&spans, &[]);
    let mut sends: Vec<_> = spans.iter().filter(|span| span.is("send leaf", "a")).collect();
    sends.sort_by_key(|span| span.attributes["kafleet.task.run"].clone());
    let [first, second] = sends[..] else { panic!("{sends:?}") };
    assert_ne!(first.trace, second.trace);
    assert_eq!(
        (second.links.as_slice(), second.parent.as_str()),
        ([(first.trace.clone(), first.id.clone())].as_slice(), "")
    );
    assert_eq!(shown, second.trace);
    let attempt = one(&spans, "process branch", "wide");
    let children: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "send leaf" && span.attributes["kafleet.task.root"] == "wide")
        .collect();
    let (near, far): (Vec<&SeenSpan>, Vec<&SeenSpan>) =
        children.into_iter().partition(|span| span.trace == attempt.trace);
    assert_eq!((near.len(), far.len()), (99, 3));
    assert!(near.iter().all(|span| span.parent == attempt.id && span.links.is_empty()));
    assert!(
        far.iter().all(|span| span.parent.is_empty() && span.links == [(attempt.trace.clone(), attempt.id.clone())])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_a_sampled_trace_has_no_spans() {
    let traced = TracedFleet::start(Behaviour::Accept, 0.0).await;
    let created = traced.submit(json!({"type": "family", "id": "top", "params": {}}), None).await;
    assert_eq!(created["trace_id"], Value::Null);
    let root = traced.fleet.wait_for_end("top").await;
    assert_eq!((root.state, root.outcome.output), (State::Succeeded, None), "the handler has no context");
    let (spans, _) = traced.stop().await;
    assert_eq!(spans, []);
}

/// Exports 30 spans to a collector. Returns the metrics after the stop.
async fn export_to(behaviour: Behaviour) -> Metrics {
    let collector = Collector::start(behaviour).await;
    let (tracer, exporter, metrics) = tracer(&collector.url, 1.0);
    for n in 0..30 {
        tracer.record(Box::new(Span {
            trace_id: TraceId::of("a", 1),
            span_id: SpanId::from_random(n),
            parent: None,
            state: None,
            name: "send a".into(),
            kind: SpanKind::Producer,
            start_ns: n,
            end_ns: n,
            attributes: Vec::new(),
            links: Vec::new(),
            error: None,
        }));
    }
    let begun = Instant::now();
    exporter.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{behaviour:?}: the stop took {:?}", begun.elapsed());
    metrics
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_collector_changes_nothing_but_a_counter() {
    let cases = [
        (Behaviour::Hang, "export_failed"),
        (Behaviour::Refuse(StatusCode::INTERNAL_SERVER_ERROR), "export_failed"),
        (Behaviour::Refuse(StatusCode::SERVICE_UNAVAILABLE), "export_failed"),
        (Behaviour::Refuse(StatusCode::FOUND), "export_failed"),
        (Behaviour::Reject, "rejected"),
    ];
    for (behaviour, reason) in cases {
        let metrics = export_to(behaviour).await;
        let lost = dropped(&metrics, reason) + dropped(&metrics, "shutdown");
        assert_eq!((metrics.traces.exported.get(), lost), (0, 30), "{behaviour:?}");
    }
    for behaviour in [Behaviour::Garbage, Behaviour::Endless] {
        assert_eq!(export_to(behaviour).await.traces.exported.get(), 30, "{behaviour:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_beside_a_collector_that_hangs() {
    let traced = TracedFleet::start(Behaviour::Hang, 1.0).await;
    for n in 0..10 {
        traced.submit(json!({"type": "echo", "id": format!("t-{n}"), "params": n}), None).await;
    }
    for n in 0..10 {
        assert_eq!(traced.fleet.wait_for_end(&format!("t-{n}")).await.state, State::Succeeded);
    }
    let (_, metrics) = traced.stop().await;
    // Three spans a task.
    let lost = dropped(&metrics, "export_failed") + dropped(&metrics, "shutdown");
    assert_eq!((metrics.traces.exported.get(), lost), (0, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_drops_spans_and_stops_in_time() {
    // Nothing listens: the port was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (tracer, exporter, metrics) = tracer(&format!("http://{address}"), 1.0);
    let mut fleet = Fleet::traced(tracer).await;
    fleet.start_worker();
    let tasks = 2_000;
    for n in 0..tasks {
        fleet.publish_bare("echo", &[("ce_id", format!("t-{n}").as_bytes())], "1").await;
    }
    for n in 0..tasks {
        assert_eq!(fleet.wait_for_end(&format!("t-{n}")).await.state, State::Succeeded);
    }
    fleet.stop().await;
    let begun = Instant::now();
    exporter.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let lost: Vec<_> =
        ["queue_full", "export_failed", "shutdown"].iter().map(|reason| dropped(&metrics, reason)).collect();
    assert!(lost[0] > 0, "{lost:?}");
    assert_eq!((metrics.traces.exported.get(), lost.iter().sum::<u64>()), (0, 2 * tasks), "{lost:?}");
}
