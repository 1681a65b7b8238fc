//! Fires recurring schedules: each time once.
//!
//! Schedules, how far they are, and what people ask of them are records of the control topic. Whoever owns the first
//! events partition fires them all. A transaction holds the `scheduled` event of each task and the [`State`] that says so;
//! from there on a task is released like any that starts later. Before the first transaction a producer of a fixed name is
//! opened, which fences every earlier owner, and only then the control topic is read to its end: what an earlier owner has
//! fired stands there. Nothing is opened where there are no schedules.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{READ_DEADLINE, TrackerSetup};
use crate::broker::{BrokerError, ProducerRecord, RecordRef, TransactionalProducer};
use crate::control::follow::{Sink, follow_uncommitted};
use crate::control::schedules::ScheduleKey;
use crate::control::{ControlState, ControlWatch, keep};
use crate::runtime::{Backoff, blocking, now_ms};
use crate::telemetry::Metrics;
use table::ScheduleTable;
use transaction::{ScheduleTransaction, TaskFactory};

mod presence;
mod table;
mod transaction;

/// The partition whose owner fires schedules.
pub const OWNER: u32 = 0;
const PART: &str = "schedules";
/// No labels.
const NONE: &[&str] = &[];
/// For all records of a transaction.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked again at what waits for something else than a time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

pub struct Schedules {
    setup: Arc<TrackerSetup>,
    stop: CancellationToken,
    maker: TaskFactory,
}

impl Schedules {
    pub fn new(setup: Arc<TrackerSetup>, stop: CancellationToken) -> Self {
        Self { maker: TaskFactory::new(setup.clone()), setup, stop }
    }

    /// Fires until the partition is given back.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            let told = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                told = self.session(&mut backoff) => told,
            };
            let Err(told) = told;
            tracing::warn!(reason = %told, "no schedule can be fired; beginning again");
            self.setup.health.set(PART, told);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
        self.setup.health.clear(PART);
        self.setup.metrics.schedules.with_label_values(NONE).set(0);
    }

    async fn session(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, String> {
        self.until_there_are_some().await;
        let mut producer = self.open().await?;
        // Begun after the opening: it is read to where the topic ends now.
        let board = ControlWatch::new(ControlState::without_cancels().with_plan());
        let _reading = keep(board.clone(), self.setup.broker.clone(), &self.setup.names, None);
        let mut changes = board.changes();
        board.whole_within(READ_DEADLINE, &self.setup.names).await?;
        let mut book = ScheduleTable::of(&board.orders().plan);
        loop {
            changes.borrow_and_update();
            book.sync(&board.orders().plan);
            self.setup.metrics.schedules.with_label_values(NONE).set(book.entries.len() as i64);
            let now = now_ms();
            let burst = self.maker.gather(&mut book, now).await?;
            self.tell(&burst);
            if burst.is_empty() {
                backoff.reset();
                wait(&mut changes, self.rest(&book, &burst, now)).await;
                continue;
            }
            let (sent, burst) = self.send(producer, burst).await?;
            producer = sent;
            count(&self.setup.metrics, &book, &burst);
            book.done(burst);
            backoff.reset();
        }
    }

    /// A fleet without schedules pays for none.
    async fn until_there_are_some(&self) {
        let (seen, mut some) = watch::channel(false);
        let (broker, topic) = (self.setup.broker.clone(), self.setup.names.control());
        let _looking = follow_uncommitted(broker, topic, SchedulePresence(seen));
        // The sender lives as long as the looking.
        let _ = some.wait_for(|some| *some).await;
    }

    /// Fences earlier owners.
    async fn open(&self) -> Result<Box<dyn TransactionalProducer>, String> {
        let (broker, name) = (self.setup.broker.clone(), format!("{}.schedules", self.setup.names.events()));
        blocking(move || broker.atomic_producer(&name)).await?.map_err(|error: BrokerError| error.to_string())
    }

    /// All of it in one transaction.
    async fn send(
        &self,
        mut producer: Box<dyn TransactionalProducer>,
        burst: ScheduleTransaction,
    ) -> Result<(Box<dyn TransactionalProducer>, ScheduleTransaction), String> {
        let (sent, producer, burst) = blocking(move || {
            let records: Vec<ProducerRecord<'_>> = burst.messages.iter().map(|message| message.outgoing(&[])).collect();
            (producer.send_all(&records, SEND_DEADLINE), producer, burst)
        })
        .await?;
        sent.map_err(|error| error.to_string())?;
        Ok((producer, burst))
    }

    /// Why something that is due cannot be fired.
    fn tell(&self, burst: &ScheduleTransaction) {
        match burst.held.as_slice() {
            [] => self.setup.health.clear(PART),
            [only] => self.setup.health.set(PART, only.clone()),
            [first, more @ ..] => self.setup.health.set(PART, format!("{first}; and {} more", more.len())),
        }
    }

    fn rest(&self, book: &ScheduleTable, burst: &ScheduleTransaction, now: i64) -> Duration {
        let longest = if burst.waits || !burst.held.is_empty() { LOOK_AGAIN } else { LONGEST_SLEEP };
        book.next_due(now).map_or(longest, |due| Duration::from_millis((due - now) as u64).min(longest))
    }
}

/// Sees whether there is anything of a schedule.
struct SchedulePresence(watch::Sender<bool>);

impl Sink for SchedulePresence {
    fn restart(&mut self) {}

    fn record(&mut self, record: &RecordRef<'_>) {
        let key = record.key.and_then(|key| std::str::from_utf8(key).ok());
        if key.is_some_and(|key| matches!(ScheduleKey::parse(key), Ok(Some(_)))) {
            self.0.send_replace(true);
        }
    }

    fn whole(&mut self) {}

    fn trouble(&mut self, _why: Option<&str>) {}
}

async fn wait(changes: &mut watch::Receiver<u64>, longest: Duration) {
    // Over in time, or by a change; the sender lives as long as the board.
    let _ = tokio::time::timeout(longest, changes.changed()).await;
}

fn count(metrics: &Metrics, book: &ScheduleTable, burst: &ScheduleTransaction) {
    for (name, state) in &burst.states {
        let Some(before) = book.entries.get(name).map(|entry| &entry.state) else { continue };
        let outcomes = [
            ("fired", state.fired.saturating_sub(before.fired)),
            ("skipped", state.skipped.saturating_sub(before.skipped)),
            ("missed", state.missed.saturating_sub(before.missed)),
        ];
        outcomes.iter().for_each(|(outcome, more)| metrics.schedule_times.with_label_values(&[outcome]).inc_by(*more));
    }
    let now = now_ms();
    for due_ms in &burst.due {
        metrics.schedule_lateness.with_label_values(NONE).observe((now - due_ms).max(0) as f64 / 1_000.0);
    }
}
