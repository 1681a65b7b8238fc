//! Sessions over an in-memory stream, with apps that follow the protocol and apps that violate it.

use std::sync::Arc;

use kafleet_handlers::Fail;
use kafleet_handlers::context::{CancelReason, Restart};
use kafleet_handlers::note::Note;
use kafleet_handlers::testing::{Recorder, TestRun};
use kafleet_model::event::log_line::LogStream;
use kafleet_model::json::RawJson;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use super::*;
use crate::protocol::{Limits, MAX_CALLS, MAX_CHILDREN_BYTES};

mod recorded;

/// Maximum wait of a test.
const DEADLINE: Duration = Duration::from_secs(60);

/// The app's side of a session, and the session.
struct SessionFixture {
    session: Session,
    driver: JoinHandle<StreamEndReason>,
    events: mpsc::UnboundedReceiver<SessionEvent>,
    declared: Option<DeclarationReceiver>,
    from_worker: BufReader<ReadHalf<DuplexStream>>,
    to_worker: WriteHalf<DuplexStream>,
    stuck: StuckCounter,
}

impl SessionFixture {
    /// Opens a session over a stream that buffers this many bytes.
    async fn open(bytes: usize) -> Self {
        let (worker, app) = tokio::io::duplex(bytes);
        let (reader, writer) = tokio::io::split(worker);
        let (sender, events) = mpsc::unbounded_channel();
        let welcome = Welcome {
            protocol: protocol::VERSION,
            app: "shop".into(),
            worker: "w".into(),
            version: "0",
            types: None,
            slots: None,
            grace_ms: 5_000,
            limits: Limits::new(1 << 20, 256 << 10),
            dev: false,
        };
        let (session, declared, driver) = Session::open(reader, writer, &welcome, sender, LoadedFiles::default());
        let (from_worker, to_worker) = tokio::io::split(app);
        let mut fixture = Self {
            session,
            driver: tokio::spawn(driver),
            events,
            declared: Some(declared),
            from_worker: BufReader::new(from_worker),
            to_worker,
            stuck: StuckCounter::default(),
        };
        assert_eq!(fixture.receive().await["welcome"]["app"], "shop");
        fixture
    }

    /// Opens a session with an app that has declared its types.
    async fn serving(responsive: bool) -> Self {
        let mut fixture = Self::open(1 << 20).await;
        fixture.send(json!({"ready": {"protocol": 1, "responsive": responsive, "types": [{"name": "a"}]}})).await;
        let ready = fixture.declared.take().unwrap().await.unwrap().unwrap();
        assert_eq!(ready.types[0].name, "a");
        fixture
    }

    async fn send(&mut self, message: Value) {
        self.send_bytes(format!("{message}\n").as_bytes()).await;
    }

