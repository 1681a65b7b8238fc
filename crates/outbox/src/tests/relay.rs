//! Relay on the table and the broker in memory: faults, kills, failovers, standbys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kafleet_api::SubmissionError;
use kafleet_broker::memory::{Faults, MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::{Broker, Partition, TopicSpec};
use kafleet_config::{Names, Topology};
use kafleet_documents::CreateTask;
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::{Event, Kind};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_runtime::{Health, Shutdown};
use kafleet_testkit::wait::eventually;
use tokio::task::JoinHandle;

use super::tables::row;
use crate::checks::RowChecks;
use crate::memory::{MemoryOutbox, NewRow, TableFaults};
use crate::metrics::RelayMetrics;
use crate::relay::{Relay, RelayTimes};
use crate::table::OutboxTable;

const CALL_DEADLINE: Duration = Duration::from_secs(60);
const PARTITIONS: u32 = 2;
/// Times with which a test sees many sessions.
const TIMES: RelayTimes = RelayTimes {
    lease: Duration::from_millis(150),
    renewal: Duration::from_millis(20),
    standby: Duration::from_millis(10),
    pause: (Duration::from_millis(1), Duration::from_millis(5)),
    poll: (Duration::from_millis(1), Duration::from_millis(4)),
    transaction: CALL_DEADLINE,
};

/// Accepts all types except `invalid`.
pub(super) struct AnyType;

#[async_trait]
impl RowChecks for AnyType {
    async fn check(
        &self,
        input: CreateTask,
        _trace: Option<&Trace>,
        _now_ms: i64,
    ) -> Result<TaskSpec, SubmissionError> {
        if input.task_type == "invalid" {
            return Err(SubmissionError::Invalid("no such type".into()));
        }
        let id = TaskId::parse(input.id.as_deref().unwrap_or_default());
        let id = id.map_err(|error| SubmissionError::Invalid(error.to_string()))?;
        let mut task = TaskSpec::new(id, input.task_type, input.params);
        task.key = input.key.map(Into::into);
        Ok(task)
    }
}

struct Fixture {
    broker: Arc<MemoryBroker>,
    table: Arc<MemoryOutbox>,
    publisher: Publisher,
    metrics: RelayMetrics,
}

struct RunningRelay {
    shutdown: Shutdown,
    health: Health,
    handle: JoinHandle<()>,
}

impl RunningRelay {
    async fn stop(self) {
        self.shutdown.begin();
        self.handle.await.unwrap();
    }

    /// Ends the relay as a kill does: calls that have begun may still take effect.
    fn kill(self) {
        self.handle.abort();
    }
}

async fn fixture(seed: u64) -> Fixture {
    let broker = MemoryBroker::new(MemoryBrokerOptions::default());
    let names = Names::new("t");
    let topic = |name: String, partitions: u32, policy: &str| TopicSpec {
        name,
        partitions,
        replication: None,
        config: vec![("cleanup.policy".into(), policy.into())],
    };
    let topics = [
        topic(names.tasks("echo"), PARTITIONS, "delete"),
        topic(names.events(), PARTITIONS, "delete"),
        topic(names.outbox(), 1, "compact"),
    ];
    broker.apply_topics(&topics, CALL_DEADLINE).unwrap();
    let client = (broker.clone() as Arc<dyn Broker>).client();
    let producer = client.shared_producer(None).await.unwrap();
    let publisher = Publisher::new(producer, Topology::new(names, PARTITIONS), "test");
    Fixture {
        broker,
        table: MemoryOutbox::new(seed),
        publisher,
        metrics: RelayMetrics::of(&kafleet_telemetry::Metrics::new().unwrap()),
    }
}

impl Fixture {
    fn start(&self, holder: &str) -> RunningRelay {
        let (shutdown, health) = (Shutdown::new(), Health::default());
        let relay = Relay {
            table: self.table.clone(),
            client: (self.broker.clone() as Arc<dyn Broker>).client(),
            publisher: self.publisher.clone(),
            checks: Arc::new(AnyType),
            metrics: self.metrics.clone(),
            health: health.clone(),
            shutdown: shutdown.clone(),
            holder: holder.to_owned(),
            times: TIMES,
        };
        RunningRelay { shutdown, health, handle: tokio::spawn(relay.run()) }
    }

    fn commit(&self, rows: impl IntoIterator<Item = NewRow>) {
        let transaction = self.table.begin();
        for row in rows {
            transaction.submit(row);
        }
        transaction.commit();
    }

    async fn drained(&self) {
        eventually("the outbox is empty", async || self.table.is_empty()).await;
    }

    /// Values of a header or key of all committed records of a topic, in the order of each partition.
    fn committed(&self, topic: &str, value: impl Fn(&kafleet_broker::Record) -> Option<String>) -> Vec<String> {
        let mut found = Vec::new();
        for index in 0..PARTITIONS as i32 {
            let (at, mut offset) = (Partition::new(topic, index), 0);
            while let Some(record) = self.broker.first_visible(&at, offset, CALL_DEADLINE).unwrap().record {
                offset = record.offset + 1;
                found.extend(value(&record));
            }
        }
        found
    }

    fn published(&self) -> Vec<String> {
        let id = |record: &kafleet_broker::Record| {
            let id = kafleet_broker::header_value(&record.headers, "ce_id")?;
            Some(String::from_utf8(id.to_vec()).unwrap())
        };
        self.committed(&Names::new("t").tasks("echo"), id)
    }

    fn submitted(&self) -> Vec<String> {
        self.committed(&Names::new("t").events(), |record| {
            let event = Event::decode(record.value.as_deref()?).ok()?;
            (event.kind() == Kind::Submitted).then(|| event.id.to_string())
        })
    }

    /// Asserts that each of the ids, and no other, has exactly one task record and one `submitted` event.
    fn assert_published_once(&self, ids: &BTreeSet<String>) {
        for found in [self.published(), self.submitted()] {
            assert_each_once(ids, &found);
        }
    }
}

pub(super) fn assert_each_once(ids: &BTreeSet<String>, found: &[String]) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    found.iter().for_each(|id| *counts.entry(id).or_default() += 1);
    let lost: Vec<_> = ids.iter().filter(|id| !counts.contains_key(id.as_str())).collect();
    let wrong: Vec<_> = counts.iter().filter(|(id, n)| **n != 1 || !ids.contains(**id)).collect();
    assert!(lost.is_empty() && wrong.is_empty(), "lost: {lost:?}, repeated or not committed: {wrong:?}");
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_rows_become_tasks_and_rolled_back_ones_do_not() {
    let fixture = fixture(1).await;
    let relay = fixture.start("relay");
    fixture.commit([row("a"), row("b")]);
    let rolled_back = fixture.table.begin();
    rolled_back.submit(row("x"));
    drop(rolled_back);
    fixture.drained().await;
    relay.stop().await;
    fixture.assert_published_once(&set(&["a", "b"]));
    assert_eq!(fixture.metrics.published.get(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_key_stay_in_order() {
    let fixture = fixture(2).await;
    let keyed = |n: usize| NewRow { task_key: Some("customer".into()), ..row(&format!("row-{n:04}")) };
    fixture.commit((0..2_500).map(keyed));
    let relay = fixture.start("relay");
    fixture.drained().await;
    relay.stop().await;
    let published = fixture.published();
    assert!(published.len() == 2_500 && published.is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_row_is_dead_and_its_neighbours_are_published() {
    let fixture = fixture(3).await;
    let invalid = NewRow { task_type: "invalid".into(), ..row("b") };
    fixture.commit([row("a"), invalid, NewRow { fields: Some("[]".into()), ..row("c") }, row("d")]);
    let relay = fixture.start("relay");
    fixture.drained().await;
    relay.stop().await;
    fixture.assert_published_once(&set(&["a", "d"]));
    let dead = fixture.table.dead_rows(10).await.unwrap();
    let reasons: BTreeMap<&str, &str> = dead.iter().map(|row| (row.id.as_str(), row.reason.as_str())).collect();
    assert_eq!(reasons["b"], "no such type");
    assert!(reasons["c"].starts_with("`fields` is not a JSON object"), "{reasons:?}");
    assert_eq!(fixture.metrics.dead.get(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_that_kafka_refuses_is_dead_alone() {
    let fixture = fixture(4).await;
    let names = Names::new("t");
    let config = vec![("max.message.bytes".to_owned(), "20000".to_owned())];
    let spec = TopicSpec { name: names.tasks("echo"), partitions: PARTITIONS, replication: None, config };
    fixture.broker.apply_topics(&[spec], CALL_DEADLINE).unwrap();
    let large = NewRow { params: format!("\"{}\"", "x".repeat(30_000)), ..row("large") };
    fixture.commit((0..50).map(|n| row(&format!("row-{n}"))).chain([large]));
    let relay = fixture.start("relay");
    fixture.drained().await;
    relay.stop().await;
    fixture.assert_published_once(&(0..50).map(|n| format!("row-{n}")).collect());
    assert_eq!(fixture.table.stats().await.unwrap().dead, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_waits_and_takes_over_at_once_after_a_clean_stop() {
    let fixture = fixture(5).await;
    let first = fixture.start("first");
    fixture.commit([row("a")]);
    fixture.drained().await;
    let second = fixture.start("second");
    fixture.commit([row("b")]);
    fixture.drained().await;
    assert!(second.health.reasons().is_empty(), "a standby is ready");
    first.stop().await;
    fixture.commit([row("c")]);
    fixture.drained().await;
    second.stop().await;
    fixture.assert_published_once(&set(&["a", "b", "c"]));
    assert_eq!(fixture.metrics.fenced.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_that_loses_its_producer_is_fenced_and_repeats_nothing() {
    let fixture = fixture(6).await;
    let relay = fixture.start("relay");
    fixture.commit([row("a")]);
    fixture.drained().await;
    let identity = fixture.table.open().await.unwrap().identity();
    let name = Names::new("t").outbox_sender(identity);
    drop(fixture.broker.transactional_producer(&name).unwrap());
    fixture.commit([row("b")]);
    fixture.drained().await;
    relay.stop().await;
    fixture.assert_published_once(&set(&["a", "b"]));
    assert_eq!(fixture.metrics.fenced.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_that_loses_deletes_repeats_nothing() {
    let fixture = fixture(7).await;
    fixture.commit((0..300).map(|n| row(&format!("row-{n}"))));
    let before = fixture.table.snapshot();
    let relay = fixture.start("relay");
    fixture.drained().await;
    fixture.table.fail_over(before);
    fixture.commit([row("last")]);
    let is_new = async || fixture.published().contains(&"last".to_owned());
    eventually("rows behind the failover are published", is_new).await;
    // The rows that came back are behind the cursor: another relay deletes them, or this one at its next check.
    relay.stop().await;
    let next = fixture.start("next");
    fixture.drained().await;
    next.stop().await;
    let mut ids: BTreeSet<String> = (0..300).map(|n| format!("row-{n}")).collect();
    ids.insert("last".into());
    fixture.assert_published_once(&ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_that_loses_inserts_loses_no_later_row() {
    let fixture = fixture(8).await;
    let empty = fixture.table.snapshot();
    fixture.commit((0..5).map(|n| row(&format!("lost-{n}"))));
    let relay = fixture.start("relay");
    fixture.drained().await;
    relay.stop().await;
    // The numbers 1 to 5 are given again.
    fixture.table.fail_over(empty);
    fixture.commit((0..5).map(|n| row(&format!("new-{n}"))));
    let relay = fixture.start("relay");
    fixture.drained().await;
    relay.stop().await;
    let ids = (0..5).flat_map(|n| [format!("lost-{n}"), format!("new-{n}")]).collect();
    fixture.assert_published_once(&ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_transaction_of_a_killed_relay_is_aborted_and_its_rows_are_published() {
    let fixture = fixture(9).await;
    let name = Names::new("t").outbox_sender(fixture.table.open().await.unwrap().identity());
    fixture.broker.hold_transactions(&name, true);
    fixture.commit([row("a")]);
    let relay = fixture.start("killed");
    let is_written = async || {
        let topic = Partition::new(Names::new("t").outbox(), 0);
        fixture.broker.watermarks(&topic, CALL_DEADLINE).unwrap().high > 0
    };
    eventually("the transaction is written", is_written).await;
    relay.kill();
    fixture.broker.hold_transactions(&name, false);
    let relay = fixture.start("next");
    fixture.drained().await;
    relay.stop().await;
    fixture.assert_published_once(&set(&["a"]));
}

/// Applications with late commits and rollbacks, two relays, kills, faults of both sides, compaction, failovers that lose
/// deletes: each committed row is one task.
#[tokio::test(flavor = "multi_thread")]
async fn each_committed_row_is_one_task_under_faults_and_kills() {
    for seed in 0..12 {
        let fixture = fixture(100 + seed).await;
        let mut random = fastrand::Rng::with_seed(seed);
        fixture.table.set_faults(TableFaults { fails: 0.05, loses_reply: 0.05 });
        fixture.broker.set_faults(Faults { seed, unavailable: 0.1, lost_acknowledgement: 0.1, ..Faults::default() });
        let mut relays = vec![fixture.start("r0"), fixture.start("r1")];
        let (mut committed, mut open, mut started) = (BTreeSet::new(), Vec::new(), 2);
        let mut before = fixture.table.snapshot();
        for n in 0..120 {
            let transaction = fixture.table.begin();
            let ids: Vec<String> = (0..random.usize(1..6)).map(|m| format!("s{seed}-{n}-{m}")).collect();
            for id in &ids {
                transaction.submit(row(id));
            }
            open.push((transaction, ids));
            while open.len() > random.usize(1..5) {
                let (transaction, ids) = open.swap_remove(random.usize(..open.len()));
                if random.u8(..5) > 0 {
                    committed.extend(ids);
                    transaction.commit();
                }
            }
            if random.u8(..8) == 0 {
                let at = random.usize(..relays.len());
                relays.swap_remove(at).kill();
                relays.push(fixture.start(&format!("r{started}")));
                started += 1;
            }
            if random.u8(..10) == 0 {
                fixture.broker.compact(&Names::new("t").outbox()).unwrap();
            }
            tokio::task::yield_now().await;
            if random.u8(..4) == 0 {
                // Time for the relays, which the test does not otherwise wait for.
                tokio::time::sleep(Duration::from_millis(random.u64(1..8))).await;
            }
            if n == 60 {
                before = fixture.table.snapshot();
            }
        }
        drop(open);
        fixture.table.set_faults(TableFaults::default());
        fixture.broker.set_faults(Faults::default());
        fixture.drained().await;
        // Rows of the middle come back.
        fixture.table.fail_over(before);
        relays.into_iter().for_each(RunningRelay::kill);
        let last = fixture.start("last");
        fixture.drained().await;
        last.stop().await;
        fixture.assert_published_once(&committed);
    }
}
