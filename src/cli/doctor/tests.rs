//! Tests of the findings of `doctor`.

use super::*;
use crate::broker::memory::{MemoryBroker, MemoryBrokerOptions};
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, TopicSpec};
use crate::config::TypeConfig;
use crate::control::settings::mark_partition_consumed;

#[test]
fn findings_are_aligned_with_their_hints() {
    let found =
        [Finding::ok("configuration", "kafleet.toml"), Finding::error("redis", "no answer\n  at all").hint("start it")];
    let expected = "\
ok       configuration  kafleet.toml
error    redis          no answer
                          at all
                        hint: start it";
    assert_eq!(text(&found, Paint(false)), expected);
}

async fn commits(client: &BrokerClient, config: &Config) -> Vec<Finding> {
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
    let found = commits(&client, &config).await;
    let about: Vec<&str> = found.iter().map(|one| one.subject.as_str()).collect();
    assert!(about.is_empty(), "{found:?}");
    broker.apply_topics(&[spec(names.tasks("echo"))], CALL_DEADLINE).unwrap();
    let found = commits(&client, &config).await;
    assert!(found.iter().any(|one| one.what.contains("dropped the committed offset")), "{found:?}");
}

#[test]
fn many_cancels_are_a_warning() {
    assert_eq!(cancel_count_finding(3), Finding::ok("cancels", "every worker holds 3 in memory"));
    let many = cancel_count_finding(MANY_CANCELS);
    assert_eq!((many.verdict, many.what.as_str()), (Verdict::Warning, "every worker holds 10000 in memory"));
}

#[test]
fn committed_offsets_outside_the_log_are_reported() {
    let partition = Partition::new("kafleet.tasks.echo", 3);
    let watermarks = Watermarks { low: 10, high: 20 };
    for (committed, expected) in [
        (None, Some("dropped the committed offset")),
        (Some(4), Some("removed 6 offsets past the committed one")),
        (Some(21), Some("the log ends at 20")),
        (Some(10), None),
        (Some(20), None),
    ] {
        let finding = check_commit("echo", &partition, committed, watermarks);
        assert_eq!(finding.is_some(), expected.is_some(), "{committed:?}");
        if let (Some(finding), Some(expected)) = (finding, expected) {
            assert!(finding.what.contains(expected), "{finding:?}");
            assert_eq!(finding.hint.as_deref(), Some("run `kafleet offsets init echo/3 --at earliest`"));
        }
    }
}

#[test]
fn lag_and_checkpoints_outside_the_log_are_reported() {
    let checkpoint = |offset| Some(Checkpoint { offset, version: 1, ..Checkpoint::default() });
    let watermarks = |first, end| Watermarks { low: first, high: end };
    let healthy = check_progress(&[checkpoint(7), None], &[watermarks(0, 10), watermarks(0, 5)]);
    assert_eq!(healthy, [Finding::ok("projection", "8 events not yet projected")]);
    let foreign = check_progress(&[checkpoint(700), checkpoint(1)], &[watermarks(0, 10), watermarks(5, 9)]);
    let errors: Vec<&str> =
        foreign.iter().filter(|one| one.verdict == Verdict::Error).map(|one| one.subject.as_str()).collect();
    assert_eq!(errors, ["events/0", "events/1"]);
    assert_eq!(check_progress(&[checkpoint(0)], &[watermarks(0, 200_000)])[0].verdict, Verdict::Warning);
}

#[test]
fn only_a_clock_that_is_ahead_is_reported() {
    assert_eq!(check_clock(1_000, 1_000_000), None);
    assert!(check_clock(60_000, 0).is_some_and(|finding| finding.what.contains("60 s ahead")));
}
