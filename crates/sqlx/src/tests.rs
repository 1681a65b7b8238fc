//! Submissions on a real Postgres.

use kafleet_client::NewTask;
use kafleet_outbox::postgres::PostgresOutbox;
use kafleet_outbox::schema::postgres_schema;
use kafleet_outbox::table::OutboxTable;
use kafleet_outbox::{FieldsColumn, OutboxRow};
use kafleet_testkit::services;
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgPool};

use super::{SubmitError, submit_in};

/// Pool and outbox in a schema of their own. `None` with a skipped test where no Postgres is configured.
async fn database(schema: &'static str) -> Option<(PgPool, std::sync::Arc<PostgresOutbox>)> {
    let server = services::address("KAFLEET_TEST_POSTGRES")?;
    if server == "none" {
        services::skip("KAFLEET_TEST_POSTGRES is none");
        return None;
    }
    let whole = PostgresOutbox::new(&server).unwrap();
    whole.execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")).await.unwrap();
    let outbox = PostgresOutbox::in_schema(&server, schema).unwrap();
    outbox.execute(&postgres_schema(false)).await.unwrap();
    outbox.execute("CREATE TABLE purchases (id bigint PRIMARY KEY)").await.unwrap();
    let options: sqlx::postgres::PgConnectOptions = server.parse().unwrap();
    let options = options.options([("search_path", schema)]);
    Some((PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap(), outbox))
}

/// Rows as the relay reads them.
async fn rows(outbox: &PostgresOutbox) -> Vec<OutboxRow> {
    let session = outbox.open().await.unwrap();
    session.scan(&kafleet_outbox::cursor::Cursor::default().scan(100)).await.unwrap().rows
}

fn invoice() -> NewTask {
    NewTask::new("invoice", json!({ "order": 42 })).id("invoice-42").key("customer-7").tag("shop")
}

#[tokio::test(flavor = "multi_thread")]
async fn task_is_committed_and_rolled_back_with_its_transaction() {
    let Some((pool, outbox)) = database("sqlx_submit").await else { return };
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO purchases VALUES (41)").execute(&mut *tx).await.unwrap();
    submit_in(&mut tx, invoice().id("invoice-41")).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO purchases VALUES (42)").execute(&mut *tx).await.unwrap();
    assert_eq!(submit_in(&mut tx, invoice()).await.unwrap(), "invoice-42");
    assert!(rows(&outbox).await.is_empty(), "before the commit");
    tx.commit().await.unwrap();
    let rows = rows(&outbox).await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.key.id.as_str(), row.task_type.as_str()), ("invoice-42", "invoice"));
    assert_eq!((row.task_key.as_deref(), row.params.as_deref()), (Some("customer-7"), Some(r#"{"order":42}"#)));
    assert_eq!(row.fields, FieldsColumn::Json(r#"{"tags":["shop"]}"#.to_owned()));
    assert_eq!(row.submission().unwrap().input.id.as_deref(), Some("invoice-42"), "as the relay reads it");
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoint_takes_its_task_back() {
    let Some((pool, outbox)) = database("sqlx_savepoint").await else { return };
    let mut tx = pool.begin().await.unwrap();
    let first = submit_in(&mut tx, NewTask::new("echo", json!(null))).await.unwrap();
    let mut inner = tx.begin().await.unwrap();
    submit_in(&mut inner, NewTask::new("echo", json!(2))).await.unwrap();
    inner.rollback().await.unwrap();
    tx.commit().await.unwrap();
    let rows = rows(&outbox).await;
    assert_eq!(rows.iter().map(|row| &row.key.id).collect::<Vec<_>>(), [&first]);
    assert_eq!((rows[0].params.as_deref(), &rows[0].fields), (Some("null"), &FieldsColumn::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_is_wrong() {
    let Some((pool, outbox)) = database("sqlx_errors").await else { return };
    outbox.execute("DROP TABLE kafleet_outbox").await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let missing = submit_in(&mut connection, invoice()).await.unwrap_err();
    assert!(matches!(missing, SubmitError::Database(_)), "{missing:?}");
    assert!(missing.to_string().contains("kafleet_outbox"), "{missing}");
}
