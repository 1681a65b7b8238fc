//! Behaviour specific to a real Kafka, in addition to the conformance suite. Runs if `KAFLEET_TEST_KAFKA` is set, as
//! by `tests/services run`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use kafleet::broker::kafka::Kafka;
use kafleet::broker::{
    Broker, BrokerError, Consumer, ConsumerSpec, DeliverySink, GroupEvent, Partition, Producer, ProducerRecord,
    RecordRef, StartOffset, TopicChange, TopicSpec,
};
use kafleet_testkit::names::unique;
use kafleet_testkit::wait::eventually_blocking;

mod groups;
mod tls;
mod topics;

const DEADLINE: Duration = Duration::from_secs(60);

type Outcome = (u64, Result<(i32, i64), BrokerError>);

struct Outcomes(Sender<Outcome>);

impl DeliverySink for Outcomes {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let _ = self.0.send((token, outcome.map_err(|(error, _)| error)));
    }
}

struct Fixture {
    kafka: Kafka,
    topic: String,
}

fn section(servers: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("bootstrap.servers".to_owned(), servers.to_owned())])
}

fn spec(name: &str, partitions: u32, config: &[(&str, &str)]) -> TopicSpec {
    let config = config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    TopicSpec { name: name.to_owned(), partitions, replication: None, config }
}

/// Returns `None` with a message if no Kafka is available.
fn fixture(partitions: u32) -> Option<Fixture> {
    fixture_with(partitions, &[])
}

fn fixture_with(partitions: u32, settings: &[(&str, &str)]) -> Option<Fixture> {
    let servers = kafleet_testkit::services::kafka()?;
    let mut section = section(&servers);
    section.extend(settings.iter().map(|(key, value)| (key.to_string(), value.to_string())));
    let kafka = Kafka::new(&section).expect("a client");
    let topic = unique("broker");
    let fixture = Fixture { kafka, topic };
    assert_eq!(fixture.apply(&spec(&fixture.topic, partitions, &[])), TopicChange::Created);
    Some(fixture)
}

impl Fixture {
    fn apply(&self, spec: &TopicSpec) -> TopicChange {
        self.kafka.apply_topics(std::slice::from_ref(spec), DEADLINE).expect("an answer").remove(0).change
    }

    fn partition(&self, index: i32) -> Partition {
        Partition::new(self.topic.as_str(), index)
    }

    fn producer(&self) -> (Arc<dyn Producer>, Receiver<Outcome>) {
        let (sender, outcomes) = channel();
        (self.kafka.producer(Arc::new(Outcomes(sender))).expect("a producer"), outcomes)
    }

    /// Produces the numbers of a range to partition 0.
    fn publish(&self, numbers: std::ops::Range<u64>) {
        let (producer, _outcomes) = self.producer();
        for number in numbers {
            let value = number.to_string();
            producer.send(&record(&self.topic, 0, value.as_bytes()), number).expect("room");
        }
        producer.flush(DEADLINE).expect("flushed");
    }

    fn reader(&self) -> Box<dyn Consumer> {
        self.kafka.consumer(&ConsumerSpec::default()).expect("a consumer")
    }

    fn member(&self, group: &str) -> Box<dyn Consumer> {
        let spec =
            ConsumerSpec { group: Some(group.to_owned()), topics: vec![self.topic.clone()], ..Default::default() };
        self.kafka.consumer(&spec).expect("a consumer")
    }
}

fn record<'a>(topic: &'a str, partition: i32, value: &'a [u8]) -> ProducerRecord<'a> {
    ProducerRecord { topic, partition: Some(partition), key: None, value: Some(value), headers: &[] }
}

