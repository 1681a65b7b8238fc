//! Atomic batches on real Kafka with producers that fail in the middle: either all tasks appear or none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::{ConsumerSpec, DependentRecord, Partition, StartOffset};
use kafleet::model::record::state::State;
use kafleet_testkit::faults::{Call, FaultRules, dependents};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fleet::in_process::{DEADLINE, Fleet, eventually};

/// Number of tasks in a batch.
const TASKS: usize = 40;

/// Number of records per task, in the task topic and among the events.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReadCounts {
    records: BTreeMap<String, usize>,
    events: BTreeMap<String, usize>,
}

impl ReadCounts {
    fn of(&self, root: &str) -> (usize, usize) {
        let count = |all: &BTreeMap<String, usize>| {
            let of_tree = |id: &&String| *id == root || id.starts_with(&format!("{root}:"));
            all.iter().filter(|(id, _)| of_tree(id)).map(|(_, times)| times).sum()
        };
        (count(&self.records), count(&self.events))
    }
}

/// Consumer that counts task records and announcements in the background.
struct RecordCounter {
    seen: Arc<Mutex<ReadCounts>>,
    stop: Arc<watch::Sender<bool>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RecordCounter {
    fn start(fleet: &Fleet, read_uncommitted: bool) -> Self {
        let (seen, stop) = (Arc::<Mutex<ReadCounts>>::default(), Arc::new(watch::Sender::new(false)));
        let (events, tasks) = (fleet.names.events(), fleet.names.tasks("echo"));
        let of = |topic: &str, count: u32| {
            (0..count as i32).map(|n| Partition::new(topic.to_owned(), n)).collect::<Vec<_>>()
        };
        let all = [of(&events, fleet.events_partitions), of(&tasks, 4)].concat();
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut consumer = fleet.broker.consumer(&spec).unwrap();
        consumer.assign(&all.into_iter().map(|at| (at, StartOffset::Beginning)).collect::<Vec<_>>()).unwrap();
        let thread = std::thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || {
                while !*stop.borrow() {
                    let take = &mut |record: &kafleet::broker::RecordRef<'_>| count(&mut seen.lock(), &events, record);
                    consumer.poll(1_000, Duration::from_millis(50), take).unwrap();
                }
                consumer.close(DEADLINE);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    fn of(&self, root: &str) -> (usize, usize) {
        self.seen.lock().of(root)
    }

    async fn wait_for(&self, root: &str, condition: impl Fn((usize, usize)) -> bool) {
        eventually(&format!("`{root}` is visible"), || async { condition(self.of(root)).then_some(()) }).await;
    }
}

impl Drop for RecordCounter {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn count(seen: &mut ReadCounts, events: &str, record: &kafleet::broker::RecordRef<'_>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if record.topic != events {
        let id = record.headers().find(|(name, _)| *name == "ce_id").and_then(|(_, value)| value).map(text);
        *seen.records.entry(id.unwrap()).or_default() += 1;
        return;
    }
    let event: Value = serde_json::from_slice(record.value.unwrap_or_default()).unwrap();
    if event["kind"] == "submitted" {
        *seen.events.entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
}

/// Batch of a root and its children.
fn tree(root: &str) -> Value {
    let child = |n: usize| json!({"type": "echo", "id": format!("c{n}"), "parent": root, "params": n});
    let root = json!({"type": "echo", "id": root});
    [root].into_iter().chain((1..TASKS).map(child)).collect()
}

async fn send(fleet: &Fleet, items: &Value) -> (u16, Value) {
    let client = kafleet_testkit::http::client();
    let url = format!("{}/v1/batches?atomic=true", fleet.api);
    let response = client.post(url).json(items).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn assert_unknown(fleet: &Fleet, id: &str) {
    let (status, problem) = fleet.response(&format!("/v1/tasks/{id}")).await;
    assert_eq!(status, 404, "{problem}");
}

/// Sends the batch again and checks that each of its tasks exists and has run once.
async fn assert_repeat_creates_all(fleet: &Fleet, committed: &RecordCounter, root: &str) {
    let (status, made) = send(fleet, &tree(root)).await;
    assert_eq!((status, &made["accepted"]), (200, &json!(TASKS)), "{made}");
    assert_eq!(fleet.wait_for_end(root).await.state, State::Succeeded);
    let status = fleet.get(&format!("/v1/tasks/{root}")).await;
    assert_eq!(
        (&status["tree"]["total"], &status["children"]["successful"]),
        (&json!(TASKS), &json!(TASKS - 1)),
        "{status}"
    );
    committed.wait_for(root, |seen| seen == (TASKS, TASKS)).await;
    let (status, made) = send(fleet, &tree(root)).await;
    assert_eq!((status, &made["accepted"]), (200, &json!(TASKS)), "the batch is idempotent: {made}");
    fleet.assert_store_matches_log().await;
    assert_eq!(committed.of(root), (TASKS, TASKS), "each task exists once");
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_batch_is_invisible() {
    let Some(mut fleet) = Fleet::with_services().await else { return };
    let faults = FaultRules::default();
    fleet.start_api_on(faults.broker(fleet.broker.clone())).await;
    fleet.start_worker();
    let (committed, uncommitted) = (RecordCounter::start(&fleet, false), RecordCounter::start(&fleet, true));

    // One of the last records is rejected: its partition does not exist.
    let rejected = faults.on(dependents).answer_with(|call| match call {
        Call::Dependents(events) => [events, &[DependentRecord { partition: 999, ..events[0].clone() }][..]].concat(),
        _ => Vec::new(),
    });
    let (status, problem) = send(&fleet, &tree("broken")).await;
    assert_eq!((status, &problem["code"]), (503, &json!("kafka_unavailable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("nothing of the batch was published"), "{problem}");
    uncommitted.wait_for("broken", |(records, _)| records == TASKS).await;
    assert_unknown(&fleet, "broken").await;

    // The producer stalls between the tasks and their events until Kafka aborts its transaction.
    rejected.lift();
    let stalled = faults.on(dependents).block();
    let (client, batch) = (kafleet_testkit::http::client(), tree("stopped"));
    let request = client.post(format!("{}/v1/batches?atomic=true", fleet.api)).json(&batch).send();
    let request = tokio::spawn(request);
    uncommitted.wait_for("stopped", |(records, _)| records == TASKS).await;
    // The producer may see the written records later than the consumer.
    eventually("the tasks are written", || async { stalled.hits() == 1 }).await;
    assert_eq!(committed.of("stopped"), (0, 0));
    // Records behind the open transaction in every partition are read only once it has ended.
    let behind: Vec<String> = (0..20).map(|n| format!("behind-{n}")).collect();
    for id in &behind {
        fleet.publish("echo", id, &1).await;
    }
    for id in &behind {
        assert_eq!(fleet.wait_for_end(id).await.state, State::Succeeded);
    }
    assert_eq!(committed.of("stopped"), (0, 0));
    stalled.lift();
    let response = tokio::time::timeout(DEADLINE, request).await.unwrap().unwrap().unwrap();
    assert_eq!(response.status().as_u16(), 503, "{}", response.text().await.unwrap());
    assert_unknown(&fleet, "stopped").await;

    for root in ["broken", "stopped"] {
        assert_eq!(committed.of(root), (0, 0), "{root}");
        assert_repeat_creates_all(&fleet, &committed, root).await;
    }
    fleet.stop().await;
}
