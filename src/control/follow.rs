//! Following a small topic of one partition: read whole, then as it grows, on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::broker::{Broker, BrokerError, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};
use crate::control::settings::Reading;
use crate::runtime;

const BATCH: usize = 1_000;
const POLL: Duration = Duration::from_millis(100);
/// Between tries to read a topic that cannot be read.
const PAUSE: Duration = Duration::from_millis(500);
/// How often it is asked whether the topic is still there, and for how long.
const PROBE: Duration = Duration::from_secs(5);
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// What is told to whoever follows.
pub trait Sink: Send + 'static {
    /// The topic is read from its start again.
    fn restart(&mut self);
    fn record(&mut self, record: &RecordRef<'_>);
    /// Everything that was there at the restart has been read.
    fn whole(&mut self);
    /// The topic cannot be read, for this reason; none: it can.
    fn trouble(&mut self, why: Option<&str>);
}

/// Ends the following when it is dropped.
pub struct TopicFollower(#[expect(dead_code, reason = "its drop is what it is for")] DropGuard);

/// Follows partition 0 of a topic until the returned guard is dropped.
pub fn follow(broker: Arc<dyn Broker>, topic: String, sink: impl Sink) -> TopicFollower {
    // What the tracker writes is in transactions: an aborted one says nothing.
    begin(broker, topic, sink, false)
}

/// The same, with what is in open and aborted transactions: nobody can hold it up.
pub fn follow_uncommitted(broker: Arc<dyn Broker>, topic: String, sink: impl Sink) -> TopicFollower {
    begin(broker, topic, sink, true)
}

fn begin(broker: Arc<dyn Broker>, topic: String, sink: impl Sink, read_uncommitted: bool) -> TopicFollower {
    let stop = CancellationToken::new();
    let follower = Follower { broker, partition: Partition::new(topic, 0), sink, stop: stop.clone(), read_uncommitted };
    // Without a thread nothing is ever read, which whoever waits for it tells.
    if let Err(error) = runtime::thread("kafleet-follow", follower.run()) {
        tracing::error!(%error, "a topic cannot be followed: no thread can be started");
    }
    TopicFollower(stop.drop_guard())
}

struct Follower<S> {
    broker: Arc<dyn Broker>,
    partition: Partition,
    sink: S,
    stop: CancellationToken,
    read_uncommitted: bool,
}

impl<S: Sink> Follower<S> {
    async fn run(mut self) {
        while !self.stop.is_cancelled() {
            if let Err(error) = self.session().await {
                tracing::warn!(topic = %self.partition.topic, %error, "the topic cannot be followed and is read anew");
                self.sink.trouble(Some(&error.to_string()));
                self.pause().await;
            }
        }
    }

    async fn pause(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < PAUSE && !self.stop.is_cancelled() {
            runtime::rest(POLL.min(PAUSE)).await;
        }
    }

    /// Reads from the start, until told to stop or until it has to be begun again.
    async fn session(&mut self) -> Result<(), BrokerError> {
        let ends = self.broker.ends(&self.partition, CALL_DEADLINE)?;
        let spec = ConsumerSpec { read_uncommitted: self.read_uncommitted, ..ConsumerSpec::default() };
        let mut consumer = self.broker.consumer(&spec)?;
        consumer.assign(&[(self.partition.clone(), StartOffset::Beginning)])?;
        self.sink.restart();
        let mut reading = Reading::new(ends);
        let mut whole = false;
        let mut probed = Instant::now();
        while !self.stop.is_cancelled() {
            if !whole && reading.is_done() {
                whole = true;
                self.sink.whole();
                self.sink.trouble(None);
            }
            let wait = runtime::waiting(POLL).await;
            if !self.poll(&mut *consumer, wait, &mut reading)? {
                return Ok(());
            }
            // The last offsets may hold nothing for readers: what an aborted transaction left, and the marks of transactions.
            if !whole && let Some((_, place)) = consumer.positions()?.first() {
                reading.passed(*place);
            }
            if probed.elapsed() >= PROBE {
                probed = Instant::now();
                if !self.probe(&reading, whole) {
                    return Ok(());
                }
            }
        }
        consumer.close(POLL);
        Ok(())
    }

    /// False: the place read from is no longer in the log.
    fn poll(&mut self, consumer: &mut dyn Consumer, wait: Duration, reading: &mut Reading) -> Result<bool, BrokerError> {
        let sink = &mut self.sink;
        let events = consumer.poll(BATCH, wait, &mut |record| {
            reading.takes(record);
            sink.record(record);
        })?;
        for event in events {
            match event {
                GroupEvent::OutOfRange(_) => return Ok(false),
                GroupEvent::Trouble(error) => {
                    tracing::debug!(topic = %self.partition.topic, %error, "trouble with a topic that is followed")
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Whether the topic is there and is the one that was read. False: it was made anew.
    fn probe(&mut self, reading: &Reading, whole: bool) -> bool {
        match self.broker.ends(&self.partition, CALL_DEADLINE) {
            Ok(ends) if ends.end < reading.next() => return false,
            Ok(_) if whole => self.sink.trouble(None),
            Ok(_) => {}
            Err(error) => self.sink.trouble(Some(&error.to_string())),
        }
        true
    }
}
