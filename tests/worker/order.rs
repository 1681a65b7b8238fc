//! The order of tasks: none, by key, by partition.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet::config::Order;
use kafleet::handlers::Failure;
use kafleet::model::duration::Millis;
use parking_lot::Mutex;
use serde_json::Value;

use crate::fleet::{Fleet, memory, until};
use crate::types::{Gate, Journal, Kind, gated, ok};

/// What a key's tasks were seen doing: params are numbers that count up per key.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<HashMap<String, Entries>>>);

type Entries = Vec<(u64, &'static str)>;

impl Ledger {
    fn note(&self, key: &str, number: u64, what: &'static str) {
        self.0.lock().entry(key.to_owned()).or_default().push((number, what));
    }

    /// Per key: a task begins only when the one before has ended, and none is done twice.
    fn check(&self, seed: u64, keys: usize, per_key: u64) {
        let ledger = self.0.lock();
        assert_eq!(ledger.len(), keys, "seed {seed}");
        for (key, entries) in &*ledger {
            let mut next = 0;
            let mut running = None;
            for (number, what) in entries {
                match *what {
                    "begin" => {
                        assert_eq!((running, *number), (None, next), "seed {seed}, key {key}: {entries:?}");
                        running = Some(*number);
                    }
                    "retry" => running = None,
                    "stopped" => running = None,
                    _ => (running, next) = (None, next + 1),
                }
            }
            assert_eq!(next, per_key, "seed {seed}, key {key}: each exactly once");
        }
    }
}

/// Takes a random time, fails now and then, and writes into the ledger.
fn jumpy(name: &'static str, ledger: &Ledger, by_partition: bool) -> Kind {
    let ledger = ledger.clone();
    Kind::new(name, move |params: Value, cx| {
        let ledger = ledger.clone();
        async move {
            let own = if by_partition { "p" } else { "k" };
            let (key, number) = (format!("{own}{}", params[own]), params["n"].as_u64().unwrap());
            ledger.note(&key, number, "begin");
            match fastrand::u32(0..10) {
                0..4 => {}
                4..6 => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_micros(fastrand::u64(100..5_000))).await,
            }
            if fastrand::u32(0..10) == 0 && cx.number < 20 {
                ledger.note(&key, number, "retry");
                return Err(Failure::retry("by chance"));
            }
            ledger.note(&key, number, "end");
            ok(Value::Null)
        }
    })
    .slots(16)
    .retries(30, Millis(3))
}

/// Publishes so many tasks of each key, in order, and starts and stops workers while they run.
async fn run_through(fleet: Fleet, seed: u64, keys: u64, per_key: u64, partitions: i32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut workers = vec![fleet.worker()];
    for n in 0..per_key {
        for key in 0..keys {
            let partition = key as i32 % partitions;
            let params = format!("{{\"k\": {key}, \"p\": {partition}, \"n\": {n}}}");
            let id = format!("{key}-{n}");
            fleet
                .send_record("jumpy", Some(partition), Some(&format!("key-{key}")), Some(params.as_bytes()), &[("ce_id", &id)])
                .await;
        }
        match random.u32(0..6) {
            0 if workers.len() < 4 => workers.push(fleet.worker()),
            1 if workers.len() > 1 => {
                let worker = workers.swap_remove(random.usize(0..workers.len()));
                worker.stop().await;
            }
            _ => {}
        }
    }
    fleet.wait_for_results((keys * per_key) as usize).await;
    for worker in workers {
        worker.stop().await;
    }
    fleet.assert_clean("jumpy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_key_holds_over_retries_and_rebalances() {
    for seed in 0..6 {
        let ledger = Ledger::default();
        let (fleet, _) = memory(4, &[jumpy("jumpy", &ledger, false).order(Order::Key)]).await;
        run_through(fleet, seed, 12, 30, 4).await;
        ledger.check(seed, 12, 30);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_partition_holds_over_retries_and_rebalances() {
    for seed in 0..3 {
        let ledger = Ledger::default();
        let (fleet, _) = memory(4, &[jumpy("jumpy", &ledger, true).order(Order::Partition)]).await;
        run_through(fleet, seed, 4, 60, 4).await;
        ledger.check(seed, 4, 60);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retrying_key_holds_only_itself() {
    let kind = Kind::new("keys", |params: Value, cx| async move {
        if params == 1 && cx.number == 1 { Err(Failure::retry_after("wait", Duration::from_millis(400))) } else { ok(params) }
    });
    let (fleet, _) = memory(1, &[kind.slots(1).order(Order::Key)]).await;
    for (id, key, params) in [("a1", "a", "1"), ("a2", "a", "2"), ("b1", "b", "2")] {
        fleet.send_record("keys", None, Some(key), Some(params.as_bytes()), &[("ce_id", id)]).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(3).await;
    worker.stop().await;
    let position = |id: &str| fleet.results().iter().find(|event| event.id.as_str() == id).unwrap().at_ms;
    assert!(position("b1") + 200 < position("a1"), "another key does not wait");
    assert!(position("a1") <= position("a2"), "the same key does");
}

/// Its key is its id: nothing else has the same one.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_without_a_key_do_not_wait_for_one_another() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(1, &[gated("keys", &journal, &gate).slots(4).order(Order::Key)]).await;
    for n in 0..4 {
        fleet.send_record("keys", Some(0), None, Some(b"0"), &[("ce_id", &format!("t{n}"))]).await;
    }
    let worker = fleet.worker();
    until("all four run at once", || journal.running() == 4).await;
    gate.open();
    fleet.wait_for_results(4).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_runs_one_at_a_time_and_keys_run_side_by_side() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(1, &[gated("keys", &journal, &gate).slots(8).order(Order::Key)]).await;
    for n in 0..30 {
        let (key, id) = (format!("key-{}", n % 3), format!("t{n}"));
        fleet.send_record("keys", None, Some(&key), Some(b"0"), &[("ce_id", &id)]).await;
    }
    let worker = fleet.worker();
    until("one of each key runs", || journal.running() == 3).await;
    gate.open();
    fleet.wait_for_results(30).await;
    worker.stop().await;
    assert_eq!(journal.most(), 3);
    fleet.assert_clean("keys").await;
}
