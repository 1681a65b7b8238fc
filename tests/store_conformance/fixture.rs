//! Fixture: the stores under test, operations on them from outside, and test data.

use std::sync::Arc;
use std::time::Duration;

use kafleet::model::projection::changes::Changes;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::statistics::StatisticsChanges;
use kafleet::model::task::id::TaskId;
use kafleet::store::memory::{MemoryStore, MemoryStoreOptions, Snapshot};
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Checkpoint, Entry, Index, PartitionWriter, Store, StoreError};
use kafleet_testkit::redis::patient;

pub use kafleet_testkit::wait::{DEADLINE, eventually};

pub struct Fixture {
    pub store: Arc<dyn Store>,
    kind: Kind,
}

enum Kind {
    Memory(MemoryStore),
    Redis(Box<Servers>),
}

struct Servers {
    options: RedisOptions,
    /// URLs of all nodes that hold keys.
    nodes: Vec<String>,
}

/// A key and its dump.
type Dump = (Vec<u8>, Vec<u8>);

pub enum SavedStore {
    Memory(Snapshot),
    /// Dumps by node.
    Redis(Vec<Vec<Dump>>),
}

impl Fixture {
    pub fn memory() -> Self {
        let memory = MemoryStore::default();
        Self { store: Arc::new(memory.clone()), kind: Kind::Memory(memory) }
    }

    /// Fixture over Redis; `None` if none is configured.
    pub fn redis(case: &str) -> Option<Self> {
        let prefix = format!("test-{}-{}", std::process::id(), &case[..case.len().min(40)]);
        Some(Self::over(RedisOptions { prefix, ..patient(test_redis()?) }))
    }

    pub fn over(options: RedisOptions) -> Self {
        let nodes = vec![options.url.clone()];
        Self::over_nodes(options, nodes)
    }

    /// Fixture for a store whose keys are on other nodes than its URL names.
    pub fn over_nodes(options: RedisOptions, nodes: Vec<String>) -> Self {
        let redis = Redis::connect(options.clone()).unwrap();
        Self { store: Arc::new(redis), kind: Kind::Redis(Box::new(Servers { options, nodes })) }
    }

    /// A store of the same kind with these lifetimes of reservations and leases.
    pub fn with_reservation_ttl(&self, reservation_ttl: Duration, lease_ttl: Duration) -> Arc<dyn Store> {
        match &self.kind {
            Kind::Memory(_) => Arc::new(MemoryStore::new(MemoryStoreOptions {
                reservation_ttl,
                lease_ttl,
                ..MemoryStoreOptions::default()
            })),
            Kind::Redis(servers) => {
                let Servers { options, .. } = &**servers;
                Arc::new(Redis::connect(RedisOptions { reservation_ttl, lease_ttl, ..options.clone() }).unwrap())
            }
        }
    }

    /// Removes everything, as FLUSHALL does.
    pub async fn wipe(&self) {
        match &self.kind {
            Kind::Memory(memory) => memory.wipe(),
            Kind::Redis(servers) => {
                let Servers { options, nodes } = &**servers;
                for node in nodes {
                    let mut raw = raw(node).await;
                    for key in all_keys(&mut raw, &options.prefix).await {
                        let () = redis::cmd("DEL").arg(key).query_async(&mut raw).await.unwrap();
                    }
                }
            }
        }
    }

    pub async fn save(&self) -> SavedStore {
        match &self.kind {
            Kind::Memory(memory) => SavedStore::Memory(memory.snapshot()),
            Kind::Redis(servers) => {
                let Servers { options, nodes } = &**servers;
                let mut saved = Vec::new();
                for node in nodes {
                    saved.push(dump(node, &options.prefix).await);
                }
                SavedStore::Redis(saved)
            }
        }
    }

    /// Restores saved contents, as a failover to a lagging replica does.
    pub async fn restore(&self, saved: &SavedStore) {
        match (&self.kind, saved) {
            (Kind::Memory(memory), SavedStore::Memory(snapshot)) => memory.restore(snapshot),
            (Kind::Redis(servers), SavedStore::Redis(saved)) => {
                self.wipe().await;
                for (node, dumps) in servers.nodes.iter().zip(saved) {
                    let mut raw = raw(node).await;
                    for (key, dump) in dumps {
                        let () = redis::cmd("RESTORE").arg(key).arg(0).arg(dump).query_async(&mut raw).await.unwrap();
                    }
                }
            }
            _ => panic!("saved from another store"),
        }
    }

