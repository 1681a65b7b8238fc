//! Names, kinds and attributes of all spans. The only file that knows the semantic conventions for messaging, which are
//! not stable.

use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, TaskSpec};
use kafleet_model::trace::{RecordTrace, SendSpan, SpanContext};

use super::span::{Span, SpanKind};
use super::{nanos, random_span_id, state_of};

/// Maximum length of an error's message in a span, in characters.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// Task that is published.
pub struct SentTask<'a> {
    pub id: &'a TaskId,
    pub task_type: &'a str,
    pub run: u32,
    /// Size of the params, in bytes.
    pub size: usize,
    pub topic: &'a str,
    /// `ce_source` of the publisher.
    pub source: &'a str,
    /// `tracestate` of the trace.
    pub state: Option<&'a str>,
}

/// Task that a worker has received.
pub struct DeliveredTask<'a> {
    pub task: &'a TaskSpec,
    pub position: Position,
    pub topic: &'a str,
    pub worker: &'a str,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

impl SentTask<'_> {
    /// Begins the span of the publication; its end is set when it is finished.
    pub fn span(&self, sent: &SendSpan, start_ms: i64) -> Box<Span> {
        let Self { id, task_type, run, size, topic, source, state } = *self;
        let mut span = Span::new(sent.context, format!("send {task_type}"), SpanKind::Producer, nanos(start_ms));
        span.parent = sent.parent;
        span.state = state.map(str::to_owned);
        span.links.extend(sent.link);
        describe(&mut span, "send", id, size, topic);
        identify(&mut span, id, task_type, run);
        span.set("kafleet.source", source);
        Box::new(span)
    }
}

/// Describes the task. `operation`: `send` or `process`.
fn describe(span: &mut Span, operation: &'static str, id: &TaskId, size: usize, topic: &str) {
    span.set("messaging.system", "kafka");
    span.set("messaging.operation.type", operation);
    span.set("messaging.operation.name", operation);
    span.set("messaging.destination.name", topic);
    span.set("messaging.message.id", id.as_str());
    span.set("messaging.message.body.size", size as i64);
}

fn identify(span: &mut Span, id: &TaskId, task_type: &str, run: u32) {
    span.set("kafleet.task.id", id.as_str());
    span.set("kafleet.task.type", task_type);
    span.set("kafleet.task.root", id.root());
    span.set("kafleet.task.run", run);
}

fn set_position(span: &mut Span, position: Position) {
    span.set("messaging.destination.partition.id", position.partition.to_string());
    span.set("messaging.kafka.offset", position.offset);
}

/// Trace of a running attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptSpan {
    /// Send span of the task's run.
    pub send: SpanContext,
    /// Span of the attempt.
    pub context: SpanContext,
}

impl AttemptSpan {
    /// Begins an attempt in the trace of its task.
    pub fn begin(send: SpanContext) -> Self {
        Self { send, context: SpanContext { span_id: random_span_id(), ..send } }
    }

    /// Span of the wait before an attempt. `received`: set for the first wait, which takes the place of a send span that
    /// no publisher has written.
    pub fn wait(
        &self,
        of: &DeliveredTask<'_>,
        received: Option<RecordTrace>,
        from_ns: u64,
        until_ns: u64,
    ) -> Box<Span> {
        let replaced = received.filter(|received| !received.has_send);
        let context = match replaced {
            Some(_) => self.send,
            None => SpanContext { span_id: random_span_id(), ..self.send },
        };
        let name = format!("wait {}", of.task.task_type);
        let mut span = Span::new(context, name, SpanKind::Internal, from_ns.min(until_ns));
        span.parent = replaced.map_or(Some(self.send.span_id), |received| received.parent);
        span.end_ns = until_ns;
        span.state = state_of(of.task);
        identify(&mut span, &of.task.id, &of.task.task_type, of.task.run);
        span.set("kafleet.task.attempt", of.attempt);
        Box::new(span)
    }

    /// Span of the attempt. `error`: kind and message of its failure.
    pub fn process(
        &self,
        of: &DeliveredTask<'_>,
        (start_ns, end_ns): (u64, u64),
        outcome: &'static str,
        error: Option<(&str, &str)>,
    ) -> Box<Span> {
        let name = format!("process {}", of.task.task_type);
        let mut span = Span::new(self.context, name, SpanKind::Consumer, start_ns);
        span.parent = Some(self.send.span_id);
        span.end_ns = end_ns.max(start_ns);
        span.links.push(self.send);
        let task = of.task;
        span.state = state_of(task);
        describe(&mut span, "process", &task.id, task.params.text().len(), of.topic);
        set_position(&mut span, of.position);
        identify(&mut span, &task.id, &task.task_type, task.run);
        span.set("kafleet.task.attempt", of.attempt);
        span.set("kafleet.worker", of.worker);
        span.set("kafleet.outcome", outcome);
        if let Some((kind, message)) = error {
            span.set("error.type", kind);
            span.error = Some(message.chars().take(MAX_MESSAGE_CHARS).collect());
        }
        Box::new(span)
    }
}
