//! Messages of the worker.

use std::borrow::Cow;

use kafleet_handlers::context::{CancelReason, MAX_CHILDREN};
use kafleet_handlers::task_labels::TaskLabels;
use kafleet_model::event::log_line;
use kafleet_model::json::{RawJson, plain_text, push_number, push_text};
use kafleet_model::record::attachment;
use serde::Serialize;

use super::{MAX_CALLS, MAX_CHILDREN_BYTES, MAX_LINE_BYTES};

/// Usual maximum size of an attempt's message without its params, in bytes.
const HEAD_BYTES: usize = 256;

/// First message of the worker.
#[derive(Clone, Debug, Serialize)]
pub struct Welcome {
    pub protocol: u32,
    pub app: String,
    pub worker: String,
    /// Version of kafleet.
    pub version: &'static str,
    /// Types to declare. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// Configured slots. `None`: as declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Time for a cancelled attempt to stop by itself.
    pub grace_ms: u64,
    pub limits: Limits,
    /// The worker runs under `kafleet dev`.
    pub dev: bool,
}

/// Limits that an app checks before it writes; bytes, or numbers of items.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    pub line: usize,
    pub output: u64,
    pub params: u64,
    pub progress: usize,
    pub log: usize,
    pub log_line: usize,
    pub attachment: usize,
    pub attachments: usize,
    pub children: usize,
    pub children_bytes: usize,
    pub calls: usize,
}

impl Limits {
    /// Limits of a worker with these sizes of params and results.
    pub fn new(params: u64, output: u64) -> Self {
        Self {
            line: MAX_LINE_BYTES,
            output,
            params,
            progress: 16 << 10,
            log: 1 << 20,
            log_line: log_line::MAX_LINE_BYTES,
            attachment: attachment::MAX_BYTES,
            attachments: attachment::MAX_COUNT,
            children: MAX_CHILDREN,
            children_bytes: MAX_CHILDREN_BYTES,
            calls: MAX_CALLS,
        }
    }
}

/// Message of the worker.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToApp<'a> {
    Welcome(&'a Welcome),
    Cancel { n: u64, reason: CancelReason },
    Reply(Reply),
    Ping { at: i64 },
}

/// Message that starts an attempt. `n` is the first field of the line, and `params` the last.
#[derive(Debug)]
pub struct Start<'a> {
    pub n: u64,
    pub task_type: &'a str,
    pub id: &'a str,
    pub run: u32,
    pub number: u32,
    pub left_ms: u64,
    pub trace: Option<TraceFields<'a>>,
    pub labels: Option<Cow<'a, TaskLabels>>,
    pub params: &'a RawJson,
}

/// W3C trace context of the attempt's span, or of the task's producer if the attempt has none.
#[derive(Debug, Serialize)]
pub struct TraceFields<'a> {
    pub parent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'a str>,
}

/// Answer to a `spawn` with `call`: ids or an error.
#[derive(Debug, Serialize)]
pub struct Reply {
    pub call: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ReplyError>,
}

/// Reason why children were not published.
#[derive(Debug, Serialize)]
pub struct ReplyError {
    pub kind: String,
    pub message: String,
}

/// Encodes a message as a line.
pub fn line(message: &ToApp<'_>) -> Vec<u8> {
    let mut line = plain_text(message).into_bytes();
    line.push(b'\n');
    line
}

impl Start<'_> {
    /// Encodes the message as a line; by hand, because it is by far the most frequent one. Line breaks between the tokens
    /// of params and options become spaces.
    pub fn line(&self) -> Vec<u8> {
        let mut line = Vec::with_capacity(HEAD_BYTES + self.params.text().len());
        line.extend_from_slice(b"{\"attempt\":{\"n\":");
        push_number(&mut line, self.n);
        line.extend_from_slice(b",\"type\":");
        push_text(&mut line, self.task_type);
        line.extend_from_slice(b",\"id\":");
        push_text(&mut line, self.id);
        line.extend_from_slice(b",\"run\":");
        push_number(&mut line, self.run);
        line.extend_from_slice(b",\"number\":");
        push_number(&mut line, self.number);
        line.extend_from_slice(b",\"left_ms\":");
        push_number(&mut line, self.left_ms);
        if let Some(trace) = &self.trace {
            line.extend_from_slice(b",\"trace\":");
            line.extend_from_slice(plain_text(trace).as_bytes());
        }
        let tail = line.len();
        if let Some(labels) = &self.labels {
            // The members of the object without its braces; it is not empty.
            let members = plain_text(labels);
            line.push(b',');
            line.extend_from_slice(&members.as_bytes()[1..members.len() - 1]);
        }
        line.extend_from_slice(b",\"params\":");
        line.extend_from_slice(self.params.text().as_bytes());
        // Written for every byte, so that the compiler can vectorise it.
        for byte in &mut line[tail..] {
            *byte = if matches!(*byte, b'\n' | b'\r') { b' ' } else { *byte };
        }
        line.extend_from_slice(b"}}\n");
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_line_begins_with_its_number_and_ends_with_params() {
        let params = RawJson::parse(b"{\n  \"a\": \"x\\ny\",\r\n \"b\": 1.10 }").unwrap();
        let mut start = Start {
            n: 7,
            task_type: "t",
            id: "a:b",
            run: 1,
            number: 2,
            left_ms: 3,
            trace: None,
            labels: None,
            params: &params,
        };
        let head = r#"{"attempt":{"n":7,"type":"t","id":"a:b","run":1,"number":2,"left_ms":3"#;
        let tail = "\"params\":{   \"a\": \"x\\ny\",   \"b\": 1.10 }}}\n";
        assert_eq!(String::from_utf8(start.line()).unwrap(), format!("{head},{tail}"));
        start.trace = Some(TraceFields { parent: "00-a-b-01", state: Some("a=\"b\"") });
        let trace = r#""trace":{"parent":"00-a-b-01","state":"a=\"b\""}"#;
        assert_eq!(String::from_utf8(start.line()).unwrap(), format!("{head},{trace},{tail}"));
        let options = Some(RawJson::parse(b"{\n\"deep\":{}}").unwrap());
        let labels = TaskLabels { name: Some("{n}".into()), tags: vec!["a".into()], options, ..TaskLabels::default() };
        start.labels = Some(Cow::Owned(labels));
        let labels = r#""name":"{n}","tags":["a"],"options":{ "deep":{}}"#;
        assert_eq!(String::from_utf8(start.line()).unwrap(), format!("{head},{trace},{labels},{tail}"));
    }
}
