//! OpenTelemetry collector that keeps the spans that it gets. Its decoder is independent of the program's encoder.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::Mutex;

/// Behaviour of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Accept,
    /// Never answers.
    Hang,
    /// Answers with success, and bytes that are no response.
    Garbage,
    /// Answers with success, and a body without an end.
    Endless,
    /// Answers with this status.
    Refuse(StatusCode),
    /// Accepts requests, and rejects their spans.
    Reject,
}

/// Received span, with ids in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenSpan {
    pub trace: String,
    pub id: String,
    /// Empty for the root of a trace.
    pub parent: String,
    pub state: String,
    pub name: String,
    pub kind: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: BTreeMap<String, String>,
    /// Traces and spans.
    pub links: Vec<(String, String)>,
    pub error: Option<String>,
    pub status: u64,
    pub flags: u64,
    /// Attributes of the resource.
    pub resource: BTreeMap<String, String>,
}

impl SeenSpan {
    pub fn is(&self, name: &str, task: &str) -> bool {
        self.name == name && self.attributes["kafleet.task.id"] == task
    }
}

#[derive(Clone)]
pub struct Collector {
    behaviour: Behaviour,
    spans: Arc<Mutex<Vec<SeenSpan>>>,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
    pub url: String,
}

impl Collector {
    pub async fn start(behaviour: Behaviour) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self { behaviour, spans: Arc::default(), requests: Arc::default(), url };
        let app = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        collector
    }

    pub fn spans(&self) -> Vec<SeenSpan> {
        self.spans.lock().clone()
    }

    /// Headers of all requests.
    pub fn requests(&self) -> Vec<HeaderMap> {
        self.requests.lock().clone()
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> Response {
    collector.requests.lock().push(headers);
    match collector.behaviour {
        Behaviour::Accept => {
            collector.spans.lock().extend(spans_of(&body));
            StatusCode::OK.into_response()
        }
        Behaviour::Hang => std::future::pending().await,
        Behaviour::Garbage => "<html>\u{1}\u{2}".into_response(),
        Behaviour::Endless => {
            Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(4_096))))
                .into_response()
        }
        Behaviour::Refuse(status) => status.into_response(),
        // partial_success { rejected_spans: 1_000_000 }
        Behaviour::Reject => vec![0x0a, 0x04, 0x08, 0xc0, 0x84, 0x3d].into_response(),
    }
}

/// Value of a field of a message.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Field {
    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(_) => panic!("not a number: {self:?}"),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => panic!("not bytes: {self:?}"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Fields of a message, by number, in order.
fn fields(message: &[u8]) -> Vec<(u64, Field)> {
    let mut rest = message;
    let mut entries = Vec::new();
    let varint = |rest: &mut &[u8]| {
        let end = rest.iter().position(|byte| *byte < 0x80).unwrap();
        let number = rest[..=end].iter().rev().fold(0_u64, |number, byte| (number << 7) | u64::from(byte & 0x7f));
        *rest = &rest[end + 1..];
        number
    };
    let take = |rest: &mut &[u8], length: usize| {
        let (taken, left) = rest.split_at(length);
        *rest = left;
        taken.to_vec()
    };
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let value = match key & 7 {
            0 => Field::Number(varint(&mut rest)),
            1 => Field::Number(u64::from_le_bytes(take(&mut rest, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut rest) as usize;
                Field::Bytes(take(&mut rest, length))
            }
            5 => Field::Number(u32::from_le_bytes(take(&mut rest, 4).try_into().unwrap()).into()),
            other => panic!("wire type {other}"),
        };
        entries.push((key >> 3, value));
    }
    entries
}

/// Contents of the fields with this number.
fn messages(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    fields(message).into_iter().filter(|(field, _)| *field == number).map(|(_, value)| value.bytes().to_vec()).collect()
}

fn attribute(message: &[u8]) -> (String, String) {
    let entries = fields(message);
    let value = fields(entries[1].1.bytes());
    let value = match &value[..] {
        [(1, text)] => text.text(),
        [(3, number)] => number.number().to_string(),
        other => panic!("{other:?}"),
    };
    (entries[0].1.text(), value)
}

fn spans_of(request: &[u8]) -> Vec<SeenSpan> {
    let mut all = Vec::new();
    for resource_spans in messages(request, 1) {
        let resource: BTreeMap<_, _> =
            messages(&messages(&resource_spans, 1)[0], 1).iter().map(|message| attribute(message)).collect();
        for scope_spans in messages(&resource_spans, 2) {
            let spans = messages(&scope_spans, 2);
            all.extend(spans.iter().map(|span| SeenSpan { resource: resource.clone(), ..span_of(span) }));
        }
    }
    all
}

fn span_of(message: &[u8]) -> SeenSpan {
    let mut span = SeenSpan::default();
    for (field, value) in fields(message) {
        match field {
            1 => span.trace = value.hex(),
            2 => span.id = value.hex(),
            3 => span.state = value.text(),
            4 => span.parent = value.hex(),
            5 => span.name = value.text(),
            6 => span.kind = value.number(),
            7 => span.start_ns = value.number(),
            8 => span.end_ns = value.number(),
            9 => assert!(span.attributes.insert_new(attribute(value.bytes())), "an attribute is given twice"),
            13 => {
                let link = fields(value.bytes());
                span.links.push((link[0].1.hex(), link[1].1.hex()));
            }
            15 => {
                for (field, value) in fields(value.bytes()) {
                    match field {
                        2 => span.error = Some(value.text()),
                        3 => span.status = value.number(),
                        other => panic!("status field {other}"),
                    }
                }
            }
            16 => span.flags = value.number(),
            other => panic!("span field {other}"),
        }
    }
    span
}

/// Insertion that reports whether the key is new.
trait InsertNew {
    fn insert_new(&mut self, pair: (String, String)) -> bool;
}

impl InsertNew for BTreeMap<String, String> {
    fn insert_new(&mut self, (key, value): (String, String)) -> bool {
        self.insert(key, value).is_none()
    }
}
