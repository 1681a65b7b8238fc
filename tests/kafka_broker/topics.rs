//! Topics and settings on a real Kafka. Runs if `KAFLEET_TEST_KAFKA` is set, as by `tests/services run`.

use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, ProducerRecord, TopicChange};
use kafleet::config::{Config, Names, Overrides, load_with};
use kafleet::control::settings::{FleetSettingsError, mark_partition_consumed, read_control};
use kafleet::handlers::Registry;
use kafleet::topics::{ApplyError, apply, check};
use kafleet_testkit::names::unique;
use kafleet_testkit::wait::eventually;

const DEADLINE: Duration = Duration::from_secs(60);

/// Configuration with a unique prefix; `None` without Kafka.
fn config() -> Option<Config> {
    let servers = kafleet_testkit::services::kafka()?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kafleet.toml");
    let text = "[topics]\nevents_partitions = 3\ntask_partitions = 2\n[types.echo]\nhandler = \"echo\"\npublish_results = true\n";
    std::fs::write(&path, text).unwrap();
    let prefix = unique("topics");
    let overrides = Overrides { brokers: Some(servers), prefix: Some(prefix), ..Overrides::default() };
    Some(load_with(Some(&path), &overrides, &|_| None).unwrap().config)
}

fn kafka(config: &Config) -> Arc<dyn Broker> {
    let section = config.kafka.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
    Arc::new(Kafka::new(&section).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_applied_checked_and_fixed() {
    let Some(config) = config() else { return };
    let broker = kafka(&config);
    let client = broker.client().with_deadline(DEADLINE);
    let names = Names::new(&config.topics.prefix);
    let registry = Registry::default();
    assert_eq!(read_control(&client, &names).await, Err(FleetSettingsError::Missing(names.control())));
    assert_eq!(check(&client, &config, &registry, DEADLINE).await.unwrap().len(), 6, "all topics are missing");

    let created = apply(&client, &config, &registry, DEADLINE).await.unwrap();
    assert!(created.iter().all(|outcome| outcome.change == TopicChange::Created), "{created:?}");
    // New topics are visible on all brokers only after a delay.
    eventually("the applied topics match the configuration", async || {
        let findings = check(&client, &config, &registry, DEADLINE).await.unwrap();
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    })
    .await;
    let again = apply(&client, &config, &registry, DEADLINE).await.unwrap();
    assert!(again.iter().all(|outcome| outcome.change == TopicChange::Unchanged), "{again:?}");

    let mut other = config.clone();
    other.topics.events_partitions = 4;
    let refused = apply(&client, &other, &registry, DEADLINE).await;
    assert_eq!(refused, Err(ApplyError::Fixed { recorded: 3, configured: 4 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_topic_is_read_past_transaction_markers() {
    let Some(config) = config() else { return };
    let broker = kafka(&config);
    let client = broker.client().with_deadline(DEADLINE);
    let names = Names::new(&config.topics.prefix);
    apply(&client, &config, &Registry::default(), DEADLINE).await.unwrap();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    mark_partition_consumed(&producer, &names, "echo", 1).await.unwrap();
    let topic = names.control();
    let record =
        ProducerRecord { topic: &topic, partition: Some(0), key: Some(b"cancel/a"), value: Some(b"{}"), headers: &[] };
    let sent =
        tokio::task::block_in_place(|| broker.transactional_producer(&topic).unwrap().send_all(&[record], DEADLINE));
    assert!(sent.is_ok(), "{sent:?}");
    let control = read_control(&client, &names).await.unwrap();
    assert_eq!(control.events_partitions, Some(3));
    assert!(control.is_consumed("echo", 1) && !control.is_consumed("echo", 0));
}