/// Polls until `done` holds for all values and events so far.
fn poll_until(
    consumer: &mut dyn Consumer,
    mut done: impl FnMut(&[u64], &[GroupEvent]) -> bool,
) -> (Vec<u64>, Vec<GroupEvent>) {
    let until = Instant::now() + DEADLINE;
    let (mut values, mut events) = (Vec::new(), Vec::new());
    while !done(&values, &events) {
        assert!(
            Instant::now() < until,
            "deadline; got {} values, last {:?}, and {events:?}",
            values.len(),
            values.last()
        );
        let polled = consumer.poll(100, Duration::from_millis(100), &mut |record| {
            values.push(std::str::from_utf8(record.value.expect("a value")).expect("text").parse().expect("a number"));
        });
        events.extend(polled.expect("a poll").into_iter().filter(is_significant));
    }
    (values, events)
}

/// Filters transient errors, which the client handles itself.
fn is_significant(event: &GroupEvent) -> bool {
    let passing = matches!(event, GroupEvent::ClientError(error) if error.is_transient());
    if passing {
        eprintln!("{event:?}");
    }
    !passing
}

/// Repeats a call until one takes at most `longest`: on a busy machine a single fast call is sufficient proof.
fn takes_at_most(longest: Duration, subject: &str, mut call: impl FnMut()) {
    eventually_blocking(&format!("{subject} in {longest:?}"), || {
        let started = Instant::now();
        call();
        started.elapsed() < longest
    });
}

fn assigned(events: &[GroupEvent]) -> Vec<Partition> {
    let all = events.iter().filter_map(|event| match event {
        GroupEvent::Assigned(partitions) => Some(partitions.clone()),
        _ => None,
    });
    all.flatten().collect()
}

#[test]
fn moved_partition_delivers_no_records_of_old_position() {
    let Some(fixture) = fixture(1) else { return };
    fixture.publish(0..20_000);
    let mut reader = fixture.reader();
    reader.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");
    for target in [15_000, 3, 19_990, 0, 7_777] {
        poll_until(&mut *reader, |values, _| values.len() >= 300);
        reader.assign(&[(fixture.partition(0), StartOffset::At(target))]).expect("moved");

        let (values, _) = poll_until(&mut *reader, |values, _| !values.is_empty());

        let expected: Vec<u64> = (target as u64..).take(values.len()).collect();
        assert_eq!(values, expected, "after moving to {target}");
        reader.assign(&[(fixture.partition(0), StartOffset::At(1_000))]).expect("moved");
    }
    reader.close(DEADLINE);
}

#[test]
fn out_of_range_partition_is_named_and_continues_after_a_seek() {
    let Some(fixture) = fixture(3) else { return };
    fixture.publish(0..5);
    let mut reader = fixture.reader();
    let starts = [
        (fixture.partition(0), StartOffset::At(99)),
        (fixture.partition(1), StartOffset::Beginning),
        (fixture.partition(2), StartOffset::End),
    ];
    reader.assign(&starts).expect("assigned");

    let (_, events) = poll_until(&mut *reader, |_, events| !events.is_empty());

    assert_eq!(events, vec![GroupEvent::OutOfRange(fixture.partition(0))]);
    reader.assign(&[(fixture.partition(0), StartOffset::At(3))]).expect("moved");
    let (values, events) = poll_until(&mut *reader, |values, _| values.len() >= 2);
    assert_eq!((values, events), (vec![3, 4], vec![]));
    reader.close(DEADLINE);
}

#[test]
fn paused_partition_resumes_at_its_position() {
    let Some(fixture) = fixture(2) else { return };
    fixture.publish(0..1_000);
    let mut reader = fixture.reader();
    let starts = [(fixture.partition(0), StartOffset::Beginning), (fixture.partition(1), StartOffset::Beginning)];
    reader.assign(&starts).expect("assigned");
    let (before, _) = poll_until(&mut *reader, |values, _| values.len() >= 100);
    reader.pause(&[fixture.partition(0)], true).expect("paused");
    let silent =
        reader.poll(10, Duration::from_millis(500), &mut |record| panic!("got {}", record.offset)).expect("a poll");
    assert_eq!(silent.into_iter().filter(is_significant).collect::<Vec<_>>(), vec![]);
    reader.pause(&[fixture.partition(0)], false).expect("resumed");

    let (after, _) = poll_until(&mut *reader, |values, _| before.len() + values.len() >= 1_000);

    assert_eq!([before, after].concat(), (0..1_000).collect::<Vec<u64>>());
    // A pause ends with the assignment.
    reader.pause(&[fixture.partition(0)], true).expect("paused");
    reader.release(&[fixture.partition(0)]).expect("released");
    reader.assign(&[(fixture.partition(0), StartOffset::At(990))]).expect("assigned");
    let (values, _) = poll_until(&mut *reader, |values, _| values.len() >= 10);
    assert_eq!(values, (990..1_000).collect::<Vec<u64>>());
    reader.close(DEADLINE);
}

