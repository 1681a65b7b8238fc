//! What only the broker in memory can be made to do on demand: full logs, truncation, compaction, silence, open sends, faults.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kafleet::broker::memory::{Faults, Memory, MemoryOptions};
use kafleet::broker::{BrokerError, ConsumerSpec, DeliverySink, GroupEvent, Outgoing, Partition, Producer, RecordRef, Start};

use crate::kit::{DEADLINE, Kit, Member, Outcomes, commit, keyed, plain, spec, until};

pub const CASES: &[(&str, fn())] = &[
    ("a_full_log_refuses_and_keeps_what_it_has", a_full_log_refuses_and_keeps_what_it_has),
    ("a_full_compacted_log_makes_room", a_full_compacted_log_makes_room),
    ("truncation_leaves_readers_out_of_range", truncation_leaves_readers_out_of_range),
    ("compaction_leaves_gaps", compaction_leaves_gaps),
    ("a_compacted_topic_takes_no_record_without_a_key", a_compacted_topic_takes_no_record_without_a_key),
    ("keyless_records_take_turns", keyless_records_take_turns),
    ("added_partitions_are_shared_out", added_partitions_are_shared_out),
    ("a_topic_that_comes_later_is_shared_out", a_topic_that_comes_later_is_shared_out),
    ("a_silent_member_loses_its_partitions", a_silent_member_loses_its_partitions),
    ("a_dead_member_is_noticed_by_one_that_waits", a_dead_member_is_noticed_by_one_that_waits),
    ("no_commit_between_a_rebalance_and_the_next_poll", no_commit_between_a_rebalance_and_the_next_poll),
    ("no_commit_for_what_others_hold", no_commit_for_what_others_hold),
    ("nothing_is_read_while_it_is_being_given_back", nothing_is_read_while_it_is_being_given_back),
    ("a_request_that_was_not_heard_is_taken_back", a_request_that_was_not_heard_is_taken_back),
    ("a_partition_that_is_refused_stays_the_members", a_partition_that_is_refused_stays_the_members),
    ("commits_of_empty_groups_expire", commits_of_empty_groups_expire),
    ("an_open_atomic_send_holds_back_later_records", an_open_atomic_send_holds_back_later_records),
    ("an_aborted_atomic_send_is_never_seen", an_aborted_atomic_send_is_never_seen),
    ("opening_a_name_aborts_what_it_left_open", opening_a_name_aborts_what_it_left_open),
    ("an_atomic_send_that_does_not_fit_writes_nothing", an_atomic_send_that_does_not_fit_writes_nothing),
    ("purge_gives_up_what_waits", purge_gives_up_what_waits),
    ("flush_says_how_many_have_no_outcome", flush_says_how_many_have_no_outcome),
    ("a_full_producer_refuses", a_full_producer_refuses),
    ("dropping_a_producer_purges", dropping_a_producer_purges),
    ("inline_outcomes_are_told_in_send", inline_outcomes_are_told_in_send),
    ("an_inline_sink_may_send", an_inline_sink_may_send),
    ("faults_follow_the_seed", faults_follow_the_seed),
    ("a_delayed_record_waits_for_the_next_call", a_delayed_record_waits_for_the_next_call),
    ("a_refused_commit_is_on_purpose", a_refused_commit_is_on_purpose),
    ("bad_consumers_and_offsets_are_refused", bad_consumers_and_offsets_are_refused),
];

const SESSION_MS: i64 = 10_000;

/// A broker with a clock that the case moves.
struct Lab {
    memory: Arc<Memory>,
    kit: Kit,
    now_ms: Arc<AtomicI64>,
}

impl Lab {
    fn new() -> Self {
        Self::with(MemoryOptions::default())
    }

    fn with(options: MemoryOptions) -> Self {
        let now_ms = Arc::new(AtomicI64::new(1_700_000_000_000));
        let clock = now_ms.clone();
        let options = MemoryOptions {
            clock: Arc::new(move || clock.load(Ordering::Relaxed)),
            session_timeout: Duration::from_millis(SESSION_MS as u64),
            ..options
        };
        let memory = Memory::new(options);
        Self { kit: Kit::new(memory.clone(), "only"), memory, now_ms }
    }

    fn inline(faults: Faults) -> Self {
        Self::with(MemoryOptions { inline_delivery: true, faults, ..MemoryOptions::default() })
    }

