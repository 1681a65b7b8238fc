//! Waits: executions that do not count as attempts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet::config::{OnError, Order};
use kafleet::handlers::Failure;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use serde_json::Value;

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::{Kind, ok};

/// A type without retries, each of whose tasks waits `waits` times for this time and then succeeds.
fn waiting(waits: usize, time: Option<Duration>) -> Kind {
    let executions: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let kind = Kind::new("waiting", move |params: Value, cx| {
        let executions = executions.clone();
        async move {
            let mut executions = executions.lock();
            let execution = executions.entry(cx.id.to_string()).or_default();
            *execution += 1;
            if *execution <= waits { Err(Failure::wait(time, "later").of_kind("rate_limited")) } else { ok(params) }
        }
    });
    kind.retries(0, Millis(1))
}

fn waits_of(fleet: &Fleet, id: &str) -> Vec<Event> {
    let is_wait = |event: &Event| event.id.as_str() == id && event.kind() == EventKind::Retrying;
    fleet.events.all().into_iter().filter(is_wait).collect()
}

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

#[tokio::test(flavor = "multi_thread")]
async fn task_without_retries_waits_and_succeeds_in_its_first_attempt() {
    let mut kind = waiting(4, SHORT);
    kind.registered.policy.on_error = OnError::Fail;
    (kind.registered.policy.max_failures, kind.registered.policy.failure_period) = (Some(1), Millis::secs(60));
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("waiting", "a", "1").await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    assert_eq!((end.kind(), end.attempt), (EventKind::Succeeded, 1));
    let waits: Vec<_> = waits_of(&fleet, "a").iter().map(|event| (event.attempt, event.payload.waits())).collect();
    assert_eq!(waits, [(1, 1), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(worker.metric("kafleet_waits_total", "waiting"), 4.0);
    assert_eq!(worker.metric("kafleet_task_retries_total", "waiting"), 0.0);
    assert_eq!(worker.metric("kafleet_type_stopped", "waiting"), 0.0, "waits are no failures");
    worker.stop().await;
    fleet.assert_clean("waiting").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_without_a_time_doubles() {
    let mut kind = waiting(3, None);
    kind.registered.policy.min_backoff = Millis(40);
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("waiting", "a", "1").await;
    let worker = fleet.worker();
    fleet.result_of("a").await;
    worker.stop().await;
    for (event, base) in waits_of(&fleet, "a").iter().zip([40, 80, 160]) {
        let wait = event.payload.due_ms().unwrap() - event.at_ms;
        assert!((base..=base * 12 / 10).contains(&wait), "{wait} ms instead of {base} ms and up to 20 %");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_wait_is_handed_over_to_the_tracker_with_its_number() {
    let (fleet, _) = memory(1, &[waiting(9, Some(Duration::from_secs(40)))]).await;
    fleet.send("waiting", "first", "1").await;
    let used = [("ce_id", "second"), ("ce_attempt", "2"), ("ce_retries", "5"), ("ce_waits", "3,1800000000000")];
    fleet.send_record("waiting", None, None, Some(b"2"), &used).await;
    let foreign = [("ce_id", "foreign"), ("x-own", "kept"), ("ce_waits", "3,1800000000000")];
    fleet.send_record("waiting", None, Some("own"), Some(b"3"), &foreign).await;
    let worker = fleet.worker();
    fleet.wait_committed("waiting").await;
    worker.stop().await;
    for (id, attempt, waits, attempts_used) in
        [("first", 1, 1, None), ("second", 3, 4, Some("2")), ("foreign", 1, 4, None)]
    {
        let event = waits_of(&fleet, id).remove(0);
        assert_eq!((event.attempt, event.payload.waits()), (attempt, waits), "{id}");
        let record = event.payload.record().expect("its record");
        let header =
            |header_name: &str| record.headers.iter().find(|(name, _)| name == header_name).map(|(_, value)| &**value);
        let (number, since) = header("ce_waits").and_then(|text| text.split_once(',')).unwrap();
        assert_eq!((number, header("ce_attempt")), (&*waits.to_string(), attempts_used), "{id}");
        assert_eq!(since == "1800000000000", waits == 4, "{id}: the time of the first wait is kept");
    }
}

/// A task with many short waits must not hold back the commits of its partition.
#[tokio::test(flavor = "multi_thread")]
async fn short_waits_that_are_long_together_are_handed_over() {
    let (mut fleet, _) = memory(1, &[waiting(9, Some(Duration::from_millis(40)))]).await;
    fleet.config.inline_retry_max = Millis(100);
    fleet.send("waiting", "a", "1").await;
    let worker = fleet.worker();
    fleet.wait_committed("waiting").await;
    worker.stop().await;
    let waits = waits_of(&fleet, "a");
    let has_record: Vec<bool> = waits.iter().map(|event| event.payload.record().is_some()).collect();
    assert_eq!(has_record, [false, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_an_ordered_type_waits_in_the_worker() {
    let kind = waiting(1, Some(Duration::from_secs(3_600))).order(Order::Key);
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("waiting", "a", "1").await;
    let worker = fleet.worker();
    fleet.events.wait("the wait", |events| events.iter().any(|event| event.kind() == EventKind::Retrying)).await;
    worker.stop().await;
    assert!(waits_of(&fleet, "a")[0].payload.record().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_count_as_attempts_after_max_wait() {
    let (fleet, _) = memory(1, &[waiting(100, SHORT)]).await;
    let long_ago = [("ce_id", "old"), ("ce_retries", "2"), ("ce_waits", "7,1700000000000")];
    fleet.send_record("waiting", None, None, Some(b"1"), &long_ago).await;
    let none = [("ce_id", "none"), ("ce_retries", "1"), ("ce_maxwait", "0")];
    fleet.send_record("waiting", None, None, Some(b"1"), &none).await;
    let worker = fleet.worker();
    for (id, attempts) in [("old", 3), ("none", 2)] {
        let end = fleet.result_of(id).await;
        assert_eq!((end.kind(), end.attempt), (EventKind::Failed, attempts), "{id}");
        assert_eq!(end.payload.error().unwrap().kind, "rate_limited", "{id}");
        assert!(waits_of(&fleet, id).iter().all(|event| !event.payload.is_wait()), "{id}");
    }
    assert!(fleet.dead("waiting", 2).await.iter().all(|dead| dead.code == "exhausted"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_with_the_total_timeout_and_with_a_final_kind() {
    let mut kind = waiting(100, Some(Duration::from_secs(20)));
    kind.registered.policy.fail_on = vec!["final".to_owned()];
    let last = Kind::new("last", |_: Value, _| async { Err(Failure::wait(None, "no").of_kind("final")) });
    let mut last = last.retries(5, Millis(1));
    last.registered.policy.fail_on = vec!["final".to_owned()];
    let (fleet, _) = memory(1, &[kind, last]).await;
    fleet.send_record("waiting", None, None, Some(b"1"), &[("ce_id", "total"), ("ce_totaltimeout", "10s")]).await;
    fleet.send("last", "final", "1").await;
    let worker = fleet.worker();
    let total = fleet.result_of("total").await;
    assert_eq!(total.payload.error().unwrap().kind, "timeout");
    assert_eq!(fleet.dead("waiting", 1).await[0].code, "timeout");
    let last = fleet.result_of("final").await;
    assert_eq!((last.kind(), last.attempt), (EventKind::Failed, 1));
    worker.stop().await;
}

/// A task that has waited has started, so its latest start has passed without consequence.
#[tokio::test(flavor = "multi_thread")]
async fn task_that_has_waited_does_not_expire() {
    let (fleet, _) = memory(1, &[waiting(2, Some(Duration::from_millis(1_500)))]).await;
    fleet.send_record("waiting", None, None, Some(b"1"), &[("ce_id", "a"), ("ce_expires", "1s")]).await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("a").await.kind(), EventKind::Succeeded);
    worker.stop().await;
}
