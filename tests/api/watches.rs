//! Server-sent events.

use std::time::Duration;

use futures::StreamExt;
use kafleet::documents::{EndReason, FleetChange, LogDocument, Status, StreamEnd};
use kafleet::model::event::{Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};

/// No timeout for the stream as a whole; each event has a deadline.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct Frame {
    name: String,
    id: Option<String>,
    data: String,
}

pub struct Stream {
    bytes: std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    held: String,
}

impl Stream {
    async fn open(fleet: &Fleet, path: &str) -> Self {
        Self::open_at(fleet, path, "0:0").await
    }

    /// Connects like a client that has received the event with this id.
    pub async fn open_at(fleet: &Fleet, path: &str, heard: &str) -> Self {
        let request = fleet.request(Method::GET, path).header("last-event-id", heard).timeout(LONGEST);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { bytes: Box::pin(answer.bytes_stream()), held: String::new() }
    }

    /// Returns the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.held.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.held = rest;
                if !frame.starts_with(':') {
                    return Some(read(&frame));
                }
                continue;
            }
            let chunk = tokio::time::timeout(DEADLINE, self.bytes.next()).await.expect("an event in time")?;
            self.held.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
    }

    pub async fn status(&mut self) -> Status {
        let frame = self.next().await.unwrap();
        assert_eq!(frame.name, "status", "{frame:?}");
        let status: Status = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(frame.id.as_deref(), Some(status.position.as_str()));
        status
    }

    pub async fn lines(&mut self) -> LogDocument {
        let frame = self.next().await.unwrap();
        assert_eq!(frame.name, "lines", "{frame:?}");
        let page: LogDocument = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(frame.id, Some((page.from + page.lines.len() as u64).to_string()));
        page
    }

    pub async fn end(&mut self) -> EndReason {
        let frame = self.next().await.unwrap();
        assert_eq!(frame.name, "end", "{frame:?}");
        assert!(self.next().await.is_none(), "no event follows the end");
        serde_json::from_str::<StreamEnd>(&frame.data).unwrap().reason
    }
}

fn read(text: &str) -> Frame {
    let mut frame = Frame::default();
    for line in text.lines() {
        match line.split_once(": ").unwrap() {
            ("event", name) => frame.name = name.into(),
            ("id", id) => frame.id = Some(id.into()),
            ("data", data) => frame.data.push_str(data),
            other => panic!("{other:?}"),
        }
    }
    frame
}

#[tokio::test]
async fn watch_sends_every_change_until_the_task_ends() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let mut stream = Stream::open(&fleet, "/v1/tasks/a/watch").await;
    assert_eq!(stream.status().await.state, State::Queued, "the stream starts with the current state");
    fleet.publish_event("a", Kind::Started, |event| event.attempt = 1).await;
    assert_eq!(stream.status().await.state, State::Running);
    fleet.publish_event("a", Payload::Progress { output: RawJson::of(&json!(50)).ok() }, |_| {}).await;
    assert_eq!(stream.status().await.progress.unwrap(), json!(50));
    fleet.echo("a:child").await;
    assert_eq!(stream.status().await.children.total, 1, "a change of the children is sent");
    fleet.succeed("a", json!("ok")).await;
    assert_eq!(stream.status().await.state, State::WaitingForChildren);
    fleet.succeed("a:child", json!(1)).await;
    let last = stream.status().await;
    assert_eq!((last.state, last.result.unwrap().value().unwrap()), (State::Succeeded, json!("ok")));
    assert_eq!(stream.end().await, EndReason::Finished);
}

#[tokio::test]
async fn watch_ignores_changes_of_other_tasks() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let mut stream = Stream::open(&fleet, "/v1/tasks/a/watch").await;
    stream.status().await;
    for n in 0..20 {
        fleet.echo(&format!("other{n}")).await;
    }
    fleet.succeed("a", json!(1)).await;
    assert_eq!(stream.status().await.state, State::Succeeded);
}

