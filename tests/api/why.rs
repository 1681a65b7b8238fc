//! `GET /v1/tasks/{id}/why`: explanations of task states.

use kafleet::broker::{Broker, Commit, Partition, ProducerRecord};
use kafleet::documents::{Reason, TypeDocument, Types, Why};
use kafleet::model::event::{AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::offsets::FULL_METADATA_BYTES;
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::fixture::{DEADLINE, Fleet, fleet};

pub async fn why(fleet: &Fleet, id: &str) -> Why {
    fleet.folded().await;
    fleet.get(&format!("/v1/tasks/{id}/why")).await
}

pub fn codes(why: &Why) -> Vec<Reason> {
    why.findings.iter().map(|finding| finding.code).collect()
}

/// Writes records into one partition of the task topic, each announced as queued.
async fn backlog(fleet: &Fleet, count: i64) -> Partition {
    let partition = Partition::new(fleet.names.tasks("echo"), 1);
    for n in 0..count {
        let id = format!("q{n}");
        let record = ProducerRecord {
            topic: &partition.topic,
            partition: Some(1),
            key: None,
            value: Some(b"1"),
            headers: &[("ce_id", id.as_bytes()), ("ce_announced", b"1")],
        };
        let position = fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
        fleet.announce(&id, "echo", Some(position)).await;
    }
    partition
}

fn commit(fleet: &Fleet, partition: &Partition, offset: i64, metadata: &str) {
    let commit = Commit { partition: partition.clone(), offset, metadata: metadata.into() };
    fleet.log.set_group_offsets(&fleet.names.group("echo"), &[commit], DEADLINE).unwrap();
}

#[tokio::test]
async fn queued_task_reports_its_queue_position() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 8).await;
    let never = why(&fleet, "q5").await;
    assert_eq!((codes(&never), never.findings[1].ahead), (vec![Reason::NoWorker, Reason::NeverConsumed], Some(5)));
    // Completed offsets: 0, 1 and 3; the second worker passes over records, and has claimed 2.
    for metadata in ["kf1 open 100 0 r:AQE", "kf2 open 0 8 r:AAE r:AQE"] {
        commit(&fleet, &partition, 2, metadata);
        let answer = why(&fleet, "q5").await;
        let line = &answer.findings[1];
        assert_eq!(
            (answer.state, line.code, line.ahead, line.rate),
            (State::Queued, Reason::QueuedBehind, Some(2), Some(0.0)),
            "2 and 4, with {metadata}"
        );
        assert!(line.message.contains("without progress"), "{}", line.message);
        assert_eq!(line.lag, Some(5), "2, 4, 5, 6 and 7");
        assert_eq!(codes(&why(&fleet, "q3").await), [Reason::ResultPending]);
    }
    fleet.log.truncate_before(&partition, 6).unwrap();
    assert_eq!(codes(&why(&fleet, "q5").await), [Reason::RecordGone]);
}

/// The history of a parent has the conflicts of its children too.
#[tokio::test]
async fn second_task_with_one_id_is_explained_by_that_task() {
    let fleet = fleet().await;
    for (id, task_type) in [("p", "echo"), ("p:c", "echo"), ("p:c", "other")] {
        fleet.announce(id, task_type, None).await;
    }
    assert!(codes(&why(&fleet, "p:c").await).contains(&Reason::SameId));
    assert!(!codes(&why(&fleet, "p").await).contains(&Reason::SameId));
}

