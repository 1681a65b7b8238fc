//! Client requests to a simulated fleet, over the API or as a plain Kafka producer.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, header};
use kafleet::broker::ProducerRecord;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::model::task::header as task;
use kafleet::runtime;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fleet::{CALL, Fleet};
use crate::scenario::Scenario;
use crate::step::{ProcessId, SubmitVia};
use crate::task_types::{Script, task_type};

/// Time after which every running worker has read the control topic.
const CONTROL_DELAY: Duration = Duration::from_secs(2);

/// Request about a type: method, path and body.
type TypeRequest<'a> = (Method, &'a str, Option<Value>);

/// Client of a simulated fleet.
pub struct Client<'a> {
    pub fleet: &'a Fleet,
}

impl Client<'_> {
    /// Sends a request. Returns `None` without a response, whatever its effect.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let process = self.fleet.process(ProcessId::Api).filter(|process| !self.fleet.system.is_dead(*process))?;
        let router = self.fleet.router.lock().clone()?;
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = request.body(body).unwrap();
        let response = self.fleet.system.run_as(process, || {
            runtime::spawn(async move {
                let response = router.oneshot(request).await.unwrap();
                let status = response.status().as_u16();
                let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap_or_default();
                (status, serde_json::from_slice(&body).unwrap_or_default())
            })
        });
        let response = tokio::time::timeout(Duration::from_secs(40), response).await.ok()?.ok()?;
        if response.0 == 500 {
            self.fleet.violation(format!("{path} was answered with {response:?}"));
        }
        self.fleet.system.mix_trace(u64::from(response.0));
        Some(response)
    }

    /// Repeats the request until its response is neither 429 nor a server error.
    pub async fn repeat_call(&self, method: Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        for _ in 0..200 {
            match self.call(method.clone(), path, body.clone()).await {
                Some(response) if response.0 < 429 => return Some(response),
                _ => tokio::time::sleep(Duration::from_millis(700)).await,
            }
        }
        self.fleet.violation(format!("no response from {path}"));
        None
    }

    pub async fn submit(&self, root: usize, via: SubmitVia) {
        let (unordered, script) = self.fleet.scenario.roots[root].clone();
        self.fleet.requests.submitted.borrow_mut().insert(root, (unordered, None));
        let id = Scenario::id(root, &[]);
        match via {
            SubmitVia::Api { delay_ms } => {
                let mut body = json!({"type": task_type(unordered), "id": id, "params": script});
                let durations = [
                    ("delay", Some(delay_ms).filter(|ms| *ms > 0)),
                    ("expires", script.expires_ms.map(|ms| ms + delay_ms)),
                    ("total_timeout", script.total_timeout_ms),
                ];
                for (name, ms) in durations {
                    body[name] = json!(ms.map(|ms| format!("{ms}ms")));
                }
                body["fail_fast"] = json!(script.fail_fast);
                body["max_failed"] = json!(script.max_failed);
                body["then"] = json!(script.requested_continuations());
                body["actions"] = json!(script.actions);
                body["checks"] = json!(script.checks);
                let response = self.repeat_call(Method::POST, "/v1/tasks", Some(body)).await;
                if response.as_ref().is_none_or(|response| response.0 >= 300) {
                    self.fleet.violation(format!("`{id}` was not accepted: {response:?}"));
                }
            }
            SubmitVia::Kafka => self.submit_to_kafka(&id, unordered, &script).await,
        }
    }

    async fn submit_to_kafka(&self, id: &str, unordered: bool, script: &Script) {
        let (topic, value) = (self.fleet.names.tasks(task_type(unordered)), json!(script).to_string());
        let duration = |ms: Option<u64>| ms.map(|ms| format!("{ms}ms"));
        let headers = [
            (task::ID, Some(id.to_owned())),
            (task::EXPIRES, duration(script.expires_ms)),
            ("ce_totaltimeout", duration(script.total_timeout_ms)),
            (task::POLICY, Some(json!(script.rules()).to_string())),
        ];
        let headers: Vec<(&str, &[u8])> =
            headers.iter().filter_map(|(name, text)| Some((*name, text.as_ref()?.as_bytes()))).collect();
        let record = ProducerRecord {
            topic: &topic,
            partition: None,
            key: Some(id.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &headers,
        };
        let producer = SharedProducer::open(self.fleet.broker.clone(), None).unwrap();
        while producer.deliver(record, CALL).await.is_err() {}
    }

    pub async fn external(&self, root: usize, fails: bool) {
        self.fleet.requests.submitted.borrow_mut().insert(root, (self.fleet.scenario.roots[root].0, Some(fails)));
        let id = Scenario::id(root, &[]);
        self.repeat_call(Method::POST, "/v1/tasks", Some(json!({"type": "outside", "id": id, "external": true}))).await;
        for state in ["running", if fails { "failed" } else { "succeeded" }] {
            self.repeat_call(Method::PUT, &format!("/v1/tasks/{id}/state"), Some(json!({"state": state}))).await;
        }
    }

    pub async fn pause_type(&self, unordered: bool, ms: u64) {
        let path = |action| format!("/v1/types/{}/{action}", task_type(unordered));
        let (pause, resume) = (path("pause"), path("resume"));
        self.stop_type(unordered, ms, (Method::POST, &pause, None), (Method::POST, &resume, None)).await;
    }

    pub async fn open_circuit(&self, unordered: bool, ms: u64) {
        let path = format!("/v1/types/{}/circuit", task_type(unordered));
        let request = |state| (Method::PUT, path.as_str(), Some(json!({"state": state})));
        self.stop_type(unordered, ms, request("open"), request("auto")).await;
    }

    /// Stops a type. No attempt of it may start between the time all workers know the request and its end.
    async fn stop_type(&self, unordered: bool, ms: u64, stop: TypeRequest<'_>, resume: TypeRequest<'_>) {
        let unblocked = self.fleet.requests.unblocked.get();
        let response = self.call(stop.0, stop.1, stop.2).await;
        let accepted = response.is_some_and(|response| response.0 == 200);
        tokio::time::sleep(CONTROL_DELAY).await;
        self.set_blocked(accepted && self.fleet.requests.unblocked.get() == unblocked, unordered, "", true);
        self.fleet.sleep_during_faults(ms).await;
        self.set_blocked(accepted, unordered, "", false);
        self.repeat_call(resume.0, resume.1, resume.2).await;
    }

    /// Limits the slots of a type in each worker. The last limit that was set applies.
    pub async fn limit(&self, unordered: bool, slots: u32, ms: u64) {
        let (name, limits) = (task_type(unordered), &self.fleet.journal.limits);
        let path = format!("/v1/types/{name}/limits");
        let response = self.call(Method::PUT, &path, Some(json!({"slots": slots}))).await;
        tokio::time::sleep(CONTROL_DELAY).await;
        // Frozen or disconnected workers read it later.
        let is_known = response.is_some_and(|response| response.0 == 200);
        if is_known && self.fleet.scenario.fault_mode != crate::scenario::FaultMode::All {
            limits.lock().insert(name, slots);
        }
        self.fleet.sleep_during_faults(ms).await;
        limits.lock().remove(name);
        self.repeat_call(Method::PUT, &path, Some(json!({}))).await;
    }

    pub async fn kill(&self, root: usize, ms: u64) {
        let id = Scenario::id(root, &[]);
        self.fleet.requests.killed.borrow_mut().insert(id.clone());
        let unblocked = self.fleet.requests.unblocked.get();
        let response = self.call(Method::PUT, &format!("/v1/kill-switches/{id}"), None).await;
        let accepted = response.is_some_and(|response| response.0 == 200);
        tokio::time::sleep(CONTROL_DELAY).await;
        for unordered in [true, false] {
            self.set_blocked(accepted && self.fleet.requests.unblocked.get() == unblocked, unordered, &id, true);
        }
        self.fleet.sleep_during_faults(ms).await;
        for unordered in [true, false] {
            self.set_blocked(accepted, unordered, &id, false);
        }
        self.repeat_call(Method::DELETE, &format!("/v1/kill-switches/{id}"), None).await;
    }

    /// A pause ends for every request that set it, including one without a response.
    fn set_blocked(&self, accepted: bool, unordered: bool, tree: &str, on: bool) {
        self.fleet.requests.unblocked.set(self.fleet.requests.unblocked.get() + u64::from(!on));
        // Frozen or disconnected workers read it later.
        if (accepted || !on) && self.fleet.scenario.fault_mode != crate::scenario::FaultMode::All {
            self.fleet.offset_oracle.set_blocked(task_type(unordered), tree, on);
        }
    }
}
