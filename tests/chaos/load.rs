//! Load: trees are published, cancelled and retried during faults. Rounds of probes measure availability: each covers
//! all partitions of tasks and of events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafleet::broker::ProducerRecord;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::config::{Names, Topology};
use kafleet::model::json::RawJson;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::partition::partition_of;
use kafleet::model::task::{Policy, Rules, TaskSpec};
use kafleet::publish::{PublishError, Publisher};
use kafleet::runtime::now_ms;
use kafleet_testkit::services::connect;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::apis::Apis;
use crate::fleet::{EVENTS_PARTITIONS, PREFIX, TASK_PARTITIONS};
use crate::kafka::Cluster;
use crate::trees::{Operation, SubmitVia, Tree};

/// Time after which an unfinished tree is lost.
pub const REPLY_DEADLINE: Duration = Duration::from_secs(300);
/// Maximum number of open trees: the load pauses during an outage.
const OPEN: usize = 150;
const POLL_INTERVAL: Duration = Duration::from_millis(1_000);
const REQUEST_INTERVAL: Duration = Duration::from_secs(60);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Published tree and its outcome.
#[derive(Clone, Debug)]
pub struct PublishedTree {
    pub tree: Tree,
    /// Retried sends of its record, each of which may have been written.
    pub retried_sends: u32,
    pub error: Option<String>,
}

/// Completed round of probes.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub begun_ms: i64,
    pub ended_ms: i64,
}