    fn advance_ms(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn partition(&self) -> Partition {
        Partition::new(self.kit.topic(1), 0)
    }

    /// All values from the log's first offset on, as a reader sees them now.
    fn read_all(&self, at: &Partition, read_uncommitted: bool) -> Vec<String> {
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut reader = self.kit.reader_with(&spec, &[(at.clone(), Start::Beginning)]);
        reader.poll(usize::MAX, Duration::ZERO);
        reader.values()
    }
}

fn a_full_log_refuses_and_keeps_what_it_has() {
    let lab = Lab::with(MemoryOptions { log_bytes_per_partition: 10_000, ..MemoryOptions::default() });
    let topic = lab.kit.topic(2);
    let [full, free] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    let value = "v".repeat(900);
    let mut held = 0;
    let refused = loop {
        match lab.kit.send(&plain(&full, &value)) {
            Ok(_) => held += 1,
            Err(error) => break error,
        }
        assert!(held < 20, "it never gets full");
    };
    assert!(matches!(refused, BrokerError::Full(_)) && refused.is_transient(), "{refused:?}");
    assert!(lab.kit.send(&plain(&free, &value)).is_ok(), "each partition has its own limit");
    assert_eq!(lab.read_all(&full, false).len(), held);
    lab.memory.truncate_before(&full, 2).unwrap();
    assert_eq!(lab.kit.send(&plain(&full, &value)), Ok((0, held as i64)), "there is room again");
}

fn a_full_compacted_log_makes_room() {
    let lab = Lab::with(MemoryOptions { log_bytes_per_partition: 10_000, ..MemoryOptions::default() });
    let topic = lab.kit.topic_with(1, &[("cleanup.policy", "compact,delete")]);
    for n in 0..500 {
        lab.kit.send(&keyed(&topic, &format!("key-{}", n % 3), &n.to_string())).unwrap();
    }
    let at = Partition::new(topic.as_str(), 0);
    assert_eq!(lab.kit.ends(&at), (0, 500));
    let left = lab.read_all(&at, false);
    assert!(left.len() < 100 && left.ends_with(&["497".into(), "498".into(), "499".into()]), "{left:?}");
    let mut refused = None;
    for n in 0..500 {
        refused = refused.or_else(|| lab.kit.send(&keyed(&topic, &format!("live-{n}"), "x")).err());
    }
    assert!(matches!(refused, Some(BrokerError::Full(_))), "live keys are never dropped: {refused:?}");
}

fn truncation_leaves_readers_out_of_range() {
    let lab = Lab::new();
    let at = lab.partition();
    lab.kit.fill(&at, ["0", "1", "2", "3"]);
    let mut reader = lab.kit.reader(&[(at.clone(), Start::Beginning)]);
    reader.poll(1, Duration::ZERO);
    lab.memory.truncate_before(&at, 3).unwrap();
    assert_eq!(lab.kit.ends(&at), (3, 4));
    assert_eq!(lab.kit.broker.read_at(&at, 2, DEADLINE), Ok(None));
    reader.step();
    assert_eq!((reader.events.as_slice(), reader.values()), (&[GroupEvent::OutOfRange(at.clone())][..], vec!["0".to_owned()]));
    reader.step();
    assert_eq!(reader.events.len(), 1, "it is told once");
    reader.consumer.assign(&[(at.clone(), Start::Beginning)]).unwrap();
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
    lab.kit.send(&Outgoing { topic: &topic, partition: None, key: Some(b"c"), value: None, headers: &[] }).unwrap();
    lab.memory.compact(&topic).unwrap();
    assert_eq!(lab.read_all(&at, false), ["2", "3", ""], "a fresh tombstone stays for readers that lag");
    assert_eq!(lab.kit.broker.read_at(&at, 0, DEADLINE), Ok(None));
    assert_eq!(lab.kit.broker.read_at(&at, 2, DEADLINE).unwrap().unwrap().value, Some(b"3".to_vec()));
    assert_eq!(lab.kit.ends(&at), (0, 5));
    let mut into_the_gap = lab.kit.reader(&[(at.clone(), Start::At(0))]);
    assert_eq!(into_the_gap.read(3), ["2", "3", ""]);
    lab.advance_ms(1001);
    lab.memory.compact(&topic).unwrap();
    assert_eq!(lab.read_all(&at, false), ["2", "3"]);
    assert_eq!(lab.kit.ends(&at), (0, 5));
    assert!(matches!(lab.memory.compact(&lab.partition().topic), Err(BrokerError::Invalid(_))));
}

fn a_compacted_topic_takes_no_record_without_a_key() {
    let lab = Lab::new();
    let at = Partition::new(lab.kit.topic_with(1, &[("cleanup.policy", "compact")]), 0);
    assert!(matches!(lab.kit.send(&plain(&at, "x")), Err(BrokerError::Invalid(_))));
}

fn keyless_records_take_turns() {
    let lab = Lab::new();
    let topic = lab.kit.topic(3);
    let record = Outgoing { topic: &topic, partition: None, key: None, value: Some(b"x"), headers: &[] };
    for _ in 0..9 {
        lab.kit.send(&record).unwrap();
    }
    assert!((0..3).all(|index| lab.kit.ends(&Partition::new(topic.as_str(), index)) == (0, 3)));
}

fn added_partitions_are_shared_out() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    lab.kit.broker.apply_topics(&[spec(&topic, 3, &[])], DEADLINE).unwrap();
    member.until_holding(3);
}

