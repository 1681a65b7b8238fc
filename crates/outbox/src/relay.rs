//! Relay: takes the lease, opens the producer, reads the marker, and publishes rows until it loses one of them.

use std::sync::Arc;
use std::time::Duration;

use kafleet_api::SubmissionError;
use kafleet_broker::{BrokerClient, BrokerError};
use kafleet_fleet::publish::Publisher;
use kafleet_runtime::{Backoff, Health, Shutdown};
use tokio::time::{Instant, sleep};

use crate::checks::RowChecks;
use crate::marker_topic::read_marker;
use crate::metrics::RelayMetrics;
use crate::session::RelaySession;
use crate::table::{LeaseState, OutboxSession, OutboxTable, TableError};

/// Part of health that the relay reports.
pub const HEALTH_PART: &str = "outbox";
/// Minimum interval between two counts of the rows. A count of millions of rows takes seconds: the interval is at least fifty
/// times as long as the last one.
const STATS_INTERVAL: Duration = Duration::from_secs(5);
const STATS_SHARE: u32 = 50;
/// Duration of a session after which the next failure counts as the first one.
const STABLE_SESSION: Duration = Duration::from_secs(30);

/// Times of a relay.
#[derive(Clone, Copy, Debug)]
pub struct RelayTimes {
    /// Time after which a standby takes over from a relay that is silent. Default: 15 s.
    pub lease: Duration,
    /// Interval between renewals of the lease. Default: 3 s.
    pub renewal: Duration,
    /// Interval between attempts of a standby to take the lease. Default: 1 s.
    pub standby: Duration,
    /// First and longest pause after a failure. Default: 200 ms to 10 s.
    pub pause: (Duration, Duration),
    /// Shortest and longest wait for the next row. Default: 20 ms to 100 ms.
    pub poll: (Duration, Duration),
    /// Deadline of a transaction of Kafka. Default: 20 s.
    pub transaction: Duration,
}

impl Default for RelayTimes {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renewal: Duration::from_secs(3),
            standby: Duration::from_secs(1),
            pause: (Duration::from_millis(200), Duration::from_secs(10)),
            poll: (Duration::from_millis(20), Duration::from_millis(100)),
            transaction: Duration::from_secs(20),
        }
    }
}

/// Reason why a session of the relay ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("Kafka: {0}")]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Check(#[from] SubmissionError),
    #[error("{0}")]
    Marker(String),
    /// Another relay has taken over.
    #[error("another relay has taken over this outbox: {0}")]
    Fenced(String),
}

/// Relay of an outbox.
#[derive(Clone)]
pub struct Relay {
    pub table: Arc<dyn OutboxTable>,
    pub client: BrokerClient,
    pub publisher: Publisher,
    pub checks: Arc<dyn RowChecks>,
    pub metrics: RelayMetrics,
    pub health: Health,
    pub shutdown: Shutdown,
    /// Name of this process in the lease, unique among the relays of the outbox.
    pub holder: String,
    pub times: RelayTimes,
}

impl Relay {
    /// Publishes rows until the shutdown. Errors are logged, reported as not ready, and retried.
    pub async fn run(self) {
        let _monitor = kafleet_runtime::spawn_guarded(self.clone().monitor());
        let mut backoff = Backoff::new(self.times.pause.0, self.times.pause.1);
        while !self.shutdown.is_draining() {
            let begun = Instant::now();
            let Err(error) = self.run_session().await else { break };
            if matches!(error, RelayError::Fenced(_)) {
                self.metrics.fenced.inc();
            }
            if begun.elapsed() >= STABLE_SESSION {
                backoff.reset();
            }
            tracing::warn!(%error, "the outbox relay begins again");
            self.health.set(HEALTH_PART, error.to_string());
            tokio::select! {
                () = self.shutdown.drain.cancelled() => break,
                () = sleep(backoff.next_wait()) => {}
            }
        }
        self.health.clear(HEALTH_PART);
    }

    /// Publishes rows until the shutdown or the first error.
    async fn run_session(&self) -> Result<(), RelayError> {
        let table = self.table.open().await?;
        if !self.take_lease(&*table).await? {
            return Ok(());
        }
        let name = self.publisher.topology.names.outbox_sender(table.identity());
        let worked = tokio::select! {
            worked = self.work(&*table, &name) => worked,
            lost = self.renew(&*table) => Err(lost),
        };
        // After the loss of the lease this changes nothing; after any other error a standby takes over at once.
        if let Err(error) = table.release(&self.holder).await {
            tracing::info!(%error, "the lease of the outbox is not given back and ends by itself");
        }
        worked
    }

    /// Opens the producer, which fences an earlier relay, reads what it has published, and publishes rows.
    async fn work(&self, table: &dyn OutboxSession, name: &str) -> Result<(), RelayError> {
        let producer = self.client.transactional_producer(name).await?;
        let topic = self.publisher.topology.names.outbox();
        let marker = read_marker(&self.client, &topic, table.identity()).await?;
        tracing::info!(outbox = %table.identity(), published_rows = marker.len(), "the outbox relay has begun");
        self.health.clear(HEALTH_PART);
        RelaySession::new(self, table, producer, marker).run().await
    }

    /// Waits for the lease. Returns false at the shutdown.
    async fn take_lease(&self, table: &dyn OutboxSession) -> Result<bool, RelayError> {
        let mut reported = None;
        loop {
            match table.lease(&self.holder, self.times.lease).await? {
                LeaseState::Acquired => return Ok(true),
                LeaseState::OwnedBy(holder) => {
                    if reported.as_ref() != Some(&holder) {
                        tracing::info!(%holder, "the outbox has a relay; this one is its standby");
                        reported = Some(holder);
                    }
                    self.health.clear(HEALTH_PART);
                }
            }
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return Ok(false),
                () = sleep(self.times.standby) => {}
            }
        }
    }

    /// Renews the lease until it is lost.
    async fn renew(&self, table: &dyn OutboxSession) -> RelayError {
        loop {
            sleep(self.times.renewal).await;
            match table.lease(&self.holder, self.times.lease).await {
                Ok(LeaseState::Acquired) => {}
                Ok(LeaseState::OwnedBy(other)) => return RelayError::Fenced(format!("`{other}` has the lease")),
                Err(error) => return error.into(),
            }
        }
    }

    /// Keeps the metrics of the rows up to date, also on a standby.
    async fn monitor(self) {
        loop {
            let begun = Instant::now();
            match self.table.stats().await {
                Ok(stats) => {
                    self.metrics.rows.set(i64::try_from(stats.rows).unwrap_or(i64::MAX));
                    self.metrics.oldest_seconds.set(stats.oldest.as_secs_f64());
                }
                Err(error) => tracing::debug!(%error, "the rows of the outbox are not counted"),
            }
            sleep(STATS_INTERVAL.max(begun.elapsed() * STATS_SHARE)).await;
        }
    }
}
