//! Server-sent events: the streams of a task's changes, of its log, and of what changes in the fleet.

use std::time::Duration;

use reqwest::Response;
use serde::de::DeserializeOwned;

use crate::api::documents::{EndReason, FleetChange, LogDocument, Status, StreamEnd};

/// Silence after which the connection counts as lost: the api sends a comment more often than that.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest event. A status document with the largest result fits.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// An open stream.
pub struct Watch {
    answer: Response,
    parser: Parser,
}

/// What the stream says.
#[derive(Debug, PartialEq)]
pub enum WatchEvent {
    Status(Box<Status>),
    /// New lines of its log.
    Lines(Box<LogDocument>),
    /// These tasks have changed. With the name of this place in the stream.
    Changed(Box<FleetChange>, Option<String>),
    /// The task has ended. A parent may be open again by now.
    Finished,
    /// The task's record is no longer kept.
    Gone,
    /// The stream is over, and the task may go on: connect again.
    Over {
        reason: String,
    },
}

impl Watch {
    pub fn new(answer: Response) -> Self {
        Self { answer, parser: Parser::default() }
    }

    pub async fn next(&mut self) -> WatchEvent {
        loop {
            if let Some(event) = self.parser.next() {
                match meaning(&event) {
                    Some(known) => return known,
                    None => continue,
                }
            }
            let chunk = match tokio::time::timeout(SILENCE, self.answer.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return WatchEvent::Over { reason: "the api closed the stream".into() },
                Ok(Err(why)) => return WatchEvent::Over { reason: super::innermost(&why) },
                Err(_) => return WatchEvent::Over { reason: format!("nothing was heard for {} s", SILENCE.as_secs()) },
            };
            if !self.parser.push(&chunk) {
                return WatchEvent::Over { reason: format!("an event is larger than {MAX_EVENT_BYTES} bytes") };
            }
        }
    }
}

/// None for events of a kind that this version does not know.
fn meaning(event: &Frame) -> Option<WatchEvent> {
    match event.name.as_str() {
        "status" => Some(document(&event.data, WatchEvent::Status)),
        "lines" => Some(document(&event.data, WatchEvent::Lines)),
        "changed" => Some(document(&event.data, |change| WatchEvent::Changed(change, event.id.clone()))),
        "end" => Some(end(&event.data)),
        _ => None,
    }
}

fn document<T: DeserializeOwned>(data: &str, of: impl FnOnce(Box<T>) -> WatchEvent) -> WatchEvent {
    match serde_json::from_str(data) {
        Ok(document) => of(Box::new(document)),
        Err(why) => WatchEvent::Over { reason: format!("an event is not the document expected: {why}") },
    }
}

/// Only a record that is gone is the end of all.
fn end(data: &str) -> WatchEvent {
    let reason = match serde_json::from_str::<StreamEnd>(data).map(|end| end.reason) {
        Ok(EndReason::Gone) => return WatchEvent::Gone,
        Ok(EndReason::Shutdown) => "the api stops",
        Ok(EndReason::Slow) => "changes were not read in time",
        Ok(EndReason::Finished) => return WatchEvent::Finished,
        Err(_) => "the api ended the stream",
    };
    WatchEvent::Over { reason: reason.into() }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    name: String,
    data: String,
    id: Option<String>,
}

/// Cuts bytes into events (WHATWG HTML, 9.2.6).
#[derive(Default)]
struct Parser {
    bytes: Vec<u8>,
}

impl Parser {
    /// False: what is held without being a whole event is too large.
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
    fn events_are_cut_wherever_the_chunks_end() {
        let stream =
            ": hello\n\nid: 3:17\r\nevent: status\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nretry: 10\n\nevent: end\ndata: {}\n\nrest";
        for size in [1, 2, 7, 1000] {
            let (mut parser, mut frames) = (Parser::default(), Vec::new());
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
    fn an_endless_event_is_refused() {
        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1 << 20];
        assert!((0..4).all(|_| parser.push(&chunk)));
        assert!(!parser.push(&chunk));
    }

    #[test]
    fn unknown_events_are_passed_over() {
        assert_eq!(meaning(&event("log", "{}").unwrap()), None);
        assert!(matches!(meaning(&event("status", "{}").unwrap()), Some(WatchEvent::Over { .. })));
    }

    #[test]
    fn only_a_record_that_is_gone_is_final() {
        let end = |data: &str| meaning(&event("end", data).unwrap()).unwrap();
        assert_eq!(end(r#"{"reason":"gone"}"#), WatchEvent::Gone);
        assert_eq!(end(r#"{"reason":"finished"}"#), WatchEvent::Finished);
        for (data, told) in [
            (r#"{"reason":"shutdown"}"#, "the api stops"),
            (r#"{"reason":"slow"}"#, "changes were not read in time"),
            (r#"{"reason":"moved"}"#, "the api ended the stream"),
            ("", "the api ended the stream"),
        ] {
            assert_eq!(end(data), WatchEvent::Over { reason: told.into() }, "{data}");
        }
    }
}
