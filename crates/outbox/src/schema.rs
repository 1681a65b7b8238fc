//! SQL that creates the outbox, as `kafleet outbox schema` prints it.

/// Tables and the function `kafleet_submit` for PostgreSQL 13 or newer.
pub const POSTGRES_SCHEMA: &str = include_str!("sql/postgres.sql");

/// Trigger that wakes the relay at each commit, for databases with fewer than 200 commits per second.
pub const NOTIFY_SCHEMA: &str = include_str!("sql/notify.sql");

/// Table for MySQL and MariaDB, which Debezium reads.
pub const MYSQL_SCHEMA: &str = include_str!("sql/mysql.sql");

/// Channel on which the trigger of [`NOTIFY_SCHEMA`] notifies.
pub const NOTIFY_CHANNEL: &str = "kafleet_outbox";

/// Returns the schema for Postgres, with the trigger if `notifies`.
pub fn postgres_schema(notifies: bool) -> String {
    let notify = if notifies { NOTIFY_SCHEMA } else { "" };
    format!("{POSTGRES_SCHEMA}{notify}")
}
