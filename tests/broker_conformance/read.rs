//! Reading without a group: start offsets, seeks, pauses, waits, single records.

use std::time::{Duration, Instant};

use kafleet::broker::{BrokerError, ConsumerSpec, GroupEvent, Partition, StartOffset};

use crate::Case;
use crate::kit::{DEADLINE, GRACE, Kit, Reader, commit, eventually_blocking, value_record};

pub const CASES: &[Case] = &[
    ("reading_starts_at_the_given_offset", reading_starts_at_the_given_offset),
    ("reading_from_the_end_returns_only_new_records", reading_from_the_end_returns_only_new_records),
    ("assigned_partition_seeks_to_a_new_start", assigned_partition_seeks_to_a_new_start),
    ("start_outside_the_log_reports_out_of_range", start_outside_the_log_reports_out_of_range),
    ("paused_partition_delivers_no_records", paused_partition_delivers_no_records),
    ("released_partition_delivers_no_records", released_partition_delivers_no_records),
    ("poll_returns_at_most_max_records", poll_returns_at_most_max_records),
    ("poll_returns_after_its_timeout", poll_returns_after_its_timeout),
    ("poll_returns_when_a_record_arrives", poll_returns_when_a_record_arrives),
    ("busy_partition_does_not_starve_the_others", busy_partition_does_not_starve_the_others),
    ("read_at_returns_the_record_at_the_offset", read_at_returns_the_record_at_the_offset),
    ("commit_without_a_group_is_rejected", commit_without_a_group_is_rejected),
    ("ends_of_many_partitions_are_listed", ends_of_many_partitions_are_listed),
];

fn filled(kit: &Kit, count: usize) -> Partition {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, (0..count).map(|n| n.to_string()));
    at
}

fn reading_starts_at_the_given_offset(kit: &Kit) {
    let at = filled(kit, 5);
    assert_eq!(kit.reader(&[(at.clone(), StartOffset::Beginning)]).read(5), ["0", "1", "2", "3", "4"]);
    assert_eq!(kit.reader(&[(at.clone(), StartOffset::At(3))]).read(2), ["3", "4"]);
    let mut at_the_end = kit.reader(&[(at.clone(), StartOffset::At(5))]);
    assert!(at_the_end.read_during_grace().is_empty());
    kit.fill(&at, ["5"]);
    assert_eq!(at_the_end.read(1), ["5"]);
    assert_eq!(at_the_end.events, [], "reaching the end is not an error");
}

fn reading_from_the_end_returns_only_new_records(kit: &Kit) {
    let at = filled(kit, 5);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::End)]);
    eventually_blocking("a new record is read", || {
        kit.fill(&at, ["new"]);
        reader.step();
        !reader.records.is_empty()
    });
    assert!(reader.values().iter().all(|value| value == "new"));
}

fn assigned_partition_seeks_to_a_new_start(kit: &Kit) {
    let at = filled(kit, 4);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.read(4);
    reader.records.clear();
    reader.consumer.assign(&[(at.clone(), StartOffset::At(2))]).unwrap();
    assert_eq!(reader.read(2), ["2", "3"]);
    reader.records.clear();
    reader.consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
    reader.read(4);
    assert_eq!(reader.read_during_grace(), ["0", "1", "2", "3"]);
}

fn start_outside_the_log_reports_out_of_range(kit: &Kit) {
    let (at, other) = (filled(kit, 3), filled(kit, 3));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::At(1000)), (other, StartOffset::Beginning)]);
    eventually_blocking("the event arrives", || {
        reader.step();
        reader.events.contains(&GroupEvent::OutOfRange(at.clone()))
    });
    // A position would say that the records before it have been delivered.
    let positions = reader.consumer.positions().unwrap();
    assert!(positions.iter().all(|(partition, _)| *partition != at), "{positions:?}");
    assert_eq!(reader.read(3), ["0", "1", "2"], "the other partition is unaffected");
    reader.records.clear();
    reader.consumer.assign(&[(at, StartOffset::At(1))]).unwrap();
    assert_eq!(reader.read(2), ["1", "2"]);
}

fn paused_partition_delivers_no_records(kit: &Kit) {
    let (at, other) = (filled(kit, 1), filled(kit, 1));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning), (other.clone(), StartOffset::Beginning)]);
    reader.read(2);
    reader.records.clear();
    reader.consumer.pause(std::slice::from_ref(&at), true).unwrap();
    kit.fill(&at, ["paused"]);
    kit.fill(&other, ["read"]);
    reader.read(1);
    assert_eq!(reader.read_during_grace(), ["read"]);
    reader.consumer.pause(&[at], false).unwrap();
    assert_eq!(reader.read(2), ["read", "paused"]);
}

