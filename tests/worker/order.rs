//! Order of tasks: none, by key, by partition.

use std::time::Duration;

use kafleet::config::Order;
use kafleet::handlers::Failure;
use kafleet::model::task::partition::partition_of;
use serde_json::Value;

use crate::worker::fleet::{eventually, memory};
use crate::worker::heartbeats::wait_for_heartbeat;
use crate::worker::types::{Gate, Journal, Kind, counted, gated, ok};

#[tokio::test(flavor = "multi_thread")]
async fn retry_blocks_only_its_own_key() {
    let kind = Kind::new("keys", |params: Value, cx| async move {
        if params == 1 && cx.number == 1 {
            Err(Failure::retry_after("wait", Duration::from_secs(3)))
        } else {
            ok(params)
        }
    });
    let (fleet, _) = memory(1, &[kind.slots(1).order(Order::Key)]).await;
    for (id, key, params) in [("a1", "a", "1"), ("a2", "a", "2"), ("b1", "b", "2")] {
        fleet.send_record("keys", None, Some(key), Some(params.as_bytes()), &[("ce_id", id)]).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(3).await;
    worker.stop().await;
    let position = |id: &str| fleet.results().iter().find(|event| event.id.as_str() == id).unwrap().at_ms;
    assert!(position("b1") < position("a1"), "a task with another key does not wait");
    assert!(position("a1") <= position("a2"), "a task with the same key waits");
}

/// Without a key, the task's unique id is the key.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_without_a_key_run_concurrently() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[gated("keys", &journal, &gate).slots(4).order(Order::Key)]).await;
    for n in 0..4 {
        fleet.send_record("keys", Some(0), None, Some(b"0"), &[("ce_id", &format!("t{n}"))]).await;
    }
    let worker = fleet.worker();
    eventually("all four tasks run at once", async || journal.running() == 4).await;
    gate.open();
    fleet.wait_for_results(4).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_key_run_one_at_a_time_and_keys_run_concurrently() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[gated("keys", &journal, &gate).slots(8).order(Order::Key)]).await;
    for n in 0..30 {
        let key = format!("key-{}", n % 3);
        let id = format!("t{n}");
        fleet.send_record("keys", None, Some(&key), Some(b"0"), &[("ce_id", &id)]).await;
    }
    let worker = fleet.worker();
    eventually("one task of each key runs", async || journal.running() == 3).await;
    gate.open();
    fleet.wait_for_results(30).await;
    worker.stop().await;
    assert_eq!(journal.most(), 3);
    fleet.assert_clean("keys").await;
}

/// A producer with another partitioner breaks the order of a key, which the worker notices.
#[tokio::test(flavor = "multi_thread")]
async fn keys_in_other_partitions_are_reported_for_ordered_types_only() {
    let journal = Journal::default();
    let kinds = [counted("keys", &journal).order(Order::Key), counted("free", &journal)];
    let (fleet, _) = memory(4, &kinds).await;
    let right = partition_of(b"k1", 4) as i32;
    for (n, partition) in [right, (right + 1) % 4, (right + 2) % 4].into_iter().enumerate() {
        for task_type in ["keys", "free"] {
            let id = format!("{task_type}-{n}");
            fleet.send_record(task_type, Some(partition), Some("k1"), Some(b"0"), &[("ce_id", &id)]).await;
        }
    }
    let worker = fleet.worker();
    let heartbeat_with_keys = wait_for_heartbeat(&fleet, "the keys are reported", |heartbeat| {
        heartbeat.types.iter().any(|status| status.misplaced_keys.is_some())
    });
    let heartbeat = heartbeat_with_keys.await;
    for status in &heartbeat.types {
        let example = status.misplaced_keys.as_deref();
        let is_right =
            |text: &str| text.starts_with("key `k1` in partition ") && text.contains(&format!("instead of {right}"));
        assert_eq!(example.is_some_and(is_right), status.task_type == "keys", "{status:?}");
    }
    fleet.wait_for_results(6).await;
    worker.stop().await;
}
