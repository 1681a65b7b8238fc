//! Reader of a small single-partition topic: reads it from the start and then tails it, on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::control::settings::ReadProgress;

const POLL_RECORDS: usize = 1_000;
const POLL_WAIT: Duration = Duration::from_millis(100);
/// Pause before reading a failed topic again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of checking whether the topic still exists.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Deadline of one call to the broker.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Receiver of a followed topic.
pub trait Sink: Send + 'static {
    /// Called before the topic is read from its start again.
    fn restart(&mut self);
    fn record(&mut self, record: &RecordRef<'_>);
    /// Called once all records present at the restart have been read.
    fn caught_up(&mut self);
    /// Called with a reason if the topic cannot be read, and with `None` once it can.
    fn report_problem(&mut self, reason: Option<&str>);
}

/// Guard that stops following the topic when dropped.
pub struct TopicFollower(#[expect(dead_code, reason = "only its drop matters")] DropGuard);

/// Follows partition 0 of a topic, read committed, until the returned guard is dropped.
pub fn follow(broker: Arc<dyn Broker>, topic: String, sink: impl Sink) -> TopicFollower {
    // The tracker writes in transactions; records of aborted ones must not be read.
    begin(broker, topic, sink, false)
}

/// Follows a topic including the records of open and aborted transactions, which therefore cannot block it.
pub fn follow_uncommitted(broker: Arc<dyn Broker>, topic: String, sink: impl Sink) -> TopicFollower {
    begin(broker, topic, sink, true)
}

fn begin(broker: Arc<dyn Broker>, topic: String, sink: impl Sink, read_uncommitted: bool) -> TopicFollower {
    let stop = CancellationToken::new();
    let reader =
        TopicReader { broker, partition: Partition::new(topic, 0), sink, stop: stop.clone(), read_uncommitted };
    // Without a thread nothing is read; callers that wait report that at their deadline.
    if let Err(error) = kafleet_runtime::thread("kafleet-follow", reader.run()) {
        tracing::error!(%error, "cannot start the thread that follows a topic");
    }
    TopicFollower(stop.drop_guard())
}

struct TopicReader<S> {
    broker: Arc<dyn Broker>,
    partition: Partition,
    sink: S,
    stop: CancellationToken,
    read_uncommitted: bool,
}

impl<S: Sink> TopicReader<S> {
    async fn run(mut self) {
        while !self.stop.is_cancelled() {
            if let Err(error) = self.session().await {
                tracing::warn!(topic = %self.partition.topic, %error, "cannot follow the topic; reading it from the start again");
                self.sink.report_problem(Some(&error.to_string()));
                self.pause().await;
            }
        }
    }

    async fn pause(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < RETRY_INTERVAL && !self.stop.is_cancelled() {
            kafleet_runtime::pause_thread(POLL_WAIT.min(RETRY_INTERVAL)).await;
        }
    }

    /// Reads from the start until stopped, or until the topic must be read from the start again.
    async fn session(&mut self) -> Result<(), BrokerError> {
        let ends = self.broker.watermarks(&self.partition, CALL_DEADLINE)?;
        let spec = ConsumerSpec { read_uncommitted: self.read_uncommitted, ..ConsumerSpec::default() };
        let mut consumer = self.broker.consumer(&spec)?;
        consumer.assign(&[(self.partition.clone(), StartOffset::Beginning)])?;
        self.sink.restart();
        let mut reading = ReadProgress::new(ends);
        let mut caught_up = false;
        let mut probed = Instant::now();
        while !self.stop.is_cancelled() {
            if !caught_up && reading.is_done() {
                caught_up = true;
                self.sink.caught_up();
                self.sink.report_problem(None);
            }
            let wait = kafleet_runtime::waiting(POLL_WAIT).await;
            if !self.poll(&mut *consumer, wait, &mut reading)? {
                return Ok(());
            }
            // The last offsets may hold no visible record, only aborted records and transaction markers.
            if !caught_up && let Some((_, offset)) = consumer.positions()?.first() {
                reading.advance_to(*offset);
            }
            if probed.elapsed() >= PROBE_INTERVAL {
                probed = Instant::now();
                if !self.probe(&reading, caught_up) {
                    return Ok(());
                }
            }
        }
        consumer.close(POLL_WAIT);
        Ok(())
    }

    /// Polls once. Returns false if the position is no longer in the log.
    fn poll(
        &mut self,
        consumer: &mut dyn Consumer,
        wait: Duration,
        reading: &mut ReadProgress,
    ) -> Result<bool, BrokerError> {
        let sink = &mut self.sink;
        let events = consumer.poll(POLL_RECORDS, wait, &mut |record| {
            reading.advance_past(record);
            sink.record(record);
        })?;
        for event in events {
            match event {
                GroupEvent::OutOfRange(_) => return Ok(false),
                GroupEvent::ClientError(error) => {
                    tracing::debug!(topic = %self.partition.topic, %error, "broker error while following a topic");
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Checks that the topic exists. Returns false if it was deleted and created again.
    fn probe(&mut self, reading: &ReadProgress, caught_up: bool) -> bool {
        match self.broker.watermarks(&self.partition, CALL_DEADLINE) {
            Ok(ends) if ends.high < reading.next() => return false,
            Ok(_) if caught_up => self.sink.report_problem(None),
            Ok(_) => {}
            Err(error) => self.sink.report_problem(Some(&error.to_string())),
        }
        true
    }
}