/// Transaction markers occupy offsets but are not tasks.
#[tokio::test]
async fn transaction_markers_are_not_counted_as_tasks() {
    let fleet = fleet().await;
    let partition = Partition::new(fleet.names.tasks("echo"), 1);
    let mut producer = fleet.log.transactional_producer("x").unwrap();
    for id in ["t0", "t1"] {
        let headers: [(&str, &[u8]); 2] = [("ce_id", id.as_bytes()), ("ce_announced", b"1")];
        let record = ProducerRecord {
            topic: &partition.topic,
            partition: Some(1),
            key: None,
            value: Some(b"1"),
            headers: &headers,
        };
        let (partition, offset) = producer.send_all(&[record], DEADLINE).unwrap()[0];
        fleet.announce(id, "echo", Some(Position { partition, offset })).await;
    }
    let never = why(&fleet, "t1").await;
    assert_eq!((never.findings[1].ahead, never.findings[1].at_most), (Some(1), false), "{}", never.findings[1].message);
    // The first task is done; its transaction marker follows it.
    commit(&fleet, &partition, 1, "kf1 clean 1 0 -");
    let next = why(&fleet, "t1").await;
    let line = &next.findings[1];
    assert_eq!(
        (line.code, line.ahead, line.lag, line.at_most),
        (Reason::QueuedBehind, Some(0), Some(1), false),
        "{}",
        line.message
    );
    assert!(line.message.starts_with("it is next in its partition"), "{}", line.message);
    let rest = "1 of `echo` is unfinished in total; in 0, out 0 a minute: stalled, no worker takes it";
    assert!(line.message.ends_with(rest), "{}", line.message);
}

#[tokio::test]
async fn position_in_a_long_queue_is_an_upper_bound() {
    let fleet = fleet().await;
    let partition = Partition::new(fleet.names.tasks("echo"), 1);
    let record =
        ProducerRecord { topic: &partition.topic, partition: Some(1), key: None, value: Some(b"1"), headers: &[] };
    let records = vec![record; 1_200];
    fleet.log.transactional_producer("x").unwrap().send_all(&records, DEADLINE).unwrap();
    let last = fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
    fleet.announce("last", "echo", Some(last)).await;
    commit(&fleet, &partition, 0, "kf1 open 100 0 -");
    let answer = why(&fleet, "last").await;
    let line = &answer.findings[1];
    assert_eq!((line.ahead, line.at_most), (Some(1_201), true));
    assert!(line.message.starts_with("at most 1201 tasks are ahead of it"), "{}", line.message);
}

#[tokio::test]
async fn head_of_line_blocking_task_is_named() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 4).await;
    commit(&fleet, &partition, 1, &format!("kf1 open 100 0 {}", "x".repeat(FULL_METADATA_BYTES)));
    let answer = why(&fleet, "q3").await;
    assert_eq!(codes(&answer), [Reason::NoWorker, Reason::HeadOfLineBlocked, Reason::QueuedBehind]);
    assert_eq!(answer.findings[1].task.as_deref(), Some("q1"));
}

#[tokio::test]
async fn running_and_retrying_tasks_are_explained() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet
        .publish_event("a", Kind::Started, |event| {
            event.attempt = 1;
            event.worker = Some("w-7".into());
        })
        .await;
    let running = why(&fleet, "a").await;
    assert_eq!(codes(&running), [Reason::Running]);
    assert!(
        running.findings[0].message.contains("attempt 1 is running on `w-7` since 2"),
        "{}",
        running.findings[0].message
    );
    assert!(running.findings[0].message.contains("; last sign of life "), "{}", running.findings[0].message);
    fleet
        .publish_event("a", Kind::Retrying, |event| {
            event.attempt = 1;
            let failure = AttemptFailure::new("timeout", "too slow", 1);
            event.payload = Payload::Retrying { failure, due_ms: Some(1_900_000_000_000), record: None, waits: 0 };
        })
        .await;
    let retrying = why(&fleet, "a").await;
    assert_eq!(codes(&retrying), [Reason::Retrying]);
    let message = &retrying.findings[0].message;
    assert_eq!(message, "attempt 1 failed: timeout: too slow; the next attempt starts at 2030-03-17T17:46:40.000Z");
}

