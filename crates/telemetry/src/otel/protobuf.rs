//! Encoder of OTLP trace requests, and decoder of their responses: the few messages of opentelemetry-proto that are needed.

use std::collections::BTreeMap;

use super::span::{Span, Value};

/// Name of the instrumentation scope.
const SCOPE: &str = "kafleet";
/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: u64 = 2;

/// Encodes an `ExportTraceServiceRequest`.
pub(super) fn request(resource: &BTreeMap<String, String>, spans: &[Span]) -> Vec<u8> {
    let mut out = ProtobufMessage::default();
    out.message(1, |resource_spans| {
        resource_spans.message(1, |message| {
            for (name, value) in resource {
                message.message(1, |attribute| text_attribute(attribute, name, value));
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.bytes(1, SCOPE.as_bytes());
                scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for span in spans {
                scope_spans.message(2, |message| encode_span(message, span));
            }
        });
    });
    out.0
}

fn encode_span(out: &mut ProtobufMessage, span: &Span) {
    out.bytes(1, span.trace_id.bytes());
    out.bytes(2, span.span_id.bytes());
    if let Some(state) = &span.state {
        out.bytes(3, state.as_bytes());
    }
    if let Some(parent) = &span.parent {
        out.bytes(4, parent.bytes());
    }
    out.bytes(5, span.name.as_bytes());
    out.number(6, span.kind as u64);
    out.fixed64(7, span.start_ns);
    out.fixed64(8, span.end_ns);
    for (name, value) in &span.attributes {
        out.message(9, |attribute| match value {
            Value::Text(text) => text_attribute(attribute, name, text),
            Value::Number(number) => {
                attribute.bytes(1, name.as_bytes());
                attribute.message(2, |value| value.number(3, *number as u64));
            }
        });
    }
    for link in &span.links {
        out.message(13, |message| {
            message.bytes(1, link.trace_id.bytes());
            message.bytes(2, link.span_id.bytes());
        });
    }
    if let Some(error) = &span.error {
        out.message(15, |status| {
            status.bytes(2, error.as_bytes());
            status.number(3, STATUS_ERROR);
        });
    }
    // The W3C flag `sampled`.
    out.fixed32(16, 1);
}

fn text_attribute(out: &mut ProtobufMessage, name: &str, text: &str) {
    out.bytes(1, name.as_bytes());
    out.message(2, |value| value.bytes(1, text.as_bytes()));
}

/// Message being written. Fields are numbered as in the `.proto` files.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint((field << 3) | wire_type);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u64, number: u64) {
        self.key(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, number: u32) {
        self.key(field, 5);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        self.key(field, 2);
        let start = self.0.len();
        // One byte is enough for the length of most messages. Longer ones are moved.
        self.0.push(0);
        write(self);
        let length = self.0.len() - start - 1;
        if length < 0x80 {
            self.0[start] = length as u8;
        } else {
            let mut varint = Self::default();
            varint.varint(length as u64);
            self.0.splice(start..=start, varint.0);
        }
    }
}

/// Number of spans that a response reports as rejected; 0 if it reports none, or is not an `ExportTraceServiceResponse`.
pub(super) fn rejected_spans(response: &[u8]) -> u64 {
    let partial_success = fields(response).find_map(|(field, value)| match value {
        FieldValue::Bytes(bytes) if field == 1 => Some(bytes),
        _ => None,
    });
    let rejected = partial_success.and_then(|bytes| {
        fields(bytes).find_map(|(field, value)| match value {
            FieldValue::Number(number) if field == 1 => Some(number),
            _ => None,
        })
    });
    rejected.unwrap_or(0)
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Fields of a message, up to the first that is malformed.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, FieldValue<'_>)> {
    std::iter::from_fn(move || {
        let key = take_varint(&mut rest)?;
        let value = match key & 7 {
            0 => FieldValue::Number(take_varint(&mut rest)?),
            1 => take_bytes(&mut rest, 8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                FieldValue::Bytes(take_bytes(&mut rest, length)?)
            }
            5 => take_bytes(&mut rest, 4).map(|_| FieldValue::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn take_bytes<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_bytes(rest, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_of_rejected_spans_are_found() {
        let mut response = ProtobufMessage::default();
        response.message(1, |partial| {
            partial.bytes(2, b"too old");
            partial.number(1, 300);
        });
        assert_eq!(rejected_spans(&response.0), 300);
        for other in [&b""[..], b"{\"partialSuccess\":{}}", b"<html>", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(rejected_spans(other), 0, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_response_is_read(response in prop::collection::vec(any::<u8>(), 0..200)) {
            rejected_spans(&response);
        }
    }
}
