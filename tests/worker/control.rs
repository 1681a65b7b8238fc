//! The control topic: cancels, kill switches, pauses, and start offsets of refused partitions. A partition is refused
//! (not processed) if, for instance, its commit is lost, until an operator chooses a start offset.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::ProducerRecord;
use kafleet::config::Order;
use kafleet::control::{self, Cancel, ControlKey, ControlRecord, Kill, Offsets, Pause};
use kafleet::handlers::Failure;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::task::kill::{KillMatch, KillParams};
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;

use crate::worker::fleet::{DEADLINE, Fleet, eventually, kafka, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated};

impl Fleet {
    pub async fn put_control(&self, key: ControlKey, record: ControlRecord) {
        control::put_record(&self.producer, &self.names, &key, &record).await.unwrap();
    }

    pub async fn delete_control(&self, key: ControlKey) {
        control::delete(&self.producer, &self.names, &key).await.unwrap();
    }

    pub async fn cancel(&self, id: &str, asof: i64, subtree: bool) {
        let cancel = Cancel { v: 1, asof, at_ms: 0, subtree, reason: Some("enough".into()), by: None };
        self.put_control(ControlKey::Cancel(id.into()), ControlRecord::Cancel(cancel)).await;
    }

    pub async fn pause(&self, task_type: &str) {
        self.put_control(
            ControlKey::Pause(task_type.into()),
            ControlRecord::Pause(Pause { v: 1, at_ms: 0, reason: None, by: None }),
        )
        .await;
    }

    async fn send_child(&self, task_type: &str, parent: &str, segment: &str, params: &str) {
        let headers = [("ce_id", segment), ("ce_parent", parent)];
        self.send_record(task_type, None, Some(segment), Some(params.as_bytes()), &headers).await;
    }
}

fn summary(event: &Event) -> (EventKind, u32, &str, &str) {
    let error = event.payload.error().unwrap();
    (event.kind(), event.attempt, error.kind.as_str(), error.message.as_str())
}

/// A type whose attempts run until they are cancelled. The time of each cancellation is added to `cancelled`.
fn cancellable(name: &'static str, journal: &Journal, cancelled: &Arc<Mutex<Vec<Instant>>>) -> Kind {
    let journal = journal.clone();
    let cancelled = cancelled.clone();
    Kind::new(name, move |_, cx| {
        let journal = journal.clone();
        let cancelled = cancelled.clone();
        async move {
            let _run = journal.begin(&cx);
            cx.cancelled().cancelled().await;
            cancelled.lock().push(Instant::now());
            Err(Failure::cancelled())
        }
    })
}

type CancelTimes = Arc<Mutex<Vec<Instant>>>;

