//! Tables under test: in memory, and in a real Postgres with a schema of its own.

use std::sync::Arc;

use async_trait::async_trait;
use kafleet_testkit::services;

use crate::memory::{MemoryOutbox, MemoryTransaction, NewRow};
use crate::postgres::PostgresOutbox;
use crate::schema::postgres_schema;
use crate::table::OutboxTable;

/// Table with what an application does to it.
#[async_trait]
pub(super) trait TestedTable: Send + Sync {
    fn table(&self) -> Arc<dyn OutboxTable>;

    /// Begins a transaction and inserts the rows.
    async fn begin(&self, rows: Vec<NewRow>) -> Box<dyn TestedTransaction>;

    async fn commit(&self, rows: Vec<NewRow>) {
        self.begin(rows).await.commit().await;
    }
}

#[async_trait]
pub(super) trait TestedTransaction: Send {
    async fn commit(self: Box<Self>);
    async fn roll_back(self: Box<Self>);
}

pub(super) fn row(id: &str) -> NewRow {
    NewRow { id: id.into(), task_type: "echo".into(), params: r#"{"n": 1}"#.into(), ..NewRow::default() }
}

pub(super) struct InMemory(pub(super) Arc<MemoryOutbox>);

#[async_trait]
impl TestedTable for InMemory {
    fn table(&self) -> Arc<dyn OutboxTable> {
        self.0.clone()
    }

    async fn begin(&self, rows: Vec<NewRow>) -> Box<dyn TestedTransaction> {
        let transaction = self.0.begin();
        for row in rows {
            transaction.submit(row);
        }
        Box::new(transaction)
    }
}

#[async_trait]
impl TestedTransaction for MemoryTransaction {
    async fn commit(self: Box<Self>) {
        MemoryTransaction::commit(*self);
    }
    async fn roll_back(self: Box<Self>) {
        drop(self);
    }
}

/// URL of the test Postgres, or `None` with a skipped test.
fn server() -> Option<String> {
    services::address("KAFLEET_TEST_POSTGRES").filter(|server| {
        let is_left_out = server == "none";
        if is_left_out {
            services::skip("KAFLEET_TEST_POSTGRES is none");
        }
        !is_left_out
    })
}

/// Outbox in a schema of its own, which is dropped by the next run of the test.
pub(super) struct InPostgres {
    url: String,
    table: Arc<PostgresOutbox>,
}

impl InPostgres {
    /// Creates the outbox. `None` with a skipped test where no Postgres is configured.
    pub(super) async fn create(schema: &str) -> Option<Self> {
        let server = server()?;
        PostgresOutbox::new(&server)
            .unwrap()
            .execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}"))
            .await
            .unwrap();
        let separator = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{separator}options=-csearch_path%3D{schema}");
        let table = PostgresOutbox::new(&url).unwrap();
        // Applied twice: the second time keeps what there is.
        table.execute(&postgres_schema(false)).await.unwrap();
        table.execute(&postgres_schema(true)).await.unwrap();
        Some(Self { url, table })
    }

    /// Ends the connections of all relays of this outbox, as a crash of the database does.
    pub(super) async fn kill_connections(&self) {
        let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kafleet-outbox' \
                    AND query LIKE '%kafleet_outbox%'";
        client.batch_execute(kill).await.unwrap();
    }

    /// Returns whether the outbox has no rows.
    pub(super) async fn is_empty(&self) -> bool {
        self.table.stats().await.is_ok_and(|stats| stats.rows == 0)
    }
}

struct PostgresTransaction(tokio_postgres::Client);

#[async_trait]
impl TestedTable for InPostgres {
    fn table(&self) -> Arc<dyn OutboxTable> {
        self.table.clone()
    }

    async fn begin(&self, rows: Vec<NewRow>) -> Box<dyn TestedTransaction> {
        let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN").await.unwrap();
        for NewRow { id, task_type, task_key, params, fields } in rows {
            let submit = "SELECT kafleet_submit($1::text, $2::text::json, id => $3::text, key => $4::text, fields => $5::text::json)";
            let submitted = client.query_one(submit, &[&task_type, &params, &id, &task_key, &fields]).await.unwrap();
            assert_eq!(submitted.get::<_, String>(0), id);
        }
        Box::new(PostgresTransaction(client))
    }
}

#[async_trait]
impl TestedTransaction for PostgresTransaction {
    async fn commit(self: Box<Self>) {
        self.0.batch_execute("COMMIT").await.unwrap();
    }
    async fn roll_back(self: Box<Self>) {
        self.0.batch_execute("ROLLBACK").await.unwrap();
    }
}
