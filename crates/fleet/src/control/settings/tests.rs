use std::sync::Arc;

use kafleet_broker::TopicSpec;
use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn names() -> Names {
    Names::new("t")
}

fn broker() -> Arc<MemoryBroker> {
    MemoryBroker::new(MemoryBrokerOptions::default())
}

fn with_topic() -> Arc<MemoryBroker> {
    let broker = broker();
    let config = vec![("cleanup.policy".to_owned(), "compact".to_owned())];
    let spec = TopicSpec { name: names().control(), partitions: 1, replication: None, config };
    broker.apply_topics(&[spec], DEADLINE).unwrap();
    broker
}

fn read(broker: &Arc<MemoryBroker>) -> Result<FleetSettings, FleetSettingsError> {
    read_control_blocking(&**broker, &names(), DEADLINE)
}

async fn put(producer: &SharedProducer, key: Option<&str>, value: Option<&str>) {
    let topic = names().control();
    let key = key.map(str::as_bytes);
    let value = value.map(str::as_bytes);
    producer
        .deliver(ProducerRecord { topic: &topic, partition: Some(0), key, value, headers: &[] }, DEADLINE)
        .await
        .unwrap();
}

#[test]
fn missing_topic_gives_a_hint() {
    let error = read(&broker()).unwrap_err();
    assert_eq!(error, FleetSettingsError::Missing("t.control".into()));
    assert!(error.to_string().ends_with("hint: run `kafleet topics apply`"));
    assert!(matches!(BrokerError::from(error), BrokerError::Unknown(reason) if reason.contains("topics apply")));
}

#[test]
fn empty_topic_has_no_settings() {
    let control = read(&with_topic()).unwrap();
    assert_eq!(control, FleetSettings::default());
    let error = control.topology(&names()).unwrap_err().to_string();
    assert!(error.contains("`t.control` has no record of the number") && error.contains("topics apply"), "{error}");
}

#[tokio::test]
async fn written_settings_are_read() {
    let broker = with_topic();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    set_fleet(&producer, &names(), 16).await.unwrap();
    mark_partition_consumed(&producer, &names(), "echo", 3).await.unwrap();
    mark_partition_consumed(&producer, &names(), "re-size", 0).await.unwrap();
    put(&producer, Some("cancel/a:b"), Some("{}")).await;
    put(&producer, Some("consumed/odd"), Some("{}")).await;
    let control = read(&broker).unwrap();
    assert_eq!(control.events_partitions, Some(16));
    assert_eq!(control.consumed, BTreeSet::from([("echo".to_owned(), 3), ("re-size".to_owned(), 0)]));
    assert!(control.is_consumed("echo", 3) && !control.is_consumed("echo", 2));
}

#[tokio::test]
async fn last_record_of_a_key_wins() {
    let broker = with_topic();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    set_fleet(&producer, &names(), 4).await.unwrap();
    set_fleet(&producer, &names(), 8).await.unwrap();
    mark_partition_consumed(&producer, &names(), "echo", 0).await.unwrap();
    mark_partition_consumed(&producer, &names(), "echo", 1).await.unwrap();
    put(&producer, Some("consumed/echo/0"), None).await;
    let consumed = BTreeSet::from([("echo".to_owned(), 1)]);
    let expected = FleetSettings { events_partitions: Some(8), consumed, ..FleetSettings::default() };
    assert_eq!(read(&broker), Ok(expected.clone()));
    broker.compact("t.control").unwrap();
    assert_eq!(read(&broker), Ok(expected));
    put(&producer, Some("fleet"), None).await;
    assert_eq!(read(&broker).unwrap().events_partitions, None);
}

#[tokio::test]
async fn several_batches_are_read() {
    let broker = with_topic();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    let count = POLL_RECORDS as i32 + 10;
    let names = names();
    let writes = (0..count).map(|partition| mark_partition_consumed(&producer, &names, "echo", partition));
    assert!(futures::future::join_all(writes).await.iter().all(Result::is_ok));
    assert_eq!(read(&broker).unwrap().consumed.len(), count as usize);
}

/// Transaction markers occupy offsets without a record.
#[tokio::test]
async fn topic_ending_in_a_gap_is_read_to_its_end() {
    let broker = with_topic();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    set_fleet(&producer, &names(), 4).await.unwrap();
    let topic = names().control();
    let record =
        ProducerRecord { topic: &topic, partition: Some(0), key: Some(b"cancel/a"), value: Some(b"{}"), headers: &[] };
    broker.transactional_producer("x").unwrap().send_all(&[record], DEADLINE).unwrap();
    let ends = broker.watermarks(&Partition::new(topic.as_str(), 0), DEADLINE).unwrap();
    assert_eq!(ends.high, 3, "the transaction marker takes one more offset");
    assert_eq!(read(&broker).unwrap().events_partitions, Some(4), "it does not wait for another record");
}

#[tokio::test]
async fn invalid_settings_are_an_error() {
    for (value, reason) in [
        ("{\"v\":2,\"partitions\":{}}", "version 2, this build reads up to 1"),
        ("{\"v\":1}", "at offset 0 of `t.control` cannot be read: missing field `events_partitions`"),
        ("{\"v\":1,\"events_partitions\":0}", "`events_partitions` is 0"),
        ("nonsense", "cannot be read"),
    ] {
        let broker = with_topic();
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        put(&producer, Some("fleet"), Some(value)).await;
        let error = read(&broker).unwrap_err().to_string();
        assert!(error.contains(reason), "{value} gave {error}");
    }
}