/// Cancels `r:a` in the middle of a running tree. Its child `r:a:b` is cancelled too; its parent `r`, and `r:ab`, whose
/// id begins with the same characters, continue.
async fn subtree(fleet: Fleet, journal: Journal, cancelled: CancelTimes) {
    fleet.send("listens", "r", "0").await;
    fleet.send_child("listens", "r", "a", "0").await;
    fleet.send_child("listens", "r:a", "b", "0").await;
    fleet.send_child("listens", "r", "ab", "0").await;
    let worker = fleet.worker();
    eventually("all four attempts run", async || journal.running() == 4).await;
    let begun = Instant::now();
    fleet.cancel("r:a", 7, true).await;
    eventually("two attempts are cancelled", async || cancelled.lock().len() == 2).await;
    let longest = cancelled.lock().iter().map(|at| at.duration_since(begun)).max().unwrap();
    eprintln!("from writing the record to the handler's token: {longest:?}");
    let results = fleet.wait_for_results(2).await;
    let mut ids: Vec<&str> = results.iter().map(|event| event.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["r:a", "r:a:b"]);
    assert_eq!(
        summary(&fleet.result_of("r:a").await),
        (EventKind::Cancelled, 1, "cancelled", "Job was cancelled. On request: enough")
    );
    assert_eq!(summary(&fleet.result_of("r:a:b").await).3, "Job was cancelled. With `r:a`: enough");
    // A cancel without the subtree leaves the children running.
    fleet.cancel("r", 9, false).await;
    fleet.result_of("r").await;
    assert_eq!(journal.running(), 1, "`r:ab` continues");
    fleet.cancel("r:ab", 9, true).await;
    fleet.result_of("r:ab").await;
    worker.stop().await;
    fleet.assert_clean("listens").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_a_running_subtree() {
    let journal = Journal::default();
    let cancelled = CancelTimes::default();
    let (fleet, _) = memory(2, &[cancellable("listens", &journal, &cancelled)]).await;
    subtree(fleet, journal, cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_a_running_subtree_on_kafka() {
    let journal = Journal::default();
    let cancelled = CancelTimes::default();
    let Some(fleet) = kafka(2, &[cancellable("listens", &journal, &cancelled)]).await else { return };
    subtree(fleet, journal, cancelled).await;
}

/// Cancels tasks that wait for a slot, for their key, for a retry, and for their `not before`.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_waiting_tasks() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let slow = Kind::new("slow", |_, _| async { Err(Failure::retry_after("later", Duration::from_secs(3_600))) });
    let kinds = [gated("one", &journal, &gate).slots(1), gated("keyed", &journal, &gate).order(Order::Key), slow];
    let (mut fleet, _) = memory(1, &kinds).await;
    // The retry waits in the worker, not at the tracker.
    fleet.config.inline_retry_max = Millis(u64::MAX);
    fleet.send("one", "first", "0").await;
    fleet.send("one", "second", "0").await;
    for id in ["front", "behind", "last"] {
        fleet.send_record("keyed", None, Some("key"), Some(b"0"), &[("ce_id", id)]).await;
    }
    fleet.send("slow", "backs-off", "0").await;
    let tomorrow = (kafleet::runtime::now_ms() + 86_400_000).to_string();
    let later = [("ce_id", "later"), ("ce_notbefore", tomorrow.as_str())];
    fleet.send_record("one", None, Some("later"), Some(b"0"), &later).await;
    let worker = fleet.worker();
    eventually("two run", async || journal.running() == 2).await;
    let waits = |events: &[Event], kind| events.iter().any(|event| event.kind() == kind);
    fleet.events.wait("a retry", |events| waits(events, EventKind::Retrying)).await;
    for (id, attempt) in [("second", 0), ("behind", 0), ("backs-off", 1), ("later", 0)] {
        fleet.cancel(id, 5, true).await;
        let end = fleet.result_of(id).await;
        assert_eq!((end.kind(), end.attempt), (EventKind::Cancelled, attempt), "{id}");
    }
    gate.open();
    fleet.wait_for_results(7).await;
    worker.stop().await;
    assert_eq!(journal.starts().len(), 3, "first, front, last: {:?}", journal.starts());
    for task_type in ["one", "keyed", "slow"] {
        fleet.assert_clean(task_type).await;
    }
}

/// An attempt that ignores its cancellation is dropped after the grace period, and not retried.
#[tokio::test(flavor = "multi_thread")]
async fn attempt_that_ignores_a_cancel_is_dropped() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[gated("deaf", &journal, &gate)]).await;
    fleet.send("deaf", "t", "0").await;
    let worker = fleet.worker();
    eventually("the attempt runs", async || journal.running() == 1).await;
    let begun = Instant::now();
    fleet.cancel("t", 5, true).await;
    let end = fleet.result_of("t").await;
    assert_eq!((end.kind(), end.attempt, journal.running()), (EventKind::Cancelled, 1, 0));
    assert!(begun.elapsed() >= Duration::from_millis(200), "the attempt gets the grace period");
    worker.stop().await;
    assert_eq!(journal.started(), 1);
    fleet.assert_clean("deaf").await;
}

/// Cancels written before the worker starts apply; a run requested after the cancel (`ce_asof`) is executed.
#[tokio::test(flavor = "multi_thread")]
async fn worker_started_later_applies_existing_cancels() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("work", &journal)]).await;
    fleet.cancel("old", 10, true).await;
    fleet.cancel("taken-back", 10, true).await;
    fleet.delete_control(ControlKey::Cancel("taken-back".into())).await;
    let again = [("ce_id", "old"), ("ce_run", "2"), ("ce_asof", "11")];
    fleet.send("work", "old", "0").await;
    fleet.send("work", "taken-back", "0").await;
    fleet.send_record("work", None, Some("old"), Some(b"0"), &again).await;
    let worker = fleet.worker();
    fleet
        .events
        .wait("three ends", |events| events.iter().filter(|event| crate::worker::tail::is_end(event)).count() == 3)
        .await;
    worker.stop().await;
    let ends: Vec<_> = fleet.results().iter().map(|event| (event.id.to_string(), event.run, event.kind())).collect();
    assert!(ends.contains(&("old".into(), 1, EventKind::Cancelled)), "{ends:?}");
    assert!(ends.contains(&("old".into(), 2, EventKind::Succeeded)), "{ends:?}");
    assert_eq!(journal.starts(), ["taken-back", "old"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_switch_cancels_only_matching_tasks() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("work", &journal), counted("other", &journal)]).await;
    killed(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_switch_cancels_only_matching_tasks_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[counted("work", &journal), counted("other", &journal)]).await else { return };
    killed(fleet, journal).await;
}

