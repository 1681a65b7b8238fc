//! A finished span, as the collector gets it.

use kafleet_model::trace::{SpanContext, SpanId, TraceId};

/// Kind of a span, with its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Producer = 4,
    Consumer = 5,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(i64),
}

/// Finished span of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    /// `tracestate` of the trace.
    pub state: Option<String>,
    pub name: String,
    pub kind: SpanKind,
    /// Epoch nanoseconds.
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: Vec<(&'static str, Value)>,
    pub links: Vec<SpanContext>,
    /// Message of the error, if the span ended with one.
    pub error: Option<String>,
}

impl Span {
    pub(super) fn new(context: SpanContext, name: String, kind: SpanKind, start_ns: u64) -> Self {
        Self {
            trace_id: context.trace_id,
            span_id: context.span_id,
            parent: None,
            state: None,
            name,
            kind,
            start_ns,
            end_ns: start_ns,
            attributes: Vec::with_capacity(14),
            links: Vec::new(),
            error: None,
        }
    }

    /// Adds an attribute.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.attributes.push((name, value.into()));
    }

    /// Returns the value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}
