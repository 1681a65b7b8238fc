//! Operator commands over the API (cancels, pauses, limits, kill switches) and worker status.

use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition, ProducerRecord, Record};
use kafleet::config::{AdaptiveOverride, RateBy};
use kafleet::documents::{Audit, CancelOutcome, KillSwitches, Reason, TypeDocument, Types, Why, WorkerState, Workers};
use kafleet::model::event::{Event, Kind};
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::{Client, problem};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};

impl Client {
    /// Sends a request that must succeed; returns its status and document.
    async fn call(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let answer = self.request(method, path).json(&body).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path}: {status} {text}");
        (status.as_u16(), serde_json::from_str(&text).unwrap())
    }

    async fn type_of(&self, name: &str) -> TypeDocument {
        let types: Types = self.get("/v1/types").await;
        types.types.into_iter().find(|document| document.name == name).unwrap()
    }
}

impl Fleet {
    /// Returns the last control record of a key; `None` if it is absent or deleted.
    pub fn control(&self, key: &str) -> Option<Value> {
        let partition = Partition::new(self.names.control(), 0);
        let end = self.log.watermarks(&partition, DEADLINE).unwrap().high;
        let records = (0..end).filter_map(|offset| self.record(&partition, offset));
        let last: Option<Record> = records.filter(|record| record.key.as_deref() == Some(key.as_bytes())).last();
        serde_json::from_slice(&last?.value?).unwrap()
    }

    /// Returns the control record of a cancel. The tracker deletes it two seconds after the last task of the tree has
    /// left the workers.
    fn cancel_told(&self, id: &str) -> Option<Value> {
        let (partition, key) = (Partition::new(self.names.control(), 0), format!("cancel/{id}"));
        let end = self.log.watermarks(&partition, DEADLINE).unwrap().high;
        let mut records = (0..end).filter_map(|offset| self.record(&partition, offset));
        let first = records.find(|record| record.key.as_deref() == Some(key.as_bytes()))?;
        serde_json::from_slice(&first.value?).unwrap()
    }
}

fn outcome(answer: Value) -> CancelOutcome {
    serde_json::from_value(answer).unwrap()
}

#[tokio::test]
async fn cancel_is_written_to_history_and_control_topic() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.echo("r:c").await;
    // A worker runs the task; otherwise it would end two seconds after the request.
    fleet.publish_event("r", Kind::Started, |event| (event.attempt, event.worker) = (1, Some("w-1".into()))).await;
    fleet.folded().await;
    let (status, answer) = fleet.call(Method::POST, "/v1/tasks/r/cancel", json!({"reason": "enough"})).await;
    let answer = outcome(answer);
    assert_eq!((status, answer.id.as_str(), answer.already_requested), (202, "r", Some(false)));
    let partition: kafleet::model::task::Position = answer.position.parse().unwrap();
    let record = fleet.record(&fleet.events(partition), partition.offset).unwrap();
    let event = Event::decode(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(
        (event.kind(), event.id.as_str(), event.message.as_deref()),
        (Kind::CancelRequested, "r", Some("enough"))
    );
    eventually("the cancel is on the control topic", async || fleet.cancel_told("r").is_some()).await;
    let control = fleet.cancel_told("r").unwrap();
    assert_eq!(
        (&control["v"], &control["asof"], &control["reason"]),
        (&json!(1), &json!(partition.offset), &json!("enough"))
    );
    assert_eq!(control.get("subtree"), None, "`subtree` defaults to true");
    // The repeat has no effect and reports the earlier request.
    fleet.folded().await;
    let (status, again) = fleet.call(Method::POST, "/v1/tasks/r/cancel", json!({})).await;
    assert_eq!((status, outcome(again)), (200, CancelOutcome { already_requested: Some(true), ..answer }));
}

