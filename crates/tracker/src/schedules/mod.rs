//! Fires recurring schedules, exactly once per time.
//!
//! Schedules, their states and requests concerning them are records of the control topic. The owner of the first events
//! partition fires all of them. A transaction contains the `scheduled` event of each task and the [`ScheduleProgress`]
//! that records it; the tasks are then released like any delayed task. Before the first transaction a producer with a
//! fixed transactional id is opened, which fences earlier owners, and only then the control topic is read to its end:
//! it contains everything that earlier owners have fired. Without schedules nothing is opened.
//!
//! Invariant: a task and the progress that records its time are in one transaction. In two, a crash between them would
//! fire the time again, or never.
//!
//! Read next: `crates/model/src/schedule/step.rs` (the pure step), then `transaction.rs`.
//!
//! [`ScheduleProgress`]: kafleet_model::schedule::step::ScheduleProgress

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, ProducerRecord, RecordRef, TransactionalProducer, Transactions};
use kafleet_fleet::control::follow::{Sink, follow_uncommitted};
use kafleet_fleet::control::schedules::ScheduleKey;
use kafleet_fleet::control::{ControlState, ControlWatch, follow_control};
use kafleet_runtime::{Backoff, now_ms, watch};
use kafleet_telemetry::Metrics;
use tokio_util::sync::CancellationToken;

use super::error::TrackerError;
use super::is_stopped_within;
use super::setup::{READ_DEADLINE, TrackerSetup};
use table::ScheduleTable;
use transaction::{ScheduleTransaction, TaskFactory};

mod presence;
mod table;
mod transaction;

/// Events partition whose owner fires schedules.
pub(super) const OWNER_PARTITION: u32 = 0;
const HEALTH_PART: &str = "schedules";
/// Empty label set.
const NO_LABELS: &[&str] = &[];
/// Deadline for all records of a transaction.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of rechecks while something is blocked for another reason than time.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum sleep. The clock may jump during a sleep, after which a time is due sooner than planned.
const MAX_SLEEP: Duration = Duration::from_secs(2);

pub(super) struct Schedules {
    setup: Arc<TrackerSetup>,
    stop: CancellationToken,
    factory: TaskFactory,
}

impl Schedules {
    pub(super) fn new(setup: Arc<TrackerSetup>, stop: CancellationToken) -> Self {
        Self { factory: TaskFactory::new(setup.clone()), setup, stop }
    }