#[tokio::test]
async fn progress_is_a_sign_of_life_of_a_long_attempt() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let of_attempt = |event: &mut Event, ago_ms: i64| {
        (event.attempt, event.worker) = (1, Some("w-7".into()));
        event.at_ms -= ago_ms;
    };
    fleet.publish_event("a", Kind::Started, |event| of_attempt(event, 325_000)).await;
    let silent = why(&fleet, "a").await.findings.remove(0);
    let text = "; no progress, log line or heartbeat of the attempt for 3";
    assert!(silent.message.contains(text), "{}", silent.message);
    let output = RawJson::of(&json!({"done": 325, "total": 4_000})).ok();
    fleet.publish_event("a", Payload::Progress { output }, |event| of_attempt(event, 1_000)).await;
    let alive = why(&fleet, "a").await.findings.remove(0);
    assert!(alive.message.contains("s ago (progress 325 of 4,000)"), "{}", alive.message);
    assert!(alive.quiet_ms.is_some_and(|ms| ms < 100_000), "{:?}", alive.quiet_ms);
    let log = Payload::log(vec!["still here".into()]);
    fleet.publish_event("a", log, |event| of_attempt(event, 0)).await;
    let alive = why(&fleet, "a").await.findings.remove(0);
    assert!(alive.message.contains("s ago (log; progress 325 of 4,000)"), "{}", alive.message);
}

#[tokio::test]
async fn waiting_task_is_explained_and_shown() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet
        .publish_event("a", Kind::Retrying, |event| {
            event.attempt = 1;
            let failure = AttemptFailure::new("rate_limited", "`h` responded with 429", 1);
            event.payload = Payload::Retrying { failure, due_ms: Some(1_900_000_000_000), record: None, waits: 2 };
        })
        .await;
    let waiting = why(&fleet, "a").await;
    assert_eq!(codes(&waiting), [Reason::Waiting]);
    assert_eq!(
        waiting.findings[0].message,
        "it waits (number 2), which does not count as an attempt: rate_limited: `h` responded with 429; it runs again at \
         2030-03-17T17:46:40.000Z"
    );
    let status: Value = fleet.get("/v1/tasks/a").await;
    assert_eq!((&status["state"], &status["attempt"], &status["waits"]), (&json!("retrying"), &json!(0), &json!(2)));
    let history: Value = fleet.get("/v1/tasks/a/history").await;
    assert_eq!(history["events"].as_array().unwrap().last().unwrap()["waits"], json!(2));
}

#[tokio::test]
async fn parent_names_open_and_failed_descendants() {
    let fleet = fleet().await;
    for id in ["r", "r:a", "r:b", "r:b:deep", "r:c"] {
        fleet.echo(id).await;
    }
    for id in ["r", "r:b"] {
        fleet.succeed(id, json!(1)).await;
    }
    let waiting = why(&fleet, "r").await;
    let tasks: Vec<_> = waiting.findings.iter().map(|finding| finding.task.as_deref().unwrap_or_default()).collect();
    assert_eq!(tasks, ["r:b:deep", "r:a", "r:c"], "deepest first");
    assert!(waiting.findings[0].message.contains("4 tasks below are open in total"), "{}", waiting.findings[0].message);
    for id in ["r:a", "r:c"] {
        fleet.succeed(id, json!(1)).await;
    }
    fleet.fail("r:b:deep", "the disk is full").await;
    let failed = why(&fleet, "r").await;
    assert_eq!((codes(&failed), failed.findings[0].task.as_deref()), (vec![Reason::FailedChild], Some("r:b:deep")));
    assert!(failed.findings[0].message.contains("the disk is full"), "{}", failed.findings[0].message);
    assert_eq!(codes(&why(&fleet, "r:a").await), [Reason::Ended]);
}

