//! Invalid records: each becomes a dead letter with a reason, and the tasks around them run.

use kafleet::model::event::Kind as EventKind;
use serde_json::json;

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::Kind;

type Headers = &'static [(&'static str, &'static str)];
/// Name, value, headers, dead-letter code, and a part of the error message.
type Malformed<'a> = (&'static str, Option<&'a [u8]>, Headers, &'static str, &'static str);

fn records(large: &[u8]) -> Vec<Malformed<'_>> {
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
    use kafleet::handlers::Registered;
    let kind = Kind { name: "foreach", registered: Registered::of::<kafleet::handlers::builtin::foreach::Foreach>() };
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
        let found = letter.record.headers.iter().find(|(own, _)| own == name);
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
