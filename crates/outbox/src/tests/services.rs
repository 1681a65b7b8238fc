//! Relay on a real Kafka and a real Postgres, with kills of both sides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, ConsumerSpec, Partition, StartOffset, TopicSpec};
use kafleet_config::{Names, Topology};
use kafleet_fleet::publish::Publisher;
use kafleet_runtime::{Health, Shutdown, blocking};
use kafleet_telemetry::Metrics;
use kafleet_testkit::names::unique;
use kafleet_testkit::services;
use kafleet_testkit::wait::eventually;

use super::relay::{AnyType, assert_each_once};
use super::tables::{InPostgres, TestedTable, row};
use crate::metrics::RelayMetrics;
use crate::relay::{Relay, RelayTimes};

const CALL_DEADLINE: Duration = Duration::from_secs(60);
const PARTITIONS: u32 = 2;
const KILLS: usize = 100;
const ROWS_BETWEEN_KILLS: usize = 20;

fn relay(broker: &Arc<dyn Broker>, table: &InPostgres, publisher: &Publisher, holder: String) -> Relay {
    Relay {
        table: table.table(),
        client: broker.client(),
        publisher: publisher.clone(),
        checks: Arc::new(AnyType),
        metrics: RelayMetrics::of(&Metrics::new().unwrap()),
        health: Health::default(),
        shutdown: Shutdown::new(),
        holder,
        times: RelayTimes {
            lease: Duration::from_millis(300),
            renewal: Duration::from_millis(50),
            standby: Duration::from_millis(20),
            pause: (Duration::from_millis(5), Duration::from_millis(100)),
            ..RelayTimes::default()
        },
    }
}

/// Ids of all committed task records.
async fn published(broker: &Arc<dyn Broker>, topic: String) -> Vec<String> {
    let broker = broker.clone();
    let read = move || {
        let parts: Vec<Partition> = (0..PARTITIONS as i32).map(|index| Partition::new(topic.as_str(), index)).collect();
        let ends: Vec<i64> = parts.iter().map(|at| broker.watermarks(at, CALL_DEADLINE).unwrap().high).collect();
        let mut consumer = broker.consumer(&ConsumerSpec::default()).unwrap();
        consumer.assign(&parts.iter().map(|at| (at.clone(), StartOffset::Beginning)).collect::<Vec<_>>()).unwrap();
        let mut ids = Vec::new();
        loop {
            let mut take = |record: &kafleet_broker::RecordRef<'_>| {
                let id = record.headers().find(|(name, _)| *name == "ce_id").and_then(|(_, value)| value).unwrap();
                ids.push(String::from_utf8(id.to_vec()).unwrap());
            };
            consumer.poll(10_000, Duration::from_millis(100), &mut take).unwrap();
            let positions = consumer.positions().unwrap();
            let is_read = |(at, end): (&Partition, &i64)| positions.iter().any(|(other, n)| other == at && n >= end);
            if parts.iter().zip(&ends).all(is_read) {
                return ids;
            }
        }
    };
    blocking(read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_committed_row_is_one_task_under_a_hundred_kills() {
    let (Some(servers), Some(table)) = (services::kafka(), InPostgres::create("outbox_kills").await) else { return };
    let broker: Arc<dyn Broker> = services::connect(servers);
    let names = Names::new(&unique("outbox"));
    let topic = |name: String, partitions: u32, policy: &str| TopicSpec {
        name,
        partitions,
        replication: None,
        config: vec![("cleanup.policy".into(), policy.into())],
    };
    let topics = vec![
        topic(names.tasks("echo"), PARTITIONS, "delete"),
        topic(names.events(), PARTITIONS, "delete"),
        topic(names.outbox(), 1, "compact"),
    ];
    broker.client().apply_topics(topics).await.unwrap();
    let producer = broker.client().shared_producer(None).await.unwrap();
    let publisher = Publisher::new(producer, Topology::new(names.clone(), PARTITIONS), "test");
    let start = |n: usize| tokio::spawn(relay(&broker, &table, &publisher, format!("relay-{n}")).run());
    let (mut ids, mut running) = (BTreeSet::new(), start(0));
    for n in 1..=KILLS {
        let names: Vec<String> = (0..ROWS_BETWEEN_KILLS).map(|m| format!("row-{n}-{m}")).collect();
        let transaction = table.begin(names.iter().map(|id| row(id)).collect()).await;
        if n % 7 == 0 {
            transaction.roll_back().await;
        } else {
            transaction.commit().await;
            ids.extend(names);
        }
        // The relay is anywhere between the lease, the producer and a deletion.
        tokio::time::sleep(Duration::from_millis((n as u64 * 37) % 400)).await;
        if n % 3 == 0 {
            table.kill_connections().await;
        } else {
            running.abort();
            running = start(n);
        }
    }
    eventually("the outbox is empty", async || table.is_empty().await).await;
    running.abort();
    assert_each_once(&ids, &published(&broker, names.tasks("echo")).await);
}
