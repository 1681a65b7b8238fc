//! `POST /v1/tasks`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::memory::Faults;
use kafleet::broker::{Broker, Partition};
use kafleet::config::ApiConfig;
use kafleet::documents::{History, Params, Status};
use kafleet::model::event::{Announcement, Event, Kind};
use kafleet::model::record::state::State;
use kafleet::model::retention::Lifetimes;
use kafleet::model::task::hash::spawn_hash;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::{Position, header};
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::{Reservation, Stage, Store, StoreError};
use kafleet::tracker::project::projection::{LoggedEvent, Projection};
use kafleet_testkit::faults::Call;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::api::client::{problem, refusal};
use crate::api::fixture::{DEADLINE, Fleet, fleet, unfolded};

/// Returns all events of the log, and the number of task records of a type.
fn published(fleet: &Fleet, task_type: &str) -> (Vec<Event>, usize) {
    let read = |topic: String, partitions: i32| {
        let mut records = Vec::new();
        for number in 0..partitions {
            let partition = Partition::new(topic.as_str(), number);
            let ends = fleet.log.watermarks(&partition, DEADLINE).unwrap();
            records.extend((ends.low..ends.high).filter_map(|offset| fleet.record(&partition, offset)));
        }
        records
    };
    let events = read(fleet.names.events(), 4);
    let events = events.iter().map(|record| Event::decode(record.value.as_deref().unwrap()).unwrap()).collect();
    (events, read(fleet.names.tasks(task_type), 2).len())
}

/// A child published before its tree is removed reopens the tree. A child that may be published later is rejected,
/// because it would have no parent.
#[tokio::test]
async fn child_of_a_tree_about_to_be_removed_is_rejected() {
    let fleet = unfolded(ApiConfig::default()).await;
    let stays = "stays";
    let partition = fleet.publisher.topology.partition_of(&TaskId::parse(stays).unwrap());
    let is_there = |id: &String| fleet.publisher.topology.partition_of(&TaskId::parse(id).unwrap()) == partition;
    let goes = (0..).map(|n| format!("goes-{n}")).find(is_there).unwrap();
    let lifetimes = Lifetimes {
        record_retention_ms: 30_000,
        types: BTreeMap::from([("resize".into(), 3_600_000)]),
        ..Lifetimes::default()
    };
    let now = now_ms();
    let mut events = vec![Event::settings(lifetimes, now)];
    for (id, task_type) in [(stays, "resize"), (&*goes, "echo")] {
        let (task_type, id) = (task_type.into(), TaskId::parse(id).unwrap());
        let (position, hash, policy, asof) = Default::default();
        let task =
            Some(Box::new(Announcement { task_type, created_at_ms: now, position, hash, policy, asof, trace: None }));
        events.push(Event { task, ..Event::new(Kind::Submitted, id.clone(), 1, now) });
        events.push(Event::new(Kind::Succeeded, id, 1, now));
    }
    let logged = events.into_iter().zip(0..).map(|(event, offset)| LoggedEvent { event, offset, timestamp_ms: now });
    let mut folding = Projection::open(Arc::new(fleet.memory.clone()), partition).await.unwrap();
    folding.fold(&logged.collect::<Vec<_>>(), 5).await.unwrap();
    let child =
        |parent: &str| fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "parent": parent}));
    let refused = refusal(child(&goes)).await;
    assert_eq!(
        (refused.status, refused.code.as_str(), refused.pointer.as_deref()),
        (404, "unknown_parent", Some("/parent"))
    );
    assert!(refused.detail.contains("has finished and will be removed within"), "{refused:?}");
    assert_eq!(child(stays).send().await.unwrap().status(), 201);
}

