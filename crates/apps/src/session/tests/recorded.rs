//! Recorded sessions, played by the app against the worker's side: whole, and cut after every byte of the app.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;

/// Line of a recorded session.
#[derive(Deserialize)]
struct RecordedEvent {
    from: String,
    message: Option<Value>,
    /// Message as text.
    text: Option<String>,
}

/// Attempt as it is sent to the app.
#[derive(Debug, Deserialize)]
struct SentAttempt<'a> {
    n: u64,
    #[serde(rename = "type")]
    task_type: &'a str,
    id: &'a str,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct SentLine<'a> {
    #[serde(borrow)]
    attempt: SentAttempt<'a>,
}

fn sessions() -> Vec<(String, Vec<RecordedEvent>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schemas/examples/app");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // The first line describes the session, and the second is `welcome`.
        let events = text.split_terminator('\n').skip(1).map(|line| serde_json::from_str(line).unwrap());
        let events =
            events.filter(|event: &RecordedEvent| event.message.as_ref().is_none_or(|it| it.get("welcome").is_none()));
        (path.file_name().unwrap().to_string_lossy().into_owned(), events.collect())
    };
    std::fs::read_dir(folder).unwrap().map(read).collect()
}

/// Bytes that the app sends in a session.
fn app_bytes(events: &[RecordedEvent]) -> usize {
    let messages = events.iter().filter(|event| event.from == "app").filter_map(|event| event.message.as_ref());
    messages.map(|message| message.to_string().len() + 1).sum()
}

/// Session whose app sends a limited number of bytes.
struct Player {
    app: SessionFixture,
    /// Bytes until the app's end of the stream is cut.
    left: usize,
    running: BTreeMap<u64, (Context, JoinHandle<AttemptAnswer>)>,
    /// The app is ready or unable.
    is_declared: bool,
}

impl Player {
    /// Plays a session to its end or to the cut.
    async fn play(events: &[RecordedEvent], bytes: usize) {
        let app = SessionFixture::open(1 << 20).await;
        let mut player = Self { app, left: bytes, running: BTreeMap::new(), is_declared: false };
        for event in events {
            let goes_on = match (&*event.from, &event.message) {
                ("app", Some(message)) => player.send(message).await,
                ("worker", Some(message)) if message.get("attempt").is_none() => {
                    player.expect(message).await;
                    true
                }
                ("worker", None) if event.text.is_none() => {
                    player.app.session.close();
                    true
                }
                ("worker", message) => {
                    let text = event.text.clone().or(message.as_ref().map(Value::to_string)).unwrap();
                    player.start(&text).await;
                    true
                }
                _ => true,
            };
            if !goes_on {
                break;
            }
        }
        player.end().await;
    }

    /// Sends a message of the app as far as the cut allows; returns whether it is whole.
    async fn send(&mut self, message: &Value) -> bool {
        let line = format!("{message}\n");
        let sent = line.len().min(self.left);
        self.left -= sent;
        self.app.send_bytes(&line.as_bytes()[..sent]).await;
        if sent < line.len() {
            return false;
        }
        let (kind, fields) = message.as_object().unwrap().iter().next().unwrap();
        match &**kind {
            "ready" | "unable" => {
                let declared = self.app.declared.take().unwrap().await.unwrap();
                assert_eq!(declared.is_ok(), kind == "ready");
                self.is_declared = true;
            }
            "ok" | "error" => {
                let (cx, attempt) = self.running.remove(&fields["n"].as_u64().unwrap()).unwrap();
                check_answer(kind, fields, ended(attempt).await);
                drop(cx);
            }
            _ => {}
        }
        true
    }