#[test]
fn configuration_change_keeps_other_entries() {
    let Some(fixture) = fixture(1) else { return };
    let topic = fixture.topic.as_str();

    let first = fixture.apply(&spec(topic, 1, &[("retention.ms", "1000000")]));
    let second = fixture.apply(&spec(topic, 3, &[("max.message.bytes", "2000000")]));
    // The broker may report an accepted change with a delay.
    eventually_blocking("both settings are reported", || {
        fixture.kafka.topics(topic, DEADLINE).expect("topics")[0].config.len() == 2
    });
    let third = fixture.apply(&spec(topic, 2, &[("max.message.bytes", "2000000"), ("retention.ms", "1000000")]));
    let bad = fixture.apply(&spec(topic, 1, &[("retention.ms", "soon")]));

    assert_eq!(first, TopicChange::Altered(vec!["retention.ms=1000000".into()]));
    assert_eq!(second, TopicChange::Altered(vec!["partitions 1 → 3".into(), "max.message.bytes=2000000".into()]));
    assert_eq!(third, TopicChange::Unchanged);
    let TopicChange::Failed(error) = bad else { panic!("{bad:?}") };
    assert!(error.to_string().contains("soon") && error.to_string().contains("retention.ms"), "{error}");
    let info = fixture.kafka.topics(topic, DEADLINE).expect("topics").remove(0);
    assert_eq!((info.partitions, info.replication), (3, 1));
    let mut config = info.config;
    config.sort();
    assert_eq!(
        config,
        [("max.message.bytes", "2000000"), ("retention.ms", "1000000")].map(|(k, v)| (k.into(), v.into()))
    );
}

#[test]
fn transaction_is_fast_and_second_producer_fences_first() {
    let Some(fixture) = fixture(2) else { return };
    let name = unique("atomic");
    let mut first = fixture.kafka.transactional_producer(&name).expect("opened");
    let records = [record(&fixture.topic, 0, b"1"), record(&fixture.topic, 1, b"2")];
    first.send_all(&records, DEADLINE).expect("committed");

    takes_at_most(Duration::from_millis(90), "a transaction", || {
        first.send_all(&records, DEADLINE).expect("committed");
    });
    let mut second = fixture.kafka.transactional_producer(&name).expect("opened");

    let error = first.send_all(&records, DEADLINE).expect_err("fenced");
    assert!(matches!(error, BrokerError::Fenced(_)), "{error:?}");
    let again = first.send_all(&records, DEADLINE).expect_err("still fenced");
    assert!(matches!(again, BrokerError::Fenced(_)), "{again:?}");
    second.send_all(&records, DEADLINE).expect("the second producer continues");
}

#[test]
fn transaction_with_oversized_record_is_aborted() {
    let Some(fixture) = fixture(1) else { return };
    let mut producer = fixture.kafka.transactional_producer(&unique("atomic")).expect("opened");
    let large = vec![b'x'; 6 << 20];
    let error = producer.send_all(&[record(&fixture.topic, 0, b"1"), record(&fixture.topic, 0, &large)], DEADLINE);
    assert!(matches!(error, Err(BrokerError::TooLarge(_))), "{error:?}");

    let positions = producer.send_all(&[record(&fixture.topic, 0, b"2")], DEADLINE).expect("committed");

    assert_eq!(positions.len(), 1);
    let mut reader = fixture.reader();
    reader.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");
    let (values, _) = poll_until(&mut *reader, |values, _| !values.is_empty());
    assert_eq!(values, vec![2]);
    reader.close(DEADLINE);
}

