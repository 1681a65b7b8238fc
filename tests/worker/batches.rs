//! Types whose handler takes several tasks in one call: what forms a batch, and what becomes of single tasks in it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kafleet::config::{BatchPolicy, Order};
use kafleet::handlers::{BatchContext, BatchTask, Child, Failure, Item, TaskResult, TypeRegistration};
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::json::RawJson;
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Gate, Kind, counted};

/// Task whose params choose its end, or that of its batch.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Row {
    #[serde(default)]
    then: String,
    #[serde(default)]
    tenant: String,
}

/// Calls of the handler, each with the ids of its tasks, and a gate that each call passes.
#[derive(Clone)]
struct Calls {
    calls: Arc<Mutex<Vec<Vec<String>>>>,
    gate: Gate,
    /// Ids of tasks whose tokens were cancelled while their call waited at the gate.
    cancelled: Arc<Mutex<Vec<String>>>,
}

impl Calls {
    fn open() -> Self {
        let calls = Self::closed();
        calls.gate.open();
        calls
    }

    fn closed() -> Self {
        Self { calls: Arc::default(), gate: Gate::closed(), cancelled: Arc::default() }
    }

    fn all(&self) -> Vec<Vec<String>> {
        self.calls.lock().clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.all().iter().map(Vec::len).collect()
    }
}

impl BatchTask for Row {
    const TYPE: &'static str = "insert";
    type Output = usize;

    async fn run_batch(items: Vec<Item<Self>>, cx: BatchContext) -> TaskResult<Vec<TaskResult<usize>>> {
        let calls = cx.state::<Calls>();
        assert_eq!(cx.size(), items.len());
        calls.calls.lock().push(items.iter().map(|item| item.cx.id.to_string()).collect());
        let signals = items.iter().map(|item| {
            let (calls, cx) = (calls.clone(), item.cx.clone());
            async move {
                cx.cancelled().cancelled().await;
                calls.cancelled.lock().push(cx.id.to_string());
                std::future::pending::<()>().await;
            }
        });
        tokio::select! {
            () = calls.gate.pass("call") => {}
            () = cx.cancelled().cancelled() => return Err(Failure::cancelled()),
            _ = join_all(signals) => {}
        }
        let has = |end: &str| items.iter().any(|item| item.then == end);
        assert!(!has("panics"), "a bad row");
        match () {
            () if has("hangs") => std::future::pending().await,
            () if has("breaks") => return Err(Failure::fail("a broken row").of_kind("broken")),
            () if has("limits") => {
                return Err(Failure::wait(Some(Duration::from_millis(10)), "later").of_kind("rate_limited"));
            }
            () if has("is short") => return Ok(Vec::new()),
            () => {}
        }
        let size = items.len();
        Ok(items.into_iter().map(|item| end_of(&item, size)).collect())
    }
}

fn end_of(item: &Item<Row>, size: usize) -> TaskResult<usize> {
    match &*item.then {
        "fails" => Err(Failure::fail("no").of_kind("refused")),
        "dies" => Err(Failure::dead("never").of_kind("refused")),
        "retries" if item.cx.number < 2 => Err(Failure::retry("again")),
        "spawns" => {
            item.cx.log("one child");
            item.cx.spawn_child(Child::new("child", RawJson::null()).id("c"));
            Ok(size)
        }
        _ => Ok(size),
    }
}

/// A type with one slot whose batches have up to `max` tasks.
fn insert(max: u32) -> Kind {
    let mut kind = Kind { name: "insert", registered: TypeRegistration::of::<Row>() }.slots(1).retries(1, Millis(5));
    kind.registered.policy.batch =
        Some(BatchPolicy { max, wait: Millis(300), ..kind.registered.policy.batch.take().unwrap() });
    kind
}

async fn fleet_of(kind: Kind, calls: &Calls) -> Fleet {
    let child = counted("child", &crate::worker::types::Journal::default());
    let (mut fleet, _) = memory(1, &[kind, child]).await;
    let state = calls.clone();
    fleet.app = Arc::new(move |registry| {
        registry.share(state.clone());
    });
    fleet
}