#[tokio::test]
async fn watch_of_a_finished_task_ends_at_once() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet.fail("a", "no").await;
    fleet.folded().await;
    let mut stream = Stream::open(&fleet, "/v1/tasks/a/watch").await;
    assert_eq!(stream.status().await.state, State::Failed);
    assert_eq!(stream.end().await, EndReason::Finished);
}

#[tokio::test]
async fn watch_survives_a_store_outage() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let mut stream = Stream::open(&fleet, "/v1/tasks/a/watch").await;
    stream.status().await;
    let outage = fleet.faults.store_outage();
    fleet.succeed("a", json!(1)).await;
    fleet.folded().await;
    outage.lift();
    assert_eq!(stream.status().await.state, State::Succeeded);
}

#[tokio::test]
async fn many_watches_share_one_subscription() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let streams = futures::future::join_all((0..200).map(|_| Stream::open(&fleet, "/v1/tasks/a/watch"))).await;
    fleet.succeed("a", json!(1)).await;
    let ends = futures::future::join_all(streams.into_iter().map(|mut stream| async move {
        while stream.status().await.state != State::Succeeded {}
        stream.end().await
    }));
    assert!(ends.await.into_iter().all(|reason| reason == EndReason::Finished));
    assert_eq!(fleet.subscriptions.hits(), 1);
}

#[tokio::test]
async fn fleet_watch_names_changed_tasks() {
    let fleet = fleet().await;
    let mut stream = Stream::open(&fleet, "/v1/watch").await;
    let change = |frame: Frame| -> FleetChange {
        assert_eq!(frame.name, "changed");
        serde_json::from_str(&frame.data).unwrap()
    };
    assert_eq!(change(stream.next().await.unwrap()).ids, None, "the stream starts with a change of all tasks");
    fleet.create(json!({"type": "echo", "id": "a"})).await;
    let answer = loop {
        let answer = change(stream.next().await.unwrap());
        if answer.ids.is_some() {
            break answer;
        }
    };
    assert_eq!(answer.ids, Some(vec!["a".to_owned()]));
    let status: Status = fleet.get(&format!("/v1/tasks/a?after={}", answer.position.unwrap())).await;
    assert_eq!(status.state, State::Queued);
}

/// Returns the ids of the next change that names any.
async fn changed(stream: &mut Stream) -> (String, Vec<String>) {
    loop {
        let frame = stream.next().await.unwrap();
        let change: FleetChange = serde_json::from_str(&frame.data).unwrap();
        if let Some(ids) = change.ids {
            return (frame.id.unwrap(), ids);
        }
    }
}

#[tokio::test]
async fn fleet_watch_filters_by_tree_and_type() {
    let fleet = fleet().await;
    let mut tree = Stream::open(&fleet, "/v1/watch?root=r").await;
    let mut typed = Stream::open(&fleet, "/v1/watch?type=resize").await;
    let mut both = Stream::open(&fleet, "/v1/watch?type=resize&root=r:x").await;
    for (id, task_type) in [("other", "echo"), ("r", "echo"), ("rr", "resize"), ("r:x", "echo"), ("r:x:y", "resize")] {
        fleet.announce(id, task_type, None).await;
        fleet.folded().await;
    }
    let mut answer: Vec<String> = Vec::new();
    while !answer.contains(&"r:x:y".to_owned()) {
        answer.extend(changed(&mut tree).await.1);
    }
    assert!(answer.iter().all(|id| id == "r" || id.starts_with("r:")), "{answer:?}");
    assert_eq!(changed(&mut typed).await.1, ["rr"]);
    assert_eq!(changed(&mut typed).await.1, ["r:x:y"], "tasks of other types are filtered out");
    assert_eq!(changed(&mut both).await.1, ["r:x:y"]);
    let problem = fleet.problem("/v1/watch?type=A").await;
    assert_eq!((problem.status, problem.code.as_str()), (400, "bad_parameter"));
}

