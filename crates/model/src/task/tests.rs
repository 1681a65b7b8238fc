use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::retry::Waits;
use crate::units::duration::Millis;

const NOW: i64 = 1_700_000_000_000;

fn receive(task_type: &str, headers: &[(&str, &[u8])], value: Option<&[u8]>) -> Result<ReceivedTask, Reject> {
    let source = RecordSource {
        task_type: &Arc::from(task_type),
        position: Position { partition: 3, offset: 41 },
        timestamp_ms: NOW,
        value,
    };
    read_record(&source, headers.iter().map(|(name, value)| (*name, Some(*value))))
}

fn read_as(task_type: &str, headers: &[(&str, &[u8])], value: Option<&[u8]>) -> Result<TaskSpec, Reject> {
    receive(task_type, headers, value).map(|received| received.task)
}

fn read(headers: &[(&str, &str)], value: &str) -> Result<TaskSpec, Reject> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    read_as("echo", &headers, Some(value.as_bytes()))
}

fn progress(headers: &[(&str, &str)]) -> RunProgress {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    receive("echo", &headers, Some(b"{}")).unwrap().progress
}

fn policy(headers: &[(&str, &str)]) -> Policy {
    *read(headers, "{}").unwrap().policy.unwrap_or_default()
}

#[test]
fn bare_json_line_is_a_task() {
    for line in ["{\"a\":1}", "[]", "null", "3", "\"text\"", " {} "] {
        let task = read(&[], line).unwrap();
        assert_eq!(task.params.text(), line.trim());
        assert_eq!(task.id.as_str(), "echo-3-41-loyw3v28");
        assert_eq!((task.run, task.created_at_ms), (1, NOW));
        assert!(task.policy.is_none() && task.trace.is_none() && task.asof.is_none() && !task.announced);
    }
}

#[test]
fn foreign_headers_are_ignored() {
    let task =
        read_as("echo", &[("x-app", b"\xff\xfe"), ("ce-id", b"other"), ("ce_unheardof", b"x")], Some(b"1")).unwrap();
    assert_eq!(task.id.as_str(), "echo-3-41-loyw3v28");
}

#[test]
fn all_headers_are_decoded() {
    let task = read(
        &[
            ("ce_specversion", "1.0"),
            ("ce_id", "c"),
            ("ce_parent", "r:p"),
            ("ce_type", "echo"),
            ("ce_source", "/shop"),
            ("ce_time", "2026-01-31T12:00:00.5Z"),
            ("content-type", "Application/JSON; charset=utf-8"),
            ("ce_run", "2"),
            ("ce_attempt", "3"),
            ("ce_asof", "1042"),
            ("ce_announced", "1"),
            ("ce_hash", "fu6tza3jagcs"),
            ("ce_notbefore", "2026-02-01T00:00:00Z"),
            ("ce_expires", "10m"),
            ("ce_retries", "0"),
            ("ce_minbackoff", "100ms"),
            ("ce_maxbackoff", "2000"),
            ("ce_timeout", "2h"),
            ("ce_totaltimeout", "1d"),
            ("ce_maxwait", "6h"),
            ("ce_replyto", "shop.replies"),
            ("ce_onfailure", "ignore"),
            ("ce_name", "Großer Auftrag"),
            ("ce_creator", "me"),
            ("ce_tags", "a, b ,,c"),
            ("ce_link", "https://example.org"),
            ("ce_policy", "{\"options\":{\"k\":1},\"external\":false}"),
            ("traceparent", "00-1-2-01"),
            ("tracestate", "v=1"),
        ],
        "{}",
    )
    .unwrap();
    assert_eq!(task.id.as_str(), "r:p:c");
    assert_eq!((task.run, task.asof, task.announced), (2, Some(1042), true));
    assert_eq!((task.created_at_ms, task.hash.as_deref()), (1_769_860_800_500, Some("fu6tza3jagcs")));
    assert_eq!(*task.trace.unwrap(), Trace { parent: "00-1-2-01".into(), state: Some("v=1".into()) });
    let expected = Policy {
        not_before_ms: Some(1_769_904_000_000),
        expires_at_ms: Some(NOW + 600_000), // Its creation is later than its record.
        retries: Some(0),
        min_backoff: Some(Millis(100)),
        max_backoff: Some(Millis(2000)),
        timeout: Some(Millis::secs(7200)),
        total_timeout: Some(Millis::secs(86_400)),
        max_wait: Some(Millis::secs(21_600)),
        reply_to: Some("shop.replies".into()),
        on_failure: OnFailure::Ignore,
        name: Some("Großer Auftrag".into()),
        creator: Some("me".into()),
        tags: ["a", "b", "c"].map(str::to_owned).into(),
        link: Some("https://example.org".into()),
        rules: Rules { options: Some(serde_json::json!({"k": 1}).into()), ..Rules::default() },
        ..Policy::default()
    };
    assert_eq!(*task.policy.unwrap(), expected);
}

