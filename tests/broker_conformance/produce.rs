//! Producing: partitions, keys, headers, timestamps, sizes and outcomes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kafleet::broker::{BrokerError, Partition, ProducerRecord, StartOffset};
use kafleet::model::task::partition::partition_of;

use crate::Case;
use crate::kit::{DEADLINE, Kit, Reader, eventually_blocking, keyed, text, value_record};

pub const CASES: &[Case] = &[
    ("keys_map_to_the_partitions_of_java_clients", keys_map_to_the_partitions_of_java_clients),
    ("keyless_records_spread_over_partitions", keyless_records_spread_over_partitions),
    ("records_arrive_unchanged", records_arrive_unchanged),
    ("broker_sets_timestamp_on_append", broker_sets_timestamp_on_append),
    ("producer_sets_timestamp_if_configured", producer_sets_timestamp_if_configured),
    ("oversized_record_is_rejected", oversized_record_is_rejected),
    ("record_has_exactly_one_outcome", record_has_exactly_one_outcome),
    ("partition_preserves_order", partition_preserves_order),
    ("purged_record_is_sent_or_reported", purged_record_is_sent_or_reported),
    ("flush_without_records_succeeds", flush_without_records_succeeds),
];

fn keys_map_to_the_partitions_of_java_clients(kit: &Kit) {
    let topic = kit.topic(7);
    for key in ["21", "foobar", "order-42", "a-little-bit-long-string", "é", "0"] {
        let (partition, _) = kit.send(&keyed(&topic, key, "x")).unwrap();
        assert_eq!(partition as u32, partition_of(key.as_bytes(), 7), "{key}");
    }
}

fn keyless_records_spread_over_partitions(kit: &Kit) {
    let topic = kit.topic(4);
    let mut seen = BTreeSet::new();
    eventually_blocking("more than one partition is used", || {
        let record = ProducerRecord { topic: &topic, partition: None, key: None, value: Some(b"x"), headers: &[] };
        seen.insert(kit.send(&record).unwrap().0);
        seen.len() > 1
    });
}

fn records_arrive_unchanged(kit: &Kit) {
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
        let headers: Vec<_> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap())).collect();
        assert_eq!(headers, sent.headers);
        assert_eq!(kit.broker.read_at(&at, offset as i64, DEADLINE).unwrap().as_ref(), Some(record));
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Produces and reads one record, checks its timestamp, and returns whether the broker set it.
fn is_timestamp_set_by_broker(kit: &Kit, timestamp_type: &str) -> bool {
    let at = Partition::new(kit.topic_with(1, &[("message.timestamp.type", timestamp_type)]), 0);
    let before_ms = now_ms();
    let (producer, outcomes) = kit.producer();
    let (partition, value) = (Some(at.index), Some(&b"x"[..]));
    producer.send(&ProducerRecord { topic: &at.topic, partition, key: None, value, headers: &[] }, 1).unwrap();
    producer.flush(DEADLINE).unwrap();
    let after_ms = now_ms();
    let Reader { mut consumer, .. } = kit.reader(&[(at, StartOffset::Beginning)]);
    let mut seen = None;
    eventually_blocking("a record", || {
        let events = consumer.poll(1, Duration::from_millis(100), &mut |record| {
            seen = Some((record.timestamp_ms, record.log_append_time));
        });
        assert_eq!(events, Ok(vec![]));
        seen.is_some()
    });
    let (timestamp_ms, by_broker) = seen.unwrap();
    assert!((before_ms - 1..=after_ms + 1).contains(&timestamp_ms), "{before_ms} {timestamp_ms} {after_ms}");
    assert_eq!(outcomes.append_ms(1), by_broker.then_some(timestamp_ms), "the acknowledgement has it too");
    by_broker
}

fn broker_sets_timestamp_on_append(kit: &Kit) {
    assert!(is_timestamp_set_by_broker(kit, "LogAppendTime"));
}

fn producer_sets_timestamp_if_configured(kit: &Kit) {
    assert!(!is_timestamp_set_by_broker(kit, "CreateTime"));
}

fn oversized_record_is_rejected(kit: &Kit) {
    let at = Partition::new(kit.topic_with(1, &[("max.message.bytes", "2000")]), 0);
    // Incompressible text.
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'!' + (state >> 24) as u8 % 90)
    });
    let noise = noise.take(20_000).collect::<String>();
    let result = kit.send(&value_record(&at, &noise));
    assert!(matches!(result, Err(BrokerError::TooLarge(_))), "{result:?}");
    assert!(!result.unwrap_err().is_transient());
    assert_eq!(kit.send(&value_record(&at, &noise[..1000])), Ok((0, 0)), "the partition still accepts records");
}

fn record_has_exactly_one_outcome(kit: &Kit) {
    let topic = kit.topic(3);
    let (producer, outcomes) = kit.producer();
    for token in 0..5000 {
        producer.send(&keyed(&topic, &token.to_string(), "x"), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
    let all = outcomes.all();
    assert_eq!(all.iter().map(|(token, _)| *token).collect::<Vec<_>>(), (0..5000).collect::<Vec<_>>());
    let offsets: BTreeSet<_> = all.into_iter().map(|(_, outcome)| outcome.unwrap()).collect();
    assert_eq!(offsets.len(), 5000, "offsets are unique");
    let held: i64 = (0..3).map(|index| kit.watermarks(&Partition::new(topic.as_str(), index)).1).sum();
    assert_eq!(held, 5000);
}

fn partition_preserves_order(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let values: Vec<String> = (0..2000).map(|n| n.to_string()).collect();
    kit.fill(&at, &values);
    assert_eq!(kit.reader(&[(at, StartOffset::Beginning)]).read(2000), values);
}

fn purged_record_is_sent_or_reported(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let (producer, outcomes) = kit.producer();
    for token in 0..20_000 {
        producer.send(&value_record(&at, &token.to_string()), token).unwrap();
    }
    producer.purge();
    producer.flush(DEADLINE).unwrap();
    let all = outcomes.all();
    assert_eq!(all.len(), 20_000);
    let sent = all.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    assert!(all.iter().all(|(_, outcome)| matches!(outcome, Ok(_) | Err(BrokerError::Purged))));
    if let Some((token, _)) = all.iter().find(|(_, outcome)| outcome.is_err()) {
        assert_eq!(text(&outcomes.record_of(*token).unwrap()), token.to_string(), "the failure includes the record");
    }
    assert!(kit.watermarks(&at).1 >= sent as i64);
    kit.fill(&at, ["after the purge"]);
}

fn flush_without_records_succeeds(kit: &Kit) {
    let (producer, outcomes) = kit.producer();
    assert_eq!(producer.flush(DEADLINE), Ok(()));
    assert!(outcomes.all().is_empty());
}
