//! Sending: partitions, keys, headers, timestamps, sizes, outcomes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kafleet::broker::{BrokerError, Partition, ProducerRecord, StartOffset};
use kafleet::model::task::partition::partition_of;

use crate::Case;
use crate::kit::{DEADLINE, Kit, Reader, keyed, plain, text, until};

pub const CASES: &[Case] = &[
    ("keys_go_where_java_clients_put_them", keys_go_where_java_clients_put_them),
    ("records_without_a_key_spread", records_without_a_key_spread),
    ("every_byte_arrives", every_byte_arrives),
    ("the_broker_stamps_records_on_append", the_broker_stamps_records_on_append),
    ("the_producer_stamps_records_where_configured", the_producer_stamps_records_where_configured),
    ("too_large_is_refused", too_large_is_refused),
    ("each_record_has_one_outcome", each_record_has_one_outcome),
    ("a_partition_keeps_the_order", a_partition_keeps_the_order),
    ("purged_or_sent_but_never_neither", purged_or_sent_but_never_neither),
    ("flush_without_records_returns", flush_without_records_returns),
];

fn keys_go_where_java_clients_put_them(kit: &Kit) {
    let topic = kit.topic(7);
    for key in ["21", "foobar", "order-42", "a-little-bit-long-string", "é", "0"] {
        let (partition, _) = kit.send(&keyed(&topic, key, "x")).unwrap();
        assert_eq!(partition as u32, partition_of(key.as_bytes(), 7), "{key}");
    }
}

fn records_without_a_key_spread(kit: &Kit) {
    let topic = kit.topic(4);
    let mut seen = BTreeSet::new();
    until("more than one partition is used", || {
        let record = ProducerRecord { topic: &topic, partition: None, key: None, value: Some(b"x"), headers: &[] };
        seen.insert(kit.send(&record).unwrap().0);
        seen.len() > 1
    });
}

fn every_byte_arrives(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let binary: Vec<u8> = (0..=255).collect();
    let headers: [(&str, &[u8]); 4] = [("a", b"1"), ("b", b""), ("a", b"2"), ("bytes", &binary)];
    let record = |key, value, headers| ProducerRecord { topic: &at.topic, partition: Some(0), key, value, headers };
    let sent = [
        record(Some(binary.as_slice()), Some(binary.as_slice()), headers.as_slice()),
        record(None, None, &[]),
        record(Some(b"k"), None, &[]),
        record(None, Some(b""), &headers[..1]),
    ];
    for (offset, record) in sent.iter().enumerate() {
        assert_eq!(kit.send(record), Ok((0, offset as i64)));
    }
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.read(4);
    for (offset, (record, sent)) in reader.records.iter().zip(sent).enumerate() {
        assert_eq!((record.offset, &*record.topic, record.partition), (offset as i64, &*at.topic, 0));
        assert_eq!((record.key.as_deref(), record.value.as_deref()), (sent.key, sent.value));
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap())).collect();
        assert_eq!(headers, sent.headers);
        assert_eq!(kit.broker.read_at(&at, offset as i64, DEADLINE).unwrap().as_ref(), Some(record));
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Sends one record, reads it, and returns whether the broker stamped it; the time must be between both ends.
fn stamped_by_the_broker(kit: &Kit, timestamp_type: &str) -> bool {
    let at = Partition::new(kit.topic_with(1, &[("message.timestamp.type", timestamp_type)]), 0);
    let before_ms = now_ms();
    kit.fill(&at, ["x"]);
    let after_ms = now_ms();
    let Reader { mut consumer, .. } = kit.reader(&[(at, StartOffset::Beginning)]);
    let mut seen = None;
    until("a record", || {
        let events = consumer
            .poll(1, Duration::from_millis(100), &mut |record| seen = Some((record.timestamp_ms, record.log_append_time)));
        assert_eq!(events, Ok(vec![]));
        seen.is_some()
    });
    let (timestamp_ms, by_broker) = seen.unwrap();
    assert!((before_ms - 1..=after_ms + 1).contains(&timestamp_ms), "{before_ms} {timestamp_ms} {after_ms}");
    by_broker
}

fn the_broker_stamps_records_on_append(kit: &Kit) {
    assert!(stamped_by_the_broker(kit, "LogAppendTime"));
}

fn the_producer_stamps_records_where_configured(kit: &Kit) {
    assert!(!stamped_by_the_broker(kit, "CreateTime"));
}

fn too_large_is_refused(kit: &Kit) {
    let at = Partition::new(kit.topic_with(1, &[("max.message.bytes", "2000")]), 0);
    // Letters that no compression makes small.
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'!' + (state >> 24) as u8 % 90)
    });
    let noise = noise.take(20_000).collect::<String>();
    let refused = kit.send(&plain(&at, &noise));
    assert!(matches!(refused, Err(BrokerError::TooLarge(_))), "{refused:?}");
    assert!(!refused.unwrap_err().is_transient());
    assert_eq!(kit.send(&plain(&at, &noise[..1000])), Ok((0, 0)), "the partition goes on");
}

fn each_record_has_one_outcome(kit: &Kit) {
    let topic = kit.topic(3);
    let (producer, outcomes) = kit.producer();
    for token in 0..5000 {
        producer.send(&keyed(&topic, &token.to_string(), "x"), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
    let all = outcomes.all();
    assert_eq!(all.iter().map(|(token, _)| *token).collect::<Vec<_>>(), (0..5000).collect::<Vec<_>>());
    let places: BTreeSet<_> = all.into_iter().map(|(_, outcome)| outcome.unwrap()).collect();
    assert_eq!(places.len(), 5000, "no place is told twice");
    let held: i64 = (0..3).map(|index| kit.ends(&Partition::new(topic.as_str(), index)).1).sum();
    assert_eq!(held, 5000);
}

fn a_partition_keeps_the_order(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let values: Vec<String> = (0..2000).map(|n| n.to_string()).collect();
    kit.fill(&at, &values);
    assert_eq!(kit.reader(&[(at, StartOffset::Beginning)]).read(2000), values);
}

fn purged_or_sent_but_never_neither(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let (producer, outcomes) = kit.producer();
    for token in 0..20_000 {
        producer.send(&plain(&at, &token.to_string()), token).unwrap();
    }
    producer.purge();
    producer.flush(DEADLINE).unwrap();
    let all = outcomes.all();
    assert_eq!(all.len(), 20_000);
    let sent = all.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    assert!(all.iter().all(|(_, outcome)| matches!(outcome, Ok(_) | Err(BrokerError::Purged))));
    if let Some((token, _)) = all.iter().find(|(_, outcome)| outcome.is_err()) {
        assert_eq!(text(&outcomes.record_of(*token).unwrap()), token.to_string(), "the record comes along");
    }
    assert!(kit.ends(&at).1 >= sent as i64);
    kit.fill(&at, ["after the purge"]);
}

fn flush_without_records_returns(kit: &Kit) {
    let (producer, outcomes) = kit.producer();
    assert_eq!(producer.flush(DEADLINE), Ok(()));
    assert!(outcomes.all().is_empty());
}
