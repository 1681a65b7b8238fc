//! Tasks that are submitted in a transaction of Postgres, over sqlx.
//!
//! In: a task and a connection, most often that of a transaction. Out: a row of the table `kafleet_outbox`, which `kafleet outbox`
//! publishes as exactly one task after the commit; after a rollback there is none. The crate opens no connection and chooses
//! neither runtime nor TLS: these are features of `sqlx` in the application.
//!
//! ```no_run
//! # async fn run(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use kafleet_client::NewTask;
//! use kafleet_sqlx::submit_in;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO purchases (id) VALUES ($1)").bind(42_i64).execute(&mut *tx).await?;
//! let id = submit_in(&mut tx, NewTask::new("invoice", serde_json::json!({ "order": 42 }))).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: the statement is that of `kafleet_client::outbox_statement`, as for every other driver.
//!
//! Read next: `crates/client/src/outbox.rs` (the statement), `crates/outbox/src/sql/postgres.sql` (the table).

#![warn(unreachable_pub, missing_docs)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use kafleet_client::{IntoTask, OUTBOX_INSERT, outbox_statement};
use sqlx::{PgConnection, Postgres};

#[cfg(test)]
mod tests;

/// Reason why a task is not in the transaction.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The params or the options cannot be written as JSON. No statement was sent: the transaction goes on.
    #[error(transparent)]
    Task(#[from] kafleet_client::Error),
    /// Postgres refuses the row or cannot be reached. After an error Postgres only rolls a transaction back.
    #[error("the task is not in the transaction: {0}")]
    Database(#[from] sqlx::Error),
}

/// Submits a task in the transaction of a connection, and returns the id of the task. Without a transaction the row is committed
/// at once. The relay checks params and options after the commit: a row that is no valid task goes to `kafleet_outbox_dead`.
///
/// # Errors
/// `Task` before a statement is sent, `Database` for everything that Postgres answers, such as a missing table.
pub async fn submit_in<T: IntoTask>(connection: &mut PgConnection, task: T) -> Result<String, SubmitError> {
    let statement = outbox_statement(task)?;
    let query = statement.values.iter().fold(sqlx::query::<Postgres>(OUTBOX_INSERT), |query, value| query.bind(value));
    query.execute(connection).await?;
    Ok(statement.id)
}
