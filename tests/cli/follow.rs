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

/// The first line of a request, and the place that it goes on behind.
fn request(stream: &TcpStream) -> String {
    let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
    let place = head.iter().find_map(|line| line.strip_prefix("last-event-id: "));
    let asked = head[0].trim_end_matches(" HTTP/1.1");
    place.map_or(asked.to_owned(), |place| format!("{asked} behind {place}"))
}

fn reply(stream: &mut TcpStream, status: &str, kind: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
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

/// Plays an api to one that watches many: one stream after the other, and what is read is as it is while the last of them
/// was given. Returns its address, and what was asked for.
fn fleet(streams: Vec<String>, read: fn(&str, usize) -> Option<Value>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut streams = streams.into_iter().enumerate();
        let mut stage = 0;
        while let Ok((mut stream, _)) = listener.accept() {
            let asked = request(&stream);
            let found = match asked.contains("/watch") {
                true => streams.next().map(|(n, body)| {
                    stage = n;
                    (STREAM, body)
                }),
                false => read(&asked, stage).map(|document| ("application/json", document.to_string())),
            };
            let away = ("application/problem+json", json!({"code": "store_unavailable", "title": "away"}).to_string());
            let status = if found.is_some() { "200 OK" } else { "503 Service Unavailable" };
            let (kind, body) = found.unwrap_or(away);
            // Not every test asks. Before the answer: after the last one, its client ends at once.
            let _ = sender.send(asked);
            reply(&mut stream, status, kind, &body);
        }
    });
    (format!("http://{address}"), receiver)
}

fn changed(ids: Value, place: &str) -> String {
    let position = ids.is_array().then_some("0:7");
    format!("id: {place}\n{}", event("changed", &json!({"ids": ids, "partition": null, "position": position})))
}

#[test]
fn a_watch_of_many_goes_on_behind_what_it_has_heard() {
    let streams = vec![
        changed(json!(null), "x-1") + &changed(json!(["a"]), "x-2") + &end("shutdown"),
        // The next api knows nothing of that place.
        changed(json!(null), "y-1"),
        changed(json!(["a", "a:b"]), "y-2"),
    ];
    let (api, asked) = fleet(streams, |asked, stage| {
        let task = status(["queued", "running", "succeeded"][stage]);
        Some(if asked.contains("?root=") { json!({"tasks": [task], "next": null}) } else { task })
    });
    let ran = run(kafleet(["watch", "a", "--tree", "--api", &api])).ends(0).tells(&["connection lost (the api stops)"]);
    let states: Vec<&str> = ran.out.lines().filter_map(|line| line.split("  ").nth(3)).collect();
    assert_eq!((states.first(), states.last()), (Some(&"queued"), Some(&"succeeded")), "{ran:?}");
    assert!(states.len() <= 3, "what was shown is not shown again: {ran:?}");
    let asked: Vec<String> = asked.try_iter().collect();
    let watches: Vec<&String> = asked.iter().filter(|asked| asked.contains("/watch")).collect();
    assert_eq!(
        watches,
        ["GET /v1/watch?root=a", "GET /v1/watch?root=a behind x-2", "GET /v1/watch?root=a behind y-1"],
        "{asked:?}"
    );
    // The root is read alone too, unless a look at the whole tree has it already.
    for read in ["GET /v1/tasks?root=a&limit=200", "GET /v1/tasks/a:b?after=0%3A7"] {
        assert!(asked.iter().any(|asked| asked == read), "{read}: {asked:?}");
    }
    assert!(asked.len() <= 8, "two looks at the tree, at most: {asked:?}");
}

#[test]
fn one_task_that_cannot_be_read_ends_no_watch() {
    let streams = vec![changed(json!(null), "x-1"), changed(json!(["a:b"]), "x-2"), changed(json!(["a"]), "x-3")];
    let (api, _) = fleet(streams, |asked, stage| {
        let task = status(["running", "running", "succeeded"][stage]);
        match asked {
            _ if asked.contains("?root=") => Some(json!({"tasks": [task], "next": null})),
            _ if asked.contains("a:b") => None,
            _ => Some(task),
        }
    });
    let ran = run(kafleet(["watch", "a", "--tree", "--api", &api])).ends(0).tells(&["task `a:b` cannot be read, trying again: "]);
    assert_eq!(ran.err.matches("cannot be read").count(), 1, "{ran:?}");
    assert!(ran.out.lines().last().is_some_and(|line| line.contains("succeeded")), "{ran:?}");
}