#[tokio::test]
async fn single_and_external_tasks_can_be_cancelled() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    let (status, _) = fleet.call(Method::POST, "/v1/tasks/r/cancel", json!({"subtree": false})).await;
    assert_eq!(status, 202);
    eventually("the cancel is on the control topic", async || fleet.cancel_told("r").is_some()).await;
    assert_eq!(fleet.cancel_told("r").unwrap()["subtree"], json!(false));
    fleet.create(json!({"type": "review", "id": "e", "external": true})).await;
    fleet.folded().await;
    let answer = fleet.request(Method::POST, "/v1/tasks/e/cancel").send().await.unwrap();
    assert_eq!(answer.status(), 202, "the body is optional");
    eventually("the cancel is on the control topic", async || fleet.cancel_told("e").is_some()).await;
}

#[tokio::test]
async fn impossible_cancels_are_rejected_with_their_reasons() {
    let fleet = fleet().await;
    fleet.echo("done").await;
    fleet.succeed("done", json!(1)).await;
    fleet.folded().await;
    let post = |path: &str| fleet.request(Method::POST, path).json(&json!({}));
    for (path, status, code) in [
        ("/v1/tasks/done/cancel", 409, "already_finished"),
        ("/v1/tasks/nobody/cancel", 404, "not_found"),
        ("/v1/tasks/a%20b/cancel", 400, "bad_id"),
    ] {
        let answer = problem(post(path)).await;
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{path}");
    }
    assert_eq!(fleet.control("cancel/done"), None);
    let answer = problem(fleet.request(Method::POST, "/v1/tasks/done/cancel").json(&json!({"tree": true}))).await;
    assert_eq!(answer.code, "unknown_field");
    let answer =
        problem(fleet.request(Method::POST, "/v1/tasks/done/cancel").json(&json!({"reason": "x".repeat(2_001)}))).await;
    assert_eq!((answer.code.as_str(), answer.pointer.as_deref()), ("bad_field", Some("/reason")));
}

/// Without tokens every request that reaches the API may do everything, so that a page of another site must not send one.
#[tokio::test]
async fn requests_from_pages_of_other_sites_are_refused() {
    let fleet = fleet().await;
    for (method, path) in [
        (Method::POST, "/v1/tasks/done/cancel"),
        (Method::POST, "/v1/schedules/nightly/trigger"),
        (Method::POST, "/v1/schedules/nightly/backfill?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z"),
        (Method::POST, "/v1/dead-letters/echo:0:0/drop"),
        (Method::POST, "/v1/types/echo/resume"),
        (Method::DELETE, "/v1/schedules/nightly"),
    ] {
        let request = || fleet.request(method.clone(), path);
        let answer = problem(request().header("origin", "http://evil.example")).await;
        assert_eq!(answer.code, "unsupported_media_type", "{path}");
    }
}

#[tokio::test]
async fn pause_is_shown_until_resumed() {
    let fleet = fleet().await;
    let (_, paused) = fleet.call(Method::POST, "/v1/types/echo/pause", json!({"reason": "the disk is full"})).await;
    assert_eq!(paused["paused"]["reason"], json!("the disk is full"));
    assert!(fleet.control("pause/echo").is_some() && fleet.type_of("echo").await.paused.is_some());
    assert_eq!(fleet.type_of("resize").await.paused, None);
    fleet.call(Method::POST, "/v1/types/echo/resume", json!({})).await;
    assert_eq!((fleet.control("pause/echo"), fleet.type_of("echo").await.paused), (None, None));
    let answer = problem(fleet.request(Method::POST, "/v1/types/ehco/pause").json(&json!({}))).await;
    assert_eq!((answer.code.as_str(), answer.hint.unwrap().contains("`echo`")), ("unknown_type", true));
}

#[tokio::test]
async fn why_names_pauses_and_kill_switches() {
    let fleet = fleet().await;
    fleet.echo("batch-7").await;
    fleet.call(Method::POST, "/v1/types/echo/pause", json!({"reason": "a look"})).await;
    fleet.call(Method::PUT, "/v1/kill-switches/batch-", json!({})).await;
    let answer: Why = fleet.get("/v1/tasks/batch-7/why").await;
    let codes: Vec<Reason> = answer.findings.iter().map(|finding| finding.code).take(2).collect();
    assert_eq!(codes, [Reason::Paused, Reason::MatchesKillSwitch]);
    assert!(
        answer.findings[0].message.contains(": a look; resume it with `kafleet types resume echo`"),
        "{:?}",
        answer.findings[0]
    );
}

