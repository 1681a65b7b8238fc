//! Batches of one tree on real Kafka, through producers that fail half way: all of the tasks appear, or none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::{
    Broker, BrokerError, Consumer, ConsumerSpec, DependentRecord, MakeDependents, Partition, ProducerRecord, StartOffset,
    TransactionalProducer,
};
use kafleet::model::record::state::State;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::inside::{DEADLINE, Fleet, until};

/// Tasks of one batch.
const TASKS: usize = 40;

/// Where a transaction comes to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Done,
    /// One of the last records cannot be written.
    Breaks,
    /// It stops when the tasks are written and their events are not, and goes on only when it is told otherwise.
    Stops,
}

/// A broker whose transactions end half way.
struct Halfway {
    inner: Arc<dyn Broker>,
    step: watch::Sender<Step>,
    /// Transactions whose tasks were written.
    begun: Arc<watch::Sender<usize>>,
}

impl Broker for Halfway {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        self.inner.consumer(spec)
    }
    fn atomic_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        let inner = self.inner.atomic_producer(name)?;
        Ok(Box::new(HalfwayProducer { inner, step: self.step.subscribe(), begun: self.begun.clone() }))
    }
    through!(producer, topics, apply_topics, ends, look, group_offsets, set_group_offsets);
}

struct HalfwayProducer {
    inner: Box<dyn TransactionalProducer>,
    step: watch::Receiver<Step>,
    begun: Arc<watch::Sender<usize>>,
}

impl TransactionalProducer for HalfwayProducer {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let (step, begun) = (&mut self.step, &self.begun);
        let mut half = |places: &[(i32, i64)]| {
            begun.send_modify(|count| *count += 1);
            let mut events: Vec<DependentRecord> = then(places);
            let now = *step.borrow();
            if now == Step::Breaks {
                events.push(DependentRecord { partition: 999, ..events[0].clone() });
            }
            if now == Step::Stops {
                let released = async { tokio::time::timeout(DEADLINE, step.wait_for(|step| *step != Step::Stops)).await.is_ok() };
                assert!(tokio::runtime::Handle::current().block_on(released), "it is released within {DEADLINE:?}");
            }
            events
        };
        self.inner.send_with_dependents(records, &mut half, deadline)
    }
}

/// How often each task was seen, on the topic of its type and among the events.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    records: BTreeMap<String, usize>,
    events: BTreeMap<String, usize>,
}

impl Seen {
    fn of(&self, root: &str) -> (usize, usize) {
        let count = |all: &BTreeMap<String, usize>| {
            let of_tree = |id: &&String| *id == root || id.starts_with(&format!("{root}:"));
            all.iter().filter(|(id, _)| of_tree(id)).map(|(_, times)| times).sum()
        };
        (count(&self.records), count(&self.events))
    }
}