#[test]
fn read_at_returns_records_and_skips_markers() {
    let Some(fixture) = fixture(1) else { return };
    let mut atomic = fixture.kafka.transactional_producer(&unique("atomic")).expect("opened");
    atomic.send_all(&[record(&fixture.topic, 0, b"7")], DEADLINE).expect("committed");
    eventually_blocking("the marker follows the commit", || {
        fixture.kafka.watermarks(&fixture.partition(0), DEADLINE).is_ok_and(|ends| ends.high == 2)
    });
    fixture.publish(8..1_000);
    let read = |offset| fixture.kafka.read_at(&fixture.partition(0), offset, DEADLINE).expect("an answer");

    eventually_blocking("the transaction is committed", || {
        fixture.kafka.first_visible(&fixture.partition(0), 1, DEADLINE).expect("an answer").offset == 2
    });
    assert_eq!(read(0).and_then(|record| record.value), Some(b"7".to_vec()));
    assert_eq!(read(1), None, "the transaction's marker");
    assert_eq!(read(500).map(|record| (record.offset, record.value)), Some((500, Some(b"506".to_vec()))));
    assert_eq!(read(100_000), None);
    takes_at_most(Duration::from_millis(400), "a read", || assert!(read(100).is_some()));
}

#[test]
fn missing_topic_or_partition_is_unknown() {
    let Some(fixture) = fixture(1) else { return };
    let (missing, beyond) = (Partition::new(unique("missing"), 0), fixture.partition(5));
    for partition in [&missing, &beyond] {
        let ends = fixture.kafka.watermarks(partition, DEADLINE);
        assert!(matches!(ends, Err(BrokerError::Unknown(_))), "{partition}: {ends:?}");
        let (producer, outcomes) = fixture.producer();
        let error = match producer.send(&record(&partition.topic, partition.index, b"x"), 1) {
            Err(error) => error,
            Ok(()) => outcomes.recv_timeout(DEADLINE).expect("an outcome").1.expect_err("no broker"),
        };
        assert!(matches!(error, BrokerError::Unknown(_)), "{partition}: {error:?}");
    }
    assert_eq!(fixture.kafka.group_offsets(&unique("group"), &[fixture.partition(0)], DEADLINE), Ok(vec![None]));
}

#[test]
fn accepted_record_has_one_outcome_without_brokers() {
    let kafka = Kafka::new(&section("127.0.0.1:9")).expect("a client");
    let (sender, outcomes) = channel();
    let producer = kafka.producer(Arc::new(Outcomes(sender))).expect("a producer");
    (0..50).for_each(|token| producer.send(&record("nowhere", 0, b"x"), token).expect("room"));

    assert!(matches!(producer.flush(Duration::from_millis(200)), Err(BrokerError::Unavailable(_))));
    producer.purge();

    let mut tokens: Vec<u64> = (0..50)
        .map(|_| {
            let (token, outcome) = outcomes.recv_timeout(DEADLINE).expect("an outcome");
            assert_eq!(outcome, Err(BrokerError::Purged));
            token
        })
        .collect();
    tokens.sort();
    assert_eq!(tokens, (0..50).collect::<Vec<u64>>());
    producer.flush(DEADLINE).expect("nothing left");
    drop(producer);
    assert!(outcomes.recv_timeout(DEADLINE).is_err(), "a second outcome");
}

#[test]
fn unreachable_cluster_is_named_in_error() {
    let kafka = Kafka::new(&section("127.0.0.1:9")).expect("a client");
    eventually_blocking("the error contains the address", || {
        let error = kafka.topics("", Duration::from_secs(1)).expect_err("nobody there");
        assert!(error.is_transient(), "{error}");
        error.to_string().contains("127.0.0.1:9")
    });
}