#[tokio::test]
async fn limits_are_replaced_as_a_whole_and_name_their_source() {
    let fleet = fleet().await;
    let body = json!({"slots": 3, "rate": {"count": 10, "per": "1m", "by": "key"}});
    fleet.call(Method::PUT, "/v1/types/echo/limits", body).await;
    let limits = fleet.type_of("echo").await.limits;
    assert_eq!(
        (limits.slots, limits.max_concurrency, limits.live),
        (Some(3), None, vec!["slots".into(), "rate".into()])
    );
    let rate = limits.rate.unwrap();
    assert_eq!((rate.count, rate.burst, rate.by), (10, 1, RateBy::Key));
    fleet.call(Method::PUT, "/v1/types/echo/limits", json!({"max_concurrency": 2})).await;
    let limits = fleet.type_of("echo").await.limits;
    assert_eq!((limits.slots, limits.max_concurrency, limits.rate), (None, Some(2), None));
    fleet.call(Method::PUT, "/v1/types/echo/limits", json!({"reason": "back to normal"})).await;
    assert_eq!((fleet.control("slots/echo"), fleet.control("rate/echo")), (None, None));
    for (body, code, pointer) in [
        (json!({"max_concurrency": 1}), "limit_too_small", Some("/max_concurrency")),
        (json!({"slots": 0}), "bad_field", Some("/slots")),
        (json!({"rate": {"count": 0}}), "bad_field", Some("/rate")),
        (json!({"rate": {"count": 1, "each": "1s"}}), "unknown_field", Some("/rate/each")),
        (json!({"adaptive": 0}), "bad_field", Some("/adaptive")),
        (json!({"slot": 1}), "unknown_field", None),
    ] {
        let answer = problem(fleet.request(Method::PUT, "/v1/types/echo/limits").json(&body)).await;
        assert_eq!(answer.code, code, "{body}: {answer:?}");
        assert!(pointer.is_none() || answer.pointer.as_deref() == pointer, "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn learned_limit_is_replaced_and_returns() {
    let fleet = fleet().await;
    fleet.call(Method::PUT, "/v1/types/echo/limits", json!({"adaptive": "off"})).await;
    let limits = fleet.type_of("echo").await.limits;
    assert_eq!((limits.adaptive, limits.live), (Some(AdaptiveOverride::OFF), vec!["adaptive".into()]));
    fleet.call(Method::PUT, "/v1/types/echo/limits", json!({"adaptive": 50})).await;
    assert_eq!(fleet.type_of("echo").await.limits.adaptive, Some(AdaptiveOverride::Limit(50)));
    fleet.call(Method::PUT, "/v1/types/echo/limits", json!({})).await;
    assert_eq!((fleet.control("slots/echo"), fleet.type_of("echo").await.limits.adaptive), (None, None));
}

#[tokio::test]
async fn types_without_circuits_per_host_refuse_one() {
    let fleet = fleet().await;
    let body = json!({"state": "open", "host": "hooks.example.com"});
    let answer = problem(fleet.request(Method::PUT, "/v1/types/echo/circuit").json(&body)).await;
    assert_eq!((answer.code.as_str(), answer.pointer.as_deref()), ("bad_field", Some("/host")));
    assert_eq!(fleet.control("circuit/echo/hooks.example.com"), None);
    fleet.call(Method::PUT, "/v1/types/echo/circuit", json!({"state": "open", "host": ""})).await;
    assert!(fleet.control("circuit/echo").is_some(), "an empty host is none");
}

#[tokio::test]
async fn kill_switches_are_listed_and_deleted() {
    let fleet = fleet().await;
    fleet.call(Method::PUT, "/v1/kill-switches/batch%2F7", json!({"type": "echo", "reason": "bad input"})).await;
    let kills: KillSwitches = fleet.get("/v1/kill-switches").await;
    assert_eq!((kills.kills[0].name.as_str(), kills.kills[0].task_type.as_deref()), ("batch/7", Some("echo")));
    assert_eq!(
        (fleet.type_of("echo").await.kills, fleet.type_of("resize").await.kills),
        (vec!["batch/7".into()], Vec::new())
    );
    fleet.call(Method::DELETE, "/v1/kill-switches/batch%2F7", json!({})).await;
    assert_eq!(
        (fleet.get::<KillSwitches>("/v1/kill-switches").await.kills, fleet.control("kill/batch/7")),
        (Vec::new(), None)
    );
    for (method, path, code) in [
        (Method::DELETE, "/v1/kill-switches/nothing", "unknown_kill_switch"),
        (Method::PUT, "/v1/kill-switches/a%2Cb", "bad_kill_switch"),
    ] {
        assert_eq!(problem(fleet.request(method, path).json(&json!({}))).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn kill_switch_on_params_is_shown_and_explained() {
    let fleet = fleet().await;
    let body = json!({"type": "echo", "params": {"/customer/id": 42, "/kind": "import"}, "reason": "wrong prices"});
    let (status, set) = fleet.call(Method::PUT, "/v1/kill-switches/bad-import", body.clone()).await;
    assert_eq!((status, &set["params"], &set["matches"]), (200, &body["params"], &Value::Null));
    assert_eq!(fleet.get::<Value>("/v1/kill-switches").await["kills"][0], set);
    let record = fleet.control("kill/bad-import").unwrap();
    assert_eq!((&record["params"], &record["matches"]), (&body["params"], &json!("tag")), "for older builds");
    for (id, params) in [
        ("hit", json!({"customer": {"id": 42.0}, "kind": "import"})),
        ("bad-import", json!({"customer": {"id": 42}, "kind": "export"})),
    ] {
        fleet.create(json!({"type": "echo", "id": id, "params": params, "tags": ["bad-import"]})).await;
    }
    fleet.folded().await;
    let answer: Why = fleet.get("/v1/tasks/hit/why").await;
    let finding = &answer.findings[0];
    let expected = "the kill switch `bad-import` matches the task by its params at `/customer/id` and at `/kind`: wrong prices; it \
                    will be cancelled";
    assert_eq!((finding.code, finding.message.as_str()), (Reason::MatchesKillSwitch, expected));
    let answer: Why = fleet.get("/v1/tasks/bad-import/why").await;
    assert!(answer.findings.iter().all(|finding| finding.code != Reason::MatchesKillSwitch), "{:?}", answer.findings);
    let audit: Audit = fleet.get("/v1/audit?action=set_kill_switch").await;
    let reason = "params of echo: `/customer/id` = 42, `/kind` = \"import\"; wrong prices";
    assert_eq!(audit.requests[0].reason.as_deref(), Some(reason));
}

#[tokio::test]
async fn invalid_kill_switch_on_params_is_refused() {
    let fleet = fleet().await;
    let five = json!({"/a": 1, "/b": 1, "/c": 1, "/d": 1, "/e": 1});
    for (body, pointer, reason) in [
        (json!({"type": "echo", "params": {"customer": 1}}), "/params", "`customer` is not a JSON pointer"),
        (json!({"type": "echo", "params": {"/a~x": 1}}), "/params", "a `~` must be written `~0`"),
        (json!({"type": "echo", "params": five}), "/params", "at most 4 params, not 5"),
        (json!({"type": "echo", "params": {"/a": "x".repeat(2_000)}}), "/params", "longer than 1024 bytes"),
        (json!({"type": "echo", "params": [1]}), "/params", "expected an object"),
        (json!({"params": {"/a": 1}}), "/type", "`params` need the type"),
        (json!({"type": "Echo!", "params": {"/a": 1}}), "/type", ""),
        (json!({"type": "echo", "matches": "tag", "params": {"/a": 1}}), "/matches", "leave out `matches`"),
    ] {
        let answer = problem(fleet.request(Method::PUT, "/v1/kill-switches/x").json(&body)).await;
        assert_eq!(
            (answer.code.as_str(), answer.pointer.as_deref()),
            ("bad_field", Some(pointer)),
            "{body}: {answer:?}"
        );
        assert!(answer.detail.contains(reason), "{body}: {answer:?}");
    }
    assert_eq!(fleet.control("kill/x"), None);
    for (query, reason) in [
        ("params=%7B%22%2Fa%22%3A1%7D", "`params` need the type"),
        ("type=echo&params=1", "`params`"),
        ("type=echo&params=%7B%22a%22%3A1%7D", "it must begin with `/`"),
    ] {
        let answer = fleet.problem(&format!("/v1/kill-switches/x/preview?{query}")).await;
        assert!(answer.code == "bad_parameter" && answer.detail.contains(reason), "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn workers_are_listed_with_their_state() {
    let fleet = fleet().await;
    let producer = SharedProducer::open(fleet.log.clone(), None).unwrap();
    let heartbeat = |id: &str, state: &str, every_ms: u64| {
        json!({"v": 1, "id": id, "host": "h", "pid": 1, "version": "0.1.0", "state": state, "started_ms": now_ms() - 5_000,
            "at_ms": now_ms(), "every_ms": every_ms, "held_bytes": 7,
            "types": [{"type": "echo", "slots": 8, "in_flight": 3, "waiting": 0, "paused": false, "partitions": [0], "finished": {}}],
            "running": [{"id": "t", "type": "echo", "attempt": 2, "started_ms": now_ms()}]})
    };
    let topic = fleet.names.workers();
    for (id, heartbeat) in [
        ("a", Some(heartbeat("a", "running", 60_000))),
        ("b", Some(heartbeat("b", "running", 0))),
        ("c", Some(heartbeat("c", "draining", 60_000))),
        ("d", Some(heartbeat("d", "stopped", 60_000))),
        ("gone", Some(heartbeat("gone", "running", 60_000))),
        ("gone", None),
        ("odd", Some(json!("nonsense"))),
    ] {
        let value = heartbeat.map(|heartbeat| heartbeat.to_string());
        let value = value.as_deref().map(str::as_bytes);
        let record =
            ProducerRecord { topic: &topic, partition: Some(0), key: Some(id.as_bytes()), value, headers: &[] };
        producer.deliver(record, DEADLINE).await.unwrap();
    }
    use WorkerState::{Alive, Draining, Silent, Stopped};
    let expected =
        [("a", Alive), ("c", Draining), ("b", Silent), ("d", Stopped)].map(|(id, state)| (id.to_owned(), state));
    eventually("the workers are listed", async || {
        let shown: Workers = fleet.get("/v1/workers").await;
        shown.workers.iter().map(|worker| (worker.id.clone(), worker.state)).collect::<Vec<_>>() == expected
    })
    .await;
    let shown: Workers = fleet.get("/v1/workers").await;
    let first = &shown.workers[0];
    assert_eq!((first.in_flight, first.running[0].attempt, first.types[0].slots), (3, 2, 8));
    let worker_totals = fleet.type_of("echo").await.worker_totals.unwrap();
    assert_eq!(
        (worker_totals.workers, worker_totals.slots, worker_totals.in_flight),
        (1, 8, 3),
        "stopped workers are not listed"
    );
}

#[tokio::test]
async fn limits_are_set_although_the_client_disconnects() {
    let fleet = fleet().await;
    let full = fleet.faults.full_control_topic();
    let request = fleet.request(Method::PUT, "/v1/types/echo/limits");
    let sent = tokio::spawn(request.json(&json!({"slots": 2, "rate": {"count": 5}})).send());
    eventually("the request is audited", async || !fleet.get::<Audit>("/v1/audit").await.requests.is_empty()).await;
    sent.abort();
    assert!(sent.await.unwrap_err().is_cancelled());
    full.lift();
    for key in ["slots/echo", "rate/echo"] {
        eventually("the limits are on the control topic", async || fleet.control(key).is_some()).await;
    }
}