fn a_topic_that_comes_later_is_shared_out() {
    let lab = Lab::new();
    let mut member = lab.kit.member("g", "later");
    member.step();
    assert!(matches!(member.events.as_slice(), [GroupEvent::Trouble(BrokerError::Unknown(_))]), "{:?}", member.events);
    lab.kit.broker.apply_topics(&[spec("later", 2, &[])], DEADLINE).unwrap();
    member.until_holding(2);
}

fn a_silent_member_loses_its_partitions() {
    let lab = Lab::new();
    let topic = lab.kit.topic(2);
    let at = Partition::new(topic.as_str(), 0);
    lab.kit.fill(&at, ["0"]);
    let (mut silent, mut other) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    until("it has read", || {
        silent.step();
        !silent.records.is_empty()
    });
    lab.advance_ms(SESSION_MS + 1);
    other.until_holding(2);
    other.step();
    assert_eq!(other.values(), ["0"], "nothing was committed");
    assert!(matches!(silent.consumer.commit_sync(&[commit(&at, 1, "")]), Err(BrokerError::Refused(_))));
    lab.kit.fill(&at, ["1"]);
    let mut records = 0;
    let lost = silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1).unwrap();
    assert_eq!((lost, records), (vec![GroupEvent::Lost((0..2).map(|index| Partition::new(topic.as_str(), index)).collect())], 0));
    assert_eq!(silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1), Ok(vec![]), "it joins again after the release");
    let all: Vec<Partition> = silent.held.iter().cloned().collect();
    silent.consumer.release(&all).unwrap();
    silent.held.clear();
    until("it has its share again", || {
        silent.step_and_pay();
        other.step_and_pay();
        silent.held.len() == 1 && other.held.len() == 1
    });
}

fn a_dead_member_is_noticed_by_one_that_waits() {
    let memory = Memory::new(MemoryOptions { session_timeout: Duration::from_millis(200), ..MemoryOptions::default() });
    let kit = Kit::new(memory, "only");
    let topic = kit.topic(2);
    let mut dying = kit.member("g", &topic);
    dying.until_holding(2);
    drop(dying);
    let mut member = kit.member("g", &topic);
    let events = member.consumer.poll(1, DEADLINE, &mut |_| {}).unwrap();
    assert!(matches!(events.as_slice(), [GroupEvent::Assigned(partitions)] if partitions.len() == 2), "{events:?}");
}

/// Two members of a group on a topic with two partitions; the second has joined, but the first has not heard of it.
fn unheard(lab: &Lab) -> (Member, Member, Partition) {
    let topic = lab.kit.topic(2);
    let (mut old, mut new) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    old.until_holding(2);
    new.step();
    (old, new, Partition::new(topic, 0))
}

fn no_commit_between_a_rebalance_and_the_next_poll() {
    let lab = Lab::new();
    let (mut old, _new, at) = unheard(&lab);
    let refused = old.consumer.commit_sync(&[commit(&at, 0, "")]);
    assert!(matches!(&refused, Err(error @ BrokerError::Refused(_)) if error.is_transient()), "{refused:?}");
    old.step();
    assert_eq!(old.owed.len(), 1);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn no_commit_for_what_others_hold() {
    let lab = Lab::new();
    let (mut old, mut new, _) = unheard(&lab);
    until("it has moved", || {
        old.step_and_pay();
        new.step_and_pay();
        new.held.len() == 1
    });
    let moved = new.held.first().cloned().unwrap();
    let both = [commit(old.held.first().unwrap(), 0, ""), commit(&moved, 0, "")];
    assert!(matches!(old.consumer.commit_sync(&both), Err(BrokerError::Refused(_))));
    assert_eq!(lab.kit.committed("g", &both[0].partition), None, "a commit is all or nothing");
    old.consumer.commit(&both).unwrap();
    old.step();
    assert!(matches!(old.events.last(), Some(GroupEvent::Committed { result: Err(BrokerError::Refused(_)), .. })));
    assert!(matches!(old.consumer.assign(&[(moved, Start::Beginning)]), Err(BrokerError::Refused(_))));
}

fn nothing_is_read_while_it_is_being_given_back() {
    let lab = Lab::new();
    let (mut old, _new, _) = unheard(&lab);
    old.step();
    let (owed, kept) = (old.owed.first().cloned().unwrap(), old.held.difference(&old.owed).next().cloned().unwrap());
    lab.kit.fill(&owed, ["for the next owner"]);
    lab.kit.fill(&kept, ["mine"]);
    old.consumer.assign(&[(owed, Start::Beginning)]).unwrap();
    old.step();
    old.step();
    assert_eq!(old.values(), ["mine"]);
}

fn a_request_that_was_not_heard_is_taken_back() {
    let lab = Lab::new();
    let (mut old, new, at) = unheard(&lab);
    new.close();
    old.step();
    assert_eq!((old.owed.len(), old.held.len()), (0, 2));
    lab.kit.fill(&at, ["still mine"]);
    old.step();
    assert_eq!(old.values(), ["still mine"]);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 1, "")]), Ok(()));
}

