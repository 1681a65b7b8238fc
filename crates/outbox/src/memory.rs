//! Outbox in memory, with transactions, faults and failovers that tests decide about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::cursor::{Horizon, Scan};
use crate::row::{DeadRow, FieldsColumn, MAX_COLUMN_BYTES, OutboxRow, RowKey};
use crate::table::{
    LeaseState, ListedDeadRow, MAX_SCAN_BYTES, OutboxSession, OutboxStats, OutboxTable, ScannedRows, TableError,
};

/// Row to insert.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRow {
    pub id: String,
    pub task_type: String,
    pub task_key: Option<String>,
    /// JSON.
    pub params: String,
    /// JSON object.
    pub fields: Option<String>,
}

/// Faults of a table: chances of each statement, between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TableFaults {
    /// The statement has no effect and fails.
    pub fails: f64,
    /// The statement takes effect and fails.
    pub loses_reply: f64,
}

/// Outbox in memory.
pub struct MemoryOutbox {
    state: Arc<Mutex<MemoryState>>,
    notify: Arc<Notify>,
}

/// Transaction of an application. Without a commit its rows never appear.
pub struct MemoryTransaction {
    state: Arc<Mutex<MemoryState>>,
    notify: Arc<Notify>,
    number: u64,
}

/// Copy of the committed rows, to which a failover goes back.
#[derive(Clone, Debug)]
pub struct MemorySnapshot {
    rows: BTreeMap<i64, OutboxRow>,
    dead: BTreeMap<RowKey, DeadEntry>,
    next_seq: i64,
}

#[derive(Clone, Debug)]
struct DeadEntry {
    row: OutboxRow,
    reason: String,
    died_at_ms: i64,
}

struct MemoryState {
    identity: Uuid,
    next_seq: i64,
    next_transaction: u64,
    open: BTreeMap<u64, Vec<OutboxRow>>,
    rows: BTreeMap<i64, OutboxRow>,
    dead: BTreeMap<RowKey, DeadEntry>,
    lease: Option<(String, Instant)>,
    faults: TableFaults,
    random: fastrand::Rng,
}

struct MemorySession {
    identity: Uuid,
    state: Arc<Mutex<MemoryState>>,
    notify: Arc<Notify>,
}

impl MemoryState {
    /// Runs a statement under the faults.
    fn run<T>(&mut self, statement: impl FnOnce(&mut Self) -> T) -> Result<T, TableError> {
        let fault = || TableError::Unavailable("injected fault".to_owned());
        if self.random.f64() < self.faults.fails {
            return Err(fault());
        }
        let answer = statement(self);
        if self.random.f64() < self.faults.loses_reply { Err(fault()) } else { Ok(answer) }
    }

    fn horizon(&self) -> Horizon {
        let oldest = self.open.keys().next().copied().unwrap_or(self.next_transaction);
        Horizon { oldest, next: self.next_transaction }
    }

    fn insert(&mut self, row: NewRow) -> OutboxRow {
        let fits = |text: &str| text.len() <= MAX_COLUMN_BYTES;
        let fields = match row.fields {
            None => FieldsColumn::Absent,
            Some(text) if fits(&text) => FieldsColumn::Json(text),
            Some(_) => FieldsColumn::TooLong,
        };
        let key = RowKey { seq: self.next_seq, id: row.id };
        self.next_seq += 1;
        OutboxRow {
            key,
            task_type: row.task_type,
            task_key: row.task_key,
            params: Some(row.params).filter(|text| fits(text)),
            fields,
            created_at_ms: kafleet_runtime::now_ms(),
        }
    }

    fn scan(&self, scan: &Scan) -> ScannedRows {
        let is_in =
            |seq: i64| seq > scan.after || scan.gaps.iter().any(|(first, last)| (*first..=*last).contains(&seq));
        let mut scanned = ScannedRows { rows: Vec::new(), horizon: self.horizon() };
        let mut bytes = 0;
        for row in self.rows.values().filter(|row| is_in(row.key.seq)).take(scan.limit) {
            bytes += row.bytes();
            if bytes > MAX_SCAN_BYTES && !scanned.rows.is_empty() {
                break;
            }
            scanned.rows.push(row.clone());
        }
        scanned
    }

    fn finish(&mut self, published: &[RowKey], dead: &[DeadRow]) {
        for key in published {
            self.take(key);
        }
        for DeadRow { key, reason } in dead {
            if let Some(row) = self.take(key) {
                let entry = DeadEntry { row, reason: reason.clone(), died_at_ms: kafleet_runtime::now_ms() };
                self.dead.insert(key.clone(), entry);
            }
        }
    }

    fn take(&mut self, key: &RowKey) -> Option<OutboxRow> {
        self.rows.get(&key.seq).filter(|row| row.key == *key)?;
        self.rows.remove(&key.seq)
    }

    fn lease(&mut self, holder: &str, span: Duration) -> LeaseState {
        match &self.lease {
            Some((other, until)) if other != holder && *until > Instant::now() => LeaseState::OwnedBy(other.clone()),
            _ => {
                self.lease = Some((holder.to_owned(), Instant::now() + span));
                LeaseState::Acquired
            }
        }
    }

    fn take_dead(&mut self, ids: Option<&[String]>) -> Vec<DeadEntry> {
        let is_meant = |key: &RowKey| ids.is_none_or(|ids| ids.contains(&key.id));
        let keys: Vec<RowKey> = self.dead.keys().filter(|key| is_meant(key)).cloned().collect();
        keys.iter().filter_map(|key| self.dead.remove(key)).collect()
    }
}