    /// Runs until the partition is released.
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            let error = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                error = self.session(&mut backoff) => error,
            };
            let Err(error) = error;
            tracing::warn!(reason = %error, "cannot fire schedules; restarting");
            self.setup.health.set(HEALTH_PART, error.to_string());
            if is_stopped_within(backoff.next_wait(), &stop).await {
                break;
            }
        }
        self.setup.health.clear(HEALTH_PART);
        self.setup.metrics.schedules.count.with_label_values(NO_LABELS).set(0);
    }

    async fn session(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, TrackerError> {
        self.wait_for_schedules().await;
        let mut producer = self.open().await?;
        // Read after the producer was opened, up to the current end of the topic.
        let control = ControlWatch::new(ControlState::without_task_commands().with_schedules());
        let _follower = follow_control(control.clone(), self.setup.broker.clone(), &self.setup.topology.names, None);
        let mut changes = control.changes();
        control.wait_until_read_within(READ_DEADLINE, &self.setup.topology.names).await?;
        let mut table = ScheduleTable::of(&control.state().plan);
        loop {
            changes.get_and_mark();
            table.sync(&control.state().plan);
            self.setup.metrics.schedules.count.with_label_values(NO_LABELS).set(table.entries.len() as i64);
            let now = now_ms();
            let transaction = self.factory.collect(&mut table, now).await?;
            self.report_blocked(&transaction);
            if transaction.is_empty() {
                backoff.reset();
                wait(&mut changes, self.next_wait(&table, &transaction, now)).await;
                continue;
            }
            let (sent, transaction) = self.send(producer, transaction).await?;
            producer = sent;
            count(&self.setup.metrics, &table, &transaction);
            table.done(transaction);
            backoff.reset();
        }
    }

    /// Waits until a schedule exists, so that a fleet without schedules incurs no cost.
    async fn wait_for_schedules(&self) {
        let seen = watch::Sender::new(false);
        let mut some = seen.subscribe();
        let (broker, topic) = (self.setup.broker.clone(), self.setup.topology.names.control());
        let _follower = follow_uncommitted(broker, topic, SchedulePresence(seen));
        // The sender lives as long as the follower.
        let _ = some.wait_for(|some| *some).await;
    }

    /// Opens the producer, which fences earlier owners.
    async fn open(&self) -> Result<Transactions, BrokerError> {
        let (broker, name) = (self.setup.broker.client(), format!("{}.schedules", self.setup.topology.names.events()));
        broker.transactional_producer(&name).await
    }

    /// Publishes the records in one transaction.
    async fn send(
        &self,
        producer: Transactions,
        transaction: ScheduleTransaction,
    ) -> Result<(Transactions, ScheduleTransaction), BrokerError> {
        let send = move |producer: &mut dyn TransactionalProducer| {
            let records: Vec<ProducerRecord<'_>> =
                transaction.messages.iter().map(|message| message.producer_record(&[])).collect();
            (producer.send_all(&records, SEND_DEADLINE), transaction)
        };
        let (producer, (sent, transaction)) = producer.run(send).await?;
        sent?;
        Ok((producer, transaction))
    }

    /// Reports schedules that are due but cannot fire.
    fn report_blocked(&self, transaction: &ScheduleTransaction) {
        match transaction.blocked.as_slice() {
            [] => self.setup.health.clear(HEALTH_PART),
            [only] => self.setup.health.set(HEALTH_PART, only.clone()),
            [first, more @ ..] => self.setup.health.set(HEALTH_PART, format!("{first}; and {} more", more.len())),
        }
    }

    fn next_wait(&self, table: &ScheduleTable, transaction: &ScheduleTransaction, now: i64) -> Duration {
        let longest = if transaction.waits || !transaction.blocked.is_empty() { RECHECK_INTERVAL } else { MAX_SLEEP };
        table.next_due(now).map_or(longest, |due| Duration::from_millis((due - now) as u64).min(longest))
    }
}

/// Detects whether the control topic contains any schedule.
struct SchedulePresence(watch::Sender<bool>);

impl Sink for SchedulePresence {
    fn restart(&mut self) {}

    fn record(&mut self, record: &RecordRef<'_>) {
        let key = record.key.and_then(|key| std::str::from_utf8(key).ok());
        if key.is_some_and(|key| matches!(ScheduleKey::parse(key), Ok(Some(_)))) {
            self.0.send(true);
        }
    }

    fn caught_up(&mut self) {}

    fn report_problem(&mut self, _reason: Option<&str>) {}
}

async fn wait(changes: &mut watch::Receiver<u64>, longest: Duration) {
    // Ends by a change or by the timeout; the sender lives as long as the watch.
    let _ = tokio::time::timeout(longest, changes.changed()).await;
}

fn count(metrics: &Metrics, table: &ScheduleTable, transaction: &ScheduleTransaction) {
    for (name, state) in &transaction.states {
        let Some(before) = table.entries.get(name).map(|entry| &entry.state) else { continue };
        let outcomes = [
            ("fired", state.fired.saturating_sub(before.fired)),
            ("skipped", state.skipped.saturating_sub(before.skipped)),
            ("missed", state.missed.saturating_sub(before.missed)),
        ];
        outcomes.iter().for_each(|(outcome, more)| metrics.schedules.times.with_label_values(&[outcome]).inc_by(*more));
    }
    for task_type in &transaction.types {
        metrics.tasks.submitted.with_label_values(&[task_type]).inc();
    }
    let now = now_ms();
    for due_ms in &transaction.due {
        metrics.schedules.lateness.with_label_values(NO_LABELS).observe((now - due_ms).max(0) as f64 / 1_000.0);
    }
}
