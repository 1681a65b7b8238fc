//! Outbox under kills: an application commits purchases with tasks, while its relay, its Postgres and the brokers of a cluster of
//! three are killed in turn. Each committed purchase is one task, and no other one is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::offset_range::{self, OffsetRange};
use kafleet::broker::{Broker, Partition, TopicChange, TopicSpec};
use kafleet::config::Names;
use kafleet::outbox::postgres::PostgresOutbox;
use kafleet::outbox::schema::postgres_schema;
use kafleet::outbox::table::OutboxTable;
use kafleet_testkit::services::connect;
use tokio::time::{Instant, sleep};

mod postgres;
pub mod relay;

use postgres::Postgres;

use crate::kafka::Cluster;
use crate::process::Process;
use crate::{RunFolder, wait_until};

const PREFIX: &str = "chaos-outbox";
const EVENTS_PARTITIONS: u32 = 2;
const TASK_PARTITIONS: u32 = 2;
const TASK_TYPE: &str = "invoice";
const PURCHASES_PER_COMMIT: usize = 20;
/// Purchases are rolled back in every seventh transaction.
const ROLLBACK: usize = 7;
const CALL_DEADLINE: Duration = Duration::from_secs(60);
/// Time in which all rows are published after the last kill.
const DRAIN_DEADLINE: Duration = Duration::from_secs(180);

struct OutboxUnderKills {
    kafka: Cluster,
    postgres: Postgres,
    relays: Vec<Process>,
    outbox: Arc<PostgresOutbox>,
    kills: BTreeMap<&'static str, usize>,
}

/// Number of kills, from the environment.
pub fn kills() -> Option<usize> {
    std::env::var("KAFLEET_OUTBOX_KILLS").ok().map(|text| text.parse().expect("KAFLEET_OUTBOX_KILLS"))
}

/// Commits purchases among kills. Returns the violations, one per line.
pub async fn run(seed: u64, kills: usize) -> Vec<String> {
    println!("chaos: outbox, seed {seed}, {kills} kills");
    let mut folder = RunFolder(tempfile::tempdir().unwrap());
    let begun = Instant::now();
    let mut outbox = OutboxUnderKills::start(folder.0.path()).await;
    let mut rng = fastrand::Rng::with_seed(seed);
    for number in 1..=kills {
        outbox.commit(number).await;
        // The relay is anywhere between the lease, the producer, a transaction and a deletion.
        sleep(Duration::from_millis(rng.u64(..500))).await;
        outbox.kill(number, &mut rng).await;
        outbox.supervise();
    }
    outbox.drain().await;
    let expected = outbox.purchases().await;
    let published = tokio::task::block_in_place(|| published(&outbox.kafka.addresses()));
    let violations = violations(&expected, &published);
    println!(
        "chaos: outbox, {} purchases, {} tasks, kills {:?}, {:.0} s: {}",
        expected.len(),
        published.len(),
        outbox.kills,
        begun.elapsed().as_secs_f64(),
        if violations.is_empty() { "0 lost, 0 doubled" } else { "violated" }
    );
    if !violations.is_empty() {
        folder.keep();
    }
    violations
}

impl OutboxUnderKills {
    async fn start(folder: &Path) -> Self {
        let (kafka, postgres) = tokio::join!(Cluster::start(folder, 3), Postgres::start(folder));
        create_topics(&kafka.addresses()).await;
        let outbox = PostgresOutbox::new(&postgres.url).unwrap();
        outbox.execute(&postgres_schema(false)).await.unwrap();
        outbox.execute("CREATE TABLE purchases (id text PRIMARY KEY)").await.unwrap();
        let relay = |number| relay::process(folder, number, &kafka.addresses(), &postgres.url);
        let mut relays: Vec<Process> = (1..=2).map(relay).collect();
        relays.iter_mut().for_each(Process::start);
        Self { kafka, postgres, relays, outbox, kills: BTreeMap::new() }
    }

    /// Commits purchases with their tasks in one transaction, or rolls them back. An error is that of a crash of Postgres: whether
    /// the transaction counts, the table of purchases knows.
    async fn commit(&self, number: usize) {
        let Ok(connection) = self.outbox.connect().await else { return };
        let end = if number.is_multiple_of(ROLLBACK) { "ROLLBACK" } else { "COMMIT" };
        let ids = (0..PURCHASES_PER_COMMIT).map(|n| format!("purchase-{number}-{n}"));
        let inserts: String = ids
            .map(|id| {
                format!(
                    "INSERT INTO purchases VALUES ('{id}'); \
                     SELECT kafleet_submit('{TASK_TYPE}', '{{\"purchase\": {number}}}', id => '{id}');"
                )
            })
            .collect();
        // The end of Postgres, or of this transaction, is what the test is about.
        let _ = connection.client.batch_execute(&format!("BEGIN; {inserts} {end}")).await;
    }

