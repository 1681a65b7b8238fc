//! Logs with a size limit: full, truncated, compacted.

use std::time::Duration;

use kafleet::broker::memory::MemoryBrokerOptions;
use kafleet::broker::{BrokerError, GroupEvent, Partition, ProducerRecord, StartOffset};

use super::{Case, Lab};
use crate::kit::{DEADLINE, keyed, value_record};

pub const CASES: &[Case] = &[
    ("full_log_rejects_records_and_keeps_existing_ones", full_log_rejects_records_and_keeps_existing_ones),
    ("full_compacted_log_frees_space", full_compacted_log_frees_space),
    ("old_records_are_removed_if_retention_is_enabled", old_records_are_removed_if_retention_is_enabled),
    ("truncation_makes_positions_out_of_range", truncation_makes_positions_out_of_range),
    ("compaction_leaves_gaps", compaction_leaves_gaps),
    ("compacted_topic_rejects_keyless_records", compacted_topic_rejects_keyless_records),
    ("keyless_records_rotate_over_partitions", keyless_records_rotate_over_partitions),
];

fn full_log_rejects_records_and_keeps_existing_ones() {
    let lab = Lab::with(MemoryBrokerOptions { log_bytes_per_partition: 10_000, ..MemoryBrokerOptions::default() });
    let topic = lab.kit.topic(2);
    let [full, free] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let value = "v".repeat(900);
    let mut held = 0;
    let refused = loop {
        match lab.kit.send(&value_record(&full, &value)) {
            Ok(_) => held += 1,
            Err(error) => break error,
        }
        assert!(held < 20, "the log does not become full");
    };
    assert!(matches!(refused, BrokerError::Full(_)) && refused.is_transient(), "{refused:?}");
    assert!(lab.kit.send(&value_record(&free, &value)).is_ok(), "each partition has its own limit");
    assert_eq!(lab.read_all(&full, false).len(), held);
    lab.memory.truncate_before(&full, 2).unwrap();
    assert_eq!(lab.kit.send(&value_record(&full, &value)), Ok((0, held as i64)), "records are accepted again");
}

fn full_compacted_log_frees_space() {
    let lab = Lab::with(MemoryBrokerOptions { log_bytes_per_partition: 10_000, ..MemoryBrokerOptions::default() });
    let topic = lab.kit.topic_with(1, &[("cleanup.policy", "compact,delete")]);
    for n in 0..500 {
        lab.kit.send(&keyed(&topic, &format!("key-{}", n % 3), &n.to_string())).unwrap();
    }
    let at = Partition::new(topic.as_str(), 0);
    assert_eq!(lab.kit.watermarks(&at), (0, 500));
    let left = lab.read_all(&at, false);
    assert!(left.len() < 100 && left.ends_with(&["497".into(), "498".into(), "499".into()]), "{left:?}");
    let mut refused = None;
    for n in 0..500 {
        refused = refused.or_else(|| lab.kit.send(&keyed(&topic, &format!("live-{n}"), "x")).err());
    }
    assert!(matches!(refused, Some(BrokerError::Full(_))), "live keys are never dropped: {refused:?}");
}

fn old_records_are_removed_if_retention_is_enabled() {
    for (applies_retention, config, first) in [
        (true, ("retention.ms", "60000"), 2),
        (true, ("retention.ms", "-1"), 0),
        (true, ("cleanup.policy", "compact"), 0),
        (false, ("retention.ms", "60000"), 0),
    ] {
        let lab = Lab::with(MemoryBrokerOptions { applies_retention, ..MemoryBrokerOptions::default() });
        let topic = lab.kit.topic_with(1, &[config]);
        let send = |value: &str| lab.kit.send(&keyed(&topic, value, value)).unwrap();
        send("0");
        send("1");
        lab.advance_ms(60_000);
        send("2");
        lab.advance_ms(1);
        send("3");
        let at = Partition::new(topic.as_str(), 0);
        assert_eq!(lab.kit.watermarks(&at), (first, 4), "{config:?}, applied: {applies_retention}");
        assert_eq!(lab.read_all(&at, false).len() as i64, 4 - first);
    }
}

fn truncation_makes_positions_out_of_range() {
    let lab = Lab::new();
    let at = lab.partition();
    lab.kit.fill(&at, ["0", "1", "2", "3"]);
    let mut reader = lab.kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.poll(1, Duration::ZERO);
    lab.memory.truncate_before(&at, 3).unwrap();
    assert_eq!(lab.kit.watermarks(&at), (3, 4));
    assert_eq!(lab.kit.broker.read_at(&at, 2, DEADLINE), Ok(None));
    reader.step();
    assert_eq!(
        (reader.events.as_slice(), reader.values()),
        (&[GroupEvent::OutOfRange(at.clone())][..], vec!["0".to_owned()])
    );
    reader.step();
    assert_eq!(reader.events.len(), 1, "the event is reported once");
    reader.consumer.assign(&[(at.clone(), StartOffset::Beginning)]).unwrap();
    assert_eq!(reader.read(2), ["0", "3"]);
    assert!(matches!(lab.memory.truncate_before(&at, 9), Err(BrokerError::Invalid(_))));
}

fn compaction_leaves_gaps() {
    let lab = Lab::new();
    let topic = lab.kit.topic_with(1, &[("cleanup.policy", "compact"), ("delete.retention.ms", "1000")]);
    let at = Partition::new(topic.as_str(), 0);
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")] {
        lab.kit.send(&keyed(&topic, key, value)).unwrap();
    }
    lab.kit
        .send(&ProducerRecord { topic: &topic, partition: None, key: Some(b"c"), value: None, headers: &[] })
        .unwrap();
    lab.memory.compact(&topic).unwrap();
    assert_eq!(lab.read_all(&at, false), ["2", "3", ""], "a fresh tombstone stays for readers that lag");
    assert_eq!(lab.kit.broker.read_at(&at, 0, DEADLINE), Ok(None));
    assert_eq!(lab.kit.broker.read_at(&at, 2, DEADLINE).unwrap().unwrap().value, Some(b"3".to_vec()));
    assert_eq!(lab.kit.watermarks(&at), (0, 5));
    let mut into_the_gap = lab.kit.reader(&[(at.clone(), StartOffset::At(0))]);
    assert_eq!(into_the_gap.read(3), ["2", "3", ""]);
    lab.advance_ms(1001);
    lab.memory.compact(&topic).unwrap();
    assert_eq!(lab.read_all(&at, false), ["2", "3"]);
    assert_eq!(lab.kit.watermarks(&at), (0, 5));
    assert!(matches!(lab.memory.compact(&lab.partition().topic), Err(BrokerError::Invalid(_))));
}

fn compacted_topic_rejects_keyless_records() {
    let lab = Lab::new();
    let at = Partition::new(lab.kit.topic_with(1, &[("cleanup.policy", "compact")]), 0);
    assert!(matches!(lab.kit.send(&value_record(&at, "x")), Err(BrokerError::Invalid(_))));
}

fn keyless_records_rotate_over_partitions() {
    let lab = Lab::new();
    let topic = lab.kit.topic(3);
    let record = ProducerRecord { topic: &topic, partition: None, key: None, value: Some(b"x"), headers: &[] };
    for _ in 0..9 {
        lab.kit.send(&record).unwrap();
    }
    assert!((0..3).all(|index| lab.kit.watermarks(&Partition::new(topic.as_str(), index)) == (0, 3)));
}