async fn killed(fleet: Fleet, journal: Journal) {
    let kill = |task_type: Option<&str>| {
        ControlRecord::Kill(Kill {
            v: 1,
            at_ms: 0,
            matches: None,
            task_type: task_type.map(str::to_owned),
            params: KillParams::default(),
            reason: Some("bad batch".into()),
            by: None,
        })
    };
    fleet.put_control(ControlKey::Kill("batch-7".into()), kill(None)).await;
    fleet.put_control(ControlKey::Kill("import-".into()), kill(Some("work"))).await;
    let tagged = [("ce_id", "tagged"), ("ce_tags", "x,batch-7")];
    fleet.send_record("work", None, None, Some(b"0"), &tagged).await;
    fleet.send("work", "import-1", "0").await;
    fleet.send("other", "import-2", "0").await;
    fleet.send("work", "free", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(4).await;
    let end = fleet.result_of("tagged").await;
    assert_eq!(summary(&end), (EventKind::Cancelled, 0, "killed", "the kill switch `batch-7` is on: bad batch"));
    assert_eq!(fleet.result_of("import-1").await.kind(), EventKind::Cancelled);
    fleet.delete_control(ControlKey::Kill("import-".into())).await;
    // The deletion takes effect with a delay, so ids are tried until one runs.
    let mut n = 2;
    eventually("the kill switch is off", async || {
        n += 1;
        let id = format!("import-{n}");
        fleet.send("work", &id, "0").await;
        fleet.result_of(&id).await.kind() == EventKind::Succeeded
    })
    .await;
    worker.stop().await;
    let starts = journal.starts();
    assert!(["import-2", "free"].iter().all(|id| starts.iter().any(|start| start == id)), "{starts:?}");
    assert!(!starts.iter().any(|start| start == "tagged" || start == "import-1"), "{starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_switch_on_params_cancels_queued_tasks_with_all_of_them() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("work", &journal), counted("other", &journal)]).await;
    killed_by_params(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_switch_on_params_cancels_queued_tasks_with_all_of_them_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[counted("work", &journal), counted("other", &journal)]).await else { return };
    killed_by_params(fleet, journal).await;
}

/// The switch is set while the tasks wait in a worker for the end of a pause.
async fn killed_by_params(fleet: Fleet, journal: Journal) {
    fleet.pause("work").await;
    let worker = fleet.worker();
    for (id, params) in [
        ("all", r#"{"customer":{"id":42},"kind":"import"}"#),
        ("number", r#"{"kind":"import","customer":{"id":4.20e1}}"#),
        ("first", r#"{"customer":{"id":42},"kind":"export"}"#),
        ("second", r#"{"customer":{"id":43},"kind":"import"}"#),
        ("missing", r#"{"customer":{},"kind":"import"}"#),
        ("none", "0"),
    ] {
        fleet.send("work", id, params).await;
    }
    fleet.send("other", "other", r#"{"customer":{"id":42},"kind":"import"}"#).await;
    fleet.wait_for_results(1).await;
    let switch = Kill {
        v: 1,
        at_ms: 0,
        matches: Some(KillMatch::Tag),
        task_type: Some("work".into()),
        params: serde_json::from_str(r#"{"/customer/id":42,"/kind":"import"}"#).unwrap(),
        reason: None,
        by: None,
    };
    fleet.put_control(ControlKey::Kill("all".into()), ControlRecord::Kill(switch)).await;
    let end = fleet.result_of("all").await;
    let message = "the kill switch `all` is on for params at `/customer/id` and at `/kind`";
    assert_eq!(summary(&end), (EventKind::Cancelled, 0, "killed", message));
    assert_eq!(fleet.result_of("number").await.kind(), EventKind::Cancelled);
    fleet.delete_control(ControlKey::Pause("work".into())).await;
    fleet.wait_for_results(7).await;
    worker.stop().await;
    let starts: BTreeSet<String> = journal.starts().into_iter().collect();
    assert_eq!(starts, ["first", "missing", "none", "other", "second"].map(str::to_owned).into());
}

/// Invalid records change nothing, and valid ones after them apply.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_control_records_are_ignored() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("work", &journal)]).await;
    let topic = fleet.names.control();
    for (key, value) in [
        ("pause/Work!", "{\"v\":1}"),
        ("pause/work", "nonsense"),
        ("pause/work", "{\"v\":2}"),
        ("slots/work", "{\"v\":1,\"slots\":0}"),
        ("rate/work", "{\"v\":1,\"count\":0}"),
        ("cancel/t::", "{\"v\":1,\"asof\":5}"),
        ("cancel/t", "{\"v\":1}"),
        ("offsets/work", "{\"v\":1,\"offset\":5}"),
        ("kill/", "{\"v\":1}"),
        ("kill/t", "{\"v\":1,\"params\":{\"\":0}}"),
        ("future/thing", "{}"),
    ] {
        let record = ProducerRecord {
            topic: &topic,
            partition: Some(0),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        };
        fleet.producer.deliver(record, DEADLINE).await.unwrap();
    }
    fleet.cancel("u", 5, true).await;
    fleet.send("work", "t", "0").await;
    fleet.send("work", "u", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(2).await;
    worker.stop().await;
    assert_eq!(journal.starts(), ["t"]);
}

/// Chooses the start offset of a refused partition while the worker runs. `expire` removes the committed offsets.
async fn choose_start(fleet: Fleet, journal: Journal, expire: impl FnOnce()) {
    for n in 0..20 {
        fleet.send_to("gone", 0, &format!("t{n}"), "0").await;
    }
    fleet.worker().stop_after(&fleet, 20).await;
    expire();
    fleet.send_to("gone", 0, "new", "0").await;
    let worker = fleet.worker();
    let refused = || worker.health.reasons().into_iter().any(|(part, _)| part.ends_with("/0"));
    eventually("the health names the partition", async || refused()).await;
    fleet
        .put_control(
            ControlKey::Offsets("gone".into(), 0),
            ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 15 }),
        )
        .await;
    fleet.result_of("new").await;
    eventually("the worker is healthy", async || worker.health.reasons().is_empty()).await;
    let names = fleet.names.clone();
    eventually("the control record is deleted", async || {
        let last = fleet.records(&names.control(), 1, 1).await.pop().unwrap();
        let is_deleted = last.value.is_none() && last.key.as_deref() == Some(b"offsets/gone/0");
        if is_deleted { Ok(()) } else { Err(last) }
    })
    .await;
    worker.stop().await;
    assert_eq!(journal.started(), 20 + 6, "offsets 15 to 20: {:?}", journal.starts());
    fleet.assert_clean("gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_partition_starts_at_the_chosen_offset() {
    let journal = Journal::default();
    let (fleet, broker) = memory(1, &[counted("gone", &journal)]).await;
    choose_start(fleet, journal, || broker.expire_groups()).await;
}

/// Chooses the start offset before the worker starts. The partition is marked as consumed and never had a commit, which
/// the worker treats as a lost commit: on Kafka, a test cannot let a commit expire.
async fn choose_start_before(fleet: Fleet, journal: Journal) {
    for n in 0..5 {
        fleet.send_to("gone", 0, &format!("t{n}"), "0").await;
    }
    control::settings::mark_partition_consumed(&fleet.producer, &fleet.names, "gone", 0).await.unwrap();
    fleet
        .put_control(
            ControlKey::Offsets("gone".into(), 0),
            ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 3 }),
        )
        .await;
    let worker = fleet.worker();
    fleet.wait_for_results(2).await;
    eventually("the worker is healthy", async || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    assert_eq!(journal.starts(), ["t3", "t4"]);
    fleet.assert_clean("gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_partition_starts_at_the_offset_chosen_before() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("gone", &journal)]).await;
    choose_start_before(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_partition_starts_at_the_offset_chosen_before_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[counted("gone", &journal)]).await else { return };
    choose_start_before(fleet, journal).await;
}

/// A cancel in a paused type takes effect before the pause ends.
async fn paused(fleet: Fleet, journal: Journal, gate: Gate) {
    fleet.send("work", "runs", "0").await;
    let worker = fleet.worker();
    eventually("one runs", async || journal.running() == 1).await;
    fleet.pause("work").await;
    eventually("the pause applies", async || worker.metric("kafleet_type_paused", "work") == 1.0).await;
    fleet.send_many("work", "t", 20, "0").await;
    gate.open();
    fleet.result_of("runs").await;
    fleet.cancel("t7", 5, true).await;
    assert_eq!(fleet.result_of("t7").await.kind(), EventKind::Cancelled);
    fleet.send("echo", "other", "0").await;
    fleet.result_of("other").await;
    assert_eq!((journal.starts(), worker.health.reasons()), (vec!["runs".to_owned()], Vec::new()));
    let second = fleet.worker();
    second.ready().await;
    assert_eq!(journal.started(), 1, "a worker that starts later applies the pause");
    fleet.delete_control(ControlKey::Pause("work".into())).await;
    fleet.wait_for_results(22).await;
    worker.stop().await;
    second.stop().await;
    assert_eq!(journal.counts().len(), 20);
    fleet.assert_clean("work").await;
}

fn paused_kinds(journal: &Journal, gate: &Gate) -> [Kind; 2] {
    [gated("work", journal, gate).slots(1), Kind::echo("echo")]
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_type_starts_nothing_and_ends_cancelled_tasks() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(2, &paused_kinds(&journal, &gate)).await;
    paused(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_type_starts_nothing_and_ends_cancelled_tasks_on_kafka() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let Some(fleet) = kafka(2, &paused_kinds(&journal, &gate)).await else { return };
    paused(fleet, journal, gate).await;
}