#[tokio::test]
async fn task_is_created_without_waiting_for_the_projection() {
    let fleet = unfolded(ApiConfig::default()).await;
    let answer = fleet
        .request(Method::POST, "/v1/tasks")
        .json(&json!({"type": "echo", "id": "a", "params": {"n": 1}, "name": "first", "tags": ["x"], "creator": "me"}))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(answer.headers()["location"], "/v1/tasks/a");
    let status: Status = answer.json().await.unwrap();
    assert_eq!((status.state, status.own_state, status.run), (State::Queued, State::Queued, 1));
    assert_eq!((status.fields.name.as_deref(), status.fields.tags.as_slice()), (Some("first"), &["x".to_owned()][..]));
    let position: Position = status.position.parse().unwrap();
    let record = fleet.record(&fleet.events(position), position.offset).unwrap();
    let event = Event::decode(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(
        (event.kind(), event.id.as_str()),
        (Kind::Submitted, "a"),
        "the position is that of the `submitted` event"
    );
    fleet.track();
    let folded: Status = fleet.get(&format!("/v1/tasks/a?after={}", status.position)).await;
    assert_eq!(
        (folded.state, folded.fields.creator.as_deref(), folded.task_type.as_deref()),
        (State::Queued, Some("me"), Some("echo"))
    );
    assert!(folded.record.is_some() && folded.seen_at.is_some());
}

#[tokio::test]
async fn record_contains_the_requested_options() {
    let fleet = fleet().await;
    let body = json!({
        "type": "echo", "id": "a", "key": "k", "params": [1, {"b": null}], "expires": "2h", "retries": 7,
        "min_backoff": "1500ms", "max_backoff": "4s", "timeout": "10m", "total_timeout": "1h", "on_failure": "ignore", "link": "http://l",
        "options": {"o": 1}, "headers": {"x-tenant": "acme"}, "stall_timeout": "90s",
    });
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let answer =
        fleet.request(Method::POST, "/v1/tasks").header("traceparent", trace).json(&body).send().await.unwrap();
    let made: Status = answer.json().await.unwrap();
    let status: Status = fleet.get(&format!("/v1/tasks/a?after={}", made.position)).await;
    assert_eq!((status.state, &status.fields.rules.options), (State::Queued, &Some(json!({"o": 1}).into())));
    assert_eq!(status.fields.rules.headers["x-tenant"], "acme");
    let position: Position = status.record.unwrap().parse().unwrap();
    let topic = Partition::new(fleet.names.tasks("echo"), position.partition);
    let record = fleet.record(&topic, position.offset).unwrap();
    assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
    let header = |name: &str| {
        let found = record.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| String::from_utf8(value.clone().unwrap()).unwrap()).unwrap_or_default()
    };
    assert_eq!(
        (header("ce_retries"), header("ce_timeout"), header("ce_totaltimeout"), header("ce_onfailure")),
        ("7".into(), "10m".into(), "1h".into(), "ignore".into())
    );
    assert_eq!(header("ce_stalltimeout"), "90s");
    assert_eq!((header(header::TRACE_PARENT), header(header::ANNOUNCED)), (trace.into(), "1".into()));
    let params: Params = fleet.get("/v1/tasks/a/params").await;
    assert_eq!(params.params, json!([1, {"b": null}]));
}

#[tokio::test]
async fn id_begins_with_the_given_prefix() {
    let fleet = fleet().await;
    let made = [(); 2].map(|()| fleet.create(json!({"type": "echo", "id_prefix": "order-"})));
    let ids = futures::future::join_all(made).await;
    assert!(ids.iter().all(|task| task.id.starts_with("order-") && task.id.len() == 42), "{ids:?}");
    assert_ne!(ids[0].id, ids[1].id);
    let child = fleet.create(json!({"type": "echo", "id_prefix": "page-", "parent": ids[0].id})).await;
    assert!(child.id.starts_with(&format!("{}:page-", ids[0].id)), "{}", child.id);
    for (body, code, pointer) in [
        (json!({"type": "echo", "id_prefix": "a", "id": "b"}), "bad_field", "/id_prefix"),
        (json!({"type": "echo", "id_prefix": "a b"}), "bad_id", "/id_prefix"),
        (json!({"type": "echo", "id_prefix": "x".repeat(120)}), "bad_id", "/id_prefix"),
        (json!({"type": "echo", "headers": {"a b": "c"}}), "bad_field", "/headers"),
        (json!({"type": "echo", "headers": {"a": "two\nlines"}}), "bad_field", "/headers"),
    ] {
        let problem = problem(fleet.request(Method::POST, "/v1/tasks").json(&body)).await;
        assert_eq!((problem.code.as_str(), problem.pointer.as_deref()), (code, Some(pointer)), "{body}");
    }
}

