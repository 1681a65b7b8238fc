//! Outbox in Postgres.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, Row};
use uuid::Uuid;

mod connect;
mod sql;

pub use self::connect::PostgresConnection;
use self::connect::{answered, connect, of_postgres, parse_url};
use crate::cursor::{Horizon, Scan};
use crate::row::{DeadRow, FieldsColumn, MAX_COLUMN_BYTES, OutboxRow, RowKey};
use crate::schema::NOTIFY_CHANNEL;
use crate::table::{
    LeaseState, ListedDeadRow, MAX_SCAN_BYTES, OutboxSession, OutboxStats, OutboxTable, ScannedRows, TableError,
};

/// Oldest supported version, as `server_version_num`.
const MIN_VERSION: i32 = 130_000;

/// Outbox in a Postgres database.
pub struct PostgresOutbox {
    config: Config,
    /// Connection for what is not the relay's work, opened when it is needed.
    other: Mutex<Option<PostgresConnection>>,
}

/// Connection of a relay to Postgres.
struct PostgresSession {
    connection: PostgresConnection,
    identity: Uuid,
}

impl PostgresOutbox {
    /// Returns the outbox at a URL such as `postgres://user:password@host/database`. Does not connect.
    ///
    /// # Errors
    /// The reason why the URL is invalid, without the password.
    pub fn new(url: &str) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self { config: parse_url(url)?, other: Mutex::default() }))
    }

    /// Returns the outbox in a schema of the database at a URL. Does not connect.
    ///
    /// # Errors
    /// The reason why the URL is invalid, without the password.
    pub fn in_schema(url: &str, schema: &str) -> Result<Arc<Self>, String> {
        let mut config = parse_url(url)?;
        let options = config.get_options().map(|options| format!("{options} ")).unwrap_or_default();
        config.options(format!("{options}-csearch_path={schema}"));
        Ok(Arc::new(Self { config, other: Mutex::default() }))
    }

    /// Connects, for statements of an application.
    ///
    /// # Errors
    /// `Unavailable` and `Denied`, as for the relay.
    pub async fn connect(&self) -> Result<PostgresConnection, TableError> {
        connect(&self.config).await
    }

    /// Runs SQL without parameters, such as the schema.
    pub async fn execute(&self, sql: &str) -> Result<(), TableError> {
        let connection = connect(&self.config).await?;
        answered(connection.client.batch_execute(sql)).await
    }

    /// Runs a statement on the other connection, which is replaced after an error.
    async fn query(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, TableError> {
        let mut other = self.other.lock().await;
        let connection = match other.take() {
            Some(connection) if !connection.client.is_closed() => connection,
            _ => connect(&self.config).await?,
        };
        let rows = answered(connection.client.query_typed(sql, parameters)).await?;
        *other = Some(connection);
        Ok(rows)
    }

    async fn change(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, TableError> {
        let connection = connect(&self.config).await?;
        answered(connection.client.execute_typed(sql, parameters)).await
    }
}

#[async_trait]
impl OutboxTable for PostgresOutbox {
    async fn open(&self) -> Result<Box<dyn OutboxSession>, TableError> {
        let connection = connect(&self.config).await?;
        let rows = answered(connection.client.query_typed(sql::IDENTITY, &[])).await?;
        let row =
            rows.first().ok_or_else(|| TableError::Schema("the table `kafleet_outbox_relay` is empty".to_owned()))?;
        let (identity, version): (String, i32) = (column(row, 0)?, column(row, 1)?);
        if version < MIN_VERSION {
            let version = version / 10_000;
            return Err(TableError::Schema(format!("Postgres {version} is too old: version 13 or newer is needed")));
        }
        let identity = identity.parse().map_err(|error: uuid::Error| TableError::Schema(error.to_string()))?;
        answered(connection.client.batch_execute(&format!("LISTEN {NOTIFY_CHANNEL}"))).await?;
        Ok(Box::new(PostgresSession { connection, identity }))
    }

    async fn stats(&self) -> Result<OutboxStats, TableError> {
        let rows = self.query(sql::STATS, &[]).await?;
        let Some(row) = rows.first() else { return Ok(OutboxStats::default()) };
        let (count, seconds, dead): (i64, f64, i64) = (column(row, 0)?, column(row, 2)?, column(row, 3)?);
        Ok(OutboxStats {
            rows: count.unsigned_abs(),
            oldest: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
            first: column(row, 1)?,
            dead: dead.unsigned_abs(),
        })
    }

    async fn dead_rows(&self, limit: usize) -> Result<Vec<ListedDeadRow>, TableError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query(sql::DEAD_ROWS, &[(&limit, Type::INT8)]).await?;
        let listed = |row: &Row| {
            Ok(ListedDeadRow {
                seq: column(row, 0)?,
                id: column(row, 1)?,
                task_type: column(row, 2)?,
                reason: column(row, 3)?,
                created_at_ms: column(row, 4)?,
                died_at_ms: column(row, 5)?,
            })
        };
        rows.iter().map(listed).collect()
    }

    async fn retry_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError> {
        self.change(sql::RETRY_DEAD, &[(&ids, Type::TEXT_ARRAY)]).await
    }

    async fn drop_dead(&self, ids: Option<&[String]>) -> Result<u64, TableError> {
        self.change(sql::DROP_DEAD, &[(&ids, Type::TEXT_ARRAY)]).await
    }
}

