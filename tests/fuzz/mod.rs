//! Fuzz tests of all decoders of external input: they accept or refuse any bytes without a panic, and accepted input
//! round-trips. Inputs are mutations of those in `corpus/`, different in each run; `KAFLEET_FUZZ` sets the duration in
//! seconds. Inputs that revealed a defect are added to `corpus/`.

mod make;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, header};
use kafleet::api::{self, ApiSetup};
use kafleet::broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, OwnedHeaders, ProducerRecord, RecordRef, TopicSpec};
use kafleet::config::{Bytes, Names, Overrides, Topology, load_with};
use kafleet::control::ControlState;
use kafleet::control::heartbeat::Heartbeat;
use kafleet::dead_letters;
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Registry, TypeRegistration};
use kafleet::model::event::Event;
use kafleet::model::offsets::Metadata;
use kafleet::model::outbox::RecordCopy;
use kafleet::model::projection::{LogPosition, WorkingSet};
use kafleet::model::record::TaskRecord;
use kafleet::model::schedule::{Schedule, Spec, Times, step, task_of};
use kafleet::model::task::id::TaskId;
use kafleet::model::task::{Position, RecordSource, parse_time, read_task};
use kafleet::model::units::duration::Millis;
use kafleet::runtime::Shutdown;
use kafleet::telemetry::Metrics;
use kafleet::tracker::{self, TrackerSetup};
use kafleet::worker::child::protocol;
use make::fuzz;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[test]
fn ids() {
    fuzz("ids", |bytes| {
        let Ok(id) = TaskId::parse(&text(bytes)) else { return };
        assert_eq!(TaskId::parse(id.as_str()).as_ref(), Ok(&id));
        assert!(id.ancestors().all(|above| id.as_str().starts_with(above)), "{id}");
        assert!(id.parent_id().is_none_or(|parent| Some(parent.as_str()) == id.parent()), "{id}");
    });
}

#[test]
fn spans_sizes_and_times() {
    fuzz("spans", |bytes| {
        let text = text(bytes);
        if let Ok(span) = Millis::parse(&text) {
            assert_eq!(Millis::parse(&span.to_string()), Ok(span), "{text}");
        }
        if let Ok(size) = Bytes::parse(&text) {
            assert_eq!(Bytes::parse(&size.to_string()), Ok(size), "{text}");
        }
        let _ = parse_time(&text);
    });
}

/// Events, one per line, as in a partition.
#[test]
fn events() {
    fuzz("events", |bytes| {
        let mut working_set = WorkingSet::default();
        for (offset, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let Ok(event) = Event::decode(line) else { continue };
            let mut again = Vec::new();
            event.encode(&mut again).unwrap();
            assert_eq!(Event::decode(&again).as_ref(), Ok(&event), "{}", text(&again));
            for id in working_set.missing([&event]) {
                working_set.load(id, None);
            }
            working_set
                .fold(&event, LogPosition { offset: offset as i64, log_time_ms: 1_000 * offset as i64 })
                .unwrap();
        }
        for (id, record) in working_set.take_changes().unwrap().task_records {
            assert_eq!(TaskRecord::decode(&record).as_ref(), working_set.task(id.as_str()), "the record of {id}");
        }
    });
}

/// Headers, one per line, then an empty line and the value.
fn parted(bytes: &[u8]) -> (OwnedHeaders, Option<&[u8]>) {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, value) = end.map_or((bytes, None), |end| (&bytes[..end], Some(&bytes[end + 2..])));
    let lines = head.split(|byte| *byte == b'\n');
    let header = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = colon.map_or((line, None), |colon| (&line[..colon], Some(line[colon + 1..].to_vec())));
        (text(name).into_owned(), value)
    };
    (lines.map(header).collect(), value)
}

#[test]
fn task_records() {
    let task_type: Arc<str> = "echo".into();
    fuzz("records", |bytes| {
        let (headers, value) = parted(bytes);
        let position = Position { partition: 0, offset: 7 };
        let source = RecordSource { task_type: &task_type, position, timestamp_ms: 1_700_000_000_000, value };
        let read = || read_task(&source, headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())));
        match (read(), read()) {
            (Ok(task), Ok(again)) => assert_eq!(task.id, again.id),
            (Err(error), Err(_)) => assert!(!error.code.is_empty() && !error.message.is_empty()),
            _ => panic!("decoding the record twice has different outcomes"),
        }
    });
}

