//! A shop: a fleet that has something to show on every page.

use kafleet::broker::{Broker, ProducerRecord, TopicSpec};
use kafleet::config::ApiConfig;
use kafleet::documents::Status;
use kafleet::model::event::{Announcement, AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::task::Policy;
use kafleet::model::task::continuation::Continuation;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter};
use crate::api::fixture::{DEADLINE, Fleet, eventually, unfolded};
use crate::api::why::send_heartbeat_of;
use crate::ui::pages::add_tree;

/// Types of the shop.
pub const TYPES: [&str; 6] = ["echo", "resize", "order", "charge", "pack", "mail"];

/// Minutes before the present ones in which tasks have ended.
const PAST_MINUTES: u64 = 50;

/// A shop with all that [`shop`] puts into it.
pub struct Shop {
    pub fleet: Fleet,
    /// Id of a bulk action.
    pub bulk: String,
}

/// Task of a given age.
pub struct OldTask<'a> {
    pub id: &'a str,
    pub task_type: &'a str,
    pub age: Millis,
    pub policy: Policy,
}

/// Writes a past into the log of a fleet, as producers and workers would have.
pub trait Past {
    /// Publishes the record of a task and announces it like its producer.
    async fn old_task(&self, task: OldTask<'_>);

    /// Publishes an event of an attempt of a given age.
    async fn old_event(&self, id: &str, attempt: u32, age: Millis, payload: impl Into<Payload>);

    /// Publishes an attempt that succeeds.
    async fn old_success(&self, id: &str, attempt: u32, times: [Millis; 2]);

    /// Publishes an attempt that fails for good.
    async fn old_failure(&self, id: &str, attempt: u32, times: [Millis; 2], error: (&str, &str));

    /// Creates a task like a client, and waits until it is projected.
    async fn submitted(&self, task: serde_json::Value) -> Status;

    /// Creates the topics of types that the fixture has none of, with those of their dead letters.
    fn create_topics(&self, types: &[&str]);
}

impl Past for Fleet {
    async fn old_task(&self, task: OldTask<'_>) {
        let topic = self.names.tasks(task.task_type);
        let headers: [(&str, &[u8]); 2] = [("ce_id", task.id.as_bytes()), ("ce_announced", b"1")];
        let value = Some(&br#"{"customer": "Ada", "items": [{"sku": "tea", "count": 2}]}"#[..]);
        let record = ProducerRecord { topic: &topic, partition: Some(0), key: None, value, headers: &headers };
        let position = self.publisher.producer().deliver(record, DEADLINE).await.unwrap();
        let created_at_ms = now_ms() - task.age.as_i64();
        let announce = |event: &mut Event| {
            event.at_ms = created_at_ms;
            event.task = Some(Box::new(Announcement {
                task_type: task.task_type.into(),
                created_at_ms,
                position: Some(position),
                hash: None,
                policy: Some(Box::new(task.policy)),
                asof: None,
                trace: None,
            }));
        };
        self.publish_event(task.id, Kind::Submitted, announce).await;
    }

    async fn old_event(&self, id: &str, attempt: u32, age: Millis, payload: impl Into<Payload>) {
        let change = |event: &mut Event| {
            event.attempt = attempt;
            event.worker = Some("node-7".into());
            event.at_ms -= age.as_i64();
        };
        self.publish_event(id, payload, change).await;
    }

    async fn old_success(&self, id: &str, attempt: u32, [from, to]: [Millis; 2]) {
        self.old_event(id, attempt, from, Kind::Started).await;
        let started_at_ms = Some(now_ms() - from.as_i64());
        let output = RawJson::of(&json!({"total": 7})).ok();
        self.old_event(id, attempt, to, Payload::Succeeded { started_at_ms, output }).await;
    }

    async fn old_failure(&self, id: &str, attempt: u32, [from, to]: [Millis; 2], error: (&str, &str)) {
        self.old_event(id, attempt, from, Kind::Started).await;
        self.old_event(id, attempt, to, Payload::Failed(failure(error, from))).await;
    }

    async fn submitted(&self, task: serde_json::Value) -> Status {
        let made = self.create(task).await;
        self.get(&format!("/v1/tasks/{}?after={}", made.id, made.position)).await
    }

    fn create_topics(&self, types: &[&str]) {
        let topic = |name: String| TopicSpec { name, partitions: 2, replication: None, config: Vec::new() };
        let names = types.iter().flat_map(|name| [self.names.tasks(name), self.names.dead(name)]);
        self.log.apply_topics(&names.map(topic).collect::<Vec<_>>(), DEADLINE).unwrap();
    }
}

/// Failure of an attempt that has started so long ago.
pub fn failure((kind, message): (&str, &str), started: Millis) -> AttemptFailure {
    AttemptFailure { started_at_ms: Some(now_ms() - started.as_i64()), ..AttemptFailure::new(kind, message, 1) }
}

/// Policy with a name and a tag.
pub fn named(name: &str, tag: &str) -> Policy {
    Policy { name: Some(name.into()), tags: vec![tag.into()], creator: Some("shop".into()), ..Policy::default() }
}

/// Opens the shop.
pub async fn shop() -> Shop {
    let fleet = unfolded(ApiConfig::default()).await;
    fleet.create_topics(&TYPES);
    add_past(&fleet).await;
    fleet.track();
    add_tree(&fleet).await;
    add_orders(&fleet).await;
    add_single_tasks(&fleet).await;
    add_operations(&fleet).await;
    let bulk = add_bulk_action(&fleet).await;
    fleet.folded().await;
    Shop { fleet, bulk }
}

/// Adds tasks that have ended in each of the last minutes.
async fn add_past(fleet: &Fleet) {
    for minute in (1..=PAST_MINUTES).rev() {
        let age = Millis::secs(60 * minute);
        fleet.log_clock.set_age(age);
        for (n, task_type) in (0..).zip(["order", "charge", "pack"]) {
            let id = format!("past-{task_type}-{minute}");
            fleet.old_task(OldTask { id: &id, task_type, age, policy: Policy::default() }).await;
            let [from, to] = [age.0 - 2_000, age.0 - 2_100 - 90 * n].map(Millis);
            if task_type == "charge" && minute % 9 == 0 {
                fleet.old_failure(&id, 1, [from, to], ("GatewayTimeout", "no answer within 2 s")).await;
            } else {
                fleet.old_success(&id, 1, [from, to]).await;
            }
        }
    }
    fleet.log_clock.set_age(Millis::secs(0));
}

/// Adds three trees: one that failed, one that adds a continuation, and one whose payment is retried in ten minutes.
async fn add_orders(fleet: &Fleet) {
    for (customer, age) in [("ada", 600), ("ken", 400), ("alan", 120)] {
        let policy = named(&format!("order of {customer}"), &format!("customer-{customer}"));
        fleet.old_task(OldTask { id: customer, task_type: "order", age: Millis::secs(age), policy }).await;
        for (step, later) in [("charge", 2), ("pack", 3)] {
            let (id, age) = (format!("{customer}:{step}"), Millis::secs(age - later));
            fleet.old_task(OldTask { id: &id, task_type: step, age, policy: Policy::default() }).await;
        }
        fleet.old_success(&format!("{customer}:pack"), 1, [age - 5, age - 9].map(Millis::secs)).await;
    }
    fleet.folded().await;
    let declined = ("PaymentDeclined", "card of Ada was declined");
    fleet.old_event("ada:charge", 1, Millis::secs(590), Kind::Started).await;
    fleet.old_event("ada:charge", 1, Millis::secs(588), retrying(declined, None, 0)).await;
    fleet.old_failure("ada:charge", 2, [580, 579].map(Millis::secs), declined).await;
    let closed = failure(("Closed", "the shop is closed"), Millis::secs(385));
    let waits = Payload::Retrying { failure: closed, due_ms: Some(now_ms() - 200_000), record: None, waits: 1 };
    fleet.old_event("ken:charge", 1, Millis::secs(380), waits).await;
    fleet.old_success("ken:charge", 1, [200, 198].map(Millis::secs)).await;
    fleet.old_event("alan:charge", 1, Millis::secs(110), Kind::Started).await;
    let timeout = ("GatewayTimeout", "no answer within 2 s");
    fleet.old_event("alan:charge", 1, Millis::secs(100), retrying(timeout, Some(now_ms() + 600_000), 0)).await;
    let then = Payload::Started { then: vec![Continuation::new("mail", json!({"to": "ken"}))] };
    fleet.old_event("ken", 1, Millis::secs(399), Kind::Started).await;
    fleet.old_event("ken", 1, Millis::secs(398), then).await;
    for (customer, age) in [("ada", 595), ("ken", 398), ("alan", 115)] {
        fleet.old_success(customer, 1, [age + 1, age].map(Millis::secs)).await;
    }
    fleet.folded().await;
}

/// Payload of an attempt that is followed by another one.
pub fn retrying(error: (&str, &str), due_ms: Option<i64>, waits: u32) -> Payload {
    Payload::Retrying { failure: AttemptFailure::new(error.0, error.1, 1), due_ms, record: None, waits }
}

/// Adds a running task with progress, a scheduled one, an external one, and ids of the greatest length and depth.
async fn add_single_tasks(fleet: &Fleet) {
    fleet.submitted(json!({"type": "resize", "id": "thumb", "params": {"url": "a", "width": 1}, "delay": "1h"})).await;
    fleet.submitted(json!({"type": "approval", "id": "approval", "external": true})).await;
    let policy = named("import of the catalogue", "nightly");
    fleet.old_task(OldTask { id: "import", task_type: "pack", age: Millis::secs(300), policy }).await;
    fleet.old_event("import", 1, Millis::secs(140), Kind::Started).await;
    let progress = RawJson::of(&json!({"done": 281, "total": 6_000, "message": "page 281"})).ok();
    fleet.old_event("import", 1, Millis::secs(1), Payload::Progress { output: progress }).await;
    for id in [longest_id(), lowest_id()] {
        fleet.announce(&id, "echo", None).await;
    }
    let lines = json!({"lines": ["connecting to 10.0.0.7", "no answer within 2 s", "connecting to 10.0.0.8"]});
    fleet.post("/v1/tasks/order/log", lines).await;
    let attach = fleet.request(Method::PUT, "/v1/tasks/order/attachments/notes.txt").body("remember the milk");
    let attached = attach.header("content-type", "text/plain").send().await.unwrap();
    assert!(attached.status().is_success(), "{attached:?}");
}

/// Adds what operators and workers leave: a letter, a heartbeat, a schedule, a pause, limits and a kill switch.
async fn add_operations(fleet: &Fleet) {
    fleet.letter(NewLetter { task: Some(("order:fetch", 1)), key: "order:fetch", at_ms: now_ms(), ..LETTER }, 0).await;
    send_heartbeat_of(fleet, "node-7", 8, 1, &["order:fetch"]).await;
    let spec = json!({"cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin", "task": {"type": "echo", "params": {}}});
    let (status, answer) = fleet.post("/v1/schedules", json!({"id": "nightly", "spec": spec})).await;
    assert_eq!(status, 201, "{answer}");
    fleet.post("/v1/types/mail/pause", json!({"reason": "the mail server is replaced"})).await;
    let limits = json!({"slots": 4, "rate": {"count": 100, "per": "1s"}});
    let limited = fleet.request(Method::PUT, "/v1/types/echo/limits").json(&limits).send().await.unwrap();
    assert!(limited.status().is_success(), "{limited:?}");
    let view = json!({"q": "type:order is:open", "description": "orders that are not packed"});
    let saved = fleet.request(Method::PUT, "/v1/views/open-orders").json(&view).send().await.unwrap();
    assert!(saved.status().is_success(), "{saved:?}");
    let kill = json!({"reason": "recalled"});
    let killed = fleet.request(Method::PUT, "/v1/kill-switches/batch-7").json(&kill).send().await.unwrap();
    assert!(killed.status().is_success(), "{killed:?}");
}

/// Retries a failed task by a bulk action, and waits until it is done.
async fn add_bulk_action(fleet: &Fleet) -> String {
    fleet.submitted(json!({"type": "pack", "id": "parcel", "params": {"n": 1}})).await;
    fleet.fail("parcel", "the scales are broken").await;
    fleet.folded().await;
    let body = json!({"action": "retry", "ids": ["parcel"], "limit": 1, "reason": "repaired"});
    let answer = fleet.request(Method::POST, "/v1/bulk").json(&body).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    let action: Status = answer.json().await.unwrap();
    let path = format!("/v1/tasks/{}?after={}", action.id, action.position);
    eventually("the bulk action", async || fleet.get::<Status>(&path).await.state.is_terminal()).await;
    action.id
}

/// Id of the greatest length, of the longest possible segments.
pub fn longest_id() -> String {
    [128, 128, 128, 125].map(|length| "w".repeat(length)).join(":")
}

/// Id of a task at the lowest possible level.
pub fn lowest_id() -> String {
    vec!["level"; 64].join(":")
}