impl PostgresSession {
    async fn query(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, TableError> {
        answered(self.connection.client.query_typed(sql, parameters)).await
    }

    async fn execute(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, TableError> {
        answered(self.connection.client.execute_typed(sql, parameters)).await
    }
}

#[async_trait]
impl OutboxSession for PostgresSession {
    fn identity(&self) -> Uuid {
        self.identity
    }

    async fn lease(&self, holder: &str, span: Duration) -> Result<LeaseState, TableError> {
        let span_ms = span.as_millis() as f64;
        if self.execute(sql::LEASE, &[(&holder, Type::TEXT), (&span_ms, Type::FLOAT8)]).await? > 0 {
            return Ok(LeaseState::Acquired);
        }
        let rows = self.query(sql::HOLDER, &[]).await?;
        let other = rows.first().map(|row| column(row, 0)).transpose()?;
        Ok(LeaseState::OwnedBy(other.unwrap_or_default()))
    }

    async fn release(&self, holder: &str) -> Result<(), TableError> {
        self.execute(sql::RELEASE, &[(&holder, Type::TEXT)]).await.map(drop)
    }

    async fn scan(&self, scan: &Scan) -> Result<ScannedRows, TableError> {
        let (first, last): (Vec<i64>, Vec<i64>) = scan.gaps.iter().copied().unzip();
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
        let (column_bytes, bytes) = (MAX_COLUMN_BYTES as i64, MAX_SCAN_BYTES as i64);
        let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
            (&first, Type::INT8_ARRAY),
            (&last, Type::INT8_ARRAY),
            (&scan.after, Type::INT8),
            (&limit, Type::INT8),
            (&column_bytes, Type::INT8),
            (&bytes, Type::INT8),
        ];
        let found = self.query(sql::SCAN, &parameters).await?;
        let mut scanned = ScannedRows::default();
        for row in &found {
            let (oldest, next): (i64, i64) = (column(row, 0)?, column(row, 1)?);
            scanned.horizon = Horizon { oldest: oldest.unsigned_abs(), next: next.unsigned_abs() };
            scanned.rows.extend(outbox_row(row)?);
        }
        Ok(scanned)
    }

    async fn finish(&self, published: &[RowKey], dead: &[DeadRow]) -> Result<(), TableError> {
        let all = || published.iter().chain(dead.iter().map(|row| &row.key));
        let (seqs, ids): (Vec<i64>, Vec<&str>) = all().map(|key| (key.seq, key.id.as_str())).unzip();
        let (dead_seqs, dead_ids): (Vec<i64>, Vec<&str>) =
            dead.iter().map(|row| (row.key.seq, row.key.id.as_str())).unzip();
        // Postgres refuses texts with the character NUL.
        let reasons: Vec<String> = dead.iter().map(|row| row.reason.replace('\0', " ")).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&seqs, Type::INT8_ARRAY),
            (&ids, Type::TEXT_ARRAY),
            (&dead_seqs, Type::INT8_ARRAY),
            (&dead_ids, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
        ];
        self.execute(sql::FINISH, &parameters).await.map(drop)
    }

    async fn wait(&self, longest: Duration) {
        // A timeout is the usual end of the wait.
        let _ = timeout(longest, self.connection.notified.notified()).await;
    }
}

/// Row of a scan; `None` if it has only the snapshot.
fn outbox_row(row: &Row) -> Result<Option<OutboxRow>, TableError> {
    let Some(seq) = column::<Option<i64>>(row, 2)? else { return Ok(None) };
    let fields = match (column::<Option<String>>(row, 7)?, column::<Option<bool>>(row, 8)?) {
        (_, Some(true)) => FieldsColumn::TooLong,
        (Some(text), _) => FieldsColumn::Json(text),
        (None, _) => FieldsColumn::Absent,
    };
    Ok(Some(OutboxRow {
        key: RowKey { seq, id: column(row, 3)? },
        task_type: column(row, 4)?,
        task_key: column(row, 5)?,
        params: column(row, 6)?,
        fields,
        created_at_ms: column(row, 9)?,
    }))
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, n: usize) -> Result<T, TableError> {
    row.try_get(n).map_err(|error| of_postgres(&error))
}
