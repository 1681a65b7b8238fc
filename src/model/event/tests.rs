use proptest::prelude::*;
use serde_json::json;

use super::*;

fn decode(text: &str) -> Result<Event, DecodeError> {
    Event::decode(text.as_bytes())
}

fn encoded(event: &Event) -> Value {
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn event_with_required_fields_only_is_decoded() {
    let event = decode(r#"{"v":1,"kind":"started","id":"a:b","at_ms":5}"#).unwrap();
    assert_eq!(event, Event::new(Kind::Started, TaskId::parse("a:b").unwrap(), 1, 5));
    assert_eq!(encoded(&event), json!({"v": 1, "kind": "started", "id": "a:b", "at_ms": 5}));
}

#[test]
fn unknown_fields_of_newer_builds_are_preserved() {
    let text = r#"{"v":1,"kind":"succeeded","id":"a","at_ms":5,"output":{"b": 1},"colour":"red","more":{"x":[1]}}"#;
    let event = decode(text).unwrap();
    assert_eq!(event.extra["colour"], "red");
    assert_eq!(encoded(&event), serde_json::from_str::<Value>(text).unwrap());
}

#[test]
fn unknown_kind_is_decoded_and_creates_no_record() {
    let event = decode(r#"{"v":1,"kind":"sneezed","id":"a","at_ms":5}"#).unwrap();
    assert_eq!(event.kind, Kind::Unknown);
    assert!(!event.kind.creates());
}

#[test]
fn newer_version_is_distinguished_from_malformed_input() {
    for text in [
        r#"{"v":2,"kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":2,"kind":"sneezed","id":"a","at_ms":5}"#,
        r#"{"v":2,"kind":{"nested":"kind"},"who":"a"}"#,
        r#"{"v":2}"#,
        r#"{"v":2,"id":"no valid id","kind":"started","at_ms":5}"#,
    ] {
        assert_eq!(decode(text), Err(DecodeError::Newer(2)), "{text}");
    }
    let message = decode(r#"{"v":3}"#).unwrap_err().to_string();
    assert!(message.contains("version 3") && message.ends_with("upgrade trackers first"), "{message}");
}

#[test]
fn invalid_events_are_malformed() {
    for text in [
        "",
        "null",
        "[]",
        "{}",
        "not json",
        r#"{"v":1}"#,
        r#"{"v":"2","kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":-1,"kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":1,"kind":"started","id":"a b","at_ms":5}"#,
        r#"{"v":1,"kind":"submitted","id":"kafleet","at_ms":1}"#,
        r#"{"v":1,"kind":"started","id":"a","at_ms":"5"}"#,
        r#"{"v":1,"kind":5,"id":"a","at_ms":5}"#,
        r#"{"v":1,"kind":"reported","id":"a","at_ms":5,"state":"bored"}"#,
        r#"{"v":1,"kind":"started","id":"a","at_ms":5"#,
    ] {
        let outcome = decode(text);
        assert!(matches!(outcome, Err(DecodeError::Malformed(_))), "{text} gave {outcome:?}");
    }
    assert!(matches!(Event::decode(&[0xff, 0, 1]), Err(DecodeError::Malformed(_))));
}

#[test]
fn kind_names_match_the_wire_format() {
    assert_eq!(Kind::CancelRequested.name(), "cancel_requested");
    assert_eq!(Kind::Tick.name(), "tick");
}

proptest! {
    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(bytes in any::<Vec<u8>>()) {
        let _ = Event::decode(&bytes);
    }

    #[test]
    fn encoded_event_is_decoded_unchanged(
        run in 1..5u32,
        attempt in 0..5u32,
        at_ms in any::<i64>(),
        worker in prop::option::of("[a-z]{1,8}"),
        message in prop::option::of("\\PC{0,20}"),
        lines in prop::collection::vec("\\PC{0,20}", 0..3),
        dropped in 0..3u32,
        due_ms in prop::option::of(any::<i64>()),
        output in prop::option::of("[a-z]{0,5}"),
    ) {
        let event = Event {
            attempt, lines, dropped, due_ms, message,
            worker: worker.map(Into::into),
            output: output.map(|text| RawJson::of(&text).unwrap()),
            error: (attempt > 2).then(|| Box::new(ErrorInfo::new("timeout", "late", attempt))),
            state: (run > 3).then_some(State::Warning),
            ..Event::new(Kind::Retrying, TaskId::parse("a:b").unwrap(), run, at_ms)
        };
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        prop_assert_eq!(Event::decode(&bytes), Ok(event));
    }
}