/// The task has no record yet; the event that scheduled it contains the params.
#[tokio::test]
async fn delayed_task_is_scheduled_with_its_params() {
    let fleet = fleet().await;
    let body = json!({"type": "echo", "id": "a", "params": {"n": 1}, "delay": "1h", "expires": "2h", "tags": ["t"]});
    let made = fleet.create(body.clone()).await;
    assert_eq!((made.state, made.due_at.is_some()), (State::Scheduled, true));
    let status: Status = fleet.get(&format!("/v1/tasks/a?after={}", made.position)).await;
    assert_eq!((status.state, status.fields.tags.join(",").as_str(), status.record), (State::Scheduled, "t", None));
    assert_eq!(status.due_at, made.due_at);
    let params: Params = fleet.get("/v1/tasks/a/params").await;
    assert_eq!(params.params, json!({"n": 1}));
    assert_eq!(published(&fleet, "echo").1, 0, "a scheduled task has no record in its topic");
    let (status, again) = fleet.post("/v1/tasks", body).await;
    assert_eq!((status, again["state"].as_str()), (200, Some("scheduled")), "a repeated request returns the same task");
}

#[tokio::test]
async fn repeated_request_returns_the_existing_task() {
    let fleet = unfolded(ApiConfig::default()).await;
    let body = json!({"type": "echo", "id": "a", "params": {"x": 1, "y": 2}});
    let first = fleet.create(body.clone()).await;
    // Not projected yet: found through the reservation. The order of JSON keys does not matter.
    let (status, again) = fleet.post("/v1/tasks", json!({"type": "echo", "id": "a", "params": {"y": 2, "x": 1}})).await;
    assert_eq!((status, again["position"].as_str()), (200, Some(first.position.as_str())));
    let other = problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "a"}))).await;
    assert_eq!((other.code.as_str(), other.existing.as_deref()), ("duplicate_id", Some("a")));
    // Projected: found through the record, even after the reservation has expired.
    fleet.track();
    fleet.succeed("a", json!("done")).await;
    fleet.folded().await;
    let partition = fleet.publisher.topology.partition_of(&"a".parse().unwrap());
    let mark =
        Reservation { hash: spawn_hash("echo", &json!({"x": 1, "y": 2}).into()).unwrap(), stage: Stage::InDoubt };
    let held = fleet.memory.reserve(partition, &"a".parse().unwrap(), 1, &mark).await.unwrap().unwrap();
    assert!(fleet.memory.replace_reservation(partition, &"a".parse().unwrap(), 1, &held, None).await.unwrap());
    let (status, again) = fleet.post("/v1/tasks", body).await;
    assert_eq!((status, again["state"].as_str(), again["result"].as_str()), (200, Some("succeeded"), Some("done")));
    assert_eq!(published(&fleet, "echo").1, 1, "the task is published once");
    assert_eq!(fleet.metrics.tasks.submitted.with_label_values(&["echo"]).get(), 1, "repetitions are not counted");
}

#[tokio::test]
async fn task_of_a_foreign_producer_is_not_taken_for_the_same_task() {
    let fleet = fleet().await;
    fleet.announce("a", "echo", None).await;
    fleet.folded().await;
    let answer = problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "a"}))).await;
    assert_eq!(answer.code, "duplicate_id", "without a hash the tasks cannot be compared");
}

#[tokio::test]
async fn concurrent_requests_with_one_id_create_one_task() {
    let fleet = fleet().await;
    let one = |n: usize| fleet.post("/v1/tasks", json!({"type": "echo", "id": "a", "params": n % 2}));
    let answers = futures::future::join_all((0..20).map(one)).await;
    let mut statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    statuses.sort_unstable();
    let expected: Vec<u16> = [vec![200; 9], vec![201], vec![409; 10]].concat();
    assert_eq!(statuses, expected, "{answers:?}");
    fleet.folded().await;
    let history: History = fleet.get("/v1/tasks/a/history").await;
    let conflicts = history.events.iter().filter(|event| event.kind == "warned").count();
    assert_eq!(conflicts, 0, "two different tasks never share an id: {history:?}");
}

