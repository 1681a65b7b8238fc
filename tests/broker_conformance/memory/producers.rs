//! Producers: queued and purged records, inline outcomes, faults.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kafleet::broker::memory::Faults;
use kafleet::broker::{BrokerError, DeliverySink, Partition, Producer, RecordRef};

use super::{Case, Lab};
use crate::kit::{DEADLINE, Outcome, Outcomes, value_record};

pub const CASES: &[Case] = &[
    ("purge_discards_queued_records", purge_discards_queued_records),
    ("flush_timeout_reports_outstanding_records", flush_timeout_reports_outstanding_records),
    ("full_producer_rejects_records", full_producer_rejects_records),
    ("dropping_a_producer_purges_its_queue", dropping_a_producer_purges_its_queue),
    ("inline_outcomes_are_delivered_within_send", inline_outcomes_are_delivered_within_send),
    ("inline_sink_may_send", inline_sink_may_send),
    ("faults_are_determined_by_the_seed", faults_are_determined_by_the_seed),
    ("delayed_record_waits_for_the_next_call", delayed_record_waits_for_the_next_call),
];

/// Blocks its producer's thread in the first outcome until it is released.
struct BlockingSink {
    outcomes: Arc<Outcomes>,
    reached: Sender<()>,
    open: Mutex<Option<Receiver<()>>>,
}

impl DeliverySink for BlockingSink {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if let Some(open) = self.open.lock().unwrap().take() {
            self.reached.send(()).unwrap();
            open.recv().unwrap();
        }
        self.outcomes.delivered(token, outcome);
    }
}

/// Creates a producer blocked in its first outcome. Returns its outcomes and a sender that releases it.
fn blocked_producer(lab: &Lab, at: &Partition) -> (Arc<dyn Producer>, Arc<Outcomes>, Sender<()>) {
    let outcomes = Arc::new(Outcomes::default());
    let ((reached, blocked), (go, open)) = (channel(), channel());
    let gate = BlockingSink { outcomes: outcomes.clone(), reached, open: Mutex::new(Some(open)) };
    let producer = lab.kit.broker.producer(Arc::new(gate)).unwrap();
    producer.send(&value_record(at, "0"), 0).unwrap();
    blocked.recv_timeout(DEADLINE).unwrap();
    (producer, outcomes, go)
}

fn purge_discards_queued_records() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = blocked_producer(&lab, &at);
    for token in 1..100 {
        producer.send(&value_record(&at, "x"), token).unwrap();
    }
    producer.purge();
    producer.send(&value_record(&at, "after"), 100).unwrap();
    go.send(()).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert!((1..100).all(|token| outcomes.of(token) == Err(BrokerError::Purged)));
    assert_eq!((outcomes.of(0), outcomes.of(100)), (Ok((0, 0)), Ok((0, 1))));
    assert_eq!(lab.read_all(&at, false), ["0", "after"]);
}

fn flush_timeout_reports_outstanding_records() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, _, go) = blocked_producer(&lab, &at);
    producer.send(&value_record(&at, "1"), 1).unwrap();
    let late = producer.flush(Duration::from_millis(20)).unwrap_err();
    assert!(
        matches!(&late, BrokerError::Unavailable(reason) if reason.contains("2 records") && reason.contains("20 ms")),
        "{late:?}"
    );
    go.send(()).unwrap();
    assert_eq!(producer.flush(DEADLINE), Ok(()));
}

fn full_producer_rejects_records() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = blocked_producer(&lab, &at);
    let megabyte = "v".repeat(1 << 20);
    let accepted = (1..1000).take_while(|token| producer.send(&value_record(&at, &megabyte), *token).is_ok()).count();
    assert!((32..=64).contains(&accepted), "{accepted} MiB accepted");
    let result = producer.send(&value_record(&at, &megabyte), 5000);
    assert!(matches!(result, Err(BrokerError::Full(_))), "{result:?}");
    producer.purge();
    go.send(()).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert_eq!(outcomes.all().len(), accepted + 1, "a refused record has no outcome");
}

fn dropping_a_producer_purges_its_queue() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = blocked_producer(&lab, &at);
    producer.send(&value_record(&at, "1"), 1).unwrap();
    drop(producer);
    go.send(()).unwrap();
    outcomes.wait_for(2);
    assert_eq!((outcomes.of(0), outcomes.of(1)), (Ok((0, 0)), Err(BrokerError::Purged)));
}

fn inline_outcomes_are_delivered_within_send() {
    let lab = Lab::inline(Faults::default());
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    for token in 0..3 {
        producer.send(&value_record(&at, "x"), token).unwrap();
        assert_eq!(outcomes.of(token), Ok((0, token as i64)));
    }
}

/// Sends another record for each of the first outcomes.
struct ResendingSink {
    producer: OnceLock<Arc<dyn Producer>>,
    at: Partition,
    outcomes: Arc<Outcomes>,
}

impl DeliverySink for ResendingSink {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token < 10 {
            self.producer.get().unwrap().send(&value_record(&self.at, "echo"), token + 1).unwrap();
        }
        self.outcomes.delivered(token, outcome);
    }
}

fn inline_sink_may_send() {
    let lab = Lab::inline(Faults::default());
    let outcomes = Arc::new(Outcomes::default());
    let echo = Arc::new(ResendingSink { producer: OnceLock::new(), at: lab.partition(), outcomes: outcomes.clone() });
    let producer = lab.kit.broker.producer(echo.clone()).unwrap();
    assert!(echo.producer.set(producer.clone()).is_ok());
    producer.send(&value_record(&echo.at, "x"), 0).unwrap();
    assert_eq!((0..=10).map(|token| outcomes.of(token).unwrap().1).collect::<Vec<_>>(), (0..=10).collect::<Vec<_>>());
}

/// Runs 300 sends with faults. Returns the outcomes and the number of records in the log.
fn run_with_faults(seed: u64) -> (Vec<(u64, Outcome)>, i64) {
    let faults =
        Faults { seed, unavailable: 0.1, lost_acknowledgement: 0.1, delay: 0.1, duplicate: 0.1, ..Faults::default() };
    let lab = Lab::inline(faults);
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    for token in 0..300 {
        producer.send(&value_record(&at, "x"), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
    (outcomes.all(), lab.kit.watermarks(&at).1)
}

fn faults_are_determined_by_the_seed() {
    let (outcomes, held) = run_with_faults(7);
    assert_eq!((outcomes.clone(), held), run_with_faults(7));
    assert_ne!(outcomes, run_with_faults(8).0);
    assert_eq!(outcomes.len(), 300, "each record has an outcome");
    let failed = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Err(BrokerError::Unavailable(_)))).count();
    assert!((20..120).contains(&failed), "{failed}");
    assert!(held > 300 - failed as i64, "some failed sends were written, and some records twice: {held}");
}

fn delayed_record_waits_for_the_next_call() {
    let lab = Lab::inline(Faults { delay: 1.0, ..Faults::default() });
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    producer.send(&value_record(&at, "0"), 0).unwrap();
    assert!(outcomes.all().is_empty());
    lab.memory.deliver_delayed();
    assert_eq!(outcomes.of(0), Ok((0, 0)));
    producer.send(&value_record(&at, "1"), 1).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert_eq!(outcomes.of(1), Ok((0, 1)));
    lab.memory.set_faults(Faults::default());
    producer.send(&value_record(&at, "2"), 2).unwrap();
    assert_eq!(outcomes.of(2), Ok((0, 2)));
}
