//! Transactions that stay open, are aborted, or exceed the log.

use kafleet::broker::memory::MemoryBrokerOptions;
use kafleet::broker::{BrokerError, Partition, StartOffset};

use super::{Case, Lab};
use crate::kit::{DEADLINE, value_record};

pub const CASES: &[Case] = &[
    ("open_transaction_hides_later_records", open_transaction_hides_later_records),
    ("aborted_transaction_is_invisible", aborted_transaction_is_invisible),
    ("reopening_a_name_aborts_its_open_transaction", reopening_a_name_aborts_its_open_transaction),
    ("transaction_exceeding_the_log_writes_nothing", transaction_exceeding_the_log_writes_nothing),
];

/// Creates a partition with the record `before`, an open transaction with `open`, and the record `after`.
fn with_open_transaction(lab: &Lab) -> Partition {
    let at = lab.partition();
    lab.kit.fill(&at, ["before"]);
    lab.memory.hold_transactions("x", true);
    let held = lab.kit.broker.transactional_producer("x").unwrap().send_all(&[value_record(&at, "open")], DEADLINE);
    assert!(matches!(held, Err(BrokerError::InDoubt(_))), "{held:?}");
    lab.kit.fill(&at, ["after"]);
    at
}

fn open_transaction_hides_later_records() {
    let lab = Lab::new();
    let at = with_open_transaction(&lab);
    assert_eq!(lab.read_all(&at, false), ["before"]);
    assert_eq!(lab.read_all(&at, true), ["before", "open", "after"]);
    assert_eq!(lab.kit.watermarks(&at), (0, 3), "the high watermark includes open transactions");
    let mut from_the_end = lab.kit.reader(&[(at.clone(), StartOffset::End)]);
    let mut waiting = lab.kit.reader(&[(at.clone(), StartOffset::At(1))]);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(lab.memory.end_transaction("x", true)));
        assert_eq!(waiting.read(2), ["open", "after"]);
    });
    assert_eq!(
        from_the_end.read(2),
        ["open", "after"],
        "the end of a read-committed consumer was before the open transaction"
    );
    assert_eq!(lab.kit.watermarks(&at), (0, 4), "the record and the marker");
    assert!(!lab.memory.end_transaction("x", true), "no transaction is open");
}

fn aborted_transaction_is_invisible() {
    let lab = Lab::new();
    let at = with_open_transaction(&lab);
    assert!(lab.memory.end_transaction("x", false));
    assert_eq!(lab.read_all(&at, false), ["before", "after"]);
    assert_eq!(lab.read_all(&at, true), ["before", "open", "after"]);
    assert_eq!(lab.kit.watermarks(&at), (0, 4));
}

fn reopening_a_name_aborts_its_open_transaction() {
    let lab = Lab::new();
    let at = with_open_transaction(&lab);
    lab.memory.hold_transactions("x", false);
    let mut second = lab.kit.broker.transactional_producer("x").unwrap();
    assert_eq!(lab.read_all(&at, false), ["before", "after"]);
    assert_eq!(second.send_all(&[value_record(&at, "again")], DEADLINE), Ok(vec![(0, 4)]));
}

fn transaction_exceeding_the_log_writes_nothing() {
    let lab = Lab::with(MemoryBrokerOptions { log_bytes_per_partition: 2000, ..MemoryBrokerOptions::default() });
    let topic = lab.kit.topic(2);
    let [a, b] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let mut producer = lab.kit.broker.transactional_producer("x").unwrap();
    let half = "v".repeat(1000);
    let result =
        producer.send_all(&[value_record(&a, "fits"), value_record(&b, &half), value_record(&b, &half)], DEADLINE);
    assert!(matches!(result, Err(BrokerError::Full(_))), "{result:?}");
    assert_eq!((lab.kit.watermarks(&a), lab.kit.watermarks(&b)), ((0, 0), (0, 0)));
    assert!(producer.send_all(&[value_record(&b, &half)], DEADLINE).is_ok());
}