/// Reads tasks and announcements all the time, as far as it is given them.
struct Witness {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<watch::Sender<bool>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Witness {
    fn start(fleet: &Fleet, read_uncommitted: bool) -> Self {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::new(watch::Sender::new(false)));
        let (events, tasks) = (fleet.names.events(), fleet.names.tasks("echo"));
        let of = |topic: &str, count: u32| (0..count as i32).map(|n| Partition::new(topic.to_owned(), n)).collect::<Vec<_>>();
        let all = [of(&events, fleet.events_partitions), of(&tasks, 4)].concat();
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut consumer = fleet.broker.consumer(&spec).unwrap();
        consumer.assign(&all.into_iter().map(|at| (at, StartOffset::Beginning)).collect::<Vec<_>>()).unwrap();
        let thread = std::thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || {
                while !*stop.borrow() {
                    let take = &mut |record: &kafleet::broker::RecordRef<'_>| note(&mut seen.lock(), &events, record);
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

    async fn sees(&self, root: &str, holds: impl Fn((usize, usize)) -> bool) {
        until(&format!("`{root}` is seen"), || async { holds(self.of(root)).then_some(()) }).await;
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn note(seen: &mut Seen, events: &str, record: &kafleet::broker::RecordRef<'_>) {
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

/// A root and what is below it.
fn tree(root: &str) -> Value {
    let child = |n: usize| json!({"type": "echo", "id": format!("c{n}"), "parent": root, "params": n});
    let root = json!({"type": "echo", "id": root});
    [root].into_iter().chain((1..TASKS).map(child)).collect()
}

async fn send(fleet: &Fleet, items: &Value) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/v1/batches?atomic=true", fleet.api);
    let answer = client.post(url).json(items).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn is_unknown(fleet: &Fleet, id: &str) {
    let (status, problem) = fleet.answer(&format!("/v1/tasks/{id}")).await;
    assert_eq!(status, 404, "{problem}");
}

/// Sends it once more, and every task of it is there and done, once.
async fn is_done_when_repeated(fleet: &Fleet, committed: &Witness, root: &str) {
    let (status, made) = send(fleet, &tree(root)).await;
    assert_eq!((status, &made["accepted"]), (200, &json!(TASKS)), "{made}");
    assert_eq!(fleet.ended(root).await.state, State::Succeeded);
    let status = fleet.get(&format!("/v1/tasks/{root}")).await;
    assert_eq!((&status["tree"]["total"], &status["children"]["successful"]), (&json!(TASKS), &json!(TASKS - 1)), "{status}");
    committed.sees(root, |seen| seen == (TASKS, TASKS)).await;
    let (status, made) = send(fleet, &tree(root)).await;
    assert_eq!((status, &made["accepted"]), (200, &json!(TASKS)), "the same batch once more: {made}");
    fleet.agrees().await;
    assert_eq!(committed.of(root), (TASKS, TASKS), "each of them once");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_batch_is_nothing() {
    let Some(mut fleet) = Fleet::real().await else { return };
    let (step, begun) = (watch::Sender::new(Step::Breaks), Arc::new(watch::Sender::new(0)));
    let broker = Arc::new(Halfway { inner: fleet.broker.clone(), step: step.clone(), begun: begun.clone() });
    fleet.start_api_on(broker).await;
    fleet.start_worker();
    let (committed, everything) = (Witness::start(&fleet, false), Witness::start(&fleet, true));

    // One record of the last ones is refused.
    let (status, problem) = send(&fleet, &tree("broken")).await;
    assert_eq!((status, &problem["code"]), (503, &json!("kafka_unavailable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("nothing of the batch was published"), "{problem}");
    everything.sees("broken", |(records, _)| records == TASKS).await;
    is_unknown(&fleet, "broken").await;

    // The process stops between the tasks and their events, until Kafka has given its transaction up.
    step.send_replace(Step::Stops);
    let known = *begun.borrow();
    let (sending, asked) = (reqwest::Client::builder().no_proxy().build().unwrap(), tree("stopped"));
    let request = sending.post(format!("{}/v1/batches?atomic=true", fleet.api)).json(&asked).send();
    let request = tokio::spawn(request);
    everything.sees("stopped", |(records, _)| records == TASKS).await;
    // Its producer hears of it a little later than whoever reads the topic.
    until("the tasks are written", || async { (*begun.borrow() == known + 1).then_some(()) }).await;
    assert_eq!(committed.of("stopped"), (0, 0));
    // Behind it in every partition: read only when its outcome is known.
    let behind: Vec<String> = (0..20).map(|n| format!("behind-{n}")).collect();
    for id in &behind {
        fleet.publish("echo", id, &1).await;
    }
    for id in &behind {
        assert_eq!(fleet.ended(id).await.state, State::Succeeded);
    }
    assert_eq!(committed.of("stopped"), (0, 0));
    step.send_replace(Step::Done);
    let answer = tokio::time::timeout(DEADLINE, request).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status().as_u16(), 503, "{}", answer.text().await.unwrap());
    is_unknown(&fleet, "stopped").await;

    for root in ["broken", "stopped"] {
        assert_eq!(committed.of(root), (0, 0), "{root}");
        is_done_when_repeated(&fleet, &committed, root).await;
    }
    fleet.stop().await;
}