#[tokio::test]
async fn type_with_a_new_topic_is_accepted() {
    let fleet = fleet().await;
    assert_eq!(fleet.post("/v1/tasks", json!({"type": "fresh"})).await.0, 404);
    let topic = kafleet::broker::TopicSpec {
        name: fleet.names.tasks("fresh"),
        partitions: 1,
        replication: None,
        config: vec![],
    };
    fleet.log.apply_topics(&[topic], DEADLINE).unwrap();
    crate::api::fixture::eventually("the new topic is visible", async || {
        fleet.post("/v1/tasks", json!({"type": "fresh"})).await.0 == 201
    })
    .await;
}

#[tokio::test]
async fn child_joins_the_run_of_its_parent() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    let named = fleet.create(json!({"type": "echo", "id": "c", "parent": "r"})).await;
    assert_eq!((named.id.as_str(), named.parent.as_deref(), named.root.as_str()), ("r:c", Some("r"), "r"));
    fleet.folded().await;
    let unnamed = fleet.create(json!({"type": "echo", "parent": "r:c"})).await;
    assert!(unnamed.id.starts_with("r:c:") && unnamed.id.len() > 30, "{}", unnamed.id);
    fleet.folded().await;
    let record: Status = fleet.get("/v1/tasks/r:c").await;
    let position: Position = record.record.unwrap().parse().unwrap();
    let topic = Partition::new(fleet.names.tasks("echo"), position.partition);
    let task = fleet.record(&topic, position.offset).unwrap();
    assert!(
        task.headers.iter().any(|(name, _)| name == header::AS_OF),
        "the record's `asof` covers the known cancels: {:?}",
        task.headers
    );
    // A retried parent takes new children into its current run.
    fleet.succeed("r", json!(1)).await;
    fleet.publish_event("r", Kind::Started, |event| event.run = 2).await;
    fleet.folded().await;
    let child = fleet.create(json!({"type": "echo", "id": "late", "parent": "r"})).await;
    let child: Status = fleet.get(&format!("/v1/tasks/{}?after={}", child.id, child.position)).await;
    assert_eq!((child.run, child.superseded), (2, false));
    let old: Status = fleet.get("/v1/tasks/r:c").await;
    assert!(old.superseded);
}

#[tokio::test]
async fn parent_that_is_not_visible_yet_is_accepted_once_projected() {
    let fleet = unfolded(ApiConfig::default()).await;
    fleet.create(json!({"type": "echo", "id": "r"})).await;
    let request = fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "parent": "r"}));
    let answer = refusal(request.try_clone().unwrap()).await;
    assert_eq!(answer.code, "not_visible_yet", "the parent may exist but is not projected yet");
    fleet.track();
    crate::api::fixture::eventually("the parent", async || {
        request.try_clone().unwrap().send().await.unwrap().status() == StatusCode::CREATED
    })
    .await;
}

#[tokio::test]
async fn external_task_needs_no_topic() {
    let fleet = fleet().await;
    let made =
        fleet.create(json!({"type": "human-review", "external": true, "id": "e", "options": {"who": "me"}})).await;
    let status: Status = fleet.get(&format!("/v1/tasks/e?after={}", made.position)).await;
    assert_eq!((status.fields.rules.external, status.state, status.record), (true, State::Queued, None));
    assert_eq!(fleet.problem("/v1/tasks/e/params").await.code, "no_params");
}

#[tokio::test]
async fn wait_ends_with_the_task() {
    let fleet = fleet().await;
    let wait = fleet.request(Method::POST, "/v1/tasks?wait=50s").json(&json!({"type": "echo", "id": "a"})).send();
    let work = async {
        crate::api::fixture::eventually("the task", async || {
            fleet.request(Method::GET, "/v1/tasks/a").send().await.unwrap().status() == StatusCode::OK
        })
        .await;
        fleet.succeed("a", json!({"answer": 42})).await;
    };
    let (answer, ()) = tokio::join!(wait, work);
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let status: Status = answer.json().await.unwrap();
    assert_eq!((status.state, status.result.unwrap().value().unwrap()), (State::Succeeded, json!({"answer": 42})));
    // A repeated request finds the task finished.
    let (code, again) = fleet.post("/v1/tasks?wait=50s", json!({"type": "echo", "id": "a"})).await;
    assert_eq!((code, again["state"].as_str()), (200, Some("succeeded")));
}