fn released_partition_delivers_no_records(kit: &Kit) {
    let (at, other) = (filled(kit, 1), filled(kit, 1));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning), (other.clone(), StartOffset::Beginning)]);
    reader.read(2);
    reader.records.clear();
    reader.consumer.release(std::slice::from_ref(&at)).unwrap();
    kit.fill(&at, ["released"]);
    kit.fill(&other, ["read"]);
    reader.read(1);
    assert_eq!(reader.read_during_grace(), ["read"]);
}

fn poll_returns_at_most_max_records(kit: &Kit) {
    let at = filled(kit, 100);
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    eventually_blocking("all records", || {
        let before = reader.records.len();
        reader.poll(7, Duration::from_millis(100));
        assert!(reader.records.len() - before <= 7);
        reader.records.len() == 100
    });
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(reader.values(), expected);
}

fn poll_returns_after_its_timeout(kit: &Kit) {
    let at = filled(kit, 0);
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    let took = |reader: &mut Reader, wait| {
        let begin = Instant::now();
        reader.poll(10, wait);
        begin.elapsed()
    };
    let waited = took(&mut reader, GRACE);
    assert!(reader.records.is_empty());
    assert!(waited >= GRACE - Duration::from_millis(50) && waited < DEADLINE / 2, "{waited:?}");
    // A single slow poll may be caused by a busy machine; one fast poll is enough.
    eventually_blocking("a poll without a wait returns at once", || took(&mut reader, Duration::ZERO) < GRACE / 5);
}

fn poll_returns_when_a_record_arrives(kit: &Kit) {
    let at = filled(kit, 0);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.read_during_grace();
    std::thread::scope(|scope| {
        let begin = Instant::now();
        scope.spawn(|| kit.send(&value_record(&at, "x")).unwrap());
        reader.poll(10, DEADLINE);
        assert_eq!(reader.values(), ["x"]);
        assert!(begin.elapsed() < DEADLINE / 2, "poll slept through a record");
    });
}

fn busy_partition_does_not_starve_the_others(kit: &Kit) {
    let (busy, quiet) = (filled(kit, 3000), filled(kit, 1));
    let mut reader = kit.reader(&[(busy, StartOffset::Beginning), (quiet.clone(), StartOffset::Beginning)]);
    eventually_blocking("everything is read", || {
        reader.poll(10, Duration::from_millis(100));
        reader.records.len() == 3001
    });
    assert!(reader.records.iter().any(|record| record.topic == quiet.topic));
}

fn read_at_returns_the_record_at_the_offset(kit: &Kit) {
    let at = filled(kit, 3);
    let read = |offset| kit.broker.read_at(&at, offset, DEADLINE).unwrap().map(|record| (record.offset, record.value));
    assert_eq!(read(0), Some((0, Some(b"0".to_vec()))));
    assert_eq!(read(2), Some((2, Some(b"2".to_vec()))));
    assert_eq!(read(3), None, "not written yet");
    assert_eq!(read(1000), None, "beyond the end");
    assert_eq!(read(-1), None, "below the start");
    assert_eq!([-1, 1, 3, 1000].map(|offset| kit.first_visible(&at, offset).0), [0, 1, 3, 3]);
    assert_eq!(kit.first_visible(&Partition::new(kit.topic(1), 0), 0), (0, None), "empty log");
    assert_eq!(kit.watermarks(&at), (0, 3));
}

fn commit_without_a_group_is_rejected(kit: &Kit) {
    let at = filled(kit, 1);
    let mut consumer = kit.broker.consumer(&ConsumerSpec::default()).unwrap();
    consumer.assign(&[(at.clone(), StartOffset::Beginning)]).unwrap();
    let result = consumer.commit_sync(&[commit(&at, 1, "")]);
    assert!(matches!(result, Err(BrokerError::Invalid(_))), "{result:?}");
}

fn ends_of_many_partitions_are_listed(kit: &Kit) {
    let partitions: Vec<Partition> = [kit.topic(2), kit.topic(3)]
        .iter()
        .zip([2, 3])
        .flat_map(|(topic, count)| (0..count).map(|index| Partition::new(topic.as_str(), index)).collect::<Vec<_>>())
        .collect();
    for (at, count) in partitions.iter().zip(0..) {
        kit.fill(at, (0..count).map(|n: i32| n.to_string()));
    }
    let missing = Partition::new(kit.name("missing"), 0);
    let requested: Vec<Partition> = partitions.iter().rev().chain([&missing]).cloned().collect();
    let ends = kit.broker.end_offsets(&requested, DEADLINE).unwrap();
    assert_eq!(ends, [Some(4), Some(3), Some(2), Some(1), Some(0), None]);
    assert_eq!(kit.broker.end_offsets(&[], DEADLINE), Ok(vec![]));
    let starts = kit.broker.start_offsets(&requested, DEADLINE).unwrap();
    assert_eq!(starts, [Some(0), Some(0), Some(0), Some(0), Some(0), None]);
}
