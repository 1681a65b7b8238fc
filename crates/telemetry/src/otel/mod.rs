//! OpenTelemetry tracing: spans of tasks, queued without waiting and exported by a thread of their own.
//!
//! A process without tracing has no [`Tracer`]. With one, whether a task is sampled is decided from its id and its given
//! context before anything is built (`kafleet_model::trace`). Spans that the collector does not take are counted and
//! dropped.

mod attributes;
mod environment;
mod export;
mod exporter;
mod metrics;
mod protobuf;
mod span;

use std::sync::Arc;

use kafleet_config::Names;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_model::trace::{Sampler, SpanContext, SpanId};
use kafleet_runtime::now_ms;
use tokio::sync::{Notify, mpsc};

pub use attributes::{AttemptSpan, DeliveredTask, SentTask};
pub use environment::{OtelSettings, settings};
pub use export::probe;
pub use exporter::{Exporter, start};
pub use metrics::TraceMetrics;
pub use span::{Span, SpanKind, Value};

/// Maximum number of spans that wait for export; further ones are dropped.
pub const QUEUE_SPANS: usize = 2_048;
/// Maximum number of spans of a request.
const BATCH_SPANS: usize = 512;

/// Source of spans of a process. Cheap to clone.
#[derive(Clone)]
pub struct Tracer {
    sampler: Sampler,
    queue: mpsc::Sender<Box<Span>>,
    /// Notified when a batch of spans waits.
    full: Arc<Notify>,
    metrics: Arc<TraceMetrics>,
}

impl Tracer {
    /// Creates a tracer and the receiver of its spans. `capacity`: number of spans that may wait.
    pub fn new(sampler: Sampler, capacity: usize, metrics: &TraceMetrics) -> (Self, mpsc::Receiver<Box<Span>>) {
        let (queue, spans) = mpsc::channel(capacity);
        (Self { sampler, queue, full: Arc::default(), metrics: Arc::new(metrics.clone()) }, spans)
    }

    pub fn sampler(&self) -> Sampler {
        self.sampler
    }

    /// Queues a span for export, or drops and counts it.
    pub fn record(&self, span: Box<Span>) {
        if self.queue.try_send(span).is_err() {
            self.metrics.drop_spans("queue_full", 1);
        }
        if self.queue.max_capacity() - self.queue.capacity() >= BATCH_SPANS {
            self.full.notify_one();
        }
    }

    /// Begins the send span of a task that is about to be published, and puts the task into its trace; `None`: the trace is
    /// not sampled.
    pub fn begin_send(&self, task: &mut TaskSpec, names: &Names, source: &str, now_ms: i64) -> Option<Box<Span>> {
        let sent = self.sampler.sent(&task.id, task.run, task.origin())?;
        // A `tracestate` belongs to the trace of the parent, so a span without one drops it.
        let state = sent.parent.and_then(|_| task.trace.take()?.state);
        task.trace = Some(headers_of(sent.context, state));
        let published = SentTask {
            id: &task.id,
            task_type: &task.task_type,
            run: task.run,
            size: task.params.text().len(),
            topic: &names.tasks(&task.task_type),
            source,
            state: task.trace.as_ref().and_then(|trace| trace.state.as_deref()),
        };
        Some(published.span(&sent, now_ms))
    }

    /// Ends a send span and queues it.
    pub fn finish(&self, mut span: Box<Span>) {
        span.end_ns = nanos(now_ms()).max(span.start_ns);
        self.record(span);
    }
}

/// Context of the task that a continuation, a callback or a mail follows. `recorded`: the context in the record of that task;
/// without a tracer it is passed on as it is.
pub fn followed(tracer: Option<&Tracer>, id: &TaskId, run: u32, recorded: Option<SpanContext>) -> Option<SpanContext> {
    tracer.map_or(recorded, |tracer| Some(tracer.sampler.followed(id, run, recorded)))
}

/// Random span id. The generator is the one that simulations seed.
pub(crate) fn random_span_id() -> SpanId {
    SpanId::from_random(fastrand::u64(..))
}

/// Converts epoch milliseconds to nanoseconds.
pub fn nanos(at_ms: i64) -> u64 {
    u64::try_from(at_ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// `tracestate` of a task; it counts only with a valid context.
pub fn state_of(task: &TaskSpec) -> Option<String> {
    task.trace_context()?;
    task.trace.as_ref()?.state.clone()
}

/// Builds the trace headers, `traceparent` and `tracestate`, of a record or an attempt.
pub fn headers_of(context: SpanContext, state: Option<String>) -> Box<Trace> {
    Box::new(Trace { parent: context.to_string(), state })
}
