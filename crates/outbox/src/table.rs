//! Traits of the database with the outbox, which Postgres and the table in memory implement.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::cursor::{Horizon, Scan};
use crate::row::{DeadRow, OutboxRow, RowKey};

/// Maximum size of the rows of a scan, in bytes, unless the first one alone is larger.
pub const MAX_SCAN_BYTES: usize = 8 << 20;

/// Database with an outbox.
#[async_trait]
pub trait OutboxTable: Send + Sync + 'static {
    /// Connects, and reads the identity of the outbox.
    async fn open(&self) -> Result<Box<dyn OutboxSession>, TableError>;

    /// Counts the rows, over a connection of its own: with millions of rows it takes seconds.
    async fn stats(&self) -> Result<OutboxStats, TableError>;

    /// Lists at most `limit` dead rows, newest first.
    async fn dead_rows(&self, limit: usize) -> Result<Vec<ListedDeadRow>, TableError>;

    /// Moves dead rows back into the outbox, under new numbers, and returns how many. `None`: all.
    async fn retry_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError>;

    /// Deletes dead rows and returns how many. `None`: all.
    async fn drop_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError>;
}

/// Connection of a relay. Its methods are statements of their own: no transaction is open between them, so that poolers may
/// give each another connection of the database. After an error the session is discarded.
#[async_trait]
pub trait OutboxSession: Send + Sync {
    /// Identity of the outbox. A copied database has the same.
    fn identity(&self) -> Uuid;

    /// Takes or renews the lease of the only relay that works, by the clock of the database.
    async fn lease(&self, holder: &str, span: Duration) -> Result<LeaseState, TableError>;

    /// Gives the lease back, so that a standby takes over at once.
    async fn release(&self, holder: &str) -> Result<(), TableError>;

    /// Reads committed rows in the order of their numbers, up to [`MAX_SCAN_BYTES`].
    async fn scan(&self, scan: &Scan) -> Result<ScannedRows, TableError>;

    /// Deletes published rows, and moves dead ones to the table of dead rows: all or nothing. A row with the number but not the
    /// id of its key is another row and stays.
    async fn finish(&self, published: &[RowKey], dead: &[DeadRow]) -> Result<(), TableError>;

    /// Waits until a commit is notified, at most for this time.
    async fn wait(&self, longest: Duration);
}

/// Rows of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScannedRows {
    pub rows: Vec<OutboxRow>,
    pub horizon: Horizon,
}

/// Owner of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The caller has it.
    Acquired,
    /// Another relay has it.
    OwnedBy(String),
}

/// Number and age of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxStats {
    pub rows: u64,
    /// Age of the oldest row, by the clock of the database. Zero without rows.
    pub oldest: Duration,
    /// Lowest number.
    pub first: Option<i64>,
    pub dead: u64,
}

/// Dead row, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ListedDeadRow {
    pub seq: i64,
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub reason: String,
    /// Time of the insertion, in epoch milliseconds.
    pub created_at_ms: i64,
    /// Time at which the relay gave the row up, in epoch milliseconds.
    pub died_at_ms: i64,
}

/// Error of the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The database cannot be reached or has not answered; worth a retry with another session.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(String),
    /// The schema is missing or another one.
    #[error("the outbox is not usable: {0}")]
    Schema(String),
    /// The user or the URL is refused.
    #[error("Postgres refuses the connection: {0}")]
    Denied(String),
}