fn a_partition_that_is_refused_stays_the_members() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    let at = Partition::new(topic.as_str(), 0);
    member.consumer.release(std::slice::from_ref(&at)).unwrap();
    lab.kit.fill(&at, ["unread"]);
    let mut other = lab.kit.member("g", &topic);
    for _ in 0..3 {
        member.step();
        other.step();
    }
    assert_eq!((member.values().len(), other.held.len()), (0, 0));
    assert_eq!(member.events.len(), 1, "it is not given again: {:?}", member.events);
    member.consumer.assign(&[(at, Start::Beginning)]).unwrap();
    member.step();
    assert_eq!(member.values(), ["unread"]);
}

fn commits_of_empty_groups_expire() {
    let lab = Lab::with(MemoryOptions { offsets_retention: Duration::from_secs(100), ..MemoryOptions::default() });
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    member.commit(&[commit(&at, 0, "")]);
    for _ in 0..30 {
        lab.advance_ms(SESSION_MS);
        member.step();
    }
    lab.memory.expire_groups();
    assert!(lab.kit.committed("g", &at).is_some(), "a group with a member keeps its commits");
    member.close();
    lab.advance_ms(99_999);
    assert!(lab.kit.committed("g", &at).is_some());
    lab.advance_ms(1);
    assert_eq!(lab.kit.committed("g", &at), None);
    lab.kit.broker.set_group_offsets("g", &[commit(&at, 0, "")], DEADLINE).unwrap();
    lab.memory.expire_groups();
    assert_eq!(lab.kit.committed("g", &at), None);
}

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
    assert_eq!(lab.kit.broker.read_at(&at, 1, DEADLINE), Ok(None));
    let mut from_the_end = lab.kit.reader(&[(at.clone(), Start::End)]);
    let mut waiting = lab.kit.reader(&[(at.clone(), Start::At(1))]);
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
    assert_eq!(lab.kit.broker.read_at(&at, 1, DEADLINE), Ok(None));
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
fn run_with_faults(seed: u64) -> (Vec<(u64, Result<(i32, i64), BrokerError>)>, i64) {
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

fn a_refused_commit_is_on_purpose() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    lab.memory.set_faults(Faults { refuse_commit: 1.0, ..Faults::default() });
    assert!(matches!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Err(BrokerError::Refused(_))));
    lab.memory.set_faults(Faults::default());
    assert_eq!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn bad_consumers_and_offsets_are_refused() {
    let lab = Lab::new();
    let at = lab.partition();
    let topics = vec![at.topic.to_string()];
    for spec in [
        ConsumerSpec { group: Some("g".to_owned()), ..ConsumerSpec::default() },
        ConsumerSpec { topics, ..ConsumerSpec::default() },
    ] {
        assert!(matches!(lab.kit.broker.consumer(&spec).err(), Some(BrokerError::Invalid(_))), "{spec:?}");
    }
    for offset in [i64::MIN, -1, i64::MAX] {
        assert_eq!(lab.kit.broker.read_at(&at, offset, DEADLINE), Ok(None));
        let mut reader = lab.kit.reader(&[(at.clone(), Start::At(offset))]);
        reader.step();
        assert_eq!(reader.events, [GroupEvent::OutOfRange(at.clone())], "{offset}");
    }
    let below = lab.kit.broker.set_group_offsets("g", &[commit(&at, -1, "")], DEADLINE);
    assert!(matches!(below, Err(BrokerError::Invalid(_))), "{below:?}");
}
