//! Transactions: atomicity, one marker per partition involved, fencing by name.

use kafleet::broker::{BrokerError, ConsumerSpec, DependentRecord, Partition, StartOffset};

use crate::Case;
use crate::kit::{DEADLINE, Kit, eventually_blocking, value_record};

pub const CASES: &[Case] = &[
    ("transaction_writes_a_marker_per_partition", transaction_writes_a_marker_per_partition),
    ("consumers_skip_markers", consumers_skip_markers),
    ("positions_advance_past_markers", positions_advance_past_markers),
    ("invalid_record_aborts_the_transaction", invalid_record_aborts_the_transaction),
    ("reopening_a_name_fences_the_first_producer", reopening_a_name_fences_the_first_producer),
    ("names_are_independent", names_are_independent),
    ("dependents_are_built_from_earlier_offsets", dependents_are_built_from_earlier_offsets),
    ("failure_of_dependents_aborts_the_transaction", failure_of_dependents_aborts_the_transaction),
    ("empty_transaction_succeeds", empty_transaction_succeeds),
    ("first_visible_skips_markers_and_aborted_records", first_visible_skips_markers_and_aborted_records),
    ("listing_skips_markers_and_aborted_records", listing_skips_markers_and_aborted_records),
    ("first_visible_stops_at_open_transactions", first_visible_stops_at_open_transactions),
];

fn transaction_writes_a_marker_per_partition(kit: &Kit) {
    let topic = kit.topic(3);
    let [a, b, untouched] = [0, 1, 2].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    let offsets =
        producer.send_all(&[value_record(&a, "1"), value_record(&b, "2"), value_record(&a, "3")], DEADLINE).unwrap();
    assert_eq!(offsets, [(0, 0), (1, 0), (0, 1)]);
    // The markers may be written slightly after the commit is acknowledged.
    eventually_blocking("both partitions have a marker", || {
        (kit.watermarks(&a), kit.watermarks(&b)) == ((0, 3), (0, 2))
    });
    assert_eq!(kit.watermarks(&untouched), (0, 0));
    eventually_blocking("the marker is not delivered", || kit.broker.read_at(&a, 2, DEADLINE) == Ok(None));
    assert_eq!(kit.broker.read_at(&a, 1, DEADLINE).unwrap().unwrap().value, Some(b"3".to_vec()));
    assert_eq!(producer.send_all(&[value_record(&a, "4")], DEADLINE).unwrap(), [(0, 3)]);
    eventually_blocking("the second transaction has a marker", || kit.watermarks(&a) == (0, 5));
}

fn consumers_skip_markers(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut producer = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    producer.send_all(&[value_record(&at, "0")], DEADLINE).unwrap();
    // The marker may be written after the acknowledgement, and dependent records follow records of other producers.
    eventually_blocking("the marker is written", || kit.watermarks(&at) == (0, 2));
    kit.fill(&at, ["1"]);
    producer.send_all(&[value_record(&at, "2"), value_record(&at, "3")], DEADLINE).unwrap();
    for read_uncommitted in [false, true] {
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut reader = kit.reader_with(&spec, &[(at.clone(), StartOffset::Beginning)]);
        assert_eq!(reader.read(4), ["0", "1", "2", "3"]);
        assert_eq!(reader.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [0, 2, 3, 4]);
        let mut from_the_marker = kit.reader_with(&spec, &[(at.clone(), StartOffset::At(1))]);
        assert_eq!(from_the_marker.read(3), ["1", "2", "3"]);
    }
}