    async fn kill(&mut self, number: usize, rng: &mut fastrand::Rng) {
        let victim = match number % 3 {
            0 => {
                let relay = &mut self.relays[rng.usize(..2)];
                relay.kill();
                relay.start();
                "relay"
            }
            1 => {
                self.postgres.crash().await;
                "postgres"
            }
            _ => {
                // One broker at a time, as two of three in sync are enough.
                self.kafka.started().await;
                let broker = &mut self.kafka.brokers[rng.usize(..3)];
                broker.kill();
                broker.start();
                "broker"
            }
        };
        *self.kills.entry(victim).or_default() += 1;
    }

    /// Starts relays that have ended by themselves, as a supervisor does.
    fn supervise(&mut self) {
        for relay in &mut self.relays {
            if !relay.is_alive() {
                relay.start();
            }
        }
    }

    /// Waits until the outbox is empty.
    async fn drain(&mut self) {
        self.kafka.started().await;
        self.postgres.ready().await;
        let is_empty = || async { self.outbox.stats().await.is_ok_and(|stats| stats.rows == 0).then_some(()) };
        let logs = || self.relays.iter().map(Process::log_tail).collect::<Vec<_>>().join("\n---\n");
        wait_until("the outbox is empty", DRAIN_DEADLINE, is_empty, logs).await;
        self.relays.iter_mut().for_each(Process::kill);
    }

    /// Ids of the committed purchases.
    async fn purchases(&self) -> BTreeSet<String> {
        let rows = self.outbox.connect().await.unwrap().client.query("SELECT id FROM purchases", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn create_topics(addresses: &str) {
    let (broker, names): (Arc<dyn Broker>, _) = (connect(addresses.to_owned()), Names::new(PREFIX));
    let topic = |name: String, partitions, policy: &str| TopicSpec {
        name,
        partitions,
        replication: Some(3),
        config: vec![("cleanup.policy".into(), policy.into()), ("min.insync.replicas".into(), "2".into())],
    };
    let topics = [
        topic(names.tasks(TASK_TYPE), TASK_PARTITIONS, "delete"),
        topic(names.events(), EVENTS_PARTITIONS, "delete"),
        topic(names.outbox(), 1, "compact"),
    ];
    let created = || async {
        let (broker, topics) = (broker.clone(), topics.clone());
        let outcomes = tokio::task::spawn_blocking(move || broker.apply_topics(&topics, CALL_DEADLINE)).await.unwrap();
        outcomes.ok()?.iter().all(|outcome| !matches!(outcome.change, TopicChange::Failed(_))).then_some(())
    };
    wait_until("the topics are created", CALL_DEADLINE, created, String::new).await;
}

/// Ids of all committed task records. Blocks.
fn published(addresses: &str) -> Vec<String> {
    let kafka: Arc<dyn Broker> = connect(addresses.to_owned());
    let topic = Names::new(PREFIX).tasks(TASK_TYPE);
    let range = |index: u32| {
        let partition = Partition::new(topic.as_str(), index as i32);
        let ends = kafka.watermarks(&partition, CALL_DEADLINE).unwrap();
        OffsetRange { partition, from: ends.low, to: ends.high }
    };
    let ranges: Vec<OffsetRange> = (0..TASK_PARTITIONS).map(range).collect();
    let mut ids = Vec::new();
    let mut take = |record: &kafleet::broker::RecordRef<'_>| {
        let id = record.headers().find(|(name, _)| *name == "ce_id").and_then(|(_, value)| value).unwrap();
        ids.push(String::from_utf8(id.to_vec()).unwrap());
    };
    offset_range::read(&*kafka, &ranges, CALL_DEADLINE, &mut take).unwrap();
    ids
}

fn violations(expected: &BTreeSet<String>, published: &[String]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    published.iter().for_each(|id| *counts.entry(id).or_default() += 1);
    let lost = expected.iter().filter(|id| !counts.contains_key(id.as_str())).map(|id| format!("`{id}` is lost"));
    let wrong = counts.iter().filter_map(|(id, count)| match count {
        _ if !expected.contains(*id) => Some(format!("`{id}` was not committed and is a task")),
        1 => None,
        count => Some(format!("`{id}` is {count} tasks")),
    });
    lost.chain(wrong).collect()
}