    async fn send_bytes(&mut self, bytes: &[u8]) {
        self.to_worker.write_all(bytes).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let mut line = String::new();
        let read = tokio::time::timeout(DEADLINE, self.from_worker.read_line(&mut line)).await;
        read.expect("the worker sends a message").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Starts an attempt; returns its context, its output, and the task that waits for its end.
    async fn start(&mut self, params: &str) -> (Context, Arc<Recorder>, JoinHandle<AttemptAnswer>) {
        let (cx, recorder) = TestRun::new().id("order").begin("a");
        let running = self.session.start(&RawJson::parse(params.as_bytes()).unwrap(), &cx, &self.stuck);
        let running = running.unwrap_or_else(|ended| panic!("{ended:?}"));
        (cx, recorder, tokio::spawn(running.end()))
    }

    /// Sends a message that is ignored, and waits until the worker has handled everything before it.
    async fn wait_until_handled(&mut self) {
        let before = Instant::now();
        self.send(json!({"pong": {"at": 1}})).await;
        let handled = async {
            while self.session.0.state.lock().last_sign < before {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, handled).await.expect("the worker reads on");
    }

    async fn violation(self) -> String {
        match tokio::time::timeout(DEADLINE, self.driver).await.unwrap().unwrap() {
            StreamEndReason::Violated(violation) => violation.0,
            other => panic!("{other:?}"),
        }
    }
}

async fn ended(attempt: JoinHandle<AttemptAnswer>) -> AttemptAnswer {
    tokio::time::timeout(DEADLINE, attempt).await.expect("the attempt ends").unwrap()
}

#[tokio::test]
async fn attempt_that_was_not_written_is_not_charged_for_the_death_of_the_process() {
    let mut app = SessionFixture::serving(false).await;
    // Larger than the stream's buffer, so that nothing of the next one is written.
    let (_, _, begun) = app.start(&format!("\"{}\"", "x".repeat(2 << 20))).await;
    let (_, _, unsent) = app.start("2").await;
    app.session.fail_attempts(&Cause::Crashed, "the process of the app ended: exit code 1");
    assert_eq!(ended(begun).await.restart, None, "it was the only one in the process");
    assert_eq!(ended(unsent).await.restart, Some(Restart::Unsent));
}

#[tokio::test]
async fn attempt_is_answered_with_its_output() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, first) = app.start("{\"x\":\n1}").await;
    let (_, _, second) = app.start("2").await;
    let message = app.receive().await["attempt"].clone();
    assert_eq!((&message["n"], &message["params"], &message["type"]), (&json!(1), &json!({"x": 1}), &json!("a")));
    assert_eq!(app.receive().await["attempt"]["n"], 2);
    app.send(json!({"ok": {"n": 2, "output": false}})).await;
    app.send(json!({"error": {"n": 1, "outcome": "retry", "kind": "a b", "message": "m", "after_ms": 7}})).await;
    assert_eq!(ended(second).await, AttemptAnswer::of_answer(Ok(RawJson::parse(b"false").unwrap())));
    let failure = ended(first).await.answer.unwrap_err();
    assert_eq!((failure.then, &*failure.kind), (Fail::Retry { after: Some(Duration::from_millis(7)) }, "a_b"));
    let (_, _, third) = app.start("3").await;
    app.receive().await;
    app.send(json!({"error": {"n": 3, "outcome": "wait", "kind": "a", "message": "m", "after_ms": 8}})).await;
    let failure = ended(third).await.answer.unwrap_err();
    assert_eq!(failure.then, Fail::Wait { after: Some(Duration::from_millis(8)) });
}

#[tokio::test]
async fn output_reaches_the_context_of_its_attempt() {
    let mut app = SessionFixture::serving(false).await;
    let (cx, recorder, attempt) = app.start("1").await;
    app.send(json!({"log": {"n": 1, "lines": ["quiet"], "silent": true}})).await;
    app.wait_until_handled().await;
    assert_eq!(cx.activity(), 0);
    app.send(json!({"progress": {"n": 1, "value": [1]}})).await;
    app.send(json!({"warn": {"n": 1, "message": "w"}})).await;
    app.send(json!({"attach": {"n": 1, "name": "f", "media": "text/plain", "data": "aGk="}})).await;
    app.send(json!({"attach": {"n": 1, "name": "f", "media": "text/plain", "data": "?"}})).await;
    app.send(json!({"heartbeat": {"n": 1}})).await;
    app.send(json!({"spawn": {"n": 1, "tasks": [{"type": "b"}]}})).await;
    app.send(json!({"then": {"n": 1, "task": {"type": "c"}}})).await;
    app.send(json!({"ok": {"n": 1}})).await;
    assert_eq!(ended(attempt).await, AttemptAnswer::of_answer(Ok(RawJson::null())));
    let notes = recorder.notes();
    assert!(matches!(&notes[..3], [Note::Log(_), Note::Progress(_), Note::Warning(_)]), "{notes:?}");
    assert!(
        matches!(&notes[3..], [Note::Attachment(_), Note::Log(error)] if error.contains("not base64")),
        "{notes:?}"
    );
    assert!(cx.activity() >= 6);
    assert_eq!((cx.take_spawned().len(), cx.take_continuations(0).unwrap().len()), (1, 1));
}

#[tokio::test]
async fn log_lines_are_split_and_truncated() {
    let mut app = SessionFixture::serving(false).await;
    let (_, recorder, _attempt) = app.start("1").await;
    app.send(json!({"log": {"n": 1, "lines": ["a\nb", "é".repeat(10_000)]}})).await;
    app.wait_until_handled().await;
    let notes = recorder.notes();
    let lines: Vec<usize> = notes.iter().map(|note| if let Note::Log(line) = note { line.len() } else { 0 }).collect();
    assert_eq!(lines, [1, 1, 16 << 10]);
}

