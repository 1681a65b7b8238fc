//! Producers: what waits, what is purged, outcomes inline, faults.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kafleet::broker::memory::Faults;
use kafleet::broker::{BrokerError, DeliverySink, Partition, Producer, RecordRef};

use super::{Case, Lab};
use crate::kit::{DEADLINE, Outcome, Outcomes, plain};

pub const CASES: &[Case] = &[
    ("purge_gives_up_what_waits", purge_gives_up_what_waits),
    ("flush_says_how_many_have_no_outcome", flush_says_how_many_have_no_outcome),
    ("a_full_producer_refuses", a_full_producer_refuses),
    ("dropping_a_producer_purges", dropping_a_producer_purges),
    ("inline_outcomes_are_told_in_send", inline_outcomes_are_told_in_send),
    ("an_inline_sink_may_send", an_inline_sink_may_send),
    ("faults_follow_the_seed", faults_follow_the_seed),
    ("a_delayed_record_waits_for_the_next_call", a_delayed_record_waits_for_the_next_call),
];

/// Stops its producer's thread in the first outcome until it is let go.
struct Gate {
    outcomes: Arc<Outcomes>,
    reached: Sender<()>,
    open: Mutex<Option<Receiver<()>>>,
}

impl DeliverySink for Gate {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if let Some(open) = self.open.lock().unwrap().take() {
            self.reached.send(()).unwrap();
            open.recv().unwrap();
        }
        self.outcomes.delivered(token, outcome);
    }
}

/// A producer that stands in its first outcome, what has been told, and how to let it go.
fn gated(lab: &Lab, at: &Partition) -> (Arc<dyn Producer>, Arc<Outcomes>, Sender<()>) {
    let outcomes = Arc::new(Outcomes::default());
    let ((reached, stands), (go, open)) = (channel(), channel());
    let gate = Gate { outcomes: outcomes.clone(), reached, open: Mutex::new(Some(open)) };
    let producer = lab.kit.broker.producer(Arc::new(gate)).unwrap();
    producer.send(&plain(at, "0"), 0).unwrap();
    stands.recv_timeout(DEADLINE).unwrap();
    (producer, outcomes, go)
}

fn purge_gives_up_what_waits() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = gated(&lab, &at);
    for token in 1..100 {
        producer.send(&plain(&at, "x"), token).unwrap();
    }
    producer.purge();
    producer.send(&plain(&at, "after"), 100).unwrap();
    go.send(()).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert!((1..100).all(|token| outcomes.of(token) == Err(BrokerError::Purged)));
    assert_eq!((outcomes.of(0), outcomes.of(100)), (Ok((0, 0)), Ok((0, 1))));
    assert_eq!(lab.read_all(&at, false), ["0", "after"]);
}

fn flush_says_how_many_have_no_outcome() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, _, go) = gated(&lab, &at);
    producer.send(&plain(&at, "1"), 1).unwrap();
    let late = producer.flush(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(&late, BrokerError::Unavailable(why) if why.contains("2 records") && why.contains("20 ms")), "{late:?}");
    go.send(()).unwrap();
    assert_eq!(producer.flush(DEADLINE), Ok(()));
}

fn a_full_producer_refuses() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = gated(&lab, &at);
    let megabyte = "v".repeat(1 << 20);
    let accepted = (1..1000).take_while(|token| producer.send(&plain(&at, &megabyte), *token).is_ok()).count();
    assert!((32..=64).contains(&accepted), "{accepted} MiB accepted");
    let refused = producer.send(&plain(&at, &megabyte), 5000);
    assert!(matches!(refused, Err(BrokerError::Full(_))), "{refused:?}");
    producer.purge();
    go.send(()).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert_eq!(outcomes.all().len(), accepted + 1, "a record that was not accepted has no outcome");
}

fn dropping_a_producer_purges() {
    let lab = Lab::new();
    let at = lab.partition();
    let (producer, outcomes, go) = gated(&lab, &at);
    producer.send(&plain(&at, "1"), 1).unwrap();
    drop(producer);
    go.send(()).unwrap();
    outcomes.wait_for(2);
    assert_eq!((outcomes.of(0), outcomes.of(1)), (Ok((0, 0)), Err(BrokerError::Purged)));
}

fn inline_outcomes_are_told_in_send() {
    let lab = Lab::inline(Faults::default());
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    for token in 0..3 {
        producer.send(&plain(&at, "x"), token).unwrap();
        assert_eq!(outcomes.of(token), Ok((0, token as i64)));
    }
}

/// Answers the first outcomes with another send.
struct Echo {
    producer: OnceLock<Arc<dyn Producer>>,
    at: Partition,
    outcomes: Arc<Outcomes>,
}

impl DeliverySink for Echo {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token < 10 {
            self.producer.get().unwrap().send(&plain(&self.at, "echo"), token + 1).unwrap();
        }
        self.outcomes.delivered(token, outcome);
    }
}

fn an_inline_sink_may_send() {
    let lab = Lab::inline(Faults::default());
    let outcomes = Arc::new(Outcomes::default());
    let echo = Arc::new(Echo { producer: OnceLock::new(), at: lab.partition(), outcomes: outcomes.clone() });
    let producer = lab.kit.broker.producer(echo.clone()).unwrap();
    assert!(echo.producer.set(producer.clone()).is_ok());
    producer.send(&plain(&echo.at, "x"), 0).unwrap();
    assert_eq!((0..=10).map(|token| outcomes.of(token).unwrap().1).collect::<Vec<_>>(), (0..=10).collect::<Vec<_>>());
}

/// What 300 sends came to under faults: outcomes, and how many records the log holds.
fn run_with_faults(seed: u64) -> (Vec<(u64, Outcome)>, i64) {
    let faults = Faults { seed, unavailable: 0.1, lost_acknowledgement: 0.1, delay: 0.1, duplicate: 0.1, ..Faults::default() };
    let lab = Lab::inline(faults);
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    for token in 0..300 {
        producer.send(&plain(&at, "x"), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
    (outcomes.all(), lab.kit.ends(&at).1)
}

fn faults_follow_the_seed() {
    let (outcomes, held) = run_with_faults(7);
    assert_eq!((outcomes.clone(), held), run_with_faults(7));
    assert_ne!(outcomes, run_with_faults(8).0);
    assert_eq!(outcomes.len(), 300, "each record has an outcome");
    let failed = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Err(BrokerError::Unavailable(_)))).count();
    assert!((20..120).contains(&failed), "{failed}");
    assert!(held > 300 - failed as i64, "some that failed were written, some others twice: {held}");
}

fn a_delayed_record_waits_for_the_next_call() {
    let lab = Lab::inline(Faults { delay: 1.0, ..Faults::default() });
    let at = lab.partition();
    let (producer, outcomes) = lab.kit.producer();
    producer.send(&plain(&at, "0"), 0).unwrap();
    assert!(outcomes.all().is_empty());
    lab.memory.deliver_delayed();
    assert_eq!(outcomes.of(0), Ok((0, 0)));
    producer.send(&plain(&at, "1"), 1).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert_eq!(outcomes.of(1), Ok((0, 1)));
    lab.memory.set_faults(Faults::default());
    producer.send(&plain(&at, "2"), 2).unwrap();
    assert_eq!(outcomes.of(2), Ok((0, 2)));
}