#[tokio::test]
async fn unpublished_and_external_tasks_are_explained() {
    let fleet = fleet().await;
    fleet.announce("up:child", "echo", Some(Position { partition: 0, offset: 0 })).await;
    assert_eq!(codes(&why(&fleet, "up").await), [Reason::NotPublished]);
    fleet.create(json!({"type": "label", "id": "x", "external": true})).await;
    assert_eq!(codes(&why(&fleet, "x").await), [Reason::External]);
    let unknown = crate::api::client::problem(fleet.request(Method::GET, "/v1/tasks/nobody/why")).await;
    assert_eq!(unknown.status, 404);
}

/// Sends a heartbeat of a worker of `echo`.
pub async fn send_heartbeat_of(fleet: &Fleet, worker: &str, slots: u32, in_flight: u32, running: &[&str]) {
    let now = kafleet::runtime::now_ms();
    let running: Vec<_> =
        running.iter().map(|id| json!({"id": id, "type": "echo", "attempt": 1, "started_ms": now - 9_000})).collect();
    let part = json!({"type": "echo", "slots": slots, "in_flight": in_flight, "waiting": 0, "paused": false, "partitions": [0, 1],
        "finished": {}});
    send_heartbeat(fleet, worker, part, running).await;
}

async fn send_heartbeat(fleet: &Fleet, worker: &str, part: Value, running: Vec<Value>) {
    send_heartbeat_by(fleet, worker, part, running, 0).await;
}

/// Sends the heartbeat of a worker whose clock is ahead by so much.
async fn send_heartbeat_by(fleet: &Fleet, worker: &str, part: Value, running: Vec<Value>, ahead_ms: i64) {
    let (now, in_flight) = (kafleet::runtime::now_ms() + ahead_ms, part["in_flight"].clone());
    let send_heartbeat_of = json!({"v": 1, "id": worker, "host": "host-1", "pid": 42, "version": "0", "state": "running", "started_ms": now,
        "at_ms": now, "every_ms": 60_000, "held_bytes": 0, "types": [part], "running": running});
    let (topic, value) = (fleet.names.workers(), send_heartbeat_of.to_string());
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: Some(worker.as_bytes()),
        value: Some(value.as_bytes()),
        headers: &[],
    };
    fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
    crate::api::fixture::eventually("the heartbeat is read", async || {
        let workers: Value = fleet.get("/v1/workers").await;
        let in_flight_now = |answer: &Value| answer["id"] == json!(worker) && answer["in_flight"] == in_flight;
        workers["workers"].as_array().unwrap().iter().any(in_flight_now)
    })
    .await;
}

#[tokio::test]
async fn reached_limits_are_named() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    send_heartbeat_of(&fleet, "w-1", 4, 3, &[]).await;
    assert_eq!(codes(&why(&fleet, "q2").await), [Reason::QueuedBehind], "a slot is free");
    send_heartbeat_of(&fleet, "w-1", 4, 4, &[]).await;
    let full = why(&fleet, "q2").await;
    assert_eq!(codes(&full), [Reason::LimitReached, Reason::QueuedBehind]);
    assert_eq!(full.findings[0].message, "all 4 slots for `echo` of 1 live worker(s) are in use");
    let limits = json!({"max_concurrency": 4, "rate": {"count": 5, "per": "1m"}});
    let set = fleet.request(Method::PUT, "/v1/types/echo/limits").json(&limits).send().await.unwrap();
    assert_eq!(set.status(), 200);
    let limited = why(&fleet, "q2").await;
    assert_eq!(codes(&limited), [Reason::LimitReached, Reason::LimitReached, Reason::QueuedBehind]);
    assert!(limited.findings[0].message.contains("limit of 4 concurrent attempts"), "{}", limited.findings[0].message);
    assert!(limited.findings[1].message.contains("has the rate limit 5/1m"), "{}", limited.findings[1].message);
}