    /// Lets the worker start an attempt, and compares what it sends.
    async fn start(&mut self, text: &str) {
        let SentLine { attempt } = serde_json::from_str(text).unwrap();
        let (cx, _) = TestRun::new().id(attempt.id).begin(attempt.task_type);
        let params = RawJson::parse(attempt.params.get().as_bytes()).unwrap();
        let running = self.app.session.start(&params, &cx, &self.app.stuck).unwrap_or_else(|error| panic!("{error:?}"));
        let mut line = String::new();
        self.app.from_worker.read_line(&mut line).await.unwrap();
        let SentLine { attempt: sent } = serde_json::from_str(&line).unwrap();
        assert_eq!((sent.n, sent.task_type, sent.id), (attempt.n, attempt.task_type, attempt.id));
        assert_eq!(sent.params.get(), attempt.params.get());
        self.running.insert(sent.n, (cx, tokio::spawn(running.end())));
    }

    /// Lets the worker send another message than an attempt, and compares its kind.
    async fn expect(&mut self, message: &Value) {
        let (kind, fields) = message.as_object().unwrap().iter().next().unwrap();
        match &**kind {
            "cancel" => {
                // A cancel of an ended attempt is late: this worker sends none.
                let Some((cx, _)) = self.running.get(&fields["n"].as_u64().unwrap()) else { return };
                let reason = match fields["reason"].as_str().unwrap() {
                    "timeout" => CancelReason::Timeout,
                    "cancelled" => CancelReason::Cancelled,
                    _ => CancelReason::Shutdown,
                };
                cx.interruption.set_cancel_reason(reason);
                cx.cancelled().cancel();
            }
            "ping" => self.app.session.ping(fields["at"].as_i64().unwrap()),
            "reply" => {}
            _ => return,
        }
        let received = self.app.receive().await;
        assert!(received.get(kind).is_some(), "{received} instead of {message}");
        if kind == "reply" {
            assert_eq!(received["reply"]["call"], fields["call"]);
            assert_eq!(received["reply"].get("ids").is_some(), fields.get("ids").is_some(), "{received}");
        }
    }

    /// Ends the stream of the app: it is no violation, and an attempt without an answer has crashed.
    async fn end(mut self) {
        self.app.to_worker.shutdown().await.unwrap();
        let end = tokio::time::timeout(DEADLINE, self.app.driver).await.expect("the session ends").unwrap();
        assert_eq!(end, StreamEndReason::Closed);
        if !self.is_declared {
            assert!(self.app.declared.unwrap().await.is_err(), "nothing has been declared");
        }
        self.app.session.fail_attempts(&Cause::Crashed, "it ended");
        // Any of several attempts may have ended the process: each starts again, alone.
        let restart = (self.running.len() > 1).then_some(Restart::Alone);
        for (_, attempt) in self.running.into_values() {
            let end = ended(attempt).await;
            assert_eq!((end.restart, &*end.answer.unwrap_err().kind), (restart, "crashed"));
        }
        assert_eq!((self.app.session.running(), self.app.session.stuck()), (0, 0));
    }
}

fn check_answer(kind: &str, fields: &Value, ended: AttemptAnswer) {
    assert_eq!(ended.restart, None);
    let failure = match ended.answer {
        Ok(output) => {
            assert_eq!((kind, &output.value().unwrap()), ("ok", &fields["output"]));
            return;
        }
        Err(failure) => failure,
    };
    let after = fields["after_ms"].as_u64().map(Duration::from_millis);
    let then = match fields["outcome"].as_str() {
        Some("fail") => Fail::Final,
        Some("dead") => Fail::Dead,
        Some("cancelled") => Fail::Cancelled,
        _ => Fail::Retry { after },
    };
    assert_eq!((failure.then, &*failure.kind), (then, fields["kind"].as_str().unwrap()));
    assert!(failure.message.starts_with(fields["message"].as_str().unwrap()), "{failure}");
}

#[tokio::test]
async fn recorded_sessions_are_played_by_the_worker() {
    let sessions = sessions();
    assert!(sessions.len() >= 15, "{}", sessions.len());
    for (_, events) in &sessions {
        Player::play(events, app_bytes(events)).await;
    }
}

#[tokio::test]
async fn cut_sessions_end_their_attempts_as_crashed() {
    for (_, events) in sessions() {
        for bytes in 0..app_bytes(&events) {
            Player::play(&events, bytes).await;
        }
    }
}
