//! Whoever asks something of a simulated fleet, over the api or as any Kafka client.

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
use crate::story::{Seat, Story, Way};
use crate::trees::{Script, task_type};

/// By then every worker that is well has heard what the control topic says.
const HEARD: Duration = Duration::from_secs(2);

impl Fleet {
    /// None: no answer, whatever became of it.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let process = self.process(Seat::Api).filter(|process| !self.system.is_dead(*process))?;
        let router = self.router.lock().clone()?;
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = request.body(body).unwrap();
        let answer = self.system.by(process, || {
            runtime::spawn(async move {
                let response = router.oneshot(request).await.unwrap();
                let status = response.status().as_u16();
                let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap_or_default();
                (status, serde_json::from_slice(&body).unwrap_or_default())
            })
        });
        let answer = tokio::time::timeout(Duration::from_secs(40), answer).await.ok()?.ok()?;
        if answer.0 == 500 {
            self.violation(format!("{path} was answered with {answer:?}"));
        }
        self.system.note(u64::from(answer.0));
        Some(answer)
    }

    /// Again and again, as a client does that wants it done.
    pub async fn insist(&self, method: Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        for _ in 0..200 {
            match self.call(method.clone(), path, body.clone()).await {
                Some(answer) if answer.0 < 429 => return Some(answer),
                _ => tokio::time::sleep(Duration::from_millis(700)).await,
            }
        }
        self.violation(format!("{path} is not answered"));
        None
    }

    pub async fn submit(&self, root: usize, way: Way) {
        let (oak, script) = self.story.roots[root].clone();
        self.submitted.borrow_mut().insert(root, (oak, None));
        let id = Story::id(root, &[]);
        match way {
            Way::Api { delay_ms } => {
                let mut asked = json!({"type": task_type(oak), "id": id, "params": script});
                let spans = [
                    ("delay", Some(delay_ms).filter(|ms| *ms > 0)),
                    ("expires", script.expires_ms.map(|ms| ms + delay_ms)),
                    ("total_timeout", script.total_ms),
                ];
                for (name, ms) in spans {
                    asked[name] = json!(ms.map(|ms| format!("{ms}ms")));
                }
                asked["fail_fast"] = json!(script.fail_fast);
                asked["max_failed"] = json!(script.max_failed);
                asked["then"] = json!(script.asked());
                asked["actions"] = json!(script.actions);
                asked["checks"] = json!(script.checks);
                let answer = self.insist(Method::POST, "/v1/tasks", Some(asked)).await;
                if answer.as_ref().is_none_or(|answer| answer.0 >= 300) {
                    self.violation(format!("`{id}` was not taken: {answer:?}"));
                }
            }
            Way::Bare => self.submit_bare(&id, oak, &script).await,
        }
    }

    async fn submit_bare(&self, id: &str, oak: bool, script: &Script) {
        let (topic, value) = (self.names.tasks(task_type(oak)), json!(script).to_string());
        let span = |ms: Option<u64>| ms.map(|ms| format!("{ms}ms"));
        let headers = [
            (task::ID, Some(id.to_owned())),
            (task::EXPIRES, span(script.expires_ms)),
            (task::TOTAL_TIMEOUT, span(script.total_ms)),
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
        let link = SharedProducer::open(self.broker.clone(), None).unwrap();
        while link.deliver(record, CALL).await.is_err() {}
    }

    pub async fn external(&self, root: usize, fails: bool) {
        self.submitted.borrow_mut().insert(root, (self.story.roots[root].0, Some(fails)));
        let id = Story::id(root, &[]);
        self.insist(Method::POST, "/v1/tasks", Some(json!({"type": "outside", "id": id, "external": true}))).await;
        for state in ["running", if fails { "failed" } else { "succeeded" }] {
            self.insist(Method::PUT, &format!("/v1/tasks/{id}/state"), Some(json!({"state": state}))).await;
        }
    }

    /// Nothing of the type begins between the moment at which all know it and the one at which it is taken back.
    pub async fn pause_type(&self, oak: bool, ms: u64) {
        let (name, lifted) = (task_type(oak), self.lifted.get());
        let answer = self.call(Method::POST, &format!("/v1/types/{name}/pause"), None).await;
        let held = answer.is_some_and(|answer| answer.0 == 200);
        tokio::time::sleep(HEARD).await;
        self.hold_back(held && self.lifted.get() == lifted, oak, "", true);
        self.pause(ms).await;
        self.hold_back(held, oak, "", false);
        self.insist(Method::POST, &format!("/v1/types/{name}/resume"), None).await;
    }

    pub async fn kill(&self, root: usize, ms: u64) {
        let id = Story::id(root, &[]);
        self.killed.borrow_mut().insert(id.clone());
        let lifted = self.lifted.get();
        let answer = self.call(Method::PUT, &format!("/v1/kill/{id}"), None).await;
        let held = answer.is_some_and(|answer| answer.0 == 200);
        tokio::time::sleep(HEARD).await;
        for oak in [true, false] {
            self.hold_back(held && self.lifted.get() == lifted, oak, &id, true);
        }
        self.pause(ms).await;
        for oak in [true, false] {
            self.hold_back(held, oak, &id, false);
        }
        self.insist(Method::DELETE, &format!("/v1/kill/{id}"), None).await;
    }

    /// Two who ask for the same take it back for one another, also who was not heard when asking.
    fn hold_back(&self, held: bool, oak: bool, tree: &str, on: bool) {
        self.lifted.set(self.lifted.get() + u64::from(!on));
        // Whoever is frozen, or cannot read the topic, hears later.
        if (held || !on) && self.story.mood != crate::story::Mood::Wild {
            self.ledger.hold_back(task_type(oak), tree, on);
        }
    }
}
