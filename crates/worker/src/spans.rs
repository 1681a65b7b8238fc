//! Spans of the attempts of a type: the wait before each, and the attempt itself.

use std::sync::Arc;

use kafleet_model::task::Trace;
use kafleet_model::trace::{RecordTrace, SpanContext};
use kafleet_runtime::now_ms;
use kafleet_telemetry::Tracer;
use kafleet_telemetry::otel::{AttemptSpan, DeliveredTask, headers_of, nanos, state_of};

use super::decode::InFlight;

/// Sampled trace of a task in the worker.
pub(super) struct TaskTrace {
    /// Context of the task's send span.
    send: SpanContext,
    /// End of the last attempt, epoch nanoseconds.
    ended_ns: u64,
}

/// Writes the spans of a type's attempts.
#[derive(Clone)]
pub(super) struct AttemptSpans(Option<Arc<TypeSpans>>);

struct TypeSpans {
    tracer: Tracer,
    topic: String,
    worker: Arc<str>,
}

impl AttemptSpans {
    pub(super) fn new(tracer: Option<Tracer>, topic: String, worker: Arc<str>) -> Self {
        Self(tracer.map(|tracer| Arc::new(TypeSpans { tracer, topic, worker })))
    }

    /// Begins the span of an attempt, and writes that of the wait before it; `None` if the trace is not sampled.
    pub(super) fn begin(&self, in_flight: &mut InFlight, now_ms: i64) -> Option<Box<AttemptSpan>> {
        self.0.as_ref()?.begin(in_flight, now_ms).map(Box::new)
    }

    /// Ends an attempt. `error`: kind and message of its failure.
    pub(super) fn end(
        &self,
        in_flight: &mut InFlight,
        span: &AttemptSpan,
        times: (u64, u64),
        outcome: &'static str,
        error: Option<(&str, &str)>,
    ) {
        let Some(spans) = &self.0 else { return };
        in_flight.trace = Some(Box::new(TaskTrace { send: span.send, ended_ns: times.1 }));
        spans.tracer.record(span.process(&spans.delivered(in_flight), times, outcome, error));
    }

    /// Writes the wait of a task that ends without an attempt, if it takes the place of a send span that tasks which follow
    /// name as their parent.
    pub(super) fn never_started(&self, in_flight: &InFlight) {
        let Some(spans) = self.0.as_ref().filter(|_| in_flight.trace.is_none()) else { return };
        let received = spans.received(in_flight).filter(|received| !received.has_send);
        if let Some(received) = received {
            let span = AttemptSpan::begin(received.send);
            spans.write_wait(in_flight, &span, Some(received), nanos(now_ms()));
        }
    }
}

impl TypeSpans {
    fn received(&self, in_flight: &InFlight) -> Option<RecordTrace> {
        let task = &in_flight.task;
        self.tracer.sampler().received(&task.id, task.run, task.trace_context())
    }

    fn begin(&self, in_flight: &mut InFlight, now_ms: i64) -> Option<AttemptSpan> {
        let received = match &in_flight.trace {
            Some(_) => None,
            None => Some(self.received(in_flight)?),
        };
        let own_context = in_flight.trace.as_ref().map(|trace| trace.send);
        let span = AttemptSpan::begin(own_context.or(received.map(|received| received.send))?);
        self.write_wait(in_flight, &span, received, nanos(now_ms));
        if received.is_some_and(|received| !received.has_send) {
            // Later records and events of the task name the span that followers have as their parent.
            let state = state_of(&in_flight.task);
            in_flight.task.trace = Some(headers_of(span.send, state));
        }
        Some(span)
    }

    fn write_wait(&self, in_flight: &InFlight, span: &AttemptSpan, received: Option<RecordTrace>, until_ns: u64) {
        let ended_ns = in_flight.trace.as_ref().map(|trace| trace.ended_ns);
        let from_ns = ended_ns.unwrap_or_else(|| nanos(in_flight.record.timestamp_ms));
        self.tracer.record(span.wait(&self.delivered(in_flight), received, from_ns, until_ns));
    }

    fn delivered<'a>(&'a self, in_flight: &'a InFlight) -> DeliveredTask<'a> {
        let attempt = in_flight.progress.attempts + 1;
        DeliveredTask {
            task: &in_flight.task,
            position: in_flight.record.position,
            topic: &self.topic,
            worker: &self.worker,
            attempt,
        }
    }
}

impl InFlight {
    /// Trace headers of an attempt for its handler and its children: those of its span, or else those of the record.
    pub(super) fn attempt_trace(&self, span: Option<&AttemptSpan>) -> Option<Box<Trace>> {
        match span {
            Some(span) => Some(headers_of(span.context, state_of(&self.task))),
            None => self.task.trace.clone(),
        }
    }
}