#[tokio::test]
async fn log_lines_keep_their_stream() {
    let mut app = SessionFixture::serving(false).await;
    let (_, recorder, _attempt) = app.start("1").await;
    for stream in [json!("stdout"), json!("stderr"), json!(null)] {
        app.send(json!({"log": {"n": 1, "lines": ["a"], "stream": stream}})).await;
    }
    app.wait_until_handled().await;
    let line = |stream| Note::Output(stream, "a".to_owned());
    assert_eq!(recorder.notes(), [line(LogStream::Stdout), line(LogStream::Stderr), Note::Log("a".to_owned())]);
}

#[tokio::test]
async fn call_is_answered_before_the_result_counts() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, attempt) = app.start("1").await;
    app.receive().await;
    app.send(json!({"spawn": {"n": 1, "call": 5, "tasks": [{"type": "b", "id": "x"}]}})).await;
    app.send(json!({"spawn": {"n": 1, "call": 6, "tasks": [{"typ": "b"}]}})).await;
    let mut replies = [app.receive().await, app.receive().await];
    replies.sort_by_key(|reply| reply["reply"]["call"].as_u64());
    assert_eq!(replies[0], json!({"reply": {"call": 5, "ids": ["order:x"]}}));
    assert_eq!(replies[1]["reply"]["error"]["kind"], "bad_child");
    app.send(json!({"ok": {"n": 1}})).await;
    assert!(ended(attempt).await.answer.is_ok());
    app.wait_until_handled().await;
    assert_eq!(app.session.0.state.lock().calls, 0);
}

#[tokio::test]
async fn invalid_or_too_large_children_fail_only_their_attempt() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, invalid) = app.start("1").await;
    let (_, _, large) = app.start("1").await;
    app.send(json!({"spawn": {"n": 1, "tasks": [{"type": "b", "retrys": 1}]}})).await;
    app.send(json!({"ok": {"n": 1}})).await;
    let failure = ended(invalid).await.answer.unwrap_err();
    assert_eq!((&*failure.kind, failure.then), ("bad_child", Fail::Final));
    let params = "x".repeat(4 << 20);
    for _ in 0..=MAX_CHILDREN_BYTES / params.len() {
        app.send(json!({"spawn": {"n": 2, "tasks": [{"type": "b", "params": params}]}})).await;
    }
    app.send(json!({"ok": {"n": 2}})).await;
    assert_eq!(&*ended(large).await.answer.unwrap_err().kind, "bad_child");
}

#[tokio::test]
async fn unanswered_calls_are_limited() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, _attempt) = app.start("1").await;
    app.receive().await;
    app.session.0.state.lock().calls = MAX_CALLS;
    app.send(json!({"spawn": {"n": 1, "call": 1, "tasks": []}})).await;
    assert_eq!(app.receive().await["reply"]["error"]["kind"], "too_many_calls");
}

#[tokio::test]
async fn cancel_is_sent_to_responsive_apps_only() {
    let mut app = SessionFixture::serving(true).await;
    let (cx, _, attempt) = app.start("1").await;
    app.receive().await;
    cx.interruption.set_cancel_reason(CancelReason::Timeout);
    cx.cancelled().cancel();
    assert_eq!(app.receive().await, json!({"cancel": {"n": 1, "reason": "timeout"}}));
    app.send(json!({"ok": {"n": 1, "output": 1}})).await;
    assert!(ended(attempt).await.answer.is_ok());

    let mut app = SessionFixture::serving(false).await;
    let (cx, _, attempt) = app.start("1").await;
    app.receive().await;
    cx.cancelled().cancel();
    app.wait_until_handled().await;
    app.session.ping(3);
    assert_eq!(app.receive().await, json!({"ping": {"at": 3}}));
    attempt.abort();
}

#[tokio::test]
async fn abandoned_attempt_is_stuck_until_its_late_answer() {
    let mut app = SessionFixture::serving(true).await;
    let (_, _, attempt) = app.start("1").await;
    app.receive().await;
    attempt.abort();
    assert_eq!(app.events.recv().await, Some(SessionEvent::Overrun));
    assert_eq!((app.stuck.count(), app.session.stuck(), app.session.running()), (1, 1, 0));
    app.send(json!({"progress": {"n": 1, "value": 1}})).await;
    app.send(json!({"ok": {"n": 1}})).await;
    app.send(json!({"ok": {"n": 1}})).await;
    app.wait_until_handled().await;
    assert_eq!(app.stuck.count(), 0);
}