#[test]
fn backoff_starts_again_at_an_attempt() {
    let headers = [("ce_attempt", "3"), ("ce_backofffrom", "2"), ("ce_backoffreset", "10m")];
    assert_eq!(progress(&headers), RunProgress { attempts: 3, backoff_from: 2, ..RunProgress::default() });
    assert_eq!(policy(&headers).backoff_reset, Some(Millis::secs(600)));
    assert_eq!(read(&[("ce_backofffrom", "-1")], "{}").unwrap_err().code, "bad_header");
}

#[test]
fn waits_are_a_number_and_a_time() {
    let waits = Waits { number: 2, since_ms: 1_769_860_800_000 };
    assert_eq!(progress(&[("ce_waits", "2,1769860800000")]), RunProgress { waits, ..RunProgress::default() });
    assert_eq!(read(&[("ce_waits", "2")], "{}").unwrap_err().code, "bad_header");
}

#[test]
fn expiry_is_a_duration_or_a_time() {
    assert_eq!(policy(&[("ce_expires", "10m")]).expires_at_ms, Some(NOW + 600_000));
    assert_eq!(policy(&[("ce_expires", "5000")]).expires_at_ms, Some(NOW + 5_000));
    assert_eq!(policy(&[("ce_expires", "10m"), ("ce_time", "1700000000000")]).expires_at_ms, Some(1_700_000_600_000));
    assert_eq!(policy(&[("ce_expires", "2026-01-31T12:00:00Z")]).expires_at_ms, Some(1_769_860_800_000));
}