#[tokio::test]
async fn fleet_watch_resumes_after_a_disconnect() {
    let fleet = fleet().await;
    let mut stream = Stream::open(&fleet, "/v1/watch").await;
    fleet.announce("a", "echo", None).await;
    let (heard, first) = changed(&mut stream).await;
    assert_eq!(first, ["a"]);
    drop(stream);
    for id in ["b", "c"] {
        fleet.announce(id, "echo", None).await;
        fleet.folded().await;
    }
    let mut again = Stream::open_at(&fleet, "/v1/watch", &heard).await;
    for id in ["b", "c"] {
        let frame = again.next().await.unwrap();
        let change: FleetChange = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(change.ids, Some(vec![id.to_owned()]), "no change is lost or repeated");
    }
    let mut elsewhere = Stream::open_at(&fleet, "/v1/watch", "0badcafe-1").await;
    let change: FleetChange = serde_json::from_str(&elsewhere.next().await.unwrap().data).unwrap();
    assert_eq!(change.ids, None, "event ids of another process are unknown");
}

/// Paths of all streams that the API describes, for the task `a`, and that of the UI.
async fn stream_paths(fleet: &Fleet) -> Vec<String> {
    let described: Value = fleet.get("/openapi.json").await;
    let is_stream =
        |operations: &Value| !operations["get"]["responses"]["200"]["content"]["text/event-stream"].is_null();
    let paths = described["paths"].as_object().unwrap().iter();
    let streams = paths.filter(|(_, operations)| is_stream(operations)).map(|(path, _)| path.replace("{id}", "a"));
    streams.chain(["/ui/live?on=fleet".to_owned()]).collect()
}

#[tokio::test]
async fn every_stream_keeps_proxies_from_buffering_and_compressing() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let paths = stream_paths(&fleet).await;
    assert!(paths.len() >= 4, "{paths:?}");
    for path in paths {
        let request = fleet.request(Method::GET, &path).header("accept-encoding", "gzip, br, zstd, deflate");
        let answer = request.send().await.unwrap();
        let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!((answer.status(), header("content-type")), (StatusCode::OK, Some("text/event-stream")), "{path}");
        assert_eq!(header("x-accel-buffering"), Some("no"), "{path}");
        assert_eq!(header("cache-control"), Some("no-store, no-transform"), "{path}");
        assert_eq!((header("content-encoding"), header("content-length")), (None, None), "{path}");
    }
}

#[tokio::test]
async fn shutdown_ends_streams_and_waits_and_finishes_requests() {
    let mut fleet = fleet().await;
    fleet.echo("a").await;
    let mut task = Stream::open(&fleet, "/v1/tasks/a/watch").await;
    task.status().await;
    let mut all = Stream::open(&fleet, "/v1/watch").await;
    all.next().await.unwrap();
    let wait = fleet.request(Method::POST, "/v1/tasks?wait=5m").json(&json!({"type": "echo", "id": "b"})).send();
    let stop = async {
        eventually("the waiting task is visible", async || {
            fleet.request(Method::GET, "/v1/tasks/b").send().await.unwrap().status() == StatusCode::OK
        })
        .await;
        fleet.shutdown.begin();
    };
    let (waited, ()) = tokio::join!(wait, stop);
    assert_eq!(waited.unwrap().status(), StatusCode::ACCEPTED);
    assert_eq!(task.end().await, EndReason::Shutdown);
    loop {
        let frame = all.next().await.unwrap();
        if frame.name == "end" {
            break assert!(frame.data.contains("shutdown"), "{frame:?}");
        }
    }
    tokio::time::timeout(DEADLINE, &mut fleet.ended).await.expect("it ends").unwrap().unwrap();
    assert!(fleet.request(Method::GET, "/healthz").send().await.is_err(), "the listener is closed");
}
