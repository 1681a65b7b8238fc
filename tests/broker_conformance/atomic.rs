//! Atomic sends: all or nothing, one marker in every partition that was touched, one owner of a name.

use kafleet::broker::{BrokerError, ConsumerSpec, DependentRecord, Partition, StartOffset};

use crate::Case;
use crate::kit::{DEADLINE, Kit, plain, until};

pub const CASES: &[Case] = &[
    ("an_atomic_send_takes_one_more_offset_a_partition", an_atomic_send_takes_one_more_offset_a_partition),
    ("readers_step_over_markers", readers_step_over_markers),
    ("positions_step_over_markers", positions_step_over_markers),
    ("one_bad_record_stops_all_of_them", one_bad_record_stops_all_of_them),
    ("opening_a_name_again_fences_the_first", opening_a_name_again_fences_the_first),
    ("names_do_not_know_each_other", names_do_not_know_each_other),
    ("what_follows_is_made_of_the_places_before_it", what_follows_is_made_of_the_places_before_it),
    ("what_ends_in_the_middle_leaves_nothing", what_ends_in_the_middle_leaves_nothing),
    ("nothing_to_send_is_no_error", nothing_to_send_is_no_error),
    ("a_look_passes_markers_and_what_was_given_up", a_look_passes_markers_and_what_was_given_up),
    ("listed_records_leave_out_markers_and_what_was_given_up", listed_records_leave_out_markers_and_what_was_given_up),
    ("a_look_ends_where_a_send_is_open", a_look_ends_where_a_send_is_open),
];

fn an_atomic_send_takes_one_more_offset_a_partition(kit: &Kit) {
    let topic = kit.topic(3);
    let [a, b, untouched] = [0, 1, 2].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    let places = producer.send_all(&[plain(&a, "1"), plain(&b, "2"), plain(&a, "3")], DEADLINE).unwrap();
    assert_eq!(places, [(0, 0), (1, 0), (0, 1)]);
    // The markers may follow the answer by a moment.
    until("both partitions have their marker", || (kit.ends(&a), kit.ends(&b)) == ((0, 3), (0, 2)));
    assert_eq!(kit.ends(&untouched), (0, 0));
    until("the marker is no record", || kit.broker.read_at(&a, 2, DEADLINE) == Ok(None));
    assert_eq!(kit.broker.read_at(&a, 1, DEADLINE).unwrap().unwrap().value, Some(b"3".to_vec()));
    assert_eq!(producer.send_all(&[plain(&a, "4")], DEADLINE).unwrap(), [(0, 3)]);
    until("the second send has its marker", || kit.ends(&a) == (0, 5));
}

fn readers_step_over_markers(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut producer = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    producer.send_all(&[plain(&at, "0")], DEADLINE).unwrap();
    // It may follow the answer by a moment, and then lie behind what others send.
    until("its marker is there", || kit.ends(&at) == (0, 2));
    kit.fill(&at, ["1"]);
    producer.send_all(&[plain(&at, "2"), plain(&at, "3")], DEADLINE).unwrap();
    for read_uncommitted in [false, true] {
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut reader = kit.reader_with(&spec, &[(at.clone(), StartOffset::Beginning)]);
        assert_eq!(reader.read(4), ["0", "1", "2", "3"]);
        assert_eq!(reader.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [0, 2, 3, 4]);
        let mut from_the_marker = kit.reader_with(&spec, &[(at.clone(), StartOffset::At(1))]);
        assert_eq!(from_the_marker.read(3), ["1", "2", "3"]);
    }
}

/// Also where nothing follows the marker; and a move takes the place back.
fn positions_step_over_markers(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut producer = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    producer.send_all(&[plain(&at, "0"), plain(&at, "1")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at.clone(), StartOffset::Beginning)]);
    let place = |reader: &mut crate::kit::Reader| {
        reader.step();
        reader.consumer.positions().unwrap()
    };
    until("the position is behind the marker", || place(&mut reader) == [(at.clone(), 3)]);
    assert_eq!(reader.read(2), ["0", "1"]);
    reader.consumer.assign(&[(at.clone(), StartOffset::At(1))]).unwrap();
    let moved = reader.consumer.positions().unwrap();
    assert!(moved.iter().all(|(_, offset)| *offset == 1), "{moved:?}");
    until("it comes to the end again", || place(&mut reader) == [(at.clone(), 3)]);
    assert_eq!(reader.read(3), ["0", "1", "1"]);
    producer.send_all(&[plain(&at, "2")], DEADLINE).unwrap();
    until("it goes on behind the next one", || place(&mut reader) == [(at.clone(), 5)]);
}