#[tokio::test]
async fn death_is_blamed_on_a_single_attempt_only() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, only) = app.start("1").await;
    app.session.fail_attempts(&Cause::Crashed, "it exited with code 1");
    let end = ended(only).await;
    assert_eq!((end.restart, &*end.answer.unwrap_err().kind), (None, "crashed"));

    let mut app = SessionFixture::serving(false).await;
    let (_, _, first) = app.start("1").await;
    let (_, _, second) = app.start("1").await;
    app.session.fail_attempts(&Cause::Crashed, "it exited with code 1");
    for attempt in [first, second] {
        assert_eq!(ended(attempt).await.restart, Some(Restart::Alone));
    }
    let (cx, _) = TestRun::new().begin("a");
    let refused = app.session.start(&RawJson::null(), &cx, &app.stuck).err().unwrap();
    assert_eq!(refused.restart, Some(Restart::Unsent));
}

#[tokio::test]
async fn retired_app_gets_no_more_attempts() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, attempt) = app.start("1").await;
    app.send(json!({"retire": {"reason": "memory"}})).await;
    app.send(json!({"retire": {"reason": "again"}})).await;
    assert_eq!(app.events.recv().await, Some(SessionEvent::Retired("memory".into())));
    let (cx, _) = TestRun::new().begin("a");
    assert!(app.session.start(&RawJson::null(), &cx, &app.stuck).is_err());
    app.send(json!({"ok": {"n": 1}})).await;
    assert!(ended(attempt).await.answer.is_ok());
    app.session.close();
    app.receive().await;
    let mut rest = Vec::new();
    app.from_worker.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty() && app.events.try_recv().is_err());
}

#[tokio::test]
async fn unable_app_gives_its_reason() {
    let mut app = SessionFixture::open(1 << 20).await;
    app.send(json!({"unable": {"message": "no module"}})).await;
    assert_eq!(app.declared.take().unwrap().await.unwrap().unwrap_err(), "no module");
}

#[tokio::test]
async fn slow_reader_does_not_stop_the_worker_from_reading() {
    let mut app = SessionFixture::open(1 << 10).await;
    app.send(json!({"ready": {"protocol": 1, "slots": 3, "types": []}})).await;
    app.declared.take().unwrap().await.unwrap().unwrap();
    let params = format!("\"{}\"", "x".repeat(1 << 20));
    let (_, _, first) = app.start(&params).await;
    let (_, _, second) = app.start(&params).await;
    let answer = |n| json!({"error": {"n": n, "outcome": "dead", "kind": "bad_params", "message": "m"}});
    app.send(answer(1)).await;
    assert_eq!(ended(first).await.answer.unwrap_err().then, Fail::Dead);
    assert!(app.session.is_attempt_unread(&StreamEndReason::Closed));
    for n in [1, 2] {
        assert_eq!(app.receive().await["attempt"]["n"], n);
    }
    app.send(answer(2)).await;
    assert_eq!(ended(second).await.answer.unwrap_err().then, Fail::Dead);
    assert!(
        !app.session.is_attempt_unread(&StreamEndReason::Closed)
            && app.session.is_attempt_unread(&StreamEndReason::Reset)
    );
}

#[tokio::test]
async fn answer_to_an_unread_attempt_is_a_violation() {
    let mut app = SessionFixture::open(1 << 10).await;
    app.send(json!({"ready": {"protocol": 1, "slots": 2, "types": []}})).await;
    app.declared.take().unwrap().await.unwrap().unwrap();
    let (_, _, _first) = app.start(&format!("\"{}\"", "x".repeat(1 << 20))).await;
    let (_, _, _second) = app.start("1").await;
    app.send(json!({"ok": {"n": 2}})).await;
    let violation = app.violation().await;
    assert_eq!(violation, "an answer to the attempt 2, which the app has not read");
}

