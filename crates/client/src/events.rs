//! Server-sent events: the streams of a task's changes, of its log, and of the fleet's changes.

use std::time::Duration;

use kafleet_documents::{EndReason, FleetChange, LogDocument, Status, StreamEnd};
use reqwest::Response;
use serde::de::DeserializeOwned;

/// Idle time after which the connection counts as lost; the API sends comments more often than that.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum size of an event; a status with the largest result fits.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// An open stream.
pub(crate) struct EventStream {
    answer: Response,
    parser: Parser,
}

/// Event of a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamEvent {
    Status(Box<Status>),
    /// New lines of the task's log.
    Lines(Box<LogDocument>),
    /// Changed tasks, with the event's id, from which a new connection resumes.
    Changed(Box<FleetChange>, Option<String>),
    /// The task has ended; a parent may have been reopened since.
    Finished,
    /// The task's record has been removed.
    Gone,
    /// The connection is lost or the stream has ended early; the caller may reconnect.
    Lost {
        reason: String,
    },
}

impl EventStream {
    pub(super) fn new(answer: Response) -> Self {
        Self { answer, parser: Parser::default() }
    }

    pub(super) async fn next(&mut self) -> StreamEvent {
        loop {
            if let Some(event) = self.parser.next() {
                match decode(&event) {
                    Some(decoded) => return decoded,
                    None => continue,
                }
            }
            let chunk = match tokio::time::timeout(IDLE_TIMEOUT, self.answer.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return StreamEvent::Lost { reason: "the API closed the stream".into() },
                Ok(Err(error)) => return StreamEvent::Lost { reason: super::request::innermost(&error) },
                Err(_) => return StreamEvent::Lost { reason: format!("no data for {} s", IDLE_TIMEOUT.as_secs()) },
            };
            if !self.parser.push(&chunk) {
                return StreamEvent::Lost { reason: format!("an event is larger than {MAX_EVENT_BYTES} bytes") };
            }
        }
    }
}

/// Decodes an event; `None` for an unknown kind.
fn decode(event: &Frame) -> Option<StreamEvent> {
    match event.name.as_str() {
        "status" => Some(document(&event.data, StreamEvent::Status)),
        "lines" => Some(document(&event.data, StreamEvent::Lines)),
        "changed" => Some(document(&event.data, |change| StreamEvent::Changed(change, event.id.clone()))),
        "end" => Some(end(&event.data)),
        _ => None,
    }
}

fn document<T: DeserializeOwned>(data: &str, of: impl FnOnce(Box<T>) -> StreamEvent) -> StreamEvent {
    match serde_json::from_str(data) {
        Ok(document) => of(Box::new(document)),
        Err(error) => StreamEvent::Lost { reason: format!("an event has an unexpected document: {error}") },
    }
}

/// Decodes an `end` event. Only a removed record is final for the status of a task: an ended task may be reopened.
fn end(data: &str) -> StreamEvent {
    let reason = match serde_json::from_str::<StreamEnd>(data).map(|end| end.reason) {
        Ok(EndReason::Gone) => return StreamEvent::Gone,
        Ok(EndReason::Shutdown) => "the API is shutting down",
        Ok(EndReason::Slow) => "changes were not read in time",
        Ok(EndReason::Finished) => return StreamEvent::Finished,
        Err(_) => "the API ended the stream",
    };
    StreamEvent::Lost { reason: reason.into() }
}

/// Event as it was sent: its fields, not yet decoded.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    name: String,
    data: String,
    id: Option<String>,
}

/// Incremental parser of an event stream (WHATWG HTML, 9.2.6). Lines end with LF or CRLF; a lone CR, which the standard
/// also permits, is not a line end here, because the API never sends one.
#[derive(Default)]
struct Parser {
    bytes: Vec<u8>,
}

impl Parser {
    /// Adds bytes; returns false if the incomplete event is too large.
    fn push(&mut self, chunk: &[u8]) -> bool {
        self.bytes.extend(chunk.iter().filter(|&&byte| byte != b'\r'));
        self.bytes.len() <= MAX_EVENT_BYTES
    }

    fn next(&mut self) -> Option<Frame> {
        loop {
            let end = self.bytes.windows(2).position(|pair| pair == b"\n\n")? + 2;
            let block: Vec<u8> = self.bytes.drain(..end).collect();
            let frame = frame(&String::from_utf8_lossy(&block));
            if !frame.data.is_empty() || !frame.name.is_empty() {
                return Some(frame);
            }
        }
    }
}

fn frame(block: &str) -> Frame {
    let mut frame = Frame::default();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => frame.id = Some(value.to_owned()),
            "event" => frame.name = value.to_owned(),
            "data" if frame.data.is_empty() => frame.data = value.to_owned(),
            "data" => {
                frame.data.push('\n');
                frame.data.push_str(value);
            }
            _ => {}
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> Option<Frame> {
        Some(Frame { name: name.into(), data: data.into(), id: None })
    }

    #[test]
    fn events_are_parsed_across_any_chunk_boundaries() {
        let stream = ": hello\n\nid: 3:17\r\nevent: status\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nretry: 10\n\nevent: end\ndata: {}\n\nrest";
        for size in [1, 2, 7, 1000] {
            let mut parser = Parser::default();
            let mut frames = Vec::new();
            for chunk in stream.as_bytes().chunks(size) {
                assert!(parser.push(chunk));
                frames.extend(std::iter::from_fn(|| parser.next()));
            }
            let mut status = event("status", "{\"a\":\n1}").unwrap();
            status.id = Some("3:17".into());
            assert_eq!(frames, [status, event("end", "{}").unwrap()], "chunks of {size}");
        }
    }

    #[test]
    fn oversized_event_is_refused() {
        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1 << 20];
        assert!((0..4).all(|_| parser.push(&chunk)));
        assert!(!parser.push(&chunk));
    }

    #[test]
    fn unknown_events_are_skipped() {
        assert_eq!(decode(&event("log", "{}").unwrap()), None);
        assert!(matches!(decode(&event("status", "{}").unwrap()), Some(StreamEvent::Lost { .. })));
    }

    #[test]
    fn only_a_removed_record_is_final() {
        let end = |data: &str| decode(&event("end", data).unwrap()).unwrap();
        assert_eq!(end(r#"{"reason":"gone"}"#), StreamEvent::Gone);
        assert_eq!(end(r#"{"reason":"finished"}"#), StreamEvent::Finished);
        for (data, expected) in [
            (r#"{"reason":"shutdown"}"#, "the API is shutting down"),
            (r#"{"reason":"slow"}"#, "changes were not read in time"),
            (r#"{"reason":"moved"}"#, "the API ended the stream"),
            ("", "the API ended the stream"),
        ] {
            assert_eq!(end(data), StreamEvent::Lost { reason: expected.into() }, "{data}");
        }
    }
}