/// Checks the position at a marker at the end of the log, and after a seek.
fn positions_advance_past_markers(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut producer = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    producer.send_all(&[value_record(&at, "0"), value_record(&at, "1")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    let position = |reader: &mut crate::kit::Reader| {
        reader.step();
        reader.consumer.positions().unwrap()
    };
    eventually_blocking("the position is past the marker", || position(&mut reader) == [(at.clone(), 3)]);
    assert_eq!(reader.read(2), ["0", "1"]);
    reader.consumer.assign(&[(at.clone(), StartOffset::At(1))]).unwrap();
    let moved = reader.consumer.positions().unwrap();
    assert!(moved.iter().all(|(_, offset)| *offset == 1), "{moved:?}");
    eventually_blocking("the end of the partition is reported again", || position(&mut reader) == [(at.clone(), 3)]);
    assert_eq!(reader.read(3), ["0", "1", "1"]);
    producer.send_all(&[value_record(&at, "2")], DEADLINE).unwrap();
    eventually_blocking("the position is past the next marker", || position(&mut reader) == [(at.clone(), 5)]);
}

fn invalid_record_aborts_the_transaction(kit: &Kit) {
    let topic = kit.topic_with(1, &[("max.message.bytes", "2000")]);
    let at = Partition::new(topic.as_str(), 0);
    let nowhere = Partition::new(topic.as_str(), 9);
    let name = kit.name("x");
    let mut producer = kit.broker.transactional_producer(&name).unwrap();
    let result = producer.send_all(&[value_record(&at, "a"), value_record(&nowhere, "b")], DEADLINE);
    assert!(matches!(result, Err(BrokerError::Unknown(_))), "{result:?}");
    let mut producer = kit.broker.transactional_producer(&name).unwrap();
    producer.send_all(&[value_record(&at, "whole")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(1);
    assert_eq!(reader.read_during_grace(), ["whole"]);
}

fn reopening_a_name_fences_the_first_producer(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let name = kit.name("x");
    let mut first = kit.broker.transactional_producer(&name).unwrap();
    first.send_all(&[value_record(&at, "first")], DEADLINE).unwrap();
    let mut second = kit.broker.transactional_producer(&name).unwrap();
    let fenced = first.send_all(&[value_record(&at, "zombie")], DEADLINE);
    assert!(matches!(fenced, Err(BrokerError::Fenced(_))), "{fenced:?}");
    second.send_all(&[value_record(&at, "second")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(2);
    assert_eq!(reader.read_during_grace(), ["first", "second"]);
}

fn names_are_independent(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut one = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    let mut other = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    one.send_all(&[value_record(&at, "1")], DEADLINE).unwrap();
    other.send_all(&[value_record(&at, "2")], DEADLINE).unwrap();
    one.send_all(&[value_record(&at, "3")], DEADLINE).unwrap();
    assert_eq!(kit.reader(&[(at, StartOffset::Beginning)]).read(3), ["1", "2", "3"]);
}

fn dependent(at: &Partition, value: String) -> DependentRecord {
    DependentRecord { topic: at.topic.clone(), partition: at.index, key: b"k".to_vec(), value: value.into_bytes() }
}

fn dependents_are_built_from_earlier_offsets(kit: &Kit) {
    let topic = kit.topic(2);
    let [tasks, events] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    let mut make_dependents =
        |offsets: &[(i32, i64)]| Ok(offsets.iter().map(|offset| dependent(&events, format!("{offset:?}"))).collect());
    let offsets = producer
        .send_with_dependents(&[value_record(&tasks, "a"), value_record(&tasks, "b")], &mut make_dependents, DEADLINE)
        .unwrap();
    assert_eq!(offsets, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(kit.reader(&[(events.clone(), StartOffset::Beginning)]).read(2), ["(0, 0)", "(0, 1)"]);
    let alone =
        producer.send_with_dependents(&[], &mut |_| Ok(vec![dependent(&events, "alone".into())]), DEADLINE).unwrap();
    assert_eq!(alone, [(1, 3)], "after the marker");
}

fn failure_of_dependents_aborts_the_transaction(kit: &Kit) {
    let topic = kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let nowhere = Partition::new(topic.as_str(), 9);
    let name = kit.name("x");
    let mut producer = kit.broker.transactional_producer(&name).unwrap();
    let mut make_dependents = |offsets: &[(i32, i64)]| {
        assert_eq!(offsets, [(0, 0)], "the dependent record is written");
        Ok(vec![dependent(&nowhere, "b".into())])
    };
    let result = producer.send_with_dependents(&[value_record(&at, "a")], &mut make_dependents, DEADLINE);
    assert!(matches!(result, Err(BrokerError::Unknown(_))), "{result:?}");
    let mut producer = kit.broker.transactional_producer(&name).unwrap();
    let mut fail = |_: &[(i32, i64)]| Err(BrokerError::Invalid("not encoded".to_owned()));
    let result = producer.send_with_dependents(&[value_record(&at, "c")], &mut fail, DEADLINE);
    assert!(matches!(result, Err(BrokerError::Invalid(_))), "{result:?}");
    let mut producer = kit.broker.transactional_producer(&name).unwrap();
    producer.send_all(&[value_record(&at, "whole")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(1);
    assert_eq!(reader.read_during_grace(), ["whole"], "the aborted record is invisible");
}

fn empty_transaction_succeeds(kit: &Kit) {
    let mut producer = kit.broker.transactional_producer(&kit.name("x")).unwrap();
    assert_eq!(producer.send_all(&[], DEADLINE), Ok(vec![]));
}

/// Aborts a transaction with one record.
fn abort_transaction(kit: &Kit, at: &Partition) {
    let nowhere = Partition::new(at.topic.clone(), 9);
    let mut make_dependents = |_: &[(i32, i64)]| Ok(vec![dependent(&nowhere, "b".into())]);
    let result = kit.broker.transactional_producer(&kit.name("x")).unwrap().send_with_dependents(
        &[value_record(at, "never")],
        &mut make_dependents,
        DEADLINE,
    );
    assert!(matches!(result, Err(BrokerError::Unknown(_))), "{result:?}");
}

fn listing_skips_markers_and_aborted_records(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, ["0"]);
    kit.broker.transactional_producer(&kit.name("x")).unwrap().send_all(&[value_record(&at, "1")], DEADLINE).unwrap();
    eventually_blocking("the abort marker is written", || kit.first_visible(&at, 2) == (3, None));
    abort_transaction(kit, &at);
    eventually_blocking("the commit marker is written", || kit.first_visible(&at, 3) == (5, None));
    let listed = |from, to, most| {
        let listed = kit.broker.list_records(&at, from..to, most, DEADLINE).unwrap();
        (listed.offsets, listed.to)
    };
    assert_eq!(listed(0, 5, 100), (vec![0, 1], 5));
    assert_eq!(listed(2, 5, 100), (vec![], 5), "only markers");
    assert_eq!(listed(0, 9, 100), (vec![0, 1], 5), "later records are undecided");
    kit.fill(&at, ["5", "6"]);
    assert_eq!(listed(1, 6, 100), (vec![1, 5], 6));
    assert_eq!(listed(0, 7, 3), (vec![0, 1, 5], 6), "no more records than requested");
    assert_eq!(listed(4, 4, 100), (vec![], 4));
}

fn first_visible_skips_markers_and_aborted_records(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, ["0"]);
    kit.broker.transactional_producer(&kit.name("x")).unwrap().send_all(&[value_record(&at, "1")], DEADLINE).unwrap();
    eventually_blocking("the marker is written", || kit.first_visible(&at, 2) == (3, None));
    assert_eq!([0, 1].map(|offset| kit.first_visible(&at, offset)), [(0, Some("0".into())), (1, Some("1".into()))]);
    abort_transaction(kit, &at);
    abort_transaction(kit, &at);
    eventually_blocking("the markers are written", || kit.first_visible(&at, 3) == (7, None));
    for offset in 2..8 {
        assert_eq!(kit.first_visible(&at, offset), (7, None), "{offset}");
        assert_eq!(kit.broker.read_at(&at, offset, DEADLINE), Ok(None), "{offset}");
    }
    kit.fill(&at, ["7"]);
    for offset in 2..8 {
        assert_eq!(kit.first_visible(&at, offset), (7, Some("7".into())), "{offset}");
    }
    assert_eq!(kit.broker.read_at(&at, 5, DEADLINE), Ok(None), "aborted records stay invisible");
    assert_eq!(kit.first_visible(&at, 8), (8, None));
}

/// Checks that records of an open transaction are undecided.
fn first_visible_stops_at_open_transactions(kit: &Kit) {
    // Kafka aborts an open transaction after some seconds, so the case is repeated if the machine stalls.
    let seen = (0..5).find_map(|_| {
        let at = Partition::new(kit.topic(1), 0);
        kit.fill(&at, ["before"]);
        let (mut probes, mut stable) = (Vec::new(), Vec::new());
        let mut meanwhile = |_: &[(i32, i64)]| {
            kit.fill(&at, ["after"]);
            probes = (0..5)
                .map(|offset| (kit.first_visible(&at, offset), kit.broker.read_at(&at, offset, DEADLINE)))
                .collect();
            stable = kit.broker.stable_offsets(std::slice::from_ref(&at), DEADLINE)?;
            Ok(Vec::new())
        };
        let sent = kit.broker.transactional_producer(&kit.name("x")).unwrap().send_with_dependents(
            &[value_record(&at, "open")],
            &mut meanwhile,
            DEADLINE,
        );
        sent.is_ok().then_some((at, probes, stable))
    });
    let (at, probes, stable) = seen.expect("the committed record is visible");
    assert_eq!(stable, [Some(1)], "the transaction holds back its partition");
    assert_eq!(probes[0].0, (0, Some("before".into())));
    assert!(probes[1..].iter().all(|(first_visible, _)| *first_visible == (1, None)), "{probes:?}");
    for (_, read) in &probes[1..3] {
        assert!(matches!(read, Err(BrokerError::Unavailable(_))), "{read:?}");
    }
    assert_eq!(probes[4].1, Ok(None), "no record is visible yet");
    eventually_blocking("the transaction is committed", || kit.first_visible(&at, 1) == (1, Some("open".into())));
    assert_eq!(kit.first_visible(&at, 2), (2, Some("after".into())));
    eventually_blocking("the position is past the marker", || kit.first_visible(&at, 3) == (4, None));
    assert_eq!(kit.broker.stable_offsets(&[at], DEADLINE), Ok(vec![Some(4)]));
}
