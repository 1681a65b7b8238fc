use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::log_line::LogStream;
use super::*;
use crate::json::RawJson;
use crate::outbox::RecordCopy;
use crate::record::attachment::Attachment;
use crate::record::state::State;
use crate::retry::RunUsage;
use crate::task::continuation::Continuation;
use crate::task::patch::{FieldChanges, Patch};

fn decode(text: &str) -> Result<Event, DecodeError> {
    Event::decode(text.as_bytes())
}

fn encoded(event: &Event) -> Value {
    let mut bytes = Vec::new();
    event.encode(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn event_with_required_fields_only_is_decoded() {
    let event = decode(r#"{"v":3,"kind":"started","id":"a:b","at_ms":5}"#).unwrap();
    assert_eq!(event, Event::new(Kind::Started, TaskId::parse("a:b").unwrap(), 1, 5));
    assert_eq!(encoded(&event), json!({"v": 3, "kind": "started", "id": "a:b", "at_ms": 5}));
}

#[test]
fn unknown_fields_of_newer_builds_are_preserved() {
    let text =
        r#"{"v":2,"kind":"succeeded","id":"a","at_ms":5,"data":{"output":{"b": 1}},"colour":"red","more":{"x":[1]}}"#;
    let event = decode(text).unwrap();
    assert_eq!(event.extra["colour"], "red");
    assert_eq!(encoded(&event), serde_json::from_str::<Value>(text).unwrap());
}

#[test]
fn unknown_kind_is_decoded_and_creates_no_record() {
    let event = decode(r#"{"v":2,"kind":"sneezed","id":"a","at_ms":5}"#).unwrap();
    assert_eq!(event.kind(), Kind::Unknown);
    assert!(!event.kind().creates());
}

#[test]
fn newer_version_is_distinguished_from_malformed_input() {
    for text in [
        r#"{"v":4,"kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":4,"kind":"sneezed","id":"a","at_ms":5}"#,
        r#"{"v":4,"kind":{"nested":"kind"},"who":"a"}"#,
        r#"{"v":4}"#,
        r#"{"v":4,"id":"no valid id","kind":"started","at_ms":5}"#,
    ] {
        assert_eq!(decode(text), Err(DecodeError::Newer(4)), "{text}");
    }
    let message = decode(r#"{"v":4}"#).unwrap_err().to_string();
    assert!(message.contains("version 4") && message.ends_with("upgrade trackers first"), "{message}");
}

#[test]
fn events_of_released_versions_are_decoded() {
    let text = |v: u32| format!(r#"{{"v":{v},"kind":"started","id":"a","at_ms":5}}"#);
    for v in OLDEST_EVENT_VERSION..=EVENT_VERSION {
        assert_eq!(decode(&text(v)).unwrap().v, v);
    }
    let expected = DecodeError::Malformed("version 1 was never released".to_owned());
    assert_eq!(decode(&text(OLDEST_EVENT_VERSION - 1)), Err(expected));
}

#[test]
fn invalid_events_are_malformed() {
    for text in [
        "",
        "null",
        "[]",
        "{}",
        "not json",
        r#"{"v":2}"#,
        r#"{"v":"2","kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":-1,"kind":"started","id":"a","at_ms":5}"#,
        r#"{"v":2,"kind":"started","id":"a b","at_ms":5}"#,
        r#"{"v":2,"kind":"submitted","id":"kafleet","at_ms":1}"#,
        r#"{"v":2,"kind":"started","id":"a","at_ms":"5"}"#,
        r#"{"v":2,"kind":5,"id":"a","at_ms":5}"#,
        r#"{"v":2,"kind":"reported","id":"a","at_ms":5,"data":{"state":"bored"}}"#,
        r#"{"v":2,"kind":"started","id":"a","at_ms":5"#,
        r#"{"v":2,"kind":"started","id":"a","at_ms":5,"data":[]}"#,
        r#"{"v":2,"kind":"failed","id":"a","at_ms":5,"data":"late"}"#,
        r#"{"v":1,"kind":"started","id":"a","at_ms":5}"#,
    ] {
        let outcome = decode(text);
        assert!(matches!(outcome, Err(DecodeError::Malformed(_))), "{text} gave {outcome:?}");
    }
    assert!(matches!(Event::decode(&[0xff, 0, 1]), Err(DecodeError::Malformed(_))));
    let long = decode(&format!("\"{}\"", "a".repeat(1_000_000))).unwrap_err().to_string();
    assert!(long.len() < 400, "the log line of a foreign record is short, it has {} bytes", long.len());
}

#[test]
fn kind_names_match_the_wire_format() {
    let schema = serde_json::to_value(schemars::schema_for!(Kind)).unwrap();
    let documented = schema["oneOf"].as_array().unwrap().iter().filter_map(|kind| kind["const"].as_str());
    let listed = schema["oneOf"].as_array().unwrap().iter().filter_map(|kind| kind["enum"].as_array()).flatten();
    let names: Vec<&str> = documented.chain(listed.filter_map(Value::as_str)).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert_eq!(serde_json::from_value::<Kind>(name.into()).unwrap().name(), name);
    }
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
        payload in any_payload(),
    ) {
        let event = Event {
            attempt,
            message,
            worker: worker.map(Into::into),
            ..Event::new(payload, TaskId::parse("a:b").unwrap(), run, at_ms)
        };
        let mut bytes = Vec::new();
        event.encode(&mut bytes).unwrap();
        prop_assert_eq!(Event::decode(&bytes), Ok(event));
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().chain([Kind::Unknown])
}

fn log_payload(line: Option<String>, flag: bool) -> Payload {
    let streams = line.iter().map(|_| flag.then_some(LogStream::Stderr)).collect();
    Payload::Log { streams, lines: line.into_iter().collect(), dropped: u32::from(flag) }
}

/// Payload of some kind with any of its fields set.
fn any_payload() -> impl Strategy<Value = Payload> {
    let kinds: Vec<Kind> = kinds().filter(|kind| *kind != Kind::Submitted).collect();
    let number = prop::option::of(any::<i64>());
    (prop::sample::select(kinds), number, prop::option::of("[a-z]{0,5}"), any::<bool>()).prop_map(
        |(kind, number, text, flag)| {
            let failure = AttemptFailure {
                started_at_ms: number,
                error: text.as_ref().map(|text| Box::new(ErrorInfo::new("timeout", text, 1))),
            };
            let output = text.as_ref().map(|text| RawJson::of(text).unwrap());
            let record = flag.then(|| Box::new(RecordCopy::of(None, std::iter::empty(), RawJson::null())));
            let waits = if flag { 7 } else { 0 };
            let position = number.map(|offset| Position { partition: 3, offset });
            let attachment = text
                .as_ref()
                .map(|text| Box::new(Attachment::new("a", "text/plain", text.clone().into_bytes()).unwrap()));
            match kind {
                Kind::Scheduled => Payload::Scheduled { due_ms: number, record },
                Kind::Released => Payload::Released { position, waits, ask: position.map(|position| position.offset) },
                Kind::Started => Payload::Started {
                    then: text.iter().map(|_| Continuation::new("echo", serde_json::json!(1))).collect(),
                },
                Kind::Progress => Payload::Progress { output },
                Kind::Log => log_payload(text, flag),
                Kind::Retrying => Payload::Retrying { failure, due_ms: number, record, waits },
                Kind::Succeeded => Payload::Succeeded { started_at_ms: number, output },
                Kind::Interrupted => Payload::Interrupted(failure),
                Kind::Failed => Payload::Failed(failure),
                Kind::Cancelled => Payload::Cancelled(failure),
                Kind::Expired => Payload::Expired(failure),
                Kind::CancelRequested => {
                    let with = text.map(|_| TaskId::parse("a").unwrap());
                    Payload::CancelRequested(CancelScope { asof: number, with, subtree: flag })
                }
                Kind::RetryRequested => Payload::RetryRequested { only_failed: flag, new_run: Some(2), record },
                Kind::Reported => {
                    Payload::Reported { state: flag.then_some(State::Warning), output, error: failure.error }
                }
                Kind::Patched => Payload::Patched {
                    patch: text.map(|name| {
                        let values = BTreeMap::from([("name".to_owned(), Value::from(name).into())]);
                        Box::new(Patch { changes: FieldChanges::of(&values).unwrap(), ..Patch::default() })
                    }),
                },
                Kind::Attached => Payload::Attached { attachment },
                Kind::Detached => Payload::Detached { attachment },
                Kind::EffectDone => Payload::EffectDone { effect: text.map(Into::into), position },
                Kind::Operated => {
                    Payload::Operated { action: text.as_deref().map(Into::into), target: flag.then(|| "echo".into()) }
                }
                Kind::Checked => Payload::Checked { check: flag.then_some(3) },
                Kind::Settings => Payload::Settings { lifetimes: flag.then(Box::default) },
                Kind::Unknown => Payload::Unknown(failure),
                other => other.into(),
            }
        },
    )
}

#[test]
fn payload_of_a_kind_is_of_that_kind() {
    for kind in kinds() {
        assert_eq!(Payload::from(kind).kind(), kind);
    }
}

#[test]
fn fields_are_written_in_the_published_order() {
    let record = RecordCopy::of(Some(b"k"), std::iter::empty(), RawJson::null());
    let failure =
        AttemptFailure { started_at_ms: Some(3), error: Some(Box::new(ErrorInfo::new("timeout", "late", 2))) };
    let payload = Payload::Retrying { failure, due_ms: Some(9), record: Some(Box::new(record)), waits: 2 };
    let mut event = Event::new(payload, TaskId::parse("a").unwrap(), 2, 5);
    (event.attempt, event.worker, event.by) = (2, Some("w".into()), Some("ann".into()));
    event.message = Some("m".to_owned());
    event.extra.insert("colour".into(), "red".into());
    let mut bytes = Vec::new();
    event.encode(&mut bytes).unwrap();
    let expected = concat!(
        r#"{"v":3,"kind":"retrying","id":"a","run":2,"attempt":2,"worker":"w","at_ms":5,"message":"m","by":"ann","#,
        r#""data":{"started_at_ms":3,"error":{"kind":"timeout","message":"late","attempt":2},"due_ms":9,"#,
        r#""record":{"key":"k","headers":[],"params":null},"waits":2},"colour":"red"}"#
    );
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[test]
fn attempt_that_waits_is_not_used() {
    let used = |text: &str| decode(text).unwrap().used();
    let waiting = r#"{"v":2,"kind":"retrying","id":"a","at_ms":5,"attempt":3,"data":{"waits":4}}"#;
    assert_eq!(used(waiting), RunUsage { attempts: 2, waits: 4 });
    let failed = r#"{"v":2,"kind":"retrying","id":"a","at_ms":5,"attempt":3}"#;
    assert_eq!(used(failed), RunUsage { attempts: 3, waits: 0 });
    let released = r#"{"v":2,"kind":"released","id":"a","at_ms":5,"attempt":2,"data":{"waits":4}}"#;
    assert_eq!(used(released), RunUsage { attempts: 2, waits: 4 });
}

#[test]
fn field_of_another_kind_is_ignored() {
    let event = decode(r#"{"v":3,"kind":"started","id":"a","at_ms":5,"data":{"due_ms":7,"error":1}}"#);
    assert_eq!(event, Ok(Event::new(Kind::Started, TaskId::parse("a").unwrap(), 1, 5)));
}
