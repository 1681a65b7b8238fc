//! Kafka with TLS and SASL. Runs if `KAFLEET_TEST_KAFKA_SASL` is set, as by `tests/services run`.

use std::collections::BTreeMap;
use std::env::var;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::{
    Broker, BrokerError, DeliverySink, Partition, ProducerRecord, RecordRef, TopicChange, TopicSpec,
};
use kafleet_testkit::names::unique;
use kafleet_testkit::wait::eventually_blocking;

const DEADLINE: Duration = Duration::from_secs(60);

struct Outcomes(Sender<Result<(i32, i64), BrokerError>>);

impl DeliverySink for Outcomes {
    fn delivered(&self, _: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let _ = self.0.send(outcome.map_err(|(error, _)| error));
    }
}

/// Returns `None` if no such listener is available.
fn section(password: Option<&str>) -> Option<BTreeMap<String, String>> {
    let servers = kafleet_testkit::services::address("KAFLEET_TEST_KAFKA_SASL")?;
    let password = password.map_or_else(|| var("KAFLEET_TEST_KAFKA_PASSWORD").expect("the password"), str::to_owned);
    let entries = [
        ("bootstrap.servers", servers),
        ("security.protocol", "SASL_SSL".to_owned()),
        ("ssl.ca.location", var("KAFLEET_TEST_KAFKA_CA").expect("the certificate")),
        ("sasl.mechanism", "PLAIN".to_owned()),
        ("sasl.username", var("KAFLEET_TEST_KAFKA_USER").expect("the user")),
        ("sasl.password", password),
    ];
    Some(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

fn new_topic(kafka: &Kafka) -> String {
    let name = unique("kafleet-tls");
    let spec = TopicSpec { name: name.clone(), partitions: 1, replication: None, config: Vec::new() };
    let outcomes = kafka.apply_topics(&[spec], DEADLINE).expect("a response about the topic");
    assert_eq!(outcomes[0].change, TopicChange::Created);
    name
}

#[test]
fn records_are_produced_and_read_over_sasl_ssl() {
    let Some(section) = section(None) else { return };
    let kafka = Kafka::new(&section).expect("a client");
    let topic = new_topic(&kafka);
    let (sender, outcomes) = channel();
    let producer = kafka.producer(Arc::new(Outcomes(sender))).expect("a producer");
    let headers: &[(&str, &[u8])] = &[("ce_id", b"t1")];
    let record =
        ProducerRecord { topic: &topic, partition: Some(0), key: Some(b"k"), value: Some(b"over tls"), headers };
    producer.send(&record, 7).expect("room");

    let acknowledgement = outcomes.recv_timeout(DEADLINE).expect("an outcome").expect("delivered");

    assert_eq!(acknowledgement, (0, 0));
    let read = kafka.read_at(&Partition::new(topic, 0), 0, DEADLINE).expect("an answer").expect("the record");
    assert_eq!(read.value.as_deref(), Some(&b"over tls"[..]));
    assert_eq!(read.headers, vec![("ce_id".to_owned(), Some(b"t1".to_vec()))]);
}

#[test]
fn wrong_password_is_denied() {
    let Some(section) = section(Some("wrong")) else { return };
    let kafka = Kafka::new(&section).expect("a client");

    // A busy machine may delay the broker's answer.
    eventually_blocking("a client without the password is rejected", || {
        let error = kafka.topics("", Duration::from_secs(3)).expect_err("a client without the password is rejected");
        assert!(error.is_transient() || matches!(error, BrokerError::Denied(_)), "{error:?}");
        if matches!(error, BrokerError::Denied(_)) { Ok(()) } else { Err(error) }
    });
}

#[test]
fn missing_certificate_file_is_named_in_error() {
    let Some(mut section) = section(None) else { return };
    section.insert("ssl.ca.location".to_owned(), "/nowhere/ca.pem".to_owned());

    let error = Kafka::new(&section).err().expect("refused").to_string();

    assert!(error.contains("/nowhere/ca.pem") || error.contains("ssl.ca.location"), "{error}");
}
