//! Streams that break off: an api is played that says what real ones say only in bad moments.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::{Value, json};

use crate::run::{kafleet, run};

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

/// Answers one connection after the other, then no more. Returns its address.
fn api(answers: Vec<(&'static str, String)>) -> String {
    heard(answers).0
}

/// The same, with what was asked: the first line of each request, and the place that it goes on behind.
fn heard(answers: Vec<(&'static str, String)>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for (kind, body) in answers {
            let (stream, _) = listener.accept().unwrap();
            // Not every test asks.
            let _ = sender.send(answer(stream, kind, &body));
        }
    });
    (format!("http://{address}"), receiver)
}

fn answer(mut stream: TcpStream, kind: &str, body: &str) -> String {
    let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
    let length = body.len();
    let text = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let place = head.iter().find_map(|line| line.strip_prefix("last-event-id: "));
    let asked = head[0].trim_end_matches(" HTTP/1.1");
    place.map_or(asked.to_owned(), |place| format!("{asked} behind {place}"))
}

const STREAM: &str = "text/event-stream";

#[test]
fn a_watch_goes_on_after_a_restart_and_after_being_slow() {
    let running = || event("status", &status("running"));
    let api = api(vec![
        (STREAM, running() + &end("shutdown")),
        (STREAM, running() + &end("slow")),
        // Cut off without a word.
        (STREAM, running()),
        (STREAM, event("status", &status("failed")) + &end("finished")),
    ]);
    let ran = run(kafleet(["watch", "a", "--api", &api])).ends(1).tells(&[
        "connection lost (the api stops), trying again",
        "connection lost (changes were not read in time), trying again",
        "connection lost (the api closed the stream), trying again",
    ]);
    let states: Vec<&str> = ran.out.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    assert_eq!(states, ["running", "failed"], "what did not change is not repeated: {ran:?}");
}

#[test]
fn a_record_that_is_gone_is_not_found() {
    let api = api(vec![(STREAM, event("status", &status("running")) + &end("gone"))]);
    run(kafleet(["watch", "a", "--api", &api])).ends(3).tells(&["the record of task `a` is no longer kept", "hint: "]);
}

#[test]
fn waiting_outlives_the_connection() {
    let api = api(vec![
        ("application/json", status("running").to_string()),
        (STREAM, event("status", &status("running")) + &end("shutdown")),
        (STREAM, event("status", &status("succeeded")) + &end("finished")),
    ]);
    let ran = run(kafleet(["status", "a", "--wait", "--api", &api, "-o", "json"])).ends(0);
    assert_eq!(ran.json()["state"], "succeeded");
}

#[test]
fn what_is_no_api_is_told_from_one() {
    let api = api(vec![("text/html", "<html>hello</html>".into())]);
    run(kafleet(["status", "a", "--api", &api])).ends(4).tells(&["answered as no kafleet api does", "hint: check the address"]);
}

#[test]
fn a_watch_of_many_goes_on_behind_what_it_has_heard() {
    const JSON: &str = "application/json";
    let changed = |ids: Value, place: &str| {
        let position = ids.is_array().then_some("0:7");
        format!("id: {place}\n{}", event("changed", &json!({"ids": ids, "partition": null, "position": position})))
    };
    let (api, asked) = heard(vec![
        (STREAM, changed(json!(null), "x-1") + &changed(json!(["a"]), "x-2") + &end("shutdown")),
        (JSON, json!({"tasks": [status("queued")], "next": null}).to_string()),
        (JSON, status("running").to_string()),
        // The next api knows nothing of that place.
        (STREAM, changed(json!(null), "y-1")),
        (JSON, json!({"tasks": [status("running")], "next": null}).to_string()),
        (STREAM, changed(json!(["a", "a:b"]), "y-2")),
        (JSON, status("succeeded").to_string()),
        (JSON, status("succeeded").to_string()),
    ]);
    let ran = run(kafleet(["watch", "a", "--tree", "--api", &api])).ends(0).tells(&["connection lost (the api stops)"]);
    let states: Vec<&str> = ran.out.lines().filter_map(|line| line.split("  ").nth(3)).collect();
    assert_eq!(states, ["queued", "running", "succeeded"], "{ran:?}");
    let mut asked: Vec<String> = asked.iter().collect();
    // The last two are read at once.
    asked[6..].sort();
    assert_eq!(
        asked,
        [
            "GET /v1/watch?root=a",
            "GET /v1/tasks?root=a&limit=200",
            "GET /v1/tasks/a?after=0%3A7",
            "GET /v1/watch?root=a behind x-2",
            "GET /v1/tasks?root=a&limit=200",
            "GET /v1/watch?root=a behind y-1",
            "GET /v1/tasks/a:b?after=0%3A7",
            "GET /v1/tasks/a?after=0%3A7",
        ]
    );
}
