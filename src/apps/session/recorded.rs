//! Recorded sessions, as the worker plays them: `schemas/examples/app`.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use super::*;
use crate::apps::protocol::Limits;
use crate::handlers::context::CancelReason;
use crate::handlers::testing::TestRun;
use crate::model::json::RawJson;

/// Session that is played, with the attempts that have been started.
struct Player {
    session: Session,
    declared: Option<Declared>,
    from_worker: BufReader<ReadHalf<DuplexStream>>,
    to_worker: WriteHalf<DuplexStream>,
    driver: JoinHandle<StreamEnd>,
    attempts: BTreeMap<u64, (Context, JoinHandle<Ended>)>,
    stuck: StuckCounter,
}

impl Player {
    fn open(welcome: &Value) -> Self {
        let (worker, app) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(worker);
        let names = |types: &Value| types.as_array().map(|types| types.iter().map(text).collect());
        let welcome = Welcome {
            protocol: protocol::VERSION,
            app: text(&welcome["app"]),
            worker: text(&welcome["worker"]),
            version: "0.1.0",
            types: names(&welcome["types"]),
            slots: None,
            grace_ms: welcome["grace_ms"].as_u64().unwrap(),
            limits: Limits::new(1 << 20, 256 << 10),
            dev: false,
        };
        let (events, _) = mpsc::unbounded_channel();
        let (session, declared, driver) = Session::open(reader, writer, &welcome, events);
        let (from_worker, to_worker) = tokio::io::split(app);
        Self {
            session,
            declared: Some(declared),
            from_worker: BufReader::new(from_worker),
            to_worker,
            driver: tokio::spawn(driver),
            attempts: BTreeMap::new(),
            stuck: StuckCounter::default(),
        }
    }

    /// Makes the worker send a message, and compares it with the recorded one.
    async fn play(&mut self, message: &Value) {
        let (kind, fields) = message.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "attempt" => self.start(fields),
            "cancel" if !self.cancel(fields) => return,
            "ping" => self.session.ping(fields["at"].as_i64().unwrap()),
            _ => {}
        }
        let mut line = String::new();
        self.from_worker.read_line(&mut line).await.unwrap();
        let mut sent: Value = serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line}"));
        let mut recorded = message.clone();
        for message in [&mut sent, &mut recorded] {
            // The rest of a timeout, and texts for people.
            message[kind]["left_ms"].take();
            message[kind].get_mut("error").map(|error| error["message"].take());
        }
        assert_eq!(sent, recorded);
    }

    fn start(&mut self, fields: &Value) {
        let run = TestRun::new().id(&text(&fields["id"])).attempt(fields["number"].as_u64().unwrap() as u32);
        let run = match fields.get("trace") {
            Some(trace) => run.trace(&text(&trace["parent"])),
            None => run,
        };
        let (cx, _) = run.begin(&text(&fields["type"]));
        let started = self.session.start(&RawJson::of(&fields["params"]).unwrap(), &cx, &self.stuck);
        let attempt = started.unwrap_or_else(|ended| panic!("{ended:?}"));
        self.attempts.insert(fields["n"].as_u64().unwrap(), (cx, tokio::spawn(attempt.end())));
    }

    /// Cancels an attempt. Returns false if it has ended: such a cancel is sent only by chance.
    fn cancel(&self, fields: &Value) -> bool {
        let (cx, _) = &self.attempts[&fields["n"].as_u64().unwrap()];
        let reason = match fields["reason"].as_str().unwrap() {
            "timeout" => CancelReason::Timeout,
            "stalled" => CancelReason::Stalled,
            "cancelled" => CancelReason::Cancelled,
            _ => CancelReason::Shutdown,
        };
        cx.interruption.set_cancel_reason(reason);
        let is_first = !cx.cancelled().is_cancelled();
        cx.cancelled().cancel();
        is_first
    }

    async fn answer(&mut self, message: &Value) {
        self.to_worker.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        let (kind, fields) = message.as_object().unwrap().iter().next().unwrap();
        if kind == "ready" || kind == "unable" {
            assert_eq!(self.declared.take().unwrap().await.unwrap().is_ok(), kind == "ready");
        }
        if kind == "ok" || kind == "error" {
            let (_, attempt) = self.attempts.get_mut(&fields["n"].as_u64().unwrap()).unwrap();
            match attempt.await.unwrap().answer {
                Ok(output) => assert_eq!(output, fields["output"], "{message}"),
                Err(failure) => assert_eq!(*failure.kind, text(&fields["kind"]), "{message}: {failure}"),
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned()
}

async fn play(events: &[Value]) {
    let mut player = Player::open(&events[0]["message"]["welcome"]);
    for event in events {
        let message = match event.get("text") {
            Some(line) => serde_json::from_str(&text(line)).ok(),
            None => event.get("message").cloned(),
        };
        match (event["from"] == "worker", message) {
            (true, Some(message)) => player.play(&message).await,
            (false, Some(message)) => player.answer(&message).await,
            (true, None) => {
                player.session.close();
                let mut rest = String::new();
                player.from_worker.read_to_string(&mut rest).await.unwrap();
                assert_eq!(rest, "");
            }
            (false, None) => player.to_worker.shutdown().await.unwrap(),
        }
    }
    assert_eq!(player.driver.await.unwrap(), StreamEnd::Closed);
}

#[tokio::test]
async fn recorded_sessions_are_played_by_the_worker() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/examples/app");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let session = std::fs::read_to_string(&path).unwrap();
        let lines = session.split_terminator('\n').map(|line| serde_json::from_str(line).unwrap());
        let events: Vec<Value> = lines.skip(1).collect();
        eprintln!("{}", path.display());
        let played = tokio::time::timeout(Duration::from_secs(60), play(&events)).await;
        assert!(played.is_ok(), "{}: the next message was not sent", path.display());
    }
}
