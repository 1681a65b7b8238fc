//! Reading without a group: starts, moves, pauses, waits, single records.

use std::time::{Duration, Instant};

use kafleet::broker::{BrokerError, ConsumerSpec, GroupEvent, Partition, StartOffset};

use crate::Case;
use crate::kit::{DEADLINE, GRACE, Kit, Reader, commit, plain, until};

pub const CASES: &[Case] = &[
    ("reading_starts_where_it_is_told", reading_starts_where_it_is_told),
    ("reading_from_the_end_sees_only_what_comes", reading_from_the_end_sees_only_what_comes),
    ("a_held_partition_moves_to_a_new_start", a_held_partition_moves_to_a_new_start),
    ("a_start_outside_the_log_is_told", a_start_outside_the_log_is_told),
    ("paused_partitions_are_silent", paused_partitions_are_silent),
    ("released_partitions_are_silent", released_partitions_are_silent),
    ("poll_keeps_to_its_maximum", poll_keeps_to_its_maximum),
    ("poll_waits_no_longer_than_told", poll_waits_no_longer_than_told),
    ("poll_returns_when_a_record_comes", poll_returns_when_a_record_comes),
    ("a_full_partition_does_not_starve_the_others", a_full_partition_does_not_starve_the_others),
    ("read_at_finds_one_record", read_at_finds_one_record),
    ("without_a_group_nothing_is_committed", without_a_group_nothing_is_committed),
];

fn filled(kit: &Kit, count: usize) -> Partition {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, (0..count).map(|n| n.to_string()));
    at
}

fn reading_starts_where_it_is_told(kit: &Kit) {
    let at = filled(kit, 5);
    assert_eq!(kit.reader(&[(at.clone(), StartOffset::Beginning)]).read(5), ["0", "1", "2", "3", "4"]);
    assert_eq!(kit.reader(&[(at.clone(), StartOffset::At(3))]).read(2), ["3", "4"]);
    let mut at_the_end = kit.reader(&[(at.clone(), StartOffset::At(5))]);
    assert!(at_the_end.settle().is_empty());
    kit.fill(&at, ["5"]);
    assert_eq!(at_the_end.read(1), ["5"]);
    assert_eq!(at_the_end.events, [], "the end is no trouble");
}

fn reading_from_the_end_sees_only_what_comes(kit: &Kit) {
    let at = filled(kit, 5);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::End)]);
    until("a new record is read", || {
        kit.fill(&at, ["new"]);
        reader.step();
        !reader.records.is_empty()
    });
    assert!(reader.values().iter().all(|value| value == "new"));
}

fn a_held_partition_moves_to_a_new_start(kit: &Kit) {
    let at = filled(kit, 4);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.read(4);
    reader.records.clear();
    reader.consumer.assign(&[(at.clone(), StartOffset::At(2))]).unwrap();
    assert_eq!(reader.read(2), ["2", "3"]);
    reader.records.clear();
    reader.consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
    reader.read(4);
    assert_eq!(reader.settle(), ["0", "1", "2", "3"]);
}

fn a_start_outside_the_log_is_told(kit: &Kit) {
    let (at, other) = (filled(kit, 3), filled(kit, 3));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::At(1000)), (other, StartOffset::Beginning)]);
    until("the broker says so", || {
        reader.step();
        reader.events.contains(&GroupEvent::OutOfRange(at.clone()))
    });
    assert_eq!(reader.read(3), ["0", "1", "2"], "the other partition is read");
    reader.records.clear();
    reader.consumer.assign(&[(at, StartOffset::At(1))]).unwrap();
    assert_eq!(reader.read(2), ["1", "2"]);
}

fn paused_partitions_are_silent(kit: &Kit) {
    let (at, other) = (filled(kit, 1), filled(kit, 1));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning), (other.clone(), StartOffset::Beginning)]);
    reader.read(2);
    reader.records.clear();
    reader.consumer.pause(std::slice::from_ref(&at), true).unwrap();
    kit.fill(&at, ["held back"]);
    kit.fill(&other, ["read"]);
    reader.read(1);
    assert_eq!(reader.settle(), ["read"]);
    reader.consumer.pause(&[at], false).unwrap();
    assert_eq!(reader.read(2), ["read", "held back"]);
}

fn released_partitions_are_silent(kit: &Kit) {
    let (at, other) = (filled(kit, 1), filled(kit, 1));
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning), (other.clone(), StartOffset::Beginning)]);
    reader.read(2);
    reader.records.clear();
    reader.consumer.release(std::slice::from_ref(&at)).unwrap();
    kit.fill(&at, ["nobody's"]);
    kit.fill(&other, ["read"]);
    reader.read(1);
    assert_eq!(reader.settle(), ["read"]);
}

fn poll_keeps_to_its_maximum(kit: &Kit) {
    let at = filled(kit, 100);
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    until("all records", || {
        let before = reader.records.len();
        reader.poll(7, Duration::from_millis(100));
        assert!(reader.records.len() - before <= 7);
        reader.records.len() == 100
    });
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(reader.values(), expected);
}

fn poll_waits_no_longer_than_told(kit: &Kit) {
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
    // One of many is not held up by what else the machine does.
    until("no wait where none is asked for", || took(&mut reader, Duration::ZERO) < GRACE / 5);
}

fn poll_returns_when_a_record_comes(kit: &Kit) {
    let at = filled(kit, 0);
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    reader.settle();
    std::thread::scope(|scope| {
        let begin = Instant::now();
        scope.spawn(|| kit.send(&plain(&at, "x")).unwrap());
        reader.poll(10, DEADLINE);
        assert_eq!(reader.values(), ["x"]);
        assert!(begin.elapsed() < DEADLINE / 2, "poll slept through a record");
    });
}

fn a_full_partition_does_not_starve_the_others(kit: &Kit) {
    let (busy, quiet) = (filled(kit, 3000), filled(kit, 1));
    let mut reader = kit.reader(&[(busy, StartOffset::Beginning), (quiet.clone(), StartOffset::Beginning)]);
    until("everything is read", || {
        reader.poll(10, Duration::from_millis(100));
        reader.records.len() == 3001
    });
    assert!(reader.records.iter().any(|record| record.topic == quiet.topic));
}

fn read_at_finds_one_record(kit: &Kit) {
    let at = filled(kit, 3);
    let read = |offset| kit.broker.read_at(&at, offset, DEADLINE).unwrap().map(|record| (record.offset, record.value));
    assert_eq!(read(0), Some((0, Some(b"0".to_vec()))));
    assert_eq!(read(2), Some((2, Some(b"2".to_vec()))));
    assert_eq!(read(3), None, "not yet");
    assert_eq!(read(1000), None, "beyond the end");
    assert_eq!(read(-1), None, "below the start");
    assert_eq!([-1, 1, 3, 1000].map(|offset| kit.first_visible(&at, offset).0), [0, 1, 3, 3]);
    assert_eq!(kit.first_visible(&Partition::new(kit.topic(1), 0), 0), (0, None), "nothing yet");
    assert_eq!(kit.ends(&at), (0, 3));
}

fn without_a_group_nothing_is_committed(kit: &Kit) {
    let at = filled(kit, 1);
    let mut consumer = kit.broker.consumer(&ConsumerSpec::default()).unwrap();
    consumer.assign(&[(at.clone(), StartOffset::Beginning)]).unwrap();
    let refused = consumer.commit_sync(&[commit(&at, 1, "")]);
    assert!(matches!(refused, Err(BrokerError::Invalid(_))), "{refused:?}");
}