impl MemoryOutbox {
    /// Returns an empty outbox. The seed decides about faults.
    pub fn new(seed: u64) -> Arc<Self> {
        let state = MemoryState {
            identity: Uuid::from_u128(u128::from(seed) | 1 << 100),
            next_seq: 1,
            next_transaction: 1,
            open: BTreeMap::new(),
            rows: BTreeMap::new(),
            dead: BTreeMap::new(),
            lease: None,
            faults: TableFaults::default(),
            random: fastrand::Rng::with_seed(seed),
        };
        Arc::new(Self { state: Arc::new(Mutex::new(state)), notify: Arc::default() })
    }

    /// Begins a transaction.
    pub fn begin(&self) -> MemoryTransaction {
        let mut state = self.state.lock();
        let number = state.next_transaction;
        state.next_transaction += 1;
        state.open.insert(number, Vec::new());
        MemoryTransaction { state: self.state.clone(), notify: self.notify.clone(), number }
    }

    /// Sets the chances of faults from now on.
    pub fn set_faults(&self, faults: TableFaults) {
        self.state.lock().faults = faults;
    }

    /// Number of committed rows.
    pub fn len(&self) -> usize {
        self.state.lock().rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the committed rows.
    pub fn snapshot(&self) -> MemorySnapshot {
        let state = self.state.lock();
        MemorySnapshot { rows: state.rows.clone(), dead: state.dead.clone(), next_seq: state.next_seq }
    }

    /// Goes back to a copy, as a failover to a replica does that has not received later commits. Open transactions are lost.
    pub fn fail_over(&self, to: MemorySnapshot) {
        let mut state = self.state.lock();
        (state.rows, state.dead, state.next_seq) = (to.rows, to.dead, to.next_seq);
        state.open.clear();
    }
}

impl MemoryTransaction {
    /// Inserts a row and returns its number.
    pub fn submit(&self, row: NewRow) -> i64 {
        let mut state = self.state.lock();
        let row = state.insert(row);
        let seq = row.key.seq;
        if let Some(rows) = state.open.get_mut(&self.number) {
            rows.push(row);
        }
        seq
    }

    /// Makes the rows visible.
    pub fn commit(self) {
        let mut state = self.state.lock();
        let rows = state.open.remove(&self.number).unwrap_or_default();
        state.rows.extend(rows.into_iter().map(|row| (row.key.seq, row)));
        drop(state);
        self.notify.notify_one();
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        self.state.lock().open.remove(&self.number);
    }
}

#[async_trait]
impl OutboxTable for MemoryOutbox {
    async fn open(&self) -> Result<Box<dyn OutboxSession>, TableError> {
        let identity = self.state.lock().run(|state| state.identity)?;
        Ok(Box::new(MemorySession { identity, state: self.state.clone(), notify: self.notify.clone() }))
    }

    async fn stats(&self) -> Result<OutboxStats, TableError> {
        self.state.lock().run(|state| {
            let oldest_ms = state.rows.values().map(|row| row.created_at_ms).min();
            let age_ms = oldest_ms.map_or(0, |oldest| kafleet_runtime::now_ms() - oldest);
            OutboxStats {
                rows: state.rows.len() as u64,
                oldest: Duration::from_millis(u64::try_from(age_ms).unwrap_or_default()),
                first: state.rows.keys().next().copied(),
                dead: state.dead.len() as u64,
            }
        })
    }

    async fn dead_rows(&self, limit: usize) -> Result<Vec<ListedDeadRow>, TableError> {
        self.state.lock().run(|state| {
            let listed = state.dead.iter().rev().take(limit).map(|(key, entry)| ListedDeadRow {
                seq: key.seq,
                id: key.id.clone(),
                task_type: entry.row.task_type.clone(),
                reason: entry.reason.clone(),
                created_at_ms: entry.row.created_at_ms,
                died_at_ms: entry.died_at_ms,
            });
            listed.collect()
        })
    }

    async fn retry_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError> {
        self.state.lock().run(|state| {
            let entries = state.take_dead(ids);
            let count = entries.len() as u64;
            for DeadEntry { mut row, .. } in entries {
                row.key.seq = state.next_seq;
                state.next_seq += 1;
                state.rows.insert(row.key.seq, row);
            }
            count
        })
    }

    async fn drop_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError> {
        self.state.lock().run(|state| state.take_dead(ids).len() as u64)
    }
}

#[async_trait]
impl OutboxSession for MemorySession {
    fn identity(&self) -> Uuid {
        self.identity
    }

    async fn lease(&self, holder: &str, span: Duration) -> Result<LeaseState, TableError> {
        self.state.lock().run(|state| state.lease(holder, span))
    }

    async fn release(&self, holder: &str) -> Result<(), TableError> {
        self.state.lock().run(|state| {
            state.lease.take_if(|(other, _)| other == holder);
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<ScannedRows, TableError> {
        self.state.lock().run(|state| state.scan(scan))
    }

    async fn finish(&self, published: &[RowKey], dead: &[DeadRow]) -> Result<(), TableError> {
        self.state.lock().run(|state| state.finish(published, dead))
    }

    async fn wait(&self, longest: Duration) {
        // A timeout is the usual end of the wait.
        let _ = timeout(longest, self.notify.notified()).await;
    }
}
