//! Outbox: tasks that are submitted in a transaction of Postgres, and the relay that publishes them.
//!
//! In: committed rows of the table `kafleet_outbox`, in the order of their numbers, while this process has the lease of the
//! outbox. Out: their task records and `submitted` events in transactions of Kafka, each with a marker of its rows on the topic
//! `<prefix>.outbox`; then the rows are deleted. A row that is no valid task goes to `kafleet_outbox_dead`.
//!
//! Invariant: exactly one task per committed row. Only the last opened producer of an outbox can write; after it is opened, the
//! relay reads the marker, and publishes no row that is in it. Tasks and marker are one transaction, so a crash at any
//! step leaves either both or none. The lease in the database only spares a working relay from being fenced by its standbys.
//!
//! Read next: `relay.rs` and `session.rs` (the steps), `marker.rs` and `cursor.rs` (pure), `table.rs` (what a database must do),
//! `sql/postgres.sql`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod checks;
pub mod cursor;
pub mod marker;
mod marker_topic;
pub mod memory;
mod metrics;
pub mod postgres;
mod relay;
mod row;
pub mod schema;
mod session;
pub mod table;

pub use metrics::RelayMetrics;
pub use relay::{HEALTH_PART, Relay, RelayError, RelayTimes};
pub use row::{DeadRow, FieldsColumn, MAX_COLUMN_BYTES, OutboxRow, RowHash, RowKey, RowSubmission};
pub use session::MAX_BATCH_ROWS;

#[cfg(test)]
mod tests;
