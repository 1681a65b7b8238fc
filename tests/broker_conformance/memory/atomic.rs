//! Atomic sends that stay open, are aborted or do not fit.

use kafleet::broker::memory::MemoryOptions;
use kafleet::broker::{BrokerError, Partition, StartOffset};

use super::{Case, Lab};
use crate::kit::{DEADLINE, plain};

pub const CASES: &[Case] = &[
    ("an_open_atomic_send_holds_back_later_records", an_open_atomic_send_holds_back_later_records),
    ("an_aborted_atomic_send_is_never_seen", an_aborted_atomic_send_is_never_seen),
    ("opening_a_name_aborts_what_it_left_open", opening_a_name_aborts_what_it_left_open),
    ("an_atomic_send_that_does_not_fit_writes_nothing", an_atomic_send_that_does_not_fit_writes_nothing),
];

/// A partition with `before`, an open atomic send of `open`, and `after`.
fn half_open(lab: &Lab) -> Partition {
    let at = lab.partition();
    lab.kit.fill(&at, ["before"]);
    lab.memory.hold_atomic("x", true);
    let held = lab.kit.broker.atomic_producer("x").unwrap().send_all(&[plain(&at, "open")], DEADLINE);
    assert!(matches!(held, Err(BrokerError::InDoubt(_))), "{held:?}");
    lab.kit.fill(&at, ["after"]);
    at
}

fn an_open_atomic_send_holds_back_later_records() {
    let lab = Lab::new();
    let at = half_open(&lab);
    assert_eq!(lab.read_all(&at, false), ["before"]);
    assert_eq!(lab.read_all(&at, true), ["before", "open", "after"]);
    assert_eq!(lab.kit.ends(&at), (0, 3), "the end counts what is open");
    let mut from_the_end = lab.kit.reader(&[(at.clone(), StartOffset::End)]);
    let mut waiting = lab.kit.reader(&[(at.clone(), StartOffset::At(1))]);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(lab.memory.settle_atomic("x", true)));
        assert_eq!(waiting.read(2), ["open", "after"]);
    });
    assert_eq!(from_the_end.read(2), ["open", "after"], "to a reader of what is committed the end was before the open send");
    assert_eq!(lab.kit.ends(&at), (0, 4), "and the marker");
    assert!(!lab.memory.settle_atomic("x", true), "nothing is open any more");
}

fn an_aborted_atomic_send_is_never_seen() {
    let lab = Lab::new();
    let at = half_open(&lab);
    assert!(lab.memory.settle_atomic("x", false));
    assert_eq!(lab.read_all(&at, false), ["before", "after"]);
    assert_eq!(lab.read_all(&at, true), ["before", "open", "after"]);
    assert_eq!(lab.kit.ends(&at), (0, 4));
}

fn opening_a_name_aborts_what_it_left_open() {
    let lab = Lab::new();
    let at = half_open(&lab);
    lab.memory.hold_atomic("x", false);
    let mut second = lab.kit.broker.atomic_producer("x").unwrap();
    assert_eq!(lab.read_all(&at, false), ["before", "after"]);
    assert_eq!(second.send_all(&[plain(&at, "again")], DEADLINE), Ok(vec![(0, 4)]));
}

fn an_atomic_send_that_does_not_fit_writes_nothing() {
    let lab = Lab::with(MemoryOptions { log_bytes_per_partition: 2000, ..MemoryOptions::default() });
    let topic = lab.kit.topic(2);
    let [a, b] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = lab.kit.broker.atomic_producer("x").unwrap();
    let half = "v".repeat(1000);
    let refused = producer.send_all(&[plain(&a, "fits"), plain(&b, &half), plain(&b, &half)], DEADLINE);
    assert!(matches!(refused, Err(BrokerError::Full(_))), "{refused:?}");
    assert_eq!((lab.kit.ends(&a), lab.kit.ends(&b)), ((0, 0), (0, 0)));
    assert!(producer.send_all(&[plain(&b, &half)], DEADLINE).is_ok());
}
