//! Publishes the events of a dispatcher's tasks, and the output of its running attempts.

use std::sync::Arc;

use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{Event, InterruptionReason, Payload, Success};
use kafleet_model::json::RawJson;
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use super::running::RunningAttempt;
use crate::attempt::output::{FLUSH_INTERVAL, OutputBuffer};
use crate::completions::DeliveryTag;
use crate::decode::InFlight;
use crate::dispatch::inline::Clock;
use crate::events::EventWriter;
use crate::result_batch::ResultBatch;

/// Publishes the events of the tasks of one dispatcher.
pub(super) struct EventReporter {
    pub events: EventWriter,
    pub output: Arc<OutputBuffer>,
    /// Successes, to be sent as a batch.
    results: ResultBatch,
    /// Time at which output and metrics are flushed.
    next_flush: Option<Instant>,
    /// Reused buffer for encoded events.
    scratch: Vec<u8>,
}

impl EventReporter {
    pub(super) fn new(events: EventWriter, output: Arc<OutputBuffer>) -> Self {
        Self { events, output, results: ResultBatch::default(), next_flush: None, scratch: Vec::with_capacity(1024) }
    }

    /// Creates an event that includes the task's announcement (its description). The task is then known from this
    /// event alone, even if its earlier events were lost with a failed producer.
    pub(super) fn event(&self, payload: impl Into<Payload>, in_flight: &InFlight) -> Event {
        let worker = Some(self.events.worker.clone());
        Event { worker, ..Event::announcing(payload, &in_flight.task, Some(in_flight.record.position), now_ms()) }
    }

    /// Creates an event of a running attempt.
    pub(super) fn event_of_attempt(&self, payload: Payload, running: &RunningAttempt) -> Event {
        Event { attempt: running.attempt(), ..self.event(payload, &running.in_flight) }
    }

    /// Publishes a non-terminal event without waiting for its acknowledgement. The announcement is
    /// left out if the task has already been announced.
    pub(super) async fn publish(&mut self, in_flight: &mut InFlight, mut event: Event) {
        if in_flight.announced {
            event.task = None;
        }
        self.events.write(&event, DeliveryTag::UNTRACKED, &mut self.scratch).await;
        in_flight.announced = true;
    }

    /// Publishes the terminal event of a task; its acknowledgement completes the input.
    pub(super) async fn publish_terminal(&mut self, in_flight: &InFlight, event: &Event) {
        self.forget_children(in_flight);
        self.events.write(event, in_flight.tag, &mut self.scratch).await;
    }

    /// Publishes the `started` event of an attempt, unless it has already been published.
    pub(super) async fn publish_started(&mut self, running: &mut RunningAttempt) {
        if running.announced_start {
            return;
        }
        let mut event = self.event(Payload::Started { then: Vec::new() }, &running.in_flight);
        event.at_ms = running.started_at_ms;
        event.attempt = running.attempt();
        event.message = running.batch_size.map(|size| format!("in a batch of {size} tasks"));
        self.publish(&mut running.in_flight, event).await;
        running.announced_start = true;
    }

    /// Publishes the end of an attempt that starts again with its number, after its `started` event.
    pub(super) async fn publish_interruption(
        &mut self,
        running: &mut RunningAttempt,
        reason: InterruptionReason,
        message: &str,
    ) {
        self.publish_started(running).await;
        let failure = running.failure(reason.code(), message.to_owned());
        let event = self.event_of_attempt(Payload::Interrupted(failure), running);
        self.publish(&mut running.in_flight, event).await;
    }

    /// Publishes the last output of an attempt that has ended, after its `started` event.
    pub(super) async fn publish_last_output(&mut self, running: &mut RunningAttempt) {
        let events = self.output.close(&running.cx);
        if !events.is_empty() {
            self.publish_started(running).await;
        }
        self.publish_untracked(events).await;
    }

    /// Publishes the pending output of all running attempts.
    pub(super) async fn publish_pending_output(&mut self) {
        let events = self.output.take_all();
        self.publish_untracked(events).await;
    }

    /// Forgets the children that `spawn_now` has published for a task that leaves.
    pub(super) fn forget_children(&self, in_flight: &InFlight) {
        self.output.forget_children(&in_flight.task.id, in_flight.task.run);
    }

    async fn publish_untracked(&mut self, events: Vec<Event>) {
        for event in events {
            self.events.write(&event, DeliveryTag::UNTRACKED, &mut self.scratch).await;
        }
    }

    /// Adds a success to the batch of results. Returns the task if its event cannot be encoded.
    pub(super) fn add_success(
        &mut self,
        in_flight: Box<InFlight>,
        started_at_ms: i64,
        output: &RawJson,
        clock: &Clock,
    ) -> Result<(), (Box<InFlight>, EncodeError)> {
        self.forget_children(&in_flight);
        let events = &self.events;
        let partition = events.publisher().topology.partition_of(&in_flight.task.id);
        self.results.add(in_flight, partition, clock.now, |in_flight, bytes| {
            let success = Success {
                task: &in_flight.task,
                position: in_flight.record.position,
                attempt: in_flight.progress.attempts + 1,
                worker: &events.worker,
                at_ms: clock.now_ms(),
                started_at_ms,
                output,
            };
            success.encode(bytes)
        })
    }

    pub(super) fn results_are_due(&self, now: Instant) -> bool {
        self.results.is_due(now)
    }

    pub(super) async fn send_results(&mut self) {
        self.results.send(&self.events).await;
    }

    /// Time at which output and metrics are to be flushed, if scheduled.
    pub(super) fn next_flush(&self) -> Option<Instant> {
        self.next_flush
    }

    /// Schedules a flush in one interval, unless one is scheduled.
    pub(super) fn schedule_flush(&mut self, now: Instant) {
        self.next_flush.get_or_insert(now + FLUSH_INTERVAL);
    }

    /// Clears the scheduled flush if it is due, and returns whether it was.
    pub(super) fn take_due_flush(&mut self, now: Instant) -> bool {
        self.next_flush.take_if(|at| *at <= now).is_some()
    }
}
