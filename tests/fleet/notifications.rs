//! Callbacks and state checks, from the submitted task to the receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kafleet::config::{CallbacksConfig, SecretConfig};
use kafleet::handlers::TypeRegistration;
use kafleet::handlers::builtin::callback::{Callbacks, TYPE, signature};
use kafleet::model::record::state::State;
use kafleet_testkit::names::unique;
use kafleet_testkit::processes::{ProcessFleet, eventually_running_blocking};
use serde_json::{Value, json};

use crate::fleet::http_receiver::{Call, Receiver};
use crate::fleet::in_process::{Fleet, brokers, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Callback type that may call this machine and retries soon.
pub fn callbacks() -> TypeRegistration {
    let secret =
        SecretConfig { value: Some(SECRET.into()), hosts: vec!["127.0.0.1".into()], ..SecretConfig::default() };
    let config = CallbacksConfig {
        private: vec!["127.0.0.0/8".into()],
        plain_http: true,
        secrets: [("billing".to_owned(), secret)].into(),
        ..CallbacksConfig::default()
    };
    let mut registered = Callbacks::registered(&config, None).unwrap();
    registered.policy.min_backoff = "50ms".parse().unwrap();
    registered
}

async fn post(fleet: &Fleet, path: &str, body: &Value) -> (u16, Value) {
    let client = kafleet_testkit::http::client();
    let response = client.post(format!("{}{path}", fleet.api)).json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// State, outcome and attempts of a task's deliveries, oldest first, once there are this many and none is pending.
pub async fn completed_deliveries(fleet: &Fleet, task: &str, count: usize) -> Vec<(String, String, u64)> {
    eventually(&format!("all deliveries of `{task}` are complete"), || async {
        // The task may not be folded yet.
        let (code, status) = fleet.response(&format!("/v1/tasks/{task}")).await;
        let status: Value = serde_json::from_str(&status).ok().filter(|_| code == 200)?;
        let items = status["deliveries"]["items"].as_array()?.clone();
        let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
        let done = items.len() == count && items.iter().all(|item| item["outcome"] != "pending");
        let of =
            |item: &Value| (text(item, "state"), text(item, "outcome"), item["attempts"].as_u64().unwrap_or_default());
        done.then(|| items.iter().rev().map(of).collect())
    })
    .await
}

fn assert_signed(call: &Call) {
    let signed = signature(SECRET, call.id(), call.header("webhook-timestamp"), &call.body).unwrap();
    assert_eq!(call.header("webhook-signature"), signed);
    assert!(!call.body.contains("whsec_") && !call.body.contains("${"), "a secret or its name leaked: {}", call.body);
}

async fn each_transition_is_delivered_once(mut fleet: Fleet) {
    let receiver = Receiver::start().await;
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    let to = |path: &str| json!({"url": format!("{}/{path}", receiver.url), "secret": "billing", "headers": {"x-key": "k-${billing}"}});
    let (mut flaky, mut broken) = (to("flaky"), to("broken"));
    (flaky["timeout"], broken["retries"]) = (json!("20s"), json!(1));
    let task = json!({
        "type": "leaf", "id": "t", "params": {"held": false, "fails": true}, "name": "a leaf", "options": {"ticket": 7},
        "actions": [{"on": ["failed"], "callback": to("ok")}, {"on": ["failed"], "callback": flaky}, {"on": ["failed"], "callback": broken}],
    });
    let (code, created) = post(&fleet, "/v1/tasks", &task).await;
    assert_eq!(code, 201, "{created}");
    let failed = |outcome: &str, attempts| ("failed".to_owned(), outcome.to_owned(), attempts);
    let first = [failed("delivered", 1), failed("delivered", 2), failed("failed", 2)];
    assert_eq!(completed_deliveries(&fleet, "t", 3).await, first);
    let call = receiver.calls("ok").remove(0);
    assert_signed(&call);
    assert_eq!(call.header("x-key"), format!("k-{SECRET}"));
    let (body, data) = (call.json(), call.json()["data"].clone());
    assert_eq!(
        (&body["type"], &data["id"], &data["state"], &data["run"]),
        (&json!("task.state"), &json!("t"), &json!("failed"), &json!(1))
    );
    assert_eq!(
        (&data["name"], &data["options"]["ticket"], &data["type"]),
        (&json!("a leaf"), &json!(7), &json!("leaf"))
    );
    assert!(data["error"]["message"].is_string() && body["timestamp"].is_string(), "{body}");
    let attempts = receiver.calls("flaky");
    assert_eq!(
        (attempts.len(), attempts[0].id(), &attempts[0].body),
        (2, attempts[1].id(), &attempts[1].body),
        "a retry repeats id and body"
    );
    attempts.iter().for_each(assert_signed);
    // An undeliverable callback becomes a dead letter with its reason.
    let status = fleet.get("/v1/tasks/t").await;
    let item = &status["deliveries"]["items"][0];
    assert_eq!((&item["error"]["kind"], &item["rule"]), (&json!("http_status"), &json!("actions/2")), "{item}");
    let dead = eventually("the dead letter is listed", || async {
        fleet.get(&format!("/v1/dead-letters?type={TYPE}")).await["letters"]
            .as_array()
            .filter(|all| !all.is_empty())
            .cloned()
    })
    .await;
    assert_eq!((dead.len(), &dead[0]["task"]), (1, &item["id"]), "{dead:?}");
    // A failure in the next run is another transition.
    let (code, _) = post(&fleet, "/v1/tasks/t/retry", &json!({})).await;
    assert_eq!(code, 202);
    let twice = [first.clone(), first].concat();
    assert_eq!(completed_deliveries(&fleet, "t", 6).await, twice);
    assert_eq!(receiver.ids("ok").values().collect::<Vec<_>>(), [&1, &1]);
    assert_eq!(receiver.calls("ok")[1].json()["data"]["run"], json!(2));
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// A parent's state includes its children's; a check evaluates the state at its time, terminal or not.
async fn parents_notify_and_checks_evaluate_the_current_state(mut fleet: Fleet) {
    let receiver = Receiver::start().await;
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    let notify = |path: &str| json!({"callback": {"url": format!("{}/{path}", receiver.url)}});
    let check = |expect: &[&str]| json!({"after": "1500ms", "expect": expect, "passed": notify("passed"), "failed": notify("missed")});
    // The task stays open until the gate is opened, whenever its checks are due.
    let open = ["queued", "running", "waiting_for_children"];
    let task = json!({
        "type": "branch", "id": "r", "params": {"widths": [2], "held": [1], "failing": null, "next": null},
        "actions": [{"on": ["waiting_for_children"], "callback": notify("ok")["callback"]}, notify("ended")],
        "checks": [check(&["succeeded"]), check(&open)],
    });
    let (code, created) = post(&fleet, "/v1/tasks", &task).await;
    assert_eq!(code, 201, "{created}");
    let deliveries = completed_deliveries(&fleet, "r", 3).await;
    assert!(
        deliveries
            .iter()
            .all(|(state, outcome, times)| open.contains(&state.as_str()) && outcome == "delivered" && *times == 1),
        "{deliveries:?}"
    );
    assert_eq!(
        fleet.record("r").await.unwrap().state,
        State::WaitingForChildren,
        "a check is evaluated before the task's end"
    );
    let (missed, passed) = (receiver.calls("missed"), receiver.calls("passed"));
    assert_eq!((missed.len(), passed.len(), receiver.calls("ok").len(), receiver.calls("ended").len()), (1, 1, 1, 0));
    let (body, passed) = (missed[0].json(), passed[0].json());
    let expected = json!({"number": 0, "expected": ["succeeded"], "passed": false});
    assert_eq!((&body["type"], &body["data"]["check"]), (&json!("task.check"), &expected));
    assert_eq!((&passed["data"]["check"]["number"], &passed["data"]["check"]["passed"]), (&json!(1), &json!(true)));
    assert_eq!(missed[0].header("webhook-signature"), "", "the callback has no secret");
    fleet.gate.open();
    let deliveries = completed_deliveries(&fleet, "r", 4).await;
    assert_eq!(deliveries[3], ("succeeded".to_owned(), "delivered".to_owned(), 1));
    assert_eq!(receiver.calls("ended").len(), 1);
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// Notifications of scheduled tasks and of their continuations.
async fn scheduled_tasks_and_continuations_notify(mut fleet: Fleet) {
    let receiver = Receiver::start().await;
    let follows = |path: &str| {
        let callback = json!({"url": format!("{}/{path}", receiver.url)});
        json!({"type": "echo", "actions": [{"on": ["succeeded"], "callback": callback}]})
    };
    let with =
        |task: Value| json!({"id": "s", "spec": {"every": "1d", "start_at": "2090-01-01T00:00:00Z", "task": task}});
    let (code, problem) = post(&fleet, "/v1/schedules", &with(follows("ok"))).await;
    let nobody = (404, &json!("unknown_type"), &json!("/spec/task/actions/0"));
    assert_eq!((code, &problem["code"], &problem["pointer"]), nobody, "{problem}");
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    let mut wrong = json!({"type": "echo", "then": [follows("ok")]});
    wrong["then"][0]["actions"][0]["callback"]["secret"] = json!("none");
    let pointer = "/spec/task/then/0/actions/0/callback/secret";
    let (code, problem) = post(&fleet, "/v1/schedules", &with(wrong.clone())).await;
    assert_eq!((code, problem["pointer"].as_str()), (400, Some(pointer)), "{problem}");
    let (code, problem) = post(&fleet, "/v1/tasks", &wrong).await;
    assert_eq!((code, problem["pointer"].as_str()), (400, Some("/then/0/actions/0/callback/secret")), "{problem}");
    let mut task = follows("task");
    task["then"] = json!([follows("then")]);
    let check = json!({"url": format!("{}/check", receiver.url)});
    task["checks"] = json!([{"after": "1ms", "expect": ["failed"], "failed": {"callback": check}}]);
    let (code, made) = post(&fleet, "/v1/schedules", &with(task)).await;
    assert_eq!(code, 201, "{made}");
    let run = eventually("the API knows the schedule", || async {
        post(&fleet, "/v1/schedules/s/trigger", &Value::Null).await.1["tasks"][0].as_str().map(str::to_owned)
    });
    let run = run.await;
    let deliveries = completed_deliveries(&fleet, &run, 2).await;
    assert!(deliveries.iter().all(|(_, outcome, _)| outcome == "delivered"), "{deliveries:?}");
    assert_eq!(
        completed_deliveries(&fleet, &format!("{run}:then"), 1).await,
        [("succeeded".to_owned(), "delivered".to_owned(), 1)]
    );
    for path in ["task", "then", "check"] {
        assert_eq!(receiver.calls(path).len(), 1, "{path}");
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// A short attempt writes no `started` event, and its result may be folded before its announcement.
async fn short_tasks_notify_each_state_once_and_in_order(mut fleet: Fleet) {
    const TASKS: usize = 40;
    const STATES: [&str; 3] = ["queued", "running", "succeeded"];
    let receiver = Receiver::start().await;
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    let tasks: Vec<String> = (0..TASKS).map(|n| format!("quick-{n}")).collect();
    for task in &tasks {
        let action = json!({"on": STATES, "callback": {"url": format!("{}/ok", receiver.url)}});
        let (code, created) =
            post(&fleet, "/v1/tasks", &json!({"type": "echo", "id": task, "actions": [action]})).await;
        assert_eq!(code, 201, "{created}");
    }
    for task in &tasks {
        let deliveries = completed_deliveries(&fleet, task, STATES.len()).await;
        let deliveries: Vec<_> =
            deliveries.iter().map(|(state, outcome, _)| (state.as_str(), outcome.as_str())).collect();
        assert_eq!(deliveries, STATES.map(|state| (state, "delivered")), "{task}");
        let history = fleet.get(&format!("/v1/tasks/{task}/history")).await;
        let events: Vec<_> = history["events"].as_array().unwrap().iter().collect();
        assert_eq!(
            (&events[0]["kind"], events.iter().any(|event| event["ignored"] == true)),
            (&json!("submitted"), false)
        );
    }
    let mut calls: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for call in receiver.calls("ok") {
        calls.entry(call.json()["data"]["state"].as_str().unwrap().to_owned()).or_default().push(call.json());
    }
    let counts: Vec<_> = STATES.iter().map(|state| (*state, calls.get(*state).map_or(0, Vec::len))).collect();
    assert_eq!(counts, STATES.map(|state| (state, TASKS)));
    for (n, state) in STATES.into_iter().enumerate() {
        assert!(calls[state].iter().all(|body| body["data"]["change"] == n + 1), "{state}");
    }
    for body in calls.values().flatten() {
        let (sent, created) = (body["timestamp"].as_str().unwrap(), body["data"]["created_at"].as_str().unwrap());
        assert!(sent >= created, "{body}");
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    short_tasks_notify_each_state_once_and_in_order,
    scheduled_tasks_and_continuations_notify,
    each_transition_is_delivered_once,
    parents_notify_and_checks_evaluate_the_current_state,
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_callbacks_are_refused() {
    let mut fleet = Fleet::in_memory().await;
    let with = |callback: Value| json!({"type": "echo", "id": "a", "actions": [{"callback": callback}]});
    let (code, problem) = post(&fleet, "/v1/tasks", &with(json!({"url": "https://example.com"}))).await;
    assert_eq!(
        (code, &problem["code"], &problem["pointer"]),
        (404, &json!("unknown_type"), &json!("/actions/0")),
        "{problem}"
    );
    assert!(problem["hint"].as_str().unwrap().contains("[callbacks]"), "{problem}");
    fleet.add_type(TYPE, callbacks()).await;
    for (callback, pointer, expected) in [
        (json!({"url": "nonsense"}), "/url", "not a url"),
        (json!({"url": "http://10.0.0.1/x"}), "/url", "private"),
        (json!({"url": "https://example.com", "secret": "none"}), "/secret", "no secret `none`"),
        (json!({"url": "https://example.com", "secret": "billing"}), "/secret", "is not allowed for `example.com`"),
        (
            json!({"url": "https://example.com", "headers": {"Cookie": "a=b"}}),
            "/headers/Cookie",
            "must not contain a secret",
        ),
    ] {
        let (code, problem) = post(&fleet, "/v1/tasks", &with(callback.clone())).await;
        let pointer = format!("/actions/0/callback{pointer}");
        assert_eq!((code, problem["pointer"].as_str()), (400, Some(pointer.as_str())), "{callback}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{callback}: {problem}");
    }
    let check =
        json!({"after": "60d", "expect": ["succeeded"], "failed": {"callback": {"url": "https://example.com"}}});
    let (code, problem) = post(&fleet, "/v1/tasks", &json!({"type": "echo", "checks": [check]})).await;
    assert_eq!((code, &problem["pointer"]), (400, &json!("/checks/0")), "{problem}");
    fleet.stop().await;
}

/// A tracker killed while it publishes callbacks: each transition is delivered, under one id.
#[tokio::test(flavor = "multi_thread")]
async fn killed_tracker_loses_no_callback() {
    const TASKS: usize = 60;
    let Some(brokers) = brokers() else { return };
    let receiver = Receiver::start().await;
    let types = "[callbacks]\nprivate = [\"127.0.0.0/8\"]\nplain_http = true\n[types.echo]\nhandler = \"echo\"\n";
    let fleet = ProcessFleet::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers, unique("fleet"), types);
    let mut tracker = fleet.start("tracker");
    let mut running = [fleet.start("api"), fleet.start("worker")];
    eventually_running_blocking("the API responds", &mut running, || {
        fleet.command(&["types", "-o", "json"]).output().unwrap().status.success()
    });
    let lines = (0..TASKS).map(|n| {
        let action = json!({"callback": {"url": format!("{}/ok", receiver.url)}});
        json!({"type": "echo", "id": format!("t-{n}"), "params": n, "actions": [action]}).to_string() + "\n"
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.collect::<String>()).unwrap();
    fleet.run(&["submit", "--file", file.path().to_str().unwrap()]);
    eventually_running_blocking("the first callback arrives", &mut running, || !receiver.calls("ok").is_empty());
    tracker.kill();
    let _next = fleet.start("tracker");
    let notified = || {
        receiver
            .calls("ok")
            .iter()
            .map(|call| call.json()["data"]["id"].as_str().unwrap().to_owned())
            .collect::<BTreeSet<_>>()
    };
    eventually_running_blocking("every task's callback arrives", &mut running, || notified().len() == TASKS);
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in receiver.calls("ok") {
        ids.entry(call.json()["data"]["id"].as_str().unwrap().to_owned()).or_default().insert(call.id().to_owned());
    }
    let twice: Vec<_> = ids.iter().filter(|(_, ids)| ids.len() != 1).collect();
    assert!(twice.is_empty(), "each transition has one id: {twice:?}");
}