fn one_bad_record_stops_all_of_them(kit: &Kit) {
    let topic = kit.topic_with(1, &[("max.message.bytes", "2000")]);
    let at = Partition::new(topic.as_str(), 0);
    let nowhere = Partition::new(topic.as_str(), 9);
    let name = kit.name("x");
    let mut producer = kit.broker.atomic_producer(&name).unwrap();
    let refused = producer.send_all(&[plain(&at, "a"), plain(&nowhere, "b")], DEADLINE);
    assert!(matches!(refused, Err(BrokerError::Unknown(_))), "{refused:?}");
    let mut producer = kit.broker.atomic_producer(&name).unwrap();
    producer.send_all(&[plain(&at, "whole")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(1);
    assert_eq!(reader.settle(), ["whole"]);
}

fn opening_a_name_again_fences_the_first(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let name = kit.name("x");
    let mut first = kit.broker.atomic_producer(&name).unwrap();
    first.send_all(&[plain(&at, "first")], DEADLINE).unwrap();
    let mut second = kit.broker.atomic_producer(&name).unwrap();
    let fenced = first.send_all(&[plain(&at, "zombie")], DEADLINE);
    assert!(matches!(fenced, Err(BrokerError::Fenced(_))), "{fenced:?}");
    second.send_all(&[plain(&at, "second")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(2);
    assert_eq!(reader.settle(), ["first", "second"]);
}

fn names_do_not_know_each_other(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    let mut one = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    let mut other = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    one.send_all(&[plain(&at, "1")], DEADLINE).unwrap();
    other.send_all(&[plain(&at, "2")], DEADLINE).unwrap();
    one.send_all(&[plain(&at, "3")], DEADLINE).unwrap();
    assert_eq!(kit.reader(&[(at, StartOffset::Beginning)]).read(3), ["1", "2", "3"]);
}

fn follower(at: &Partition, value: String) -> DependentRecord {
    DependentRecord { topic: at.topic.clone(), partition: at.index, key: b"k".to_vec(), value: value.into_bytes() }
}

fn what_follows_is_made_of_the_places_before_it(kit: &Kit) {
    let topic = kit.topic(2);
    let [tasks, events] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    let mut then = |places: &[(i32, i64)]| places.iter().map(|place| follower(&events, format!("{place:?}"))).collect::<Vec<_>>();
    let places = producer.send_with_dependents(&[plain(&tasks, "a"), plain(&tasks, "b")], &mut then, DEADLINE).unwrap();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(kit.reader(&[(events.clone(), StartOffset::Beginning)]).read(2), ["(0, 0)", "(0, 1)"]);
    let alone = producer.send_with_dependents(&[], &mut |_| vec![follower(&events, "alone".into())], DEADLINE).unwrap();
    assert_eq!(alone, [(1, 3)], "behind the marker");
}

fn what_ends_in_the_middle_leaves_nothing(kit: &Kit) {
    let topic = kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let nowhere = Partition::new(topic.as_str(), 9);
    let name = kit.name("x");
    let mut producer = kit.broker.atomic_producer(&name).unwrap();
    let mut then = |places: &[(i32, i64)]| {
        assert_eq!(places, [(0, 0)], "it is written by then");
        vec![follower(&nowhere, "b".into())]
    };
    let refused = producer.send_with_dependents(&[plain(&at, "a")], &mut then, DEADLINE);
    assert!(matches!(refused, Err(BrokerError::Unknown(_))), "{refused:?}");
    let mut producer = kit.broker.atomic_producer(&name).unwrap();
    producer.send_all(&[plain(&at, "whole")], DEADLINE).unwrap();
    let mut reader = kit.reader(&[(at, StartOffset::Beginning)]);
    reader.read(1);
    assert_eq!(reader.settle(), ["whole"], "nobody is given what was written before");
}

fn nothing_to_send_is_no_error(kit: &Kit) {
    let mut producer = kit.broker.atomic_producer(&kit.name("x")).unwrap();
    assert_eq!(producer.send_all(&[], DEADLINE), Ok(vec![]));
}

/// An atomic send of one record that ends in nothing.
fn give_up(kit: &Kit, at: &Partition) {
    let nowhere = Partition::new(at.topic.clone(), 9);
    let mut then = |_: &[(i32, i64)]| vec![follower(&nowhere, "b".into())];
    let refused =
        kit.broker.atomic_producer(&kit.name("x")).unwrap().send_with_dependents(&[plain(at, "never")], &mut then, DEADLINE);
    assert!(matches!(refused, Err(BrokerError::Unknown(_))), "{refused:?}");
}

fn listed_records_leave_out_markers_and_what_was_given_up(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, ["0"]);
    kit.broker.atomic_producer(&kit.name("x")).unwrap().send_all(&[plain(&at, "1")], DEADLINE).unwrap();
    until("its marker is there", || kit.first_visible(&at, 2) == (3, None));
    give_up(kit, &at);
    until("its marker is there", || kit.first_visible(&at, 3) == (5, None));
    let listed = |from, to, most| {
        let listed = kit.broker.records_in(&at, from..to, most, DEADLINE).unwrap();
        (listed.offsets, listed.to)
    };
    assert_eq!(listed(0, 5, 100), (vec![0, 1], 5));
    assert_eq!(listed(2, 5, 100), (vec![], 5), "only markers");
    assert_eq!(listed(0, 9, 100), (vec![0, 1], 5), "what comes later is not known");
    kit.fill(&at, ["5", "6"]);
    assert_eq!(listed(1, 6, 100), (vec![1, 5], 6));
    assert_eq!(listed(0, 7, 3), (vec![0, 1, 5], 6), "no more than asked for");
    assert_eq!(listed(4, 4, 100), (vec![], 4));
}

fn a_look_passes_markers_and_what_was_given_up(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    kit.fill(&at, ["0"]);
    kit.broker.atomic_producer(&kit.name("x")).unwrap().send_all(&[plain(&at, "1")], DEADLINE).unwrap();
    until("its marker is there", || kit.first_visible(&at, 2) == (3, None));
    assert_eq!([0, 1].map(|offset| kit.first_visible(&at, offset)), [(0, Some("0".into())), (1, Some("1".into()))]);
    give_up(kit, &at);
    give_up(kit, &at);
    until("their markers are there", || kit.first_visible(&at, 3) == (7, None));
    for offset in 2..8 {
        assert_eq!(kit.first_visible(&at, offset), (7, None), "{offset}");
        assert_eq!(kit.broker.read_at(&at, offset, DEADLINE), Ok(None), "{offset}");
    }
    kit.fill(&at, ["7"]);
    for offset in 2..8 {
        assert_eq!(kit.first_visible(&at, offset), (7, Some("7".into())), "{offset}");
    }
    assert_eq!(kit.broker.read_at(&at, 5, DEADLINE), Ok(None), "given up, and for ever");
    assert_eq!(kit.first_visible(&at, 8), (8, None));
}

/// Whether what lies there will ever be for readers is not decided.
fn a_look_ends_where_a_send_is_open(kit: &Kit) {
    // Kafka gives an open one up by itself after some seconds: on a machine that stands still it is tried again.
    let seen = (0..5).find_map(|_| {
        let at = Partition::new(kit.topic(1), 0);
        kit.fill(&at, ["before"]);
        let mut looks = Vec::new();
        let mut meanwhile = |_: &[(i32, i64)]| {
            kit.fill(&at, ["after"]);
            looks = (0..5).map(|offset| (kit.first_visible(&at, offset), kit.broker.read_at(&at, offset, DEADLINE))).collect();
            Vec::new()
        };
        let sent = kit.broker.atomic_producer(&kit.name("x")).unwrap().send_with_dependents(
            &[plain(&at, "open")],
            &mut meanwhile,
            DEADLINE,
        );
        sent.is_ok().then_some((at, looks))
    });
    let (at, looks) = seen.expect("one that was committed");
    assert_eq!(looks[0].0, (0, Some("before".into())));
    assert!(looks[1..].iter().all(|(first_visible, _)| *first_visible == (1, None)), "{looks:?}");
    for (_, read) in &looks[1..3] {
        assert!(matches!(read, Err(BrokerError::Unavailable(_))), "{read:?}");
    }
    assert_eq!(looks[4].1, Ok(None), "nothing is there yet");
    until("it is committed", || kit.first_visible(&at, 1) == (1, Some("open".into())));
    assert_eq!(kit.first_visible(&at, 2), (2, Some("after".into())));
    until("its marker is passed", || kit.first_visible(&at, 3) == (4, None));
}