/// The worker that owns the partition.
#[tokio::test]
async fn stopped_type_and_missing_start_offset_are_named() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let part = |in_flight: u64, partitions: &[i32], stopped: Option<&str>, refused: &[i32]| {
        json!({"type": "echo", "slots": 9, "in_flight": in_flight, "waiting": 0, "paused": false, "partitions": partitions,
            "stopped": stopped, "refused": refused, "finished": {}})
    };
    send_heartbeat(&fleet, "w-1", part(1, &[0], Some("more than 5 attempts failed"), &[0]), Vec::new()).await;
    send_heartbeat(&fleet, "w-2", part(2, &[1], None, &[]), Vec::new()).await;
    assert_eq!(codes(&why(&fleet, "q2").await), [Reason::QueuedBehind], "the other worker does not own the partition");
    send_heartbeat(&fleet, "w-2", part(3, &[1], Some("more than 9 attempts failed"), &[1]), Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::NoStartOffset, Reason::Stopped, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(message.contains("`kafleet offsets init echo/1 --at earliest|OFFSET|TIME`"), "{message}");
    let message = &answer.findings[1].message;
    assert!(
        message.contains("more than 9 attempts failed") && message.contains("`kafleet types pause echo`"),
        "{message}"
    );
    let types: Types = fleet.get("/v1/types").await;
    let echo = types.types.into_iter().find(|document| document.name == "echo").unwrap().worker_totals.unwrap();
    assert_eq!((echo.workers, echo.stopped, echo.refused), (2, 2, vec![0, 1]));
}

#[tokio::test]
async fn open_circuit_is_named_and_counted() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let status = json!({"type": "echo", "slots": 9, "in_flight": 0, "waiting": 2, "paused": false, "partitions": [1],
        "circuit": "open since 2026-01-31T12:00:00.000Z: unreachable: `h` did not respond", "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::CircuitOpen, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(
        message.contains("`h` did not respond") && message.contains("`kafleet types circuit echo close`"),
        "{message}"
    );
    let types: Types = fleet.get("/v1/types").await;
    let echo = types.types.into_iter().find(|document| document.name == "echo").unwrap();
    assert_eq!((echo.worker_totals.unwrap().circuit_open, echo.circuit), (1, None));
}

