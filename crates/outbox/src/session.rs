//! Session of a relay: scans, transactions and deletions, from the read of the marker to the first error.

use std::time::Duration;

use kafleet_api::SubmissionError;
use kafleet_broker::{BrokerError, Transactions};
use kafleet_fleet::publish::{PublishError, PublishedTask};
use kafleet_model::task::TaskSpec;
use kafleet_runtime::now_ms;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::checks::check_row;
use crate::cursor::Cursor;
use crate::marker::{Marker, MarkerRecord};
use crate::relay::{Relay, RelayError};
use crate::row::{DeadRow, RowHash, RowKey};
use crate::table::{OutboxSession, ScannedRows};

/// Maximum number of rows of a transaction.
pub const MAX_BATCH_ROWS: usize = 1_000;
/// Minimum interval between checks that the cursor includes the lowest number of the table. Beside a transaction that is open
/// for long a check takes seconds: the interval is at least fifty times as long as the last one.
const CURSOR_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const CURSOR_CHECK_SHARE: u32 = 50;

/// Session of a relay.
pub(crate) struct RelaySession<'a> {
    relay: &'a Relay,
    table: &'a dyn OutboxSession,
    /// `None` only while a transaction runs. The lock lets references to the session cross threads.
    producer: Mutex<Option<Transactions>>,
    marker: Marker,
    cursor: Cursor,
    /// Rows whose tasks are published and that are not deleted yet, and dead rows.
    unfinished: FinishedRows,
    /// Maximum number of rows of the next scan.
    limit: usize,
    begun: Instant,
    next_check: Instant,
}

/// Rows to remove from the table.
#[derive(Default)]
struct FinishedRows {
    published: Vec<RowKey>,
    dead: Vec<DeadRow>,
}

/// Rows of a scan by what becomes of them.
#[derive(Default)]
struct Batch {
    finished: FinishedRows,
    tasks: Vec<TaskSpec>,
    /// Rows of `tasks`, in the same order.
    keys: Vec<RowKey>,
    seqs: Vec<i64>,
}

impl FinishedRows {
    fn is_empty(&self) -> bool {
        self.published.is_empty() && self.dead.is_empty()
    }
}

impl<'a> RelaySession<'a> {
    pub(crate) fn new(relay: &'a Relay, table: &'a dyn OutboxSession, producer: Transactions, marker: Marker) -> Self {
        Self {
            relay,
            table,
            producer: Mutex::new(Some(producer)),
            marker,
            cursor: Cursor::default(),
            unfinished: FinishedRows::default(),
            limit: MAX_BATCH_ROWS,
            begun: Instant::now(),
            next_check: Instant::now() + CURSOR_CHECK_INTERVAL,
        }
    }

    /// Publishes rows until the shutdown or the first error.
    pub(crate) async fn run(mut self) -> Result<(), RelayError> {
        let (shortest, longest) = self.relay.times.poll;
        let mut pause = shortest;
        loop {
            let scanned = self.table.scan(&self.cursor.scan(self.limit)).await?;
            if !scanned.rows.is_empty() {
                pause = shortest;
                self.publish(scanned).await?;
            } else {
                self.cursor.expire(scanned.horizon, self.elapsed_ms());
                self.finish().await?;
                tokio::select! {
                    () = self.relay.shutdown.drain.cancelled() => {}
                    () = self.table.wait(pause) => {}
                }
                pause = (pause * 2).min(longest);
            }
            if self.relay.shutdown.is_draining() {
                return self.finish().await;
            }
            if Instant::now() >= self.next_check {
                self.finish().await?;
                self.check_cursor().await?;
            }
        }
    }

    /// Publishes the rows of a scan, and meanwhile deletes those of the scan before.
    async fn publish(&mut self, scanned: ScannedRows) -> Result<(), RelayError> {
        let horizon = scanned.horizon;
        let mut batch = self.sort(scanned).await?;
        let previous = std::mem::take(&mut self.unfinished);
        let (table, relay) = (self.table, self.relay);
        let (sent, deleted) = tokio::join!(self.send(&mut batch), finish_rows(table, &relay.metrics, previous));
        deleted?;
        if !sent? {
            return Ok(());
        }
        self.cursor.pass(&batch.seqs, horizon, self.elapsed_ms());
        batch.finished.published.append(&mut batch.keys);
        self.unfinished = batch.finished;
        Ok(())
    }