#[test]
fn commit_metadata() {
    fuzz("metadata", |bytes| {
        for offset in [0, 1, 1_000_000, i64::MAX / 2] {
            let Some(read) = Metadata::decode(offset, &text(bytes)) else { continue };
            let (completed, takeovers, retries) = (&read.completed, read.unclean_takeovers, &read.retries);
            let again = match &read.pass_over {
                None => Metadata::encode(completed, read.mark, read.window_end, takeovers, retries),
                Some(pass_over) => Metadata::encode_pass_over(completed, read.mark, pass_over, takeovers, retries),
            };
            let Some(again) = Metadata::decode(read.completed.watermark(), &again) else {
                panic!("{again} cannot be read")
            };
            assert_eq!(again.completed.watermark(), read.completed.watermark());
            assert!(
                (0..200).all(|n| again.completed.is_done(offset + n) == read.completed.is_done(offset + n)),
                "another map"
            );
        }
    });
}

#[test]
fn control_records() {
    fuzz("control", |bytes| {
        let (key, value) = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or((bytes, None), |end| (&bytes[..end], Some(&bytes[end + 1..])));
        let headers = OwnedHeaders::new();
        let record = RecordRef {
            topic: "t.control",
            partition: 0,
            offset: 0,
            timestamp_ms: 0,
            log_append_time: true,
            key: Some(key),
            value,
            headers: &headers,
        };
        let _ = ControlState::default().with_schedules().apply_record(&record);
        let _ = kafleet::control::settings::FleetSettings::default().apply_record(&record);
    });
}

/// Schedules, one per line: a spec, its state, and a time with whether the previous task runs.
#[test]
fn schedules() {
    fuzz("schedules", |bytes| {
        let mut lines = bytes.splitn(3, |byte| *byte == b'\n').map(text);
        let mut line = || lines.next().unwrap_or_default();
        let Ok(spec) = serde_json::from_str::<Spec>(&line()) else { return };
        let errors = spec.errors();
        let Ok(times) = Times::of(&spec) else { return assert!(!errors.is_empty()) };
        let mut state: step::ScheduleProgress = serde_json::from_str(&line()).unwrap_or_default();
        let now = line();
        let (now_ms, runs) = now.split_once(' ').unwrap_or(("0", ""));
        let now_ms = now_ms.parse().unwrap_or_default();
        let next = times.upcoming(now_ms, 5);
        assert!(next.iter().all(|time| *time > now_ms) && next.is_sorted(), "{next:?} after {now_ms}");
        assert!(next.iter().all(|time| TaskId::parse(&task_of("n", *time)).is_ok()), "{next:?}");
        let schedule = Schedule { v: 1, at_ms: 0, from_ms: 0, paused: None, owner: None, spec };
        for _ in 0..3 {
            assert!(state.step("n", &schedule, &times, runs == "1", now_ms).len() <= 101);
        }
    });
}

#[test]
fn heartbeats() {
    fuzz("heartbeats", |bytes| {
        let Ok(heartbeat) = serde_json::from_slice::<Heartbeat>(bytes) else { return };
        let _ = (heartbeat.is_silent(i64::MIN, i64::MAX), heartbeat.is_silent(i64::MAX, i64::MIN));
    });
}

/// Records of a dead-letter topic, which other programs may write to.
#[test]
fn dead_letters() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let broker = MemoryBroker::new(MemoryBrokerOptions::default());
    let names = Names::new("t");
    let topics = [names.dead("echo"), names.tasks("echo")];
    let specs = topics.map(|name| TopicSpec { name, partitions: 1, replication: None, config: Vec::new() });
    broker.apply_topics(&specs, Duration::from_secs(5)).unwrap();
    let (producer, index, topic) = (
        SharedProducer::open(broker.clone(), None).unwrap(),
        dead_letters::DeadLetterIndex::default(),
        names.dead("echo"),
    );
    fuzz("letters", |bytes| {
        let (headers, value) = parted(bytes);
        let headers: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let record = ProducerRecord { topic: &topic, partition: Some(0), key: None, value, headers: &headers };
        if runtime.block_on(producer.deliver(record, Duration::from_secs(5))).is_err() {
            return;
        }
        let page = index.page(&*broker, &names, &dead_letters::Filter::default(), None, 3).unwrap();
        for letter in page.letters {
            assert_eq!(letter.id.to_string().parse().as_ref(), Ok(&letter.id));
            assert!(index.letter(&*broker, &names, &letter.id).unwrap().is_some(), "{}", letter.id);
        }
    });
}

#[test]
fn stored_records() {
    fuzz("stored", |bytes| {
        if let Some(task_record) = TaskRecord::decode(bytes) {
            assert!(TaskRecord::decode(&task_record.encode().unwrap()).is_some());
        }
        let _ = RecordCopy::decode(bytes);
    });
}