#[tokio::test]
async fn adaptive_limit_is_named() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let status = json!({"type": "echo", "slots": 9, "in_flight": 2, "waiting": 2, "paused": false, "partitions": [1],
        "adaptive": {"limit": 2.5, "fixed": false, "slots": 2, "min": 1, "target_ms": null,
            "counts": {"round": 3, "calls": 0, "refused": 0, "call_ms": 0, "at_limit_ms": 0, "span_ms": 0, "peak": 0}},
        "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::AdaptiveLimit, Reason::QueuedBehind]);
    let expected = "the adaptive limit of `echo` is 2.5 concurrent attempts over all workers, which was learned";
    assert_eq!(answer.findings[0].message, expected);
    let echo: TypeDocument = fleet.get("/v1/types/echo").await;
    assert_eq!(echo.adaptive.map(|adaptive| (adaptive.limit, adaptive.cut_at)), Some((2.5, None)));
}

#[tokio::test]
async fn batch_that_forms_is_named() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let status = json!({"type": "echo", "slots": 9, "in_flight": 0, "waiting": 2, "paused": false, "partitions": [1],
        "batches": {"forming": 2, "max": 100, "wait_ms": 30_000}, "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::BatchForms, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(message.contains("batches of up to 100") && message.contains("at most 30s"), "{message}");
}

/// No probe starts, and the circuit does not close by itself.
#[tokio::test]
async fn circuit_opened_by_an_operator_is_named_once() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let setting = json!({"state": "open", "reason": "the bureau is closed"});
    let changed = fleet.http.put(format!("{}/v1/types/echo/circuit", fleet.base)).json(&setting).send().await.unwrap();
    assert!(changed.status().is_success(), "{changed:?}");
    let status = json!({"type": "echo", "slots": 9, "in_flight": 0, "waiting": 2, "paused": false, "partitions": [1],
        "circuit": "opened by an operator: the bureau is closed", "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::CircuitOpen, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(
        message.contains(": the bureau is closed; nothing starts")
            && message.contains("`kafleet types circuit echo auto`"),
        "{message}"
    );
}

#[tokio::test]
async fn app_without_a_process_is_named_with_its_reason() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let why_down = "the app `shop`: no process has served for 40 s: exit code 1: no module";
    let status = json!({"type": "echo", "slots": 9, "in_flight": 0, "waiting": 2, "paused": false, "partitions": [0, 1],
        "app_down": why_down, "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::AppDown, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(message.contains(why_down) && message.contains("fix the app"), "{message}");
}

#[tokio::test]
async fn keys_in_other_partitions_are_named_with_an_example() {
    let fleet = fleet().await;
    let partition = backlog(&fleet, 3).await;
    commit(&fleet, &partition, 1, "");
    let example = "key `k3` in partition 2 instead of 5, at offset 7";
    let status = json!({"type": "echo", "slots": 9, "in_flight": 0, "waiting": 2, "paused": false, "partitions": [0, 1],
        "misplaced_keys": example, "finished": {}});
    send_heartbeat(&fleet, "w-1", status, Vec::new()).await;
    let answer = why(&fleet, "q2").await;
    assert_eq!(codes(&answer), [Reason::MisplacedKeys, Reason::QueuedBehind]);
    let message = &answer.findings[0].message;
    assert!(message.contains(example) && message.contains("murmur2_random"), "{message}");
}

/// The clock of a worker decides neither its state nor the age of its heartbeat, and is shown.
#[tokio::test]
async fn worker_with_a_wrong_clock_is_alive_and_its_clock_is_named() {
    for ahead_ms in [-86_400_000_i64, -90_000, 90_000, 86_400_000] {
        let fleet = fleet().await;
        fleet.echo("a").await;
        let started = |event: &mut Event| (event.attempt, event.worker) = (1, Some("w-7".into()));
        fleet.publish_event("a", Kind::Started, started).await;
        let part = json!({"type": "echo", "slots": 4, "in_flight": 1, "waiting": 0, "paused": false, "partitions": [0, 1],
            "finished": {}});
        send_heartbeat_by(&fleet, "w-7", part, Vec::new(), ahead_ms).await;
        let workers: Value = fleet.get("/v1/workers").await;
        let worker = &workers["workers"][0];
        assert_eq!(worker["state"], "alive", "{worker}");
        assert!(worker["age_ms"].as_i64().is_some_and(|age| (0..60_000).contains(&age)), "{worker}");
        let shown = worker["clock_ahead_ms"].as_i64().unwrap();
        assert!((shown - ahead_ms).abs() < 60_000, "{worker}");
        let message = why(&fleet, "a").await.findings.remove(0).message;
        let direction = if ahead_ms > 0 { "s ahead of the brokers'" } else { "s behind the brokers'" };
        assert!(message.contains("the clock of that machine is ") && message.contains(direction), "{message}");
    }
}

#[tokio::test]
async fn running_task_reports_its_last_heartbeat() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet
        .publish_event("a", Kind::Started, |event| {
            (event.attempt, event.worker) = (1, Some("w-7".into()));
            event.at_ms -= 600_000;
        })
        .await;
    let quiet = why(&fleet, "a").await;
    assert!(quiet.findings[0].message.contains("its worker has sent no heartbeat"), "{}", quiet.findings[0].message);
    send_heartbeat_of(&fleet, "w-7", 4, 1, &["a"]).await;
    let answer = why(&fleet, "a").await;
    let first = &answer.findings[0];
    assert!(first.message.contains("process 42 on `host-1`, was "), "{}", first.message);
    assert!(first.quiet_ms.is_some_and(|quiet| quiet < 300_000), "the heartbeat lists the task: {:?}", first.quiet_ms);
}
