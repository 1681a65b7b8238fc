//! Database of a benchmark of the outbox: a schema of its own, and the application that commits rows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_outbox::postgres::{PostgresConnection, PostgresOutbox};
use kafleet_outbox::schema::postgres_schema;
use tokio_postgres::Statement;

use super::OutboxBench;
use crate::{NOOP, load};

/// Time between two commits at a steady rate.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// Submission of the rows from one number to another, in one transaction.
const SUBMIT: &str = "SELECT count(kafleet_submit($1::text, $2::text::json, id => 'row-' || lpad(n::text, 12, '0'))) \
                      FROM generate_series($3::bigint, $4::bigint) AS n";

/// Schema of a benchmark.
pub(super) struct BenchDatabase {
    pub(super) schema: String,
    outbox: Arc<PostgresOutbox>,
    whole: Arc<PostgresOutbox>,
}

/// Connection of an application.
pub(super) struct Application {
    connection: PostgresConnection,
    submit: Statement,
}

impl BenchDatabase {
    /// Creates a schema with an empty outbox.
    pub(super) async fn create(url: &str) -> anyhow::Result<Self> {
        let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let schema = format!("kafleet_bench_{}", tail.to_lowercase());
        let whole = PostgresOutbox::new(url).map_err(anyhow::Error::msg).context("the URL of Postgres is invalid")?;
        let outbox = PostgresOutbox::in_schema(url, &schema).map_err(anyhow::Error::msg)?;
        // One connection first: its error is about the server, and the next one about the schema.
        drop(whole.connect().await?);
        let created = whole.execute(&format!("CREATE SCHEMA {schema}")).await;
        created
            .with_context(|| format!("cannot create the schema `{schema}`; the user needs CREATE on the database"))?;
        let database = Self { schema, outbox, whole };
        if let Err(error) = database.outbox.execute(&postgres_schema(false)).await {
            database.drop_schema().await;
            return Err(error).context("cannot create the outbox");
        }
        Ok(database)
    }

    /// Deletes the schema. An error is reported and is none of the benchmark.
    pub(super) async fn drop_schema(&self) {
        if let Err(error) = self.whole.execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await {
            eprintln!("cannot drop the schema `{}`: {error}", self.schema);
        }
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Application> {
        let connection = self.outbox.connect().await?;
        let submit = connection.client.prepare(SUBMIT).await?;
        Ok(Application { connection, submit })
    }

    /// Version of the server, and whether it waits for its disk at a commit.
    pub(super) async fn server(&self) -> anyhow::Result<(String, String)> {
        let show = "SELECT current_setting('server_version'), current_setting('fsync')";
        let row = self.outbox.connect().await?.client.query_one(show, &[]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    /// Empties the outbox.
    pub(super) async fn truncate(&self) -> anyhow::Result<()> {
        Ok(self.outbox.execute("TRUNCATE kafleet_outbox").await?)
    }

    /// Commits rows over several connections, as fast as Postgres takes them. Returns the rows per second that were committed.
    pub(super) async fn commit_all(&self, rows: Range<u64>, bench: &OutboxBench) -> anyhow::Result<f64> {
        let next = Arc::new(AtomicU64::new(rows.start));
        let mut writers = tokio::task::JoinSet::new();
        let (end, size) = (rows.end, u64::from(bench.rows_per_commit));
        let mut applications = Vec::new();
        for _ in 0..bench.writers {
            applications.push(self.connect().await?);
        }
        let begun = Instant::now();
        for application in applications {
            let next = next.clone();
            writers.spawn(async move {
                loop {
                    let first = next.fetch_add(size, Ordering::Relaxed);
                    if first >= end {
                        return anyhow::Ok(());
                    }
                    application.commit(first..(first + size).min(end)).await?;
                }
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        Ok((rows.end - rows.start) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Commits rows at a steady rate, those of a tick in one transaction. Returns when how many rows were committed.
    pub(super) async fn commit_steadily(&self, rows: Range<u64>, per_tick: u64) -> anyhow::Result<Vec<(Instant, u64)>> {
        let application = self.connect().await?;
        let begun = tokio::time::Instant::now();
        let mut commits = Vec::new();
        let mut first = rows.start;
        while first < rows.end {
            tokio::time::sleep_until(begun + TICK * commits.len() as u32).await;
            let end = (first + per_tick).min(rows.end);
            application.commit(first..end).await?;
            commits.push((Instant::now(), end));
            first = end;
        }
        Ok(commits)
    }
}

impl Application {
    /// Submits the tasks of some rows, in a transaction of their own unless one is open.
    pub(super) async fn commit(&self, rows: Range<u64>) -> anyhow::Result<()> {
        let (first, last) = (i64::try_from(rows.start)?, i64::try_from(rows.end)? - 1);
        let row = self.connection.client.query_one(&self.submit, &[&NOOP, &load::params(), &first, &last]).await?;
        let submitted: i64 = row.try_get(0)?;
        if submitted != last - first + 1 {
            bail!("Postgres has inserted {submitted} of the rows {first} to {last}");
        }
        Ok(())
    }

    /// Begins a transaction that holds back all clean-up of deleted rows, and inserts a row in it.
    pub(super) async fn begin_with(&self, row: u64) -> anyhow::Result<()> {
        self.connection.client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        self.commit(row..row + 1).await
    }

    /// Commits the transaction.
    pub(super) async fn end(&self) -> anyhow::Result<()> {
        Ok(self.connection.client.batch_execute("COMMIT").await?)
    }
}