pub struct Load {
    apis: Arc<Apis>,
    publisher: Publisher,
    pub published: Mutex<Vec<PublishedTree>>,
    pub rounds: Mutex<Vec<Round>>,
    /// Retried sends by id of the probe.
    pub probes: Mutex<BTreeMap<String, u32>>,
    pub errors: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Load {
    pub fn new(apis: Arc<Apis>, kafka: &Cluster) -> Arc<Self> {
        let kafka = connect(kafka.addresses());
        let producer = SharedProducer::open(kafka, None).unwrap();
        let publisher = Publisher::new(producer, Topology::new(Names::new(PREFIX), EVENTS_PARTITIONS), "chaos");
        let (published, rounds, probes, errors) = Default::default();
        Arc::new(Self { apis, publisher, published, rounds, probes, errors, is_over: AtomicBool::new(false) })
    }

    /// Stops publishing trees and probes; started ones run to their end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Publishes trees at this rate until stopped, and waits for the end of all of them.
    pub async fn trees(self: Arc<Self>, mut rng: fastrand::Rng, per_second: f64) {
        let permits = Arc::new(Semaphore::new(OPEN));
        let mut number = 0_u32;
        while !self.is_over() {
            let permit = permits.clone().acquire_owned().await.unwrap();
            number += 1;
            let (this, tree) = (self.clone(), Tree::random(&mut rng, format!("t{number}")));
            tokio::spawn(async move {
                let mut published = PublishedTree { tree, retried_sends: 0, error: None };
                published.error = this.follow(&mut published).await.err();
                this.published.lock().push(published);
                drop(permit);
            });
            sleep(Duration::from_secs_f64(1.0 / per_second)).await;
        }
        let _ = permits.acquire_many(OPEN as u32).await;
    }

    /// Publishes a tree and follows it to its end.
    async fn follow(&self, published: &mut PublishedTree) -> Result<(), String> {
        let id = published.tree.root.name.clone();
        let operation = published.tree.operation;
        self.publish(published).await?;
        match operation {
            Operation::Nothing => {}
            Operation::Cancel => {
                let all = published.tree.expected_tasks().len();
                let is_complete =
                    |status: &Value| status["tree"]["total"] == json!(all) && status["own_state"] == "succeeded";
                self.wait_for_status(&id, "all tasks of the tree exist", is_complete).await?;
                self.request(&format!("/v1/tasks/{id}/cancel"), json!({"reason": "chaos"}), &[409]).await?;
            }
            Operation::Retry => {
                self.wait_for_end(&id).await?;
                if published.tree.expected_tasks().iter().any(|expected| expected.run == 2) {
                    self.retry_failed(&id).await?;
                }
            }
        }
        self.wait_for_end(&id).await
    }

    async fn publish(&self, published: &mut PublishedTree) -> Result<(), String> {
        match published.tree.via {
            SubmitVia::Api => self.publish_via_api(published).await,
            SubmitVia::Library => self.publish_via_library(published).await,
            SubmitVia::PlainProducer => self.publish_plain(published).await,
        }
    }

    async fn publish_via_api(&self, published: &mut PublishedTree) -> Result<(), String> {
        let root = &published.tree.root;
        let mut body =
            json!({"type": root.kind, "id": root.name, "params": root.work, "then": published.tree.continuations()});
        if root.delay_ms > 0 {
            body["delay"] = json!(root.delay_ms);
        }
        let calls = self.create(&body).await?;
        published.retried_sends = calls - 1;
        Ok(())
    }

    async fn create(&self, body: &Value) -> Result<u32, String> {
        let reply = self.apis.call(Method::POST, "/v1/tasks", Some(body), Instant::now() + REPLY_DEADLINE).await?;
        match reply.status {
            200 | 201 => Ok(reply.calls),
            status => Err(format!("POST /v1/tasks of `{}`: {status}: {}", body["id"], reply.body)),
        }
    }

    async fn publish_via_library(&self, published: &mut PublishedTree) -> Result<(), String> {
        let root = &published.tree.root;
        let id = TaskId::parse(&root.name).unwrap();
        let mut new = TaskSpec::new(id, root.kind.as_str(), RawJson::of(&root.work).unwrap());
        let then = serde_json::from_value(published.tree.continuations()).unwrap();
        new.set_policy(Policy { rules: Rules { then, ..Rules::default() }, ..Policy::default() });
        if root.delay_ms > 0 {
            new = new.at(now_ms() + root.delay_ms as i64);
        }
        let deadline = Instant::now() + REPLY_DEADLINE;
        let mut outcome = self.publisher.publish(new.clone(), now_ms()).await;
        while let Err(error) = outcome {
            if Instant::now() > deadline {
                return Err(error.to_string());
            }
            outcome = match error {
                PublishError::NotAnnounced { task, .. } => self.publisher.announce(*task, now_ms()).await,
                _ => {
                    published.retried_sends += 1;
                    self.publisher.publish(new.clone(), now_ms()).await
                }
            };
        }
        Ok(())
    }

    async fn publish_plain(&self, published: &mut PublishedTree) -> Result<(), String> {
        let root = &published.tree.root;
        let (topic, value) = (self.publisher.topology.names.tasks(&root.kind), serde_json::to_vec(&root.work).unwrap());
        let (headers, key) = ([("ce_id", root.name.as_bytes())], root.name.as_bytes());
        let deadline = Instant::now() + REPLY_DEADLINE;
        let record =
            ProducerRecord { topic: &topic, partition: None, key: Some(key), value: Some(&value), headers: &headers };
        while let Err(error) = self.publisher.producer().deliver(record, SEND_TIMEOUT).await {
            if Instant::now() > deadline {
                return Err(error.to_string());
            }
            published.retried_sends += 1;
        }
        Ok(())
    }

    /// Retries the failed tasks of a tree and waits until it has succeeded. The request is repeated, because one with
    /// an unknown outcome may have had no effect.
    async fn retry_failed(&self, id: &str) -> Result<(), String> {
        let deadline = Instant::now() + REPLY_DEADLINE;
        let mut requested_at: Option<Instant> = None;
        while Instant::now() < deadline {
            if requested_at.is_none_or(|requested_at| requested_at.elapsed() > REQUEST_INTERVAL) {
                self.request(&format!("/v1/tasks/{id}/retry"), json!({"only_failed": true}), &[409]).await?;
                requested_at = Some(Instant::now());
            }
            let page = self.apis.get(&format!("/v1/tasks?root={id}&limit=200"), deadline).await?;
            let runs = page["tasks"].as_array().into_iter().flatten().filter_map(|status| status["run"].as_u64());
            if runs.max() >= Some(2) {
                return self
                    .wait_for_status(id, "the tree has succeeded", |status| status["state"] == "succeeded")
                    .await;
            }
            sleep(POLL_INTERVAL).await;
        }
        Err(format!("`{id}` is not retried"))
    }

    /// Sends a request about a task. The given statuses count as success, as an earlier request may have been
    /// processed.
    async fn request(&self, path: &str, body: Value, good: &[u16]) -> Result<(), String> {
        let reply = self.apis.call(Method::POST, path, Some(&body), Instant::now() + REPLY_DEADLINE).await?;
        match reply.status {
            200..300 => Ok(()),
            status if good.contains(&status) => Ok(()),
            status => Err(format!("POST {path}: {status}: {}", reply.body)),
        }
    }

    async fn wait_for_end(&self, id: &str) -> Result<(), String> {
        let ends = ["succeeded", "failed", "cancelled", "expired"];
        self.wait_for_status(id, "the task is in a terminal state", |status| {
            ends.iter().any(|end| status["state"] == *end)
        })
        .await
    }

    /// Polls the status of a task until the condition holds.
    async fn wait_for_status(&self, id: &str, subject: &str, condition: impl Fn(&Value) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + REPLY_DEADLINE;
        loop {
            let reply = self.apis.call(Method::GET, &format!("/v1/tasks/{id}"), None, deadline).await?;
            if reply.status == 200 && condition(&reply.body) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let explanation = self.apis.get(&format!("/v1/tasks/{id}/why"), Instant::now() + POLL_INTERVAL).await;
                return Err(format!(
                    "`{id}`: not within {REPLY_DEADLINE:?}: {subject}; {} {explanation:?}",
                    reply.body["state"]
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Runs rounds of probes until stopped.
    pub async fn probes(self: Arc<Self>) {
        let mut number = 0;
        while !self.is_over() {
            number += 1;
            let ids = probe_ids(number);
            let begun_ms = now_ms();
            let outcomes = futures::future::join_all(ids.iter().map(|id| self.probe(id))).await;
            self.errors.lock().extend(outcomes.into_iter().filter_map(Result::err));
            self.rounds.lock().push(Round { begun_ms, ended_ms: now_ms() });
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn probe(&self, id: &str) -> Result<(), String> {
        self.probes.lock().insert(id.to_owned(), u32::MAX);
        let calls = self.create(&json!({"type": "work", "id": id, "params": {"outcome": "succeed"}})).await?;
        self.probes.lock().insert(id.to_owned(), calls - 1);
        let deadline = Instant::now() + REPLY_DEADLINE;
        loop {
            let reply = self.apis.call(Method::GET, &format!("/v1/tasks/{id}/state"), None, deadline).await?;
            if reply.status == 200 && reply.body["state"] == "succeeded" {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the probe `{id}` has not succeeded: {}", reply.body));
            }
            sleep(Duration::from_millis(150)).await;
        }
    }
}

/// Ids that cover all partitions of tasks and of events.
fn probe_ids(round: u32) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    let covers =
        |ids: &[String], count: u32, id: &str| ids.iter().any(|other| partition(other, count) == partition(id, count));
    for n in 0.. {
        let id = format!("p{round}-{n}");
        if !covers(&ids, TASK_PARTITIONS, &id) || !covers(&ids, EVENTS_PARTITIONS, &id) {
            ids.push(id);
        }
        let partitions =
            |count| ids.iter().map(|id| partition(id, count)).collect::<std::collections::BTreeSet<_>>().len();
        if partitions(TASK_PARTITIONS) == TASK_PARTITIONS as usize
            && partitions(EVENTS_PARTITIONS) == EVENTS_PARTITIONS as usize
        {
            break;
        }
    }
    ids
}

fn partition(id: &str, count: u32) -> u32 {
    partition_of(id.as_bytes(), count)
}