#[tokio::test]
async fn wait_works_without_change_notices() {
    let fleet = unfolded(ApiConfig::default()).await;
    fleet.faults.on(|call| matches!(call, Call::Notices)).fail(StoreError::Unavailable("no notices".into()));
    fleet.track();
    let wait = fleet.request(Method::POST, "/v1/tasks?wait=50s").json(&json!({"type": "echo", "id": "a"})).send();
    let (answer, _) = tokio::join!(wait, fleet.succeed("a", json!(null)));
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn wait_ends_at_its_deadline() {
    let fleet = fleet().await;
    let begun = Instant::now();
    let (code, status) = fleet.post("/v1/tasks?wait=300ms", json!({"type": "echo"})).await;
    assert_eq!((code, status["state"].as_str()), (202, Some("queued")));
    assert!(begun.elapsed() >= Duration::from(Millis(300)));
}

#[tokio::test]
async fn requests_that_need_an_unavailable_store_are_rejected() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let outage = fleet.faults.store_outage();
    assert_eq!(fleet.post("/v1/tasks", json!({"type": "echo"})).await.0, 201, "a generated id needs no reservation");
    let answer =
        fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "b"})).send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    for request in [
        fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "b"})),
        fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "parent": "a"})),
        fleet.request(Method::GET, "/v1/tasks/a"),
        fleet.request(Method::GET, "/v1/tasks"),
        fleet.request(Method::GET, "/v1/types"),
        fleet.request(Method::GET, "/v1/tasks/a/watch"),
    ] {
        let answer = problem(request).await;
        assert_eq!((answer.status, answer.code.as_str()), (503, "store_unavailable"));
    }
    outage.lift();
    fleet.echo("b").await;
}

#[tokio::test]
async fn reads_succeed_and_writes_fail_without_kafka() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet.faults.kafka_outage();
    let known: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!(known.state, State::Queued);
    for path in ["/v1/tasks/b", "/v1/tasks/a/params"] {
        let answer = fleet.problem(path).await;
        assert_eq!((answer.status, answer.code.as_str()), (503, "kafka_unavailable"), "{path}");
    }
    assert_eq!(fleet.post("/v1/tasks", json!({"type": "echo"})).await.0, 201, "the type is cached");
}

#[tokio::test]
async fn unreliable_kafka_neither_loses_nor_duplicates_acknowledged_tasks() {
    let fleet = fleet().await;
    fleet.echo("warm-up").await;
    fleet.log.set_faults(Faults {
        seed: 7,
        unavailable: 0.3,
        lost_acknowledgement: 0.2,
        delay: 0.2,
        ..Faults::default()
    });
    for n in 0..20 {
        fleet.create(json!({"type": "echo", "id": format!("t{n}")})).await;
    }
    fleet.log.set_faults(Faults::default());
    fleet.folded().await;
    for n in 0..20 {
        let status: Status = fleet.get(&format!("/v1/tasks/t{n}")).await;
        assert_eq!(status.state, State::Queued);
    }
}

/// The fixture sets `max_tree_age` to 40 days.
#[tokio::test]
async fn task_may_start_as_late_as_its_tree_may_be_open() {
    let fleet = fleet().await;
    let check = |after: &str| json!([{"after": after, "expect": ["succeeded"], "failed": {"callback": {"url": "http://127.0.0.1:9/x"}}}]);
    let late = |refusal: kafleet::documents::Problem| {
        assert_eq!((refusal.status, refusal.code.as_str()), (400, "bad_field"), "{refusal:?}");
        assert!(refusal.detail.contains("more than 40d from now"), "{}", refusal.detail);
    };
    let made = fleet.create(json!({"type": "echo", "id": "later", "delay": "35d"})).await;
    assert_eq!(made.state, State::Scheduled, "a delay above the default limit is accepted");
    late(problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "delay": "41d"}))).await);
    late(
        problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "checks": check("41d")}))).await,
    );
    fleet.folded().await;
    late(problem(fleet.request(Method::PATCH, "/v1/tasks/later").json(&json!({"delay": "41d"}))).await);
    let changed = fleet.request(Method::PATCH, "/v1/tasks/later").json(&json!({"delay": "39d"})).send().await.unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
}
