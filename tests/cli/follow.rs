//! Interrupted streams, sent by a fake api.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::{Value, json};

use crate::cli::run::{kafleet, run};

fn status(state: &str) -> Value {
    json!({
        "id": "a", "parent": null, "root": "a", "type": "echo", "state": state, "own_state": state, "run": 1, "attempt": 1,
        "name": null, "creator": null, "tags": [], "link": null, "options": null, "external": false, "created_at": null,
        "seen_at": null, "started_at": null, "ended_at": null, "due_at": null, "progress": null, "result": null, "error": null,
        "children": {"total": 0, "pending": 0, "successful": 0, "failed": 0, "by_state": {}},
        "tree": {"total": 1, "pending": 0, "successful": 0, "failed": 0},
        "worker": null, "record": null, "position": "0:1", "duplicates": 0
    })
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn end(reason: &str) -> String {
    event("end", &json!({"reason": reason}))
}

/// Starts a fake API that sends these answers, one per connection; returns its address.
fn api(answers: Vec<(&'static str, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (kind, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            request(&stream);
            reply(&mut stream, "200 OK", kind, &body);
        }
    });
    format!("http://{address}")
}

/// Reads a request; returns its first line and the id of the last event.
fn request(stream: &TcpStream) -> String {
    let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
    let event_id = head.iter().find_map(|line| line.strip_prefix("last-event-id: "));
    let requested = head[0].trim_end_matches(" HTTP/1.1");
    event_id.map_or(requested.to_owned(), |event_id| format!("{requested} after {event_id}"))
}

fn reply(stream: &mut TcpStream, status: &str, kind: &str, body: &str) {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
}

const STREAM: &str = "text/event-stream";

#[test]
fn watch_reconnects_after_shutdown_and_after_being_slow() {
    let running = || event("status", &status("running"));
    let api = api(vec![
        (STREAM, running() + &end("shutdown")),
        (STREAM, running() + &end("slow")),
        // Closed without an end event.
        (STREAM, running()),
        (STREAM, event("status", &status("failed")) + &end("finished")),
    ]);
    let ran = run(kafleet(["watch", "a", "--api", &api])).exits_with(1).stderr_has(&[
        "connection lost (the API is shutting down), reconnecting",
        "connection lost (changes were not read in time), reconnecting",
        "connection lost (the API closed the stream), reconnecting",
    ]);
    let states: Vec<&str> = ran.out.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    assert_eq!(states, ["running", "failed"], "unchanged states are not repeated: {ran:?}");
}

#[test]
fn removed_record_is_not_found() {
    let api = api(vec![(STREAM, event("status", &status("running")) + &end("gone"))]);
    run(kafleet(["watch", "a", "--api", &api]))
        .exits_with(3)
        .stderr_has(&["the record of task `a` has expired", "hint: "]);
}

#[test]
fn wait_survives_a_lost_connection() {
    let api = api(vec![
        ("application/json", status("running").to_string()),
        (STREAM, event("status", &status("running")) + &end("shutdown")),
        (STREAM, event("status", &status("succeeded")) + &end("finished")),
    ]);
    let ran = run(kafleet(["status", "a", "--wait", "--api", &api, "-o", "json"])).exits_with(0);
    assert_eq!(ran.json()["state"], "succeeded");
}

#[test]
fn foreign_server_is_reported() {
    let api = api(vec![("text/html", "<html>hello</html>".into())]);
    run(kafleet(["status", "a", "--api", &api]))
        .exits_with(4)
        .stderr_has(&["answered, but it is not kafleet (GET /v1/tasks/a: 200 text/html)", "hint: check the address"]);
}

/// Starts a fake API for watches of many tasks: it sends one stream per watch request, and answers reads according to
/// the number of streams sent. Returns its address and the requests.
fn fleet_api(streams: Vec<String>, read: fn(&str, usize) -> Option<Value>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut streams = streams.into_iter().enumerate();
        let mut stage = 0;
        while let Ok((mut stream, _)) = listener.accept() {
            let requested = request(&stream);
            let found = if requested.contains("/watch") {
                streams.next().map(|(n, body)| {
                    stage = n;
                    (STREAM, body)
                })
            } else {
                read(&requested, stage).map(|document| ("application/json", document.to_string()))
            };
            let away = ("application/problem+json", json!({"code": "store_unavailable", "title": "away"}).to_string());
            let status = if found.is_some() { "200 OK" } else { "503 Service Unavailable" };
            let (kind, body) = found.unwrap_or(away);
            // Not every test reads the requests. Sent before the answer, because the client exits after the last one.
            let _ = sender.send(requested);
            reply(&mut stream, status, kind, &body);
        }
    });
    (format!("http://{address}"), receiver)
}

fn changed(ids: Value, event_id: &str) -> String {
    let position = ids.is_array().then_some("0:7");
    format!("id: {event_id}\n{}", event("changed", &json!({"ids": ids, "partition": null, "position": position})))
}

#[test]
fn watch_of_a_tree_resumes_after_the_last_event() {
    let streams = vec![
        changed(json!(null), "x-1") + &changed(json!(["a"]), "x-2") + &end("shutdown"),
        // The next API does not know that event id.
        changed(json!(null), "y-1"),
        changed(json!(["a", "a:b"]), "y-2"),
    ];
    let (api, requested) = fleet_api(streams, |requested, stage| {
        let task = status(["queued", "running", "succeeded"][stage]);
        Some(if requested.contains("?root=") { json!({"tasks": [task], "next": null}) } else { task })
    });
    let ran = run(kafleet(["watch", "a", "--tree", "--api", &api]))
        .exits_with(0)
        .stderr_has(&["connection lost (the API is shutting down)"]);
    let states: Vec<&str> = ran.out.lines().filter_map(|line| line.split("  ").nth(3)).collect();
    assert_eq!((states.first(), states.last()), (Some(&"queued"), Some(&"succeeded")), "{ran:?}");
    assert!(states.len() <= 3, "unchanged states are not repeated: {ran:?}");
    let requested: Vec<String> = requested.try_iter().collect();
    let watches: Vec<&String> = requested.iter().filter(|requested| requested.contains("/watch")).collect();
    assert_eq!(
        watches,
        ["GET /v1/watch?root=a", "GET /v1/watch?root=a after x-2", "GET /v1/watch?root=a after y-1"],
        "{requested:?}"
    );
    // The root is also read alone, unless a read of the whole tree includes it.
    for read in ["GET /v1/tasks?root=a&limit=200", "GET /v1/tasks/a:b?after=0%3A7"] {
        assert!(requested.iter().any(|requested| requested == read), "{read}: {requested:?}");
    }
    assert!(requested.len() <= 8, "at most two reads of the tree: {requested:?}");
}

#[test]
fn unreadable_task_does_not_end_a_watch() {
    let streams = vec![changed(json!(null), "x-1"), changed(json!(["a:b"]), "x-2"), changed(json!(["a"]), "x-3")];
    let (api, _) = fleet_api(streams, |requested, stage| {
        let task = status(["running", "running", "succeeded"][stage]);
        match requested {
            _ if requested.contains("?root=") => Some(json!({"tasks": [task], "next": null})),
            _ if requested.contains("a:b") => None,
            _ => Some(task),
        }
    });
    let ran = run(kafleet(["watch", "a", "--tree", "--api", &api]))
        .exits_with(0)
        .stderr_has(&["cannot read task `a:b`, retrying: "]);
    assert_eq!(ran.err.matches("cannot read").count(), 1, "{ran:?}");
    assert!(ran.out.lines().last().is_some_and(|line| line.contains("succeeded")), "{ran:?}");
}
