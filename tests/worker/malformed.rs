//! Invalid records: each becomes a dead letter with a reason, and the tasks around them run.

use kafleet::model::event::Kind as EventKind;
use serde_json::json;

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::Kind;

type Headers = &'static [(&'static str, &'static str)];
/// Name, value, headers, dead-letter code, and a part of the error message.
type MalformedRecord<'a> = (&'static str, Option<&'a [u8]>, Headers, &'static str, &'static str);

fn records(large: &[u8]) -> Vec<MalformedRecord<'_>> {
    vec![
        ("bad JSON", Some(b"{\"n\": "), &[("ce_id", "r-json")], "bad_json", "not JSON"),
        ("two values", Some(b"{\"n\":1} {}"), &[("ce_id", "r-two")], "bad_json", "not JSON"),
        ("garbage", Some(b"\x00\xff\xfe\x80garbage"), &[("ce_id", "r-garbage")], "bad_json", "not JSON"),
        ("garbage without an id", Some(b"\xc3\x28"), &[], "bad_json", "not JSON"),
        ("empty value", Some(b""), &[("ce_id", "r-empty")], "empty_value", "no value"),
        ("no value", None, &[("ce_id", "r-none")], "empty_value", "no value"),
        ("bad id", Some(b"{\"n\":1}"), &[("ce_id", "with space")], "bad_id", "with space"),
        ("path without parent", Some(b"{\"n\":1}"), &[("ce_id", "urn:uuid:1")], "bad_id", "parent"),
        (
            "version",
            Some(b"{\"n\":1}"),
            &[("ce_specversion", "2.0"), ("ce_id", "r-version")],
            "unsupported_version",
            "`2.0`",
        ),
        ("bad header", Some(b"{\"n\":1}"), &[("ce_timeout", "soon"), ("ce_id", "r-header")], "bad_header", "`soon`"),
        ("run", Some(b"{\"n\":1}"), &[("ce_run", "4294967295"), ("ce_id", "huge-run")], "bad_header", "`4294967295`"),
        ("other type", Some(b"{\"n\":1}"), &[("ce_type", "other"), ("ce_id", "r-type")], "bad_header", "`other`"),
        ("schema", Some(b"{\"n\":\"one\"}"), &[("ce_id", "r-schema")], "schema", "`/n`"),
        ("2 MiB", Some(large), &[("ce_id", "r-large")], "too_large", "pass a link"),
    ]
}