/// Sends a task for each of the ends, with the ids `t0`, `t1`, ….
async fn send(fleet: &Fleet, ends: &[&str]) {
    for (n, then) in ends.iter().enumerate() {
        fleet.send("insert", &format!("t{n}"), &json!({"then": then}).to_string()).await;
    }
}

fn output(event: &Event) -> Option<Value> {
    event.payload.output().map(|output| output.value().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn full_batch_is_one_call() {
    let calls = Calls::open();
    let fleet = fleet_of(insert(10), &calls).await;
    send(&fleet, &[""; 30]).await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(30).await;
    assert!(results.iter().all(|event| event.attempt == 1 && output(event) == Some(json!(10))), "{results:?}");
    worker.stop().await;
    assert_eq!(calls.sizes(), [10, 10, 10]);
    assert_eq!(fleet.kinds_of("t7"), ["succeeded"], "a task of a short call costs one event");
    fleet.assert_clean("insert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn few_tasks_start_after_the_wait_of_the_first() {
    let calls = Calls::open();
    let fleet = fleet_of(insert(10), &calls).await;
    send(&fleet, &["", "", ""]).await;
    let worker = fleet.worker();
    fleet.wait_for_results(3).await;
    worker.stop().await;
    assert_eq!(calls.sizes(), [3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_has_its_own_end() {
    let calls = Calls::open();
    let fleet = fleet_of(insert(5), &calls).await;
    send(&fleet, &["", "fails", "dies", "retries", "spawns"]).await;
    let worker = fleet.worker();
    fleet.wait_for_results(5).await;
    let mut ends = Vec::new();
    for n in 0..5 {
        let event = fleet.result_of(&format!("t{n}")).await;
        ends.push((event.kind(), event.attempt));
    }
    assert_eq!(
        ends,
        [
            (EventKind::Succeeded, 1),
            (EventKind::Failed, 1),
            (EventKind::Failed, 1),
            (EventKind::Succeeded, 2),
            (EventKind::Succeeded, 1),
        ]
    );
    assert_eq!(fleet.dead("insert", 1).await.len(), 1);
    fleet.result_of("t4:c").await;
    assert!(fleet.kinds_of("t4").contains(&"log".to_owned()), "{:?}", fleet.kinds_of("t4"));
    worker.stop().await;
    assert_eq!(calls.sizes(), [5, 1], "the retry is in a batch of its own");
    fleet.assert_clean("insert").await;
}

/// A bad task of many: its neighbours succeed with their first attempt, and only its own failures count.
async fn only_the_bad_task_fails(then: &str, kind: &str) {
    let calls = Calls::open();
    let mut batches = insert(16);
    batches.registered.policy.timeout = Millis(400);
    let fleet = fleet_of(batches, &calls).await;
    let mut ends = [""; 16];
    ends[11] = then;
    send(&fleet, &ends).await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(16).await;
    for event in results {
        let expected = if event.id.as_str() == "t11" { EventKind::Failed } else { EventKind::Succeeded };
        assert_eq!(event.kind(), expected, "{event:?}");
        assert!(event.attempt == 1 || event.id.as_str() == "t11", "{event:?}");
        if let Some(error) = event.payload.error() {
            assert_eq!(error.kind, kind, "{error:?}");
        }
    }
    worker.stop().await;
    let sizes = calls.sizes();
    // 16, then both halves of each part with the task, and for an error that is retried a second attempt alone.
    assert_eq!(sizes[0], 16, "{sizes:?}");
    assert!((9..=10).contains(&sizes.len()), "{sizes:?}");
    fleet.assert_clean("insert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_that_fails_is_halved() {
    only_the_bad_task_fails("breaks", "broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_that_panics_is_halved() {
    only_the_bad_task_fails("panics", "panic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_that_times_out_is_halved() {
    only_the_bad_task_fails("hangs", "timeout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_with_a_wrong_number_of_answers_is_halved() {
    only_the_bad_task_fails("is short", "bad_batch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_of_the_service_is_not_halved() {
    let calls = Calls::open();
    let mut kind = insert(4);
    kind.registered.policy.max_wait = Millis(1);
    let fleet = fleet_of(kind, &calls).await;
    send(&fleet, &["limits", "", "", ""]).await;
    let worker = fleet.worker();
    eventually("a second call", async || calls.sizes().len() > 1).await;
    worker.stop().await;
    assert_eq!(calls.sizes()[..2], [4, 4], "all tasks wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_counts_for_each_task_without_splits() {
    let calls = Calls::open();
    let mut kind = insert(4);
    kind.registered.policy.batch.as_mut().unwrap().split = false;
    let fleet = fleet_of(kind, &calls).await;
    send(&fleet, &["", "breaks", "", ""]).await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(4).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Failed && event.attempt == 1), "{results:?}");
    worker.stop().await;
    assert_eq!(calls.sizes(), [4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_two_tenants_are_in_two_batches() {
    let calls = Calls::open();
    let mut kind = insert(6);
    kind.registered.policy.batch.as_mut().unwrap().by = Some("/tenant".into());
    let fleet = fleet_of(kind, &calls).await;
    for n in 0..12 {
        let tenant = ["acme", "zeta"][n % 2];
        fleet.send("insert", &format!("{tenant}-{n}"), &json!({"tenant": tenant}).to_string()).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(12).await;
    worker.stop().await;
    assert_eq!(calls.sizes(), [6, 6]);
    assert!(calls.all().iter().all(|call| call.iter().all(|id| id[..4] == call[0][..4])), "{:?}", calls.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_has_one_task_of_an_ordering_key() {
    let calls = Calls::open();
    let fleet = fleet_of(insert(10).order(Order::Key), &calls).await;
    for n in 0..6 {
        let (key, id) = (["a", "b", "c"][n % 3], format!("t{n}"));
        fleet.send_record("insert", None, Some(key), Some(b"{}"), &[("ce_id", &id)]).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(6).await;
    worker.stop().await;
    let mut ids = calls.all();
    ids.iter_mut().for_each(|ids| ids.sort());
    assert_eq!(ids, [["t0", "t1", "t2"], ["t3", "t4", "t5"]]);
    fleet.assert_clean("insert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_task_of_a_running_batch_ends_alone() {
    let calls = Calls::closed();
    let fleet = fleet_of(insert(4), &calls).await;
    send(&fleet, &[""; 4]).await;
    let worker = fleet.worker();
    eventually("the call runs", async || calls.sizes() == [4]).await;
    fleet.cancel("t2", 100, true).await;
    eventually("the token of the task is cancelled", async || *calls.cancelled.lock() == ["t2"]).await;
    calls.gate.open();
    fleet.wait_for_results(4).await;
    assert_eq!(fleet.result_of("t2").await.kind(), EventKind::Cancelled);
    for id in ["t0", "t1", "t3"] {
        assert_eq!(fleet.result_of(id).await.kind(), EventKind::Succeeded);
    }
    worker.stop().await;
    assert_eq!(calls.sizes(), [4], "the call goes on for the others");
    fleet.assert_clean("insert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_that_outlasts_the_drain_is_not_counted() {
    let calls = Calls::closed();
    let mut fleet = fleet_of(insert(3).retries(0, Millis(1)), &calls).await;
    fleet.config.drain_timeout = Millis(100);
    send(&fleet, &[""; 3]).await;
    let first = fleet.worker();
    eventually("the call runs", async || calls.sizes() == [3]).await;
    first.stop().await;
    assert_eq!(fleet.results(), []);
    calls.gate.open();
    let second = fleet.worker();
    let results = fleet.wait_for_results(3).await;
    second.stop().await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded && event.attempt == 1), "{results:?}");
    fleet.assert_clean("insert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_batch_occupies_one_slot() {
    let calls = Calls::closed();
    let fleet = fleet_of(insert(4).slots(2), &calls).await;
    send(&fleet, &[""; 12]).await;
    let worker = fleet.worker();
    eventually("two calls run", async || calls.sizes() == [4, 4]).await;
    let started =
        |event: &Event| event.kind() == EventKind::Started && event.message.as_deref() == Some("in a batch of 4 tasks");
    eventually("the events of the starts have the size", async || {
        fleet.events.all().into_iter().filter(started).count() == 8
    })
    .await;
    assert_eq!(worker.metric("kafleet_tasks_in_flight", "insert"), 2.0);
    calls.gate.open();
    fleet.wait_for_results(12).await;
    worker.stop().await;
    assert_eq!(calls.sizes(), [4, 4, 4]);
}