    /// Decides about each row: published earlier, no valid task, or a task to publish.
    async fn sort(&self, scanned: ScannedRows) -> Result<Batch, RelayError> {
        let (mut batch, now_ms) = (Batch::default(), now_ms());
        for row in scanned.rows {
            batch.seqs.push(row.key.seq);
            if self.marker.contains(&row.key.hash()) {
                batch.finished.published.push(row.key);
                continue;
            }
            match check_row(&*self.relay.checks, &row, now_ms).await {
                Ok(task) => {
                    batch.tasks.push(task);
                    batch.keys.push(row.key);
                }
                Err(SubmissionError::Invalid(reason)) => batch.finished.dead.push(DeadRow { key: row.key, reason }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(batch)
    }

    /// Sends the tasks of a batch and the marker in one transaction. Returns false if the scan is to be repeated with fewer
    /// rows, because Kafka refuses one of them.
    async fn send(&mut self, batch: &mut Batch) -> Result<bool, RelayError> {
        if batch.tasks.is_empty() {
            return Ok(true);
        }
        let hashes: Vec<RowHash> = batch.keys.iter().map(RowKey::hash).collect();
        let record = self.marker.record_of(&hashes).map_err(|error| RelayError::Marker(error.to_string()))?;
        match self.transact(std::mem::take(&mut batch.tasks), &record).await {
            Ok(published) => {
                self.relay.metrics.published.inc_by(published.len() as u64);
                self.marker.committed(record);
                self.limit = (self.limit * 2).min(MAX_BATCH_ROWS);
                Ok(true)
            }
            Err(error) if !is_of_record(&error) => Err(of_publish(error)),
            Err(_) if batch.seqs.len() > 1 => {
                self.limit = batch.seqs.len() / 2;
                Ok(false)
            }
            Err(error) => {
                let reason = error.to_string();
                batch.finished.dead.extend(batch.keys.drain(..).map(|key| DeadRow { key, reason: reason.clone() }));
                self.limit = MAX_BATCH_ROWS;
                Ok(true)
            }
        }
    }

    async fn transact(
        &mut self,
        tasks: Vec<TaskSpec>,
        record: &MarkerRecord,
    ) -> Result<Vec<PublishedTask>, PublishError> {
        let lost = || PublishError::NotPublished(BrokerError::Unavailable("the producer was lost".to_owned()));
        let producer = self.producer.lock().take().ok_or_else(lost)?;
        let (publisher, deadline) = (self.relay.publisher.clone(), self.relay.times.transaction);
        let (key, value) = (record.key.clone().into_bytes(), record.value.clone());
        let topic = publisher.topology.names.outbox();
        let sent = producer.run(move |producer| {
            let marker = kafleet_broker::DependentRecord { topic: topic.into(), partition: 0, key, value };
            publisher.publish_with_record(producer, tasks, marker, now_ms(), deadline)
        });
        let (producer, published) = sent.await.map_err(PublishError::NotPublished)?;
        *self.producer.lock() = Some(producer);
        published
    }

    /// Time since the beginning of the session, in milliseconds.
    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.begun.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Removes the rows of the last transaction.
    async fn finish(&mut self) -> Result<(), RelayError> {
        let rows = std::mem::take(&mut self.unfinished);
        finish_rows(self.table, &self.relay.metrics, rows).await
    }

    /// Begins again from the first number if the table has rows that scans do not include: a pooler has moved the connection to
    /// a database that has lost inserts, which gives numbers again.
    async fn check_cursor(&mut self) -> Result<(), RelayError> {
        let begun = Instant::now();
        let all = Cursor::default().scan(1);
        let first = self.table.scan(&all).await?.rows.first().map(|row| row.key.seq);
        if first.is_some_and(|seq| !self.cursor.includes(seq)) {
            tracing::warn!(?first, "the outbox has a row behind the relay, which begins again from the first one");
            self.cursor = Cursor::default();
        }
        self.next_check = Instant::now() + CURSOR_CHECK_INTERVAL.max(begun.elapsed() * CURSOR_CHECK_SHARE);
        Ok(())
    }
}

async fn finish_rows(
    table: &dyn OutboxSession,
    metrics: &crate::metrics::RelayMetrics,
    rows: FinishedRows,
) -> Result<(), RelayError> {
    if rows.is_empty() {
        return Ok(());
    }
    table.finish(&rows.published, &rows.dead).await?;
    for DeadRow { key, reason } in &rows.dead {
        tracing::warn!(seq = key.seq, id = key.id, reason, "a row of the outbox is no valid task");
    }
    metrics.dead.inc_by(rows.dead.len() as u64);
    Ok(())
}

/// Returns true if a record of the transaction is the reason for certain. `BrokerError::Invalid` may also be of the producer.
fn is_of_record(error: &PublishError) -> bool {
    matches!(error, PublishError::Invalid(_) | PublishError::NotPublished(BrokerError::TooLarge(_)))
}

fn of_publish(error: PublishError) -> RelayError {
    match error {
        PublishError::NotPublished(BrokerError::Fenced(reason)) => RelayError::Fenced(reason),
        PublishError::NotPublished(error) | PublishError::NotAnnounced { error, .. } => error.into(),
        PublishError::Invalid(reason) => SubmissionError::Invalid(reason).into(),
    }
}
