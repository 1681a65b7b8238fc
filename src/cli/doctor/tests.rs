//! Tests of the findings of `doctor`.

use std::sync::Arc;

use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{Broker, TopicSpec};
use kafleet_config::TypeConfig;
use kafleet_fleet::control::settings::mark_partition_consumed;

use super::positions::check_commits;
use super::*;

#[test]
fn findings_are_aligned_with_their_hints() {
    let diagnoses = [
        Diagnosis::ok("configuration", "kafleet.toml"),
        Diagnosis::error("redis", "no answer\n  at all").hint("start it"),
    ];
    let expected = "\
ok       configuration  kafleet.toml
error    redis          no answer
                          at all
                        hint: start it";
    assert_eq!(text(&diagnoses, Paint(false)), expected);
}

async fn commits(client: &BrokerClient, config: &Config) -> Vec<Diagnosis> {
    let present = client.topics("t.").await.unwrap();
    check_commits(client, config, &Registry::default(), &present).await.unwrap()
}

#[tokio::test]
async fn missing_topic_has_no_second_finding_about_offsets() {
    let broker: Arc<dyn Broker> = MemoryBroker::new(MemoryBrokerOptions::default());
    let names = Names::new("t");
    let spec = |name: String| TopicSpec { name, partitions: 1, replication: None, config: Vec::new() };
    broker.apply_topics(&[spec(names.control()), spec("t2.tasks.echo".into())], CALL_DEADLINE).unwrap();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    let client = broker.client();
    mark_partition_consumed(&producer, &names, "echo", 0).await.unwrap();
    let mut config = Config::default();
    config.topics.prefix = "t".into();
    config.types.insert("echo".into(), TypeConfig::default());
    let diagnoses = commits(&client, &config).await;
    let about: Vec<&str> = diagnoses.iter().map(|diagnosis| diagnosis.subject.as_str()).collect();
    assert!(about.is_empty(), "{diagnoses:?}");
    broker.apply_topics(&[spec(names.tasks("echo"))], CALL_DEADLINE).unwrap();
    let diagnoses = commits(&client, &config).await;
    assert!(
        diagnoses.iter().any(|diagnosis| diagnosis.message.contains("dropped the committed offset")),
        "{diagnoses:?}"
    );
}

#[test]
fn many_cancels_are_a_warning() {
    assert_eq!(cancel_count_finding(3), Diagnosis::ok("cancels", "every worker holds 3 in memory"));
    let many = cancel_count_finding(CANCELS_WARNING);
    assert_eq!((many.verdict, many.message.as_str()), (Verdict::Warning, "every worker holds 10000 in memory"));
}

#[test]
fn wrong_clock_is_reported_in_both_directions() {
    for (ahead_ms, expected) in [(0, "is the brokers'"), (-90_000, "90 s behind"), (86_400_000, "86400 s ahead of")] {
        let finding = live::clock_finding(ahead_ms);
        assert!(finding.message.contains(expected), "{finding:?}");
        assert_eq!(finding.verdict == Verdict::Warning, ahead_ms != 0);
    }
}