#[test]
fn configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kafleet.toml");
    fuzz("config", |bytes| {
        std::fs::write(&path, bytes).unwrap();
        if let Err(problems) = load_with(Some(&path), &Overrides::default(), &|_| None) {
            assert!(!problems.to_string().trim().is_empty());
        }
    });
}

/// Messages between a worker and its child process: texts, one per line and length-prefixed, and raw bytes.
#[test]
fn child_process_messages() {
    fuzz("cells", |bytes| {
        for line in bytes.split(|byte| *byte == b'\n') {
            let sent = [&(line.len() as u32).to_le_bytes(), line].concat();
            assert_round_trip::<protocol::FromChild>(&sent);
            assert_round_trip::<protocol::ToChild>(&sent);
        }
        let _ = protocol::receive_blocking::<protocol::FromChild>(&mut &*bytes);
        let _ = protocol::receive_blocking::<protocol::ToChild>(&mut &*bytes);
    });
}

fn assert_round_trip<T: DeserializeOwned + Serialize>(sent: &[u8]) {
    let Ok(message) = protocol::receive_blocking::<T>(&mut &*sent) else { return };
    let written = protocol::frame(&message).unwrap();
    let read: T =
        protocol::receive_blocking(&mut &*written).unwrap_or_else(|error| panic!("{error}: {}", text(&written)));
    assert_eq!(protocol::frame(&read).unwrap(), written, "{}", text(&written));
}

/// API of an in-memory fleet whose events are projected.
struct FuzzServices {
    runtime: tokio::runtime::Runtime,
    router: Option<axum::Router>,
}

impl FuzzServices {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let inside = runtime.enter();
        let broker = MemoryBroker::new(MemoryBrokerOptions::default());
        let names = Names::new("t");
        let size = ("max.message.bytes", "4194304");
        let keeps = [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1"), size];
        let keeps = keeps.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let topics = [names.events(), names.control(), names.workers(), names.tasks("echo"), names.dead("echo")];
        let specs = topics.map(|name| TopicSpec { name, partitions: 1, replication: None, config: keeps.clone() });
        broker.apply_topics(&specs, Duration::from_secs(5)).unwrap();
        let store = Arc::<kafleet::store::memory::MemoryStore>::default();
        let mut registry = Registry::default();
        registry.add("echo", TypeRegistration::new(Echo));
        let setup = ApiSetup {
            registry,
            ..ApiSetup::new(
                broker.clone(),
                store.clone(),
                Topology::new(names.clone(), 1),
                Metrics::new().unwrap(),
                kafleet::ui::open,
            )
        };
        let open = api::open(setup, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &Shutdown::new()).unwrap();
        let setup = TrackerSetup::new(broker, store, Topology::new(names, 1), Metrics::new().unwrap());
        runtime.spawn(tracker::run(setup, Shutdown::new()));
        drop(inside);
        Self { runtime, router: Some(open.router) }
    }

    /// Sends a request: the first line has the method, the path and, unless it is JSON, the content type; the rest is
    /// the body. Returns `None` if the input is not a valid request.
    fn call(&self, bytes: &[u8]) -> Option<u16> {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let head = text(&bytes[..end]).into_owned();
        let (method, rest) = head.split_once(' ').unwrap_or(("GET", &head));
        let (uri, media) = rest.split_once(' ').unwrap_or((rest, "application/json"));
        let body = bytes.get(end + 1..).unwrap_or_default().to_vec();
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, media);
        let request = request.body(Body::from(body)).ok()?;
        let router = self.router.clone()?;
        Some(self.runtime.block_on(async {
            let answer = tokio::time::timeout(Duration::from_secs(30), router.oneshot(request)).await;
            answer.expect("a response in time").unwrap().status().as_u16()
        }))
    }
}

impl Drop for FuzzServices {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        self.router.take();
    }
}

/// A request and its body: `POST /v1/tasks`, then JSON.
#[test]
fn api_requests() {
    let site = FuzzServices::start();
    fuzz("calls", |bytes| {
        // 503: the task was not projected in time.
        let answer = site.call(bytes);
        assert!(answer.is_none_or(|answer| answer < 500 || answer == 503), "{answer:?}");
    });
}

/// Requests that change tasks, one of them deferred, and their projection.
#[test]
fn task_changes() {
    let site = FuzzServices::start();
    for task in [r#"{"type":"echo","id":"a"}"#, r#"{"type":"echo","id":"later","delay":"20d"}"#] {
        assert_eq!(site.call(format!("POST /v1/tasks\n{task}").as_bytes()), Some(201));
    }
    fuzz("changes", |bytes| {
        // 503: the task was not projected in time.
        let answer = site.call(bytes);
        assert!(answer.is_none_or(|answer| answer < 500 || answer == 503), "{answer:?}");
    });
}