    /// Opens a writer and returns the checkpoint it found.
    pub async fn open(&self, partition: u32) -> (Box<dyn PartitionWriter>, Option<Checkpoint>) {
        self.store.open(partition).await.unwrap()
    }

    /// Applies changes to a partition at its current checkpoint.
    pub async fn put(&self, partition: u32, changes: Changes) -> Checkpoint {
        let (mut writer, from) = self.open(partition).await;
        let to = checkpoint(from.map_or(0, |from| from.offset) + 1);
        writer.apply(&changes, from, to).await.unwrap();
        to
    }
}

/// URL of the Redis for tests.
pub fn test_redis() -> Option<String> {
    kafleet_testkit::services::redis()
}

pub async fn raw(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn dump(node: &str, prefix: &str) -> Vec<Dump> {
    let (mut raw, mut dumps) = (raw(node).await, Vec::new());
    for key in all_keys(&mut raw, prefix).await {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query_async(&mut raw).await.unwrap();
        dumps.push((key, dump));
    }
    dumps
}

async fn all_keys(raw: &mut redis::aio::MultiplexedConnection, prefix: &str) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(1_000);
        let (next, found): (u64, Vec<Vec<u8>>) = scan.query_async(raw).await.unwrap();
        keys.extend(found);
        cursor = next;
        if cursor == 0 {
            return keys;
        }
    }
}

pub fn checkpoint(offset: i64) -> Checkpoint {
    let log_time_ms = 1_700_000_000_000 + offset;
    Checkpoint {
        offset,
        version: 1,
        log_time_ms,
        deferred_bytes: offset as u64,
        complete_at: 100,
        ..Checkpoint::default()
    }
}

pub fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

pub fn entry(seen_ms: i64, text: &str) -> Entry {
    Entry { seen_ms, id: id(text) }
}

pub fn ids(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.id.as_str()).collect()
}

/// A distinguishable record.
pub fn task_record(run: u32) -> TaskRecord {
    TaskRecord { task_type: Some("echo".into()), ..TaskRecord::expected(run, 7) }
}

pub fn record(text: &str, run: u32) -> (TaskId, Vec<u8>) {
    (id(text), task_record(run).encode().unwrap())
}

/// A batch that touches every kind of data.
pub fn full_batch(text: &str) -> Changes {
    Changes {
        task_records: vec![record(text, 1)],
        added: vec![(Index::Roots, entry(5, text))],
        counts: vec![("echo".into(), State::Queued, 1)],
        statistics: StatisticsChanges { open: 1, ..StatisticsChanges::default() },
        logs: vec![(id(text), vec!["a line".into()])],
        ..Changes::default()
    }
}

pub fn adds(index: &Index, entries: impl IntoIterator<Item = Entry>) -> Changes {
    Changes { added: entries.into_iter().map(|entry| (index.clone(), entry)).collect(), ..Changes::default() }
}

pub fn removes(index: &Index, entries: impl IntoIterator<Item = Entry>) -> Changes {
    Changes { removed: entries.into_iter().map(|entry| (index.clone(), entry)).collect(), ..Changes::default() }
}

/// Asserts that nothing of [`full_batch`] is stored.
pub async fn expect_untouched(store: &dyn Store, text: &str) {
    assert_eq!(store.task_records(0, &[id(text)]).await.unwrap(), [None]);
    assert_eq!(store.page(0, &Index::Roots, None, 10).await.unwrap(), []);
    assert_eq!(store.counts(&[0]).await.unwrap(), []);
    assert_eq!(store.log_lines(0, &id(text), 0, 10).await.unwrap().lines, Vec::<String>::new());
}

pub fn is_unavailable(result: &Result<(), StoreError>, expected: &str) -> bool {
    matches!(result, Err(StoreError::Unavailable(text)) if text.contains(expected))
}