#[test]
fn invalid_records_are_rejected_with_the_reason() {
    let long = "x".repeat(600);
    let many = vec!["t"; 33].join(",");
    let big = format!("{{\"options\":{{\"k\":\"{}\"}}}}", "x".repeat(17_000));
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, &'a str);
    let cases: [Case<'_>; 38] = [
        (&[], "{\"a\":", "bad_json", "the params are not JSON"),
        (&[], "{\"a\":1} x", "bad_json", "trailing characters"),
        (&[], "not json", "bad_json", "the params are not JSON"),
        (&[], "\u{feff}{}", "bad_json", "it begins with a byte order mark"),
        (&[], "{\"a\":[{\"b\":1,\"b\":1}]}", "bad_json", "the name `b` occurs twice in an object (at `/a/0/b`)"),
        (&[], "{\"a\":\"\\ud800\"}", "bad_json", "half a surrogate pair"),
        (&[], "", "empty_value", "at least `null`"),
        (&[("ce_id", "")], "1", "bad_id", "the id is empty"),
        (&[("ce_id", "a b")], "1", "bad_id", "character ` `"),
        (&[("ce_id", "urn:uuid:1")], "1", "bad_id", "name `urn:uuid` as its parent"),
        (&[("ce_id", "x:y"), ("ce_parent", "z")], "1", "bad_id", "does not lie under its parent `z`"),
        (&[("ce_id", "a"), ("ce_parent", "a//b")], "1", "bad_id", "character `/`"),
        (&[("ce_parent", "")], "1", "bad_id", "the id is empty"),
        (&[("ce_id", &long)], "1", "bad_id", "at most 512"),
        (&[("ce_specversion", "2.0")], "1", "unsupported_version", "`ce_specversion` is `2.0`: only CloudEvents 1.0"),
        (&[("ce_specversion", "")], "1", "unsupported_version", "CloudEvents 1.0"),
        (
            &[("ce_type", "other")],
            "1",
            "bad_header",
            "`other` does not match the topic, which holds tasks of type `echo`",
        ),
        (&[("content-type", "text/xml")], "1", "bad_header", "`text/xml` is not JSON"),
        (&[("content-type", "application/avro")], "1", "bad_header", "not JSON"),
        (&[("ce_run", "0")], "1", "bad_header", "`ce_run`: `0` is not a whole number from 1"),
        (&[("ce_run", "1000001")], "1", "bad_header", "from 1 to 1000000"),
        (&[("ce_attempt", "-1")], "1", "bad_header", "`ce_attempt`"),
        (&[("ce_asof", "x")], "1", "bad_header", "`ce_asof`"),
        (&[("ce_time", "yesterday")], "1", "bad_header", "`yesterday` is not a time: write RFC 3339"),
        (&[("ce_notbefore", "1h")], "1", "bad_header", "`1h` is not a time"),
        (&[("ce_expires", "soon")], "1", "bad_header", "neither a duration, such as 10m, nor"),
        (&[("ce_retries", "1001")], "1", "bad_header", "from 0 to 1000"),
        (&[("ce_minbackoff", "1 week")], "1", "bad_header", "`1 week` is not a duration"),
        (&[("ce_maxbackoff", "")], "1", "bad_header", "is not a duration"),
        (&[("ce_timeout", "-5s")], "1", "bad_header", "`-5s` is not a duration"),
        (&[("ce_onfailure", "explode")], "1", "bad_header", "use `fail` or `ignore`"),
        (&[("ce_name", &long)], "1", "bad_header", "more than 512 characters"),
        (&[("ce_tags", &many)], "1", "bad_header", "33 tags: at most 32"),
        (&[("ce_tags", &long)], "1", "bad_header", "1 to 128 characters"),
        (&[("ce_policy", "{")], "1", "bad_header", "it is invalid"),
        (&[("ce_policy", "[{},true]")], "1", "bad_header", "must be a JSON object"),
        (&[("ce_policy", "{\"options\":[]}")], "1", "bad_header", "`options`: it must be a JSON object"),
        (&[("ce_policy", &big)], "1", "bad_header", "at most 16384 are allowed"),
    ];
    for (headers, value, code, reason) in cases {
        let refusal = read(headers, value).unwrap_err();
        assert_eq!(refusal.code, code, "{headers:?} {value:?} gave {refusal:?}");
        assert!(refusal.message.contains(reason), "{headers:?} {value:?} gave {:?}", refusal.message);
        assert!(refusal.message.len() < 400, "a message of {} bytes for {code}", refusal.message.len());
    }
}

#[test]
fn refused_value_has_a_pointer() {
    let doubled = "{\"a\":{\"b\":1,\"b\":1}}";
    assert_eq!(read(&[], doubled).unwrap_err().pointer.as_deref(), Some("/a/b"));
    let envelope = format!("{{\"id\":\"x\",\"data\":{doubled}}}");
    let refusal = read(&[("content-type", STRUCTURED), ("ce_id", "x")], &envelope).unwrap_err();
    assert_eq!((refusal.code, refusal.pointer.as_deref()), ("bad_json", Some("/data/a/b")));
    assert_eq!(refusal.task.map(|(id, _)| id.to_string()).as_deref(), Some("x"));
}

#[test]
fn binary_garbage_is_rejected() {
    let garbage: Vec<u8> = (0..=255).rev().collect();
    assert_eq!(read_as("echo", &[], Some(&garbage)).unwrap_err().code, "bad_json");
    assert_eq!(read_as("echo", &[("ce_id", &garbage)], Some(b"1")).unwrap_err().code, "bad_header");
    assert_eq!(read_as("echo", &[], Some(b"\"\xff\"")).unwrap_err().code, "bad_json");
    assert_eq!(
        read_as("echo", &[("content-type", STRUCTURED.as_bytes())], Some(&garbage)).unwrap_err().code,
        "bad_json"
    );
}

#[test]
fn record_without_a_value_is_rejected() {
    let refusal = read_as("echo", &[("ce_id", b"a"), ("ce_run", b"2")], None).unwrap_err();
    assert_eq!((refusal.code, refusal.task), ("empty_value", Some((TaskId::parse("a").unwrap(), 2))));
}