#[tokio::test]
async fn too_many_children_are_refused_before_they_are_decoded() {
    let mut app = SessionFixture::serving(false).await;
    let (_, _, attempt) = app.start("1").await;
    app.receive().await;
    let reason = "the attempt spawned 600001 children: at most 100000 are allowed";
    let tasks = format!("[{}0]", "0,".repeat(600_000));
    app.send_bytes(format!("{{\"spawn\":{{\"n\":1,\"call\":1,\"tasks\":{tasks}}}}}\n").as_bytes()).await;
    let error = app.receive().await["reply"]["error"].take();
    assert!(error["kind"] == "bad_child" && error["message"].as_str().unwrap().contains(reason), "{error}");
    app.send(json!({"spawn": {"n": 1, "tasks": [{"type": "b"}]}})).await;
    app.send_bytes(format!("{{\"spawn\":{{\"n\":1,\"tasks\":{tasks}}}}}\n").as_bytes()).await;
    app.send(json!({"ok": {"n": 1}})).await;
    let failure = ended(attempt).await.answer.unwrap_err();
    assert!(failure.message.contains("spawned 600002 children") && &*failure.kind == "bad_child", "{failure}");
}

#[tokio::test]
async fn hostile_messages_end_the_session() {
    let long = vec![b'x'; MAX_LINE_BYTES + 2];
    for (bytes, error) in [
        (&b"hello\n"[..], "an invalid message"),
        (b"{\"ok\":{\"n\":2}}\n", "the attempt 2, which was never sent"),
        (b"{\"log\":{\"n\":0,\"lines\":[\"a\"]}}\n", "the attempt 0, which was never sent"),
        (b"{\"ready\":{\"protocol\":1,\"types\":[]}}\n", "a second `ready`"),
        (b"{\"ok\":{\"n\":1},\"x\":1}\n", "more than one key"),
        (b"\n", "an invalid message"),
        (&long, "a line of more than 8388608 bytes"),
    ] {
        let mut app = SessionFixture::serving(false).await;
        let (_, _, attempt) = app.start("1").await;
        // The session may end before it has read everything.
        let _ = app.to_worker.write_all(bytes).await;
        let session = app.session.clone();
        let violation = app.violation().await;
        assert!(violation.contains(error), "{violation}");
        session.fail_attempts(&Cause::Garbled, &violation);
        let end = ended(attempt).await;
        assert_eq!((end.restart, &*end.answer.unwrap_err().kind), (None, "garbled"));
    }
}

#[tokio::test]
async fn messages_are_read_from_any_split_of_the_bytes() {
    let text = "{\"progress\":{\"n\":1,\"value\":\"\u{2028}é\"}}\n{\"pong\":{\"at\":1}}\n{\"ok\":{\"n\":1,\"output\":\"\u{1f600}\"}}\n";
    for at in 1..text.len() {
        let mut app = SessionFixture::serving(false).await;
        let (_, recorder, attempt) = app.start("1").await;
        app.send_bytes(&text.as_bytes()[..at]).await;
        tokio::task::yield_now().await;
        app.send_bytes(&text.as_bytes()[at..]).await;
        assert_eq!(ended(attempt).await.answer.unwrap().text(), "\"\u{1f600}\"");
        assert_eq!(recorder.notes().len(), 1);
    }
}

#[tokio::test]
async fn random_bytes_never_panic() {
    let samples: [&[u8]; 4] = [
        b"{\"ok\":{\"n\":1,\"output\":[1,{\"a\":2}]}}\n",
        b"{\"spawn\":{\"n\":1,\"call\":1,\"tasks\":[{\"type\":\"b\"}]}}\n",
        b"{\"error\":{\"n\":1,\"outcome\":\"retry\",\"kind\":\"k\",\"message\":\"m\",\"stack\":\"s\"}}\n",
        b"{\"attach\":{\"n\":1,\"name\":\"f\",\"media\":\"a/b\",\"data\":\"aGk=\"}}\n",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..500 {
        let mut app = SessionFixture::serving(random.bool()).await;
        let (_, _, attempt) = app.start("1").await;
        for _ in 0..4 {
            let mut bytes = samples[random.usize(0..samples.len())].to_vec();
            for _ in 0..random.usize(0..4) {
                let at = random.usize(0..bytes.len());
                bytes[at] = random.u8(..);
            }
            let _ = app.to_worker.write_all(&bytes).await;
        }
        let _ = app.to_worker.shutdown().await;
        tokio::time::timeout(DEADLINE, app.driver).await.expect("the session ends").unwrap();
        app.session.fail_attempts(&Cause::Crashed, "it ended");
        ended(attempt).await;
    }
}