/// Headers that no task may have, and a part of the error message. In structured mode they are attributes.
const REFUSED: [(&str, &str, &str); 35] = [
    ("id", ".", "URLs drop it"),
    ("id", "..", "URLs drop it"),
    ("parent", "..", "URLs drop it"),
    ("tags", "a,..", "not be `.` or `..`"),
    ("replyto", "..", "is not a topic"),
    ("expires", "1795853855", "may be epoch seconds"),
    ("expires", "31d", "expire more than 30d from now"),
    ("expires", "4102444800000", "expire more than 30d from now"),
    ("notbefore", "1795853855", "before the year 2000"),
    ("notbefore", "2100-01-01T00:00:00Z", "start more than 30d from now"),
    ("time", "1795853855", "before the year 2000"),
    ("timeout", "1795853855000", "may be a time"),
    ("timeout", "31d", "`31d` is longer than a tree may stay open"),
    ("timeout", "0", "greater than zero"),
    ("totaltimeout", "0s", "greater than zero"),
    ("maxwait", "31d", "longer than a tree may stay open"),
    ("minbackoff", "10s", "header `ce_minbackoff`: `min_backoff` 10s is longer than `max_backoff`"),
    ("maxbackoff", "10ms", "header `ce_maxbackoff`: `min_backoff` 20ms is longer than `max_backoff` 10ms"),
    ("backoffreset", "16m", "longer than the `timeout` of the type, 15m"),
    ("retires", "1", "did you mean `ce_retries`?"),
    ("min_backoff", "1s", "write `ce_minbackoff`"),
    ("delay", "1s", "write the time of the start into `ce_notbefore`"),
    ("maxfailed", "1", "write `max_failed` into the JSON of `ce_policy`"),
    ("policy", r#"{"max_faild": 1}"#, "`max_faild` is unknown; did you mean `max_failed`?"),
    ("policy", r#"{"then": [{"type": "strict", "timeout": "31d"}]}"#, "`then/0/timeout`: `31d` is longer"),
    ("policy", r#"{"then": [{"type": "strict", "retrys": 1}]}"#, "unknown field `retrys`"),
    ("policy", r#"{"then": [{"type": "No Type"}]}"#, "`then/0/type`"),
    (
        "policy",
        r#"{"checks": [{"after": "31d", "expect": ["succeeded"], "failed": {"callback": {"url": "https://a"}}}]}"#,
        "`checks/0`: the check is due more than 30d",
    ),
    (
        "policy",
        r#"{"checks": [{"at": "1795853855", "expect": ["succeeded"], "failed": {"callback": {"url": "https://a"}}}]}"#,
        "before the year 2000",
    ),
    (
        "policy",
        r#"{"actions": [{"callback": {"url": "https://a", "timeout": "31d"}}]}"#,
        "`actions/0/callback`: `31d` is longer",
    ),
    ("policy", r#"{"actions": [{"callback": {"url": "https://a", "timeOut": 1}}]}"#, "unknown field `timeOut`"),
    ("content-type", "application/cloudevents-batch+json", "one event per record"),
    ("content-type", "application/cloudevents+avro", "one event per record"),
    ("content-type", "text/plain", "is not JSON"),
    ("specversion", "0.3", "only CloudEvents 1.0"),
];

/// Events in structured mode that are refused whole.
const REFUSED_EVENTS: [(&str, &str); 9] = [
    (r#"{"id": "e", "data": {"n": 1}, "data_base64": "eyJuIjogMX0="}"#, "both `data` and `data_base64`"),
    (r#"{"id": "e", "data": {"n": 1}, "data": {"n": 2}}"#, "the name `data` occurs twice"),
    (r#"{"id": "e", "data_base64": "%"}"#, "is not base64"),
    (r#"{"id": "e", "data_base64": 1}"#, "is not a text"),
    (r#"{"id": "e", "data_base64": "AP8="}"#, "is not JSON"),
    (r#"{"id": "e", "id": "f", "data": {"n": 1}}"#, "the name `id` occurs twice"),
    (r#"{"id": "e", "tags": ["a"], "data": {"n": 1}}"#, "the attribute `tags` is a list or an object"),
    (r#"{"id": "e", "options": {"a": 1}, "data": {"n": 1}}"#, "the attribute `options` is a list or an object"),
    (r#"[{"id": "e", "data": {"n": 1}}]"#, "it is not an object with the attributes"),
];

#[tokio::test(flavor = "multi_thread")]
async fn records_with_settings_that_cannot_be_kept_become_dead_letters() {
    let fleet = memory(1, &[strict()]).await.0;
    let mut reasons = Vec::new();
    let value = &br#"{"n":1}"#[..];
    let structured = ("content-type", "application/cloudevents+json");
    for (name, text, reason) in REFUSED {
        let header = if name == "content-type" { name.to_owned() } else { format!("ce_{name}") };
        fleet.send_record("strict", Some(0), None, Some(value), &[(header.as_str(), text)]).await;
        reasons.push((format!("{header}: {text}"), reason));
        let attribute = if name == "content-type" { "datacontenttype" } else { name };
        let event = json!({attribute: text, "data": {"n": 1}}).to_string();
        fleet.send_record("strict", Some(0), None, Some(event.as_bytes()), &[structured]).await;
        reasons.push((event, reason));
    }
    for (event, reason) in REFUSED_EVENTS {
        fleet.send_record("strict", Some(0), None, Some(event.as_bytes()), &[structured]).await;
        reasons.push((event.to_owned(), reason));
    }
    let id = vec!["a"; 64].join(":");
    let deepest = [("ce_parent", &id[..125]), ("ce_id", "a"), ("ce_policy", r#"{"then": [{"type": "strict"}]}"#)];
    fleet.send_record("strict", Some(0), None, Some(value), &deepest).await;
    reasons.push((id, "`then/0`: the continuation would have no valid id: the id has 65 levels"));
    let worker = fleet.worker();
    let mut letters = fleet.dead("strict", reasons.len()).await;
    let offset_of = |letter: &crate::worker::tail::Dead| -> usize {
        let found = letter.record.headers.iter().find(|(name, _)| name == "kafleet_offset").unwrap();
        String::from_utf8(found.1.clone().unwrap()).unwrap().parse().unwrap()
    };
    letters.sort_by_key(offset_of);
    for (letter, (record, reason)) in letters.iter().zip(&reasons) {
        assert!(letter.error.contains(reason), "{record}: {}", letter.error);
    }
    worker.stop().await;
}

/// Settings of records that another process of the fleet has published were accepted there.
#[tokio::test(flavor = "multi_thread")]
async fn announced_records_and_understood_events_run() {
    let fleet = memory(1, &[strict()]).await.0;
    let value = Some(&br#"{"n":1}"#[..]);
    let headers = [("ce_id", "a"), ("ce_minbackoff", "10s"), ("ce_retires", "1"), ("ce_announced", "1")];
    fleet.send_record("strict", Some(0), None, value, &headers).await;
    let foreign = [("ce_id", "b"), ("ce_partitionkey", "p"), ("ce_subject", "s"), ("ce_traceparent", "t")];
    fleet.send_record("strict", Some(0), None, value, &foreign).await;
    let event = br#"{"specversion":"1.0","id":"c","source":"/s","type":"strict","subject":"s","dataschema":"u",
        "datacontenttype":"application/json","sequence":null,"retries":1,"data_base64":"eyJuIjogMX0="}"#;
    fleet
        .send_record("strict", Some(0), None, Some(&event[..]), &[("content-type", "application/cloudevents+json")])
        .await;
    let worker = fleet.worker();
    for id in ["a", "b", "c"] {
        assert_eq!(fleet.result_of(id).await.kind(), EventKind::Succeeded, "{id}");
    }
    worker.stop().await;
}

pub fn strict() -> Kind {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    Kind::echo("strict").schema(schema)
}

pub async fn malformed_records(fleet: Fleet) {
    let large = format!("{{\"n\": 1, \"pad\": \"{}\"}}", "x".repeat(2 << 20)).into_bytes();
    let records = records(&large);
    for (n, (_, value, headers, ..)) in records.iter().enumerate() {
        fleet.send_to("strict", 0, &format!("good-{n}"), "{\"n\": 1}").await;
        fleet.send_record("strict", Some(0), Some("own-key"), *value, headers).await;
    }
    let worker = fleet.worker();
    let letters = fleet.dead("strict", records.len()).await;
    for n in 0..records.len() {
        assert_eq!(fleet.result_of(&format!("good-{n}")).await.kind(), EventKind::Succeeded);
    }
    fleet.wait_committed("strict").await;

    assert_eq!(letters.len(), records.len());
    for (n, (name, value, headers, code, reason)) in records.iter().enumerate() {
        let from = (2 * n + 1).to_string();
        let at_offset = |letter: &&crate::worker::tail::Dead| {
            letter.record.headers.contains(&("kafleet_offset".into(), Some(from.clone().into_bytes())))
        };
        let letter = letters.iter().find(at_offset).unwrap_or_else(|| panic!("{name} has no dead letter"));
        assert_eq!(letter.code, *code, "{name}: {}", letter.error);
        assert!(letter.error.contains(reason), "{name}: {}", letter.error);
        assert_eq!(
            letter.record.value.as_deref().unwrap_or_default(),
            value.unwrap_or_default(),
            "the record of {name} is unchanged"
        );
        assert_eq!(letter.pointer.as_deref(), (*code == "schema").then_some("/n"), "{name}");
        let id = headers.iter().find(|(name, id)| *name == "ce_id" && id.starts_with("r-"));
        if let Some((_, id)) = id {
            let end = fleet.result_of(id).await;
            assert_eq!((end.kind(), &*end.payload.error().unwrap().kind), (EventKind::Failed, *code), "{name}");
            assert_eq!(&*end.task.unwrap().task_type, "strict", "{name}");
        }
    }
    worker.stop().await;
    fleet.assert_clean("strict").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_records_become_dead_letters_with_reasons() {
    malformed_records(memory(1, &[strict()]).await.0).await;
}

/// A handler may reject params that its schema allows.
#[tokio::test(flavor = "multi_thread")]
async fn params_refused_by_the_handler_become_dead_letters() {
    use kafleet::handlers::TypeRegistration;
    let kind =
        Kind { name: "foreach", registered: TypeRegistration::of::<kafleet::handlers::builtin::foreach::Foreach>() };
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("foreach", "a", "{\"count\": 1, \"pause\": \"soon\"}").await;
    fleet.send("foreach", "b", "{\"count\": 1, \"other\": 1}").await;
    fleet.send("foreach", "c", "{\"count\": 1}").await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("c").await.kind(), EventKind::Succeeded);
    let letters = fleet.dead("foreach", 2).await;
    worker.stop().await;
    assert!(letters.iter().all(|letter| letter.code == "schema"), "{letters:?}");
    assert!(letters.iter().any(|letter| letter.pointer.as_deref() == Some("/pause")), "{letters:?}");
    fleet.assert_clean("foreach").await;
}

/// The dead-letter topic has a lower size limit than the task topic: the dead letter references its record.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letter_that_is_too_large_references_its_record() {
    use kafleet::broker::{Broker, TopicSpec};
    let (fleet, broker) = memory(1, &[Kind::echo("echo")]).await;
    let config = vec![("max.message.bytes".to_owned(), "2000".to_owned())];
    let small = TopicSpec { name: fleet.names.dead("echo"), partitions: 1, replication: None, config };
    broker.apply_topics(&[small], crate::worker::fleet::DEADLINE).unwrap();
    let large = format!("not JSON {}", "x".repeat(3_000));
    let position = fleet.send_record("echo", None, Some("k"), Some(large.as_bytes()), &[("ce_id", "large")]).await;
    let headers = [("ce_id", "wide"), ("x", &*large)];
    fleet.send_record("echo", None, None, Some(b"not JSON"), &headers).await;
    let worker = fleet.worker();
    let dead = fleet.dead("echo", 2).await;
    assert_eq!(fleet.result_of("large").await.payload.error().unwrap().kind, "bad_json");
    fleet.result_of("wide").await;
    worker.stop().await;
    fleet.assert_clean("echo").await;
    let letter = dead.iter().find(|dead| dead.record.key.as_deref() == Some(b"large")).unwrap();
    let header = |name: &str| {
        let found = letter.record.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| String::from_utf8(value.clone().unwrap()).unwrap())
    };
    assert_eq!((&*letter.code, header("kafleet_reference").as_deref()), ("bad_json", Some("too_large")));
    let source = (header("kafleet_topic"), header("kafleet_partition"), header("kafleet_offset"));
    let expected = (fleet.names.tasks("echo"), position.partition.to_string(), position.offset.to_string());
    assert_eq!(source, (Some(expected.0), Some(expected.1), Some(expected.2)));
    assert!(letter.record.value.is_none() && dead[1].record.value.is_none());
}

/// A hundred invalid records whose dead letters cannot be written: nothing is lost, and the worker stops in time.
#[tokio::test(flavor = "multi_thread")]
async fn unwritable_dead_letters_do_not_delay_the_stop() {
    use kafleet::broker::memory::{MemoryBroker, MemoryBrokerOptions};
    // The limit fits tasks and events, but not the large records a second time.
    let options = MemoryBrokerOptions { log_bytes_per_partition: 150 << 10, ..MemoryBrokerOptions::default() };
    let (mut fleet, _): (Fleet, std::sync::Arc<MemoryBroker>) =
        crate::worker::fleet::memory_with(options, 2, &[Kind::echo("echo")]).await;
    fleet.config.drain_timeout = kafleet::model::units::duration::Millis(300);
    for n in 0..200 {
        let value = format!("not JSON {}", "x".repeat(1_000));
        fleet.send_record("echo", Some(n % 2), None, Some(value.as_bytes()), &[]).await;
    }
    fleet.send_to("echo", 0, "good", "1").await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("good").await.kind(), EventKind::Succeeded, "valid tasks run");
    let dead = fleet.dead("echo", 100).await.len();
    worker.stop().await;
    assert!(dead < 200);
    for committed in fleet.committed("echo").await {
        assert!(committed.unwrap().offset < 101, "a record without a dead letter is not complete");
    }
}
