//! The load: trees are published, cancelled and healed while faults come and go. Beside them probes, which say how the fleet
//! is: a round of them touches every partition of tasks and of events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafleet::broker::ProducerRecord;
use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::config::Names;
use kafleet::model::json::RawJson;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::partition::partition_of;
use kafleet::publish::{NewTask, PublishError, Publisher};
use kafleet::runtime::now_ms;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::apis::Apis;
use crate::fleet::{EVENTS_PARTITIONS, PREFIX, TASK_PARTITIONS};
use crate::kafka::Cluster;
use crate::trees::{Story, Tree, Way};

/// A tree that is not at its end by then is lost.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Trees that are open at once: in an outage the load waits.
const OPEN: usize = 150;
const LOOK: Duration = Duration::from_millis(1_000);
const ASK_AGAIN: Duration = Duration::from_secs(60);
const SEND: Duration = Duration::from_secs(30);

/// A tree that is out, and how it went.
#[derive(Clone, Debug)]
pub struct Told {
    pub tree: Tree,
    /// Sends of its record beyond the first, each of which may have come through.
    pub sent_again: u32,
    pub trouble: Option<String>,
}

/// A round of probes.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub begun_ms: i64,
    pub ended_ms: i64,
}

pub struct Load {
    apis: Arc<Apis>,
    publisher: Publisher,
    pub told: Mutex<Vec<Told>>,
    pub rounds: Mutex<Vec<Round>>,
    /// Of probes: the id, and the sends beyond the first.
    pub probes: Mutex<BTreeMap<String, u32>>,
    pub trouble: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Load {
    pub fn new(apis: Arc<Apis>, kafka: &Cluster) -> Arc<Self> {
        let kafka = Kafka::new(&BTreeMap::from([("bootstrap.servers".to_owned(), kafka.addresses())])).unwrap();
        let link = SharedProducer::open(Arc::new(kafka), None).unwrap();
        let publisher = Publisher::new(link, Names::new(PREFIX), EVENTS_PARTITIONS, "chaos");
        let (told, rounds, probes, trouble) = Default::default();
        Arc::new(Self { apis, publisher, told, rounds, probes, trouble, is_over: AtomicBool::new(false) })
    }

    /// No more trees and probes: what is begun goes on to its end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Publishes trees at this rate until it is over, and then sees all of them to their end.
    pub async fn trees(self: Arc<Self>, mut rng: fastrand::Rng, per_second: f64) {
        let room = Arc::new(Semaphore::new(OPEN));
        let mut number = 0_u32;
        while !self.is_over() {
            let place = room.clone().acquire_owned().await.unwrap();
            number += 1;
            let (this, tree) = (self.clone(), Tree::random(&mut rng, format!("t{number}")));
            tokio::spawn(async move {
                let mut told = Told { tree, sent_again: 0, trouble: None };
                told.trouble = this.see(&mut told).await.err();
                this.told.lock().push(told);
                drop(place);
            });
            sleep(Duration::from_secs_f64(1.0 / per_second)).await;
        }
        let _ = room.acquire_many(OPEN as u32).await;
    }

    /// One tree, from its publish to its end.
    async fn see(&self, told: &mut Told) -> Result<(), String> {
        let (id, story) = (told.tree.root.name.clone(), told.tree.story);
        self.publish(told).await?;
        match story {
            Story::Plain => {}
            Story::Cancelled => {
                let all = told.tree.answers().len();
                let there = |status: &Value| status["tree"]["total"] == json!(all) && status["own_state"] == "succeeded";
                self.wait(&id, "all of it is there", there).await?;
                self.ask(&format!("/v1/tasks/{id}/cancel"), json!({"reason": "chaos"}), &[409]).await?;
            }
            Story::Healed => {
                self.ended(&id).await?;
                if told.tree.answers().iter().any(|answer| answer.run == 2) {
                    self.heal(&id).await?;
                }
            }
        }
        self.ended(&id).await
    }

    async fn publish(&self, told: &mut Told) -> Result<(), String> {
        match told.tree.way {
            Way::Api => self.publish_by_api(told).await,
            Way::Library => self.publish_by_library(told).await,
            Way::Bare => self.publish_bare(told).await,
        }
    }

    async fn publish_by_api(&self, told: &mut Told) -> Result<(), String> {
        let root = &told.tree.root;
        let mut body = json!({"type": root.kind, "id": root.name, "params": root.work, "then": told.tree.then()});
        if root.later_ms > 0 {
            body["delay"] = json!(root.later_ms);
        }
        let calls = self.create(&body).await?;
        told.sent_again = calls - 1;
        Ok(())
    }

    async fn create(&self, body: &Value) -> Result<u32, String> {
        let reply = self.apis.call(Method::POST, "/v1/tasks", Some(body), Instant::now() + PATIENCE).await?;
        match reply.status {
            200 | 201 => Ok(reply.calls),
            status => Err(format!("POST /v1/tasks of `{}`: {status}: {}", body["id"], reply.body)),
        }
    }

    async fn publish_by_library(&self, told: &mut Told) -> Result<(), String> {
        let root = &told.tree.root;
        let mut new = NewTask::new(&root.kind, RawJson::of(&root.work).unwrap());
        new.id = Some(TaskId::parse(&root.name).unwrap());
        new.policy.rules.then = serde_json::from_value(told.tree.then()).unwrap();
        if root.later_ms > 0 {
            new = new.delay(Duration::from_millis(root.later_ms));
        }
        let until = Instant::now() + PATIENCE;
        let mut outcome = self.publisher.publish(new.clone(), now_ms()).await;
        while let Err(why) = outcome {
            if Instant::now() > until {
                return Err(why.to_string());
            }
            outcome = match why {
                PublishError::Out { task, .. } => self.publisher.announce(*task, now_ms()).await,
                _ => {
                    told.sent_again += 1;
                    self.publisher.publish(new.clone(), now_ms()).await
                }
            };
        }
        Ok(())
    }

    async fn publish_bare(&self, told: &mut Told) -> Result<(), String> {
        let root = &told.tree.root;
        let (topic, value) = (self.publisher.names().tasks(&root.kind), serde_json::to_vec(&root.work).unwrap());
        let (headers, key) = ([("ce_id", root.name.as_bytes())], root.name.as_bytes());
        let until = Instant::now() + PATIENCE;
        let record = ProducerRecord { topic: &topic, partition: None, key: Some(key), value: Some(&value), headers: &headers };
        while let Err(why) = self.publisher.link().deliver(record, SEND).await {
            if Instant::now() > until {
                return Err(why.to_string());
            }
            told.sent_again += 1;
        }
        Ok(())
    }

    /// Starts again what has failed in a tree, and sees it healed. Asked again after a while: of an unknown outcome nothing may
    /// have come.
    async fn heal(&self, id: &str) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        let mut asked: Option<Instant> = None;
        while Instant::now() < until {
            if asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                self.ask(&format!("/v1/tasks/{id}/retry"), json!({"only_failed": true}), &[409]).await?;
                asked = Some(Instant::now());
            }
            let page = self.apis.get(&format!("/v1/tasks?root={id}&limit=200"), until).await?;
            let runs = page["tasks"].as_array().into_iter().flatten().filter_map(|status| status["run"].as_u64());
            if runs.max() >= Some(2) {
                return self.wait(id, "it is healed", |status| status["state"] == "succeeded").await;
            }
            sleep(LOOK).await;
        }
        Err(format!("`{id}` is not started again"))
    }

    /// Something asked of a task; these answers are as good as a yes, because it may have been heard before.
    async fn ask(&self, path: &str, body: Value, good: &[u16]) -> Result<(), String> {
        let reply = self.apis.call(Method::POST, path, Some(&body), Instant::now() + PATIENCE).await?;
        match reply.status {
            200..300 => Ok(()),
            status if good.contains(&status) => Ok(()),
            status => Err(format!("POST {path}: {status}: {}", reply.body)),
        }
    }

    async fn ended(&self, id: &str) -> Result<(), String> {
        let ends = ["succeeded", "failed", "cancelled", "expired"];
        self.wait(id, "it has ended", |status| ends.iter().any(|end| status["state"] == *end)).await
    }

    /// Looks at the status of a task until it is so.
    async fn wait(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = self.apis.call(Method::GET, &format!("/v1/tasks/{id}"), None, until).await?;
            if reply.status == 200 && holds(&reply.body) {
                return Ok(());
            }
            if Instant::now() > until {
                let why = self.apis.get(&format!("/v1/tasks/{id}/why"), Instant::now() + LOOK).await;
                return Err(format!("`{id}`: not within {PATIENCE:?}: {what}; {} {why:?}", reply.body["state"]));
            }
            sleep(LOOK).await;
        }
    }

    /// Round after round until it is over.
    pub async fn probes(self: Arc<Self>) {
        let mut number = 0;
        while !self.is_over() {
            number += 1;
            let ids = probe_ids(number);
            let begun_ms = now_ms();
            let outcomes = futures::future::join_all(ids.iter().map(|id| self.probe(id))).await;
            self.trouble.lock().extend(outcomes.into_iter().filter_map(Result::err));
            self.rounds.lock().push(Round { begun_ms, ended_ms: now_ms() });
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn probe(&self, id: &str) -> Result<(), String> {
        self.probes.lock().insert(id.to_owned(), u32::MAX);
        let calls = self.create(&json!({"type": "work", "id": id, "params": {"end": "well"}})).await?;
        self.probes.lock().insert(id.to_owned(), calls - 1);
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = self.apis.call(Method::GET, &format!("/v1/tasks/{id}/state"), None, until).await?;
            if reply.status == 200 && reply.body["state"] == "succeeded" {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("the probe `{id}` is not seen done: {}", reply.body));
            }
            sleep(Duration::from_millis(150)).await;
        }
    }
}

/// Ids that lie in all partitions of tasks, and in all of events.
fn probe_ids(round: u32) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    let covers = |ids: &[String], count: u32, id: &str| ids.iter().any(|other| place(other, count) == place(id, count));
    for n in 0.. {
        let id = format!("p{round}-{n}");
        if !covers(&ids, TASK_PARTITIONS, &id) || !covers(&ids, EVENTS_PARTITIONS, &id) {
            ids.push(id);
        }
        let places = |count| ids.iter().map(|id| place(id, count)).collect::<std::collections::BTreeSet<_>>().len();
        if places(TASK_PARTITIONS) == TASK_PARTITIONS as usize && places(EVENTS_PARTITIONS) == EVENTS_PARTITIONS as usize {
            break;
        }
    }
    ids
}

fn place(id: &str, count: u32) -> u32 {
    partition_of(id.as_bytes(), count)
}