#[test]
fn rejection_names_the_task_if_its_id_is_known() {
    let named =
        |headers: &[(&str, &str)], value| read(headers, value).unwrap_err().task.map(|(id, run)| (id.to_string(), run));
    assert_eq!(named(&[("ce_id", "a")], "{"), Some(("a".into(), 1)));
    assert_eq!(named(&[], "{"), Some(("echo-3-41-loyw3v28".into(), 1)));
    assert_eq!(
        named(&[("ce_id", "a"), ("ce_parent", "p"), ("ce_run", "3"), ("ce_type", "b")], "1"),
        Some(("p:a".into(), 3))
    );
    assert_eq!(named(&[("ce_id", "a:b")], "1"), None);
    assert_eq!(named(&[("ce_retries", "x"), ("ce_id", "a"), ("ce_run", "2")], "1"), Some(("a".into(), 2)));
    assert_eq!(named(&[("ce_run", "x"), ("ce_id", "a")], "1"), None, "the run is unknown");
    let structured = ("content-type", STRUCTURED);
    assert_eq!(named(&[structured], "{\"retries\":\"x\",\"id\":\"a\"}"), Some(("a".into(), 1)));
    let unreadable = read_as("echo", &[("ce_id", b"\xff")], Some(b"1")).unwrap_err();
    assert_eq!(unreadable.task, None, "it must not be identified by its position");
}

#[test]
fn child_is_identified_by_segment_path_or_position() {
    let id = |headers: &[(&str, &str)]| read(headers, "1").unwrap().id.to_string();
    assert_eq!(id(&[("ce_id", "c"), ("ce_parent", "r")]), "r:c");
    assert_eq!(id(&[("ce_id", "r:c"), ("ce_parent", "r")]), "r:c");
    assert_eq!(id(&[("ce_parent", "r")]), "r:echo-3-41-loyw3v28");
}

#[test]
fn structured_event_is_decoded() {
    let structured = [("content-type", "application/cloudevents+json; charset=utf-8")];
    let text = r#"{"specversion":"1.0","id":"c","parent":"r","type":"echo","source":"/x","time":"2026-01-31T12:00:00Z",
        "datacontenttype":"application/json","retries":2,"tags":"a,b","traceparent":"00-1-2-01","data":{"n":1}}"#;
    let task = read(&structured, text).unwrap();
    assert_eq!((task.id.as_str(), task.params.text(), task.created_at_ms), ("r:c", "{\"n\":1}", 1_769_860_800_000));
    let policy = task.policy.unwrap();
    assert_eq!((policy.retries, policy.tags.len(), task.trace.is_some()), (Some(2), 2, true));
    assert_eq!(read(&structured, "{\"specversion\":\"1.0\"}").unwrap().params.text(), "null");
    for (text, code) in [
        ("[]", "bad_json"),
        ("{\"specversion\":\"0.3\",\"data\":1}", "unsupported_version"),
        ("{\"id\":\"a:b\",\"data\":1}", "bad_id"),
        ("{\"retries\":\"many\",\"data\":1}", "bad_header"),
        ("{\"datacontenttype\":\"text/xml\",\"data\":\"<a/>\"}", "bad_header"),
    ] {
        assert_eq!(read(&structured, text).unwrap_err().code, code, "{text}");
    }
}

fn header_name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("content-type".to_owned()),
        Just("traceparent".to_owned()),
        "ce_(specversion|id|type|parent|run|attempt|asof|time|expires|notbefore|retries|minbackoff|timeout|onfailure|tags|policy|name)",
        ".*",
    ]
}

proptest! {
    /// Invalid input never panics, and rejections have a reason.
    #[test]
    fn decoding_arbitrary_records_does_not_panic(
        headers in prop::collection::vec((header_name(), prop_oneof![any::<Vec<u8>>(), "[0-9a-z:.]{0,12}".prop_map(String::into_bytes)]), 0..5),
        value in prop::option::of(prop_oneof![any::<Vec<u8>>(), Just(b"{\"id\":\"a\",\"data\":1}".to_vec())]),
    ) {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        match read_as("echo", &headers, value.as_deref()) {
            Ok(task) => prop_assert!(TaskId::parse(task.id.as_str()).is_ok() && task.run >= 1),
            Err(refusal) => prop_assert!(!refusal.code.is_empty() && !refusal.message.is_empty()),
        }
    }
}
