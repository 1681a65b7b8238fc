use std::sync::Arc;

use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::{Broker, Partition};
use kafleet_config::{Overrides, Topology, load_with};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn config(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kafleet.toml");
    std::fs::write(&path, text).unwrap();
    load_with(Some(&path), &Overrides::default(), &|_| None).unwrap().config
}

fn small() -> Config {
    config("[topics]\nprefix = \"t\"\nevents_partitions = 4\ntask_partitions = 2\n[types.echo]\nhandler = \"echo\"\n")
}

fn broker() -> Arc<MemoryBroker> {
    MemoryBroker::new(MemoryBrokerOptions::default())
}

async fn applied(broker: &Arc<MemoryBroker>, config: &Config) -> Result<Vec<TopicOutcome>, ApplyError> {
    apply(&BrokerClient::new(broker.clone()), config, &Registry::default(), DEADLINE).await
}

async fn findings(broker: &Arc<MemoryBroker>, config: &Config) -> Vec<String> {
    let reported = check(&BrokerClient::new(broker.clone()), config, &Registry::default(), DEADLINE).await.unwrap();
    reported.iter().map(|finding| format!("{:?} {finding}", finding.severity)).collect()
}

/// Changes one topic without `apply`.
fn tamper(broker: &Arc<MemoryBroker>, name: &str, partitions: u32, setting: Option<(&str, &str)>) {
    let config = setting.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    let spec = TopicSpec { name: name.to_owned(), partitions, replication: None, config };
    broker.apply_topics(&[spec], DEADLINE).unwrap();
}

fn setting<'a>(specs: &'a [TopicSpec], name: &str, key: &str) -> Option<&'a str> {
    let spec = specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}"));
    spec.config.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

#[test]
fn each_type_has_its_topics() {
    let config = config(
        "[topics]\nreplication = 2\n[types.a]\nhandler = \"echo\"\npartitions = 3\npublish_results = true\n[types.b]\nhandler = \"echo\"\n",
    );
    let specs = specs(&config, &Registry::default());
    let text: Vec<_> = specs.iter().map(|spec| format!("{} {}", spec.name, spec.partitions)).collect();
    let expected = [
        "kafleet.control 1",
        "kafleet.events 16",
        "kafleet.workers 1",
        "kafleet.tasks.a 3",
        "kafleet.dead.a 1",
        "kafleet.results.a 3",
        "kafleet.tasks.b 8",
        "kafleet.dead.b 1",
    ];
    assert_eq!(text, expected);
    assert!(specs.iter().all(|spec| spec.replication == Some(2)));
    let day = 86_400_000_i64;
    for (name, key, value) in [
        ("kafleet.control", "cleanup.policy", Some("compact")),
        ("kafleet.workers", "cleanup.policy", Some("compact,delete")),
        ("kafleet.workers", "retention.ms", Some(&*day.to_string())),
        ("kafleet.events", "message.timestamp.type", Some("LogAppendTime")),
        ("kafleet.events", "retention.ms", Some(&*(38 * day).to_string())),
        ("kafleet.tasks.a", "retention.ms", Some(&*(30 * day).to_string())),
        ("kafleet.tasks.a", "max.message.bytes", Some("4194304")),
        ("kafleet.tasks.a", "message.timestamp.type", Some("LogAppendTime")),
        ("kafleet.tasks.a", "compression.type", None),
        ("kafleet.dead.a", "max.message.bytes", Some("5242880")),
        ("kafleet.dead.a", "retention.ms", Some(&*(90 * day).to_string())),
    ] {
        assert_eq!(setting(&specs, name, key), value, "{name} {key}");
    }
}

#[tokio::test]
async fn apply_creates_topics_and_records_settings_once() {
    let broker = broker();
    let outcomes = applied(&broker, &small()).await.unwrap();
    assert_eq!(outcomes.len(), 5);
    assert!(outcomes.iter().all(|outcome| outcome.change == TopicChange::Created), "{outcomes:?}");
    let control = read_control(&BrokerClient::new(broker.clone()), &Names::new("t")).await.unwrap();
    assert_eq!(control.events_partitions, Some(4));
    assert_eq!(findings(&broker, &small()).await, Vec::<String>::new());

    let again = applied(&broker, &small()).await.unwrap();
    assert!(again.iter().all(|outcome| outcome.change == TopicChange::Unchanged), "{again:?}");
    let end = broker.watermarks(&Partition::new("t.control", 0), DEADLINE).unwrap().high;
    assert_eq!(end, 1, "the settings are written once");
}

#[tokio::test]
async fn number_of_events_partitions_is_fixed() {
    let broker = broker();
    applied(&broker, &small()).await.unwrap();
    let mut other = small();
    other.topics.events_partitions = 8;
    let error = applied(&broker, &other).await.unwrap_err();
    assert_eq!(error, ApplyError::Fixed { recorded: 4, configured: 8 });
    assert!(error.to_string().contains("hint: set `events_partitions = 4`"), "{error}");
    let reported = findings(&broker, &other).await;
    assert!(
        reported.len() == 1 && reported[0].starts_with("Error `t.control`: the events topic has 4 partitions"),
        "{reported:?}"
    );

    tamper(&broker, "t.events", 6, None);
    let error = applied(&broker, &small()).await.unwrap_err();
    assert_eq!(error, ApplyError::Changed { topic: "t.events".into(), present: 6, recorded: 4 });
    let reported = findings(&broker, &small()).await;
    assert!(
        reported.len() == 1 && reported[0].starts_with("Error `t.events`: the topic `t.events` has 6 partitions"),
        "{reported:?}"
    );
}

/// The events topic was created by other means, and no number is recorded.
#[tokio::test]
async fn foreign_events_topic_is_adopted_only_with_the_configured_partitions() {
    let broker = broker();
    tamper(&broker, "t.events", 5, None);
    assert_eq!(applied(&broker, &small()).await, Err(ApplyError::Fixed { recorded: 5, configured: 4 }));
    assert!(find(&broker.topics("t", DEADLINE).unwrap(), "t.control").is_none(), "no topic was created");
    let mut same = small();
    same.topics.events_partitions = 5;
    applied(&broker, &same).await.unwrap();
    assert_eq!(findings(&broker, &same).await, Vec::<String>::new());
}

#[tokio::test]
async fn missing_topics_are_found() {
    let reported = findings(&broker(), &small()).await;
    assert_eq!(reported.len(), 5, "{reported:#?}");
    assert_eq!(reported[0], "Error `t.control`: the topic does not exist\n  hint: run `kafleet topics apply`");
}

#[tokio::test]
async fn harmful_settings_are_found() {
    for (topic, key, value, expected) in [
        (
            "t.events",
            "message.timestamp.type",
            "CreateTime",
            "Error `t.events`: `message.timestamp.type` is `CreateTime`, expected",
        ),
        (
            "t.events",
            "retention.ms",
            "604800000",
            "Error `t.events`: `retention.ms` is `7d`, expected `38d`: records are removed too early",
        ),
        ("t.events", "cleanup.policy", "compact", "Error `t.events`: `cleanup.policy` is `compact`, expected `delete`"),
        (
            "t.control",
            "cleanup.policy",
            "delete",
            "Error `t.control`: `cleanup.policy` is `delete`, expected `compact`",
        ),
        ("t.tasks.echo", "retention.ms", "3600000", "Warning `t.tasks.echo`: `retention.ms` is `1h`, expected `30d`"),
        (
            "t.dead.echo",
            "max.message.bytes",
            "1048588",
            "Error `t.dead.echo`: `max.message.bytes` is `1048588B`, expected `5MiB`",
        ),
    ] {
        let broker = broker();
        applied(&broker, &small()).await.unwrap();
        tamper(&broker, topic, 1, Some((key, value)));
        let reported = findings(&broker, &small()).await;
        assert!(reported.len() == 1 && reported[0].starts_with(expected), "{topic} {key}={value} gave {reported:#?}");
        applied(&broker, &small()).await.unwrap();
        assert_eq!(findings(&broker, &small()).await, Vec::<String>::new(), "apply corrects it");
    }
}

/// Value that does not meet the requirements of any topic.
fn bad_value(key: &str, required: &str) -> &'static str {
    match key {
        "cleanup.policy" if required == "delete" => "compact",
        "cleanup.policy" => "delete",
        "message.timestamp.type" => "CreateTime",
        "retention.ms" | "retention.bytes" | "max.message.bytes" | "segment.bytes" | "delete.retention.ms" => "1000",
        "segment.ms" => "9999999999",
        "unclean.leader.election.enable" | "remote.storage.enable" => "true",
        "compression.type" => "gzip",
        _ => panic!("add a value for `{key}`"),
    }
}

/// Each setting of the table is found by `doctor` and by each role that needs the topic, and corrected by `apply`.
#[tokio::test]
async fn each_setting_of_each_topic_is_checked_everywhere() {
    let topology = Topology::new(Names::new("t"), 4);
    let roles = [
        RequiredTopics::api(&topology),
        RequiredTopics::worker(&topology, ["echo"]),
        RequiredTopics::tracker(&topology, &small().lifetimes()),
    ];
    let mut tried = 0;
    for topic in required_topics(&small(), &Registry::default()) {
        for setting in settings::SETTINGS {
            let Some(required) = setting.required_by(&topic) else { continue };
            let broker = broker();
            applied(&broker, &small()).await.unwrap();
            tamper(&broker, &topic.name, 1, Some((setting.key, bad_value(setting.key, &required))));
            let reported = findings(&broker, &small()).await;
            let expected = format!("{:?} `{}`: `{}` is ", setting.severity(topic.kind), topic.name, setting.key);
            assert!(reported.len() == 1 && reported[0].starts_with(&expected), "{expected} gave {reported:#?}");
            let present = broker.topics("t.", DEADLINE).unwrap();
            let problems: Vec<String> = roles.iter().filter_map(|role| role.problem(&present)).collect();
            let is_needed = !matches!(topic.kind, Kind::Workers | Kind::Results);
            let is_error = setting.severity(topic.kind) == Severity::Error;
            assert_eq!(!problems.is_empty(), is_needed && is_error, "{expected} {problems:?}");
            applied(&broker, &small()).await.unwrap();
            assert_eq!(findings(&broker, &small()).await, Vec::<String>::new(), "apply corrects it: {expected}");
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[tokio::test]
async fn settings_above_the_required_ones_are_no_finding() {
    let broker = broker();
    applied(&broker, &small()).await.unwrap();
    tamper(&broker, "t.events", 1, Some(("retention.ms", "-1")));
    tamper(&broker, "t.workers", 1, Some(("cleanup.policy", "delete, compact")));
    tamper(&broker, "t.tasks.echo", 9, Some(("max.message.bytes", "9999999")));
    assert_eq!(findings(&broker, &small()).await, Vec::<String>::new());
    let outcomes = applied(&broker, &small()).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.change == TopicChange::Unchanged), "{outcomes:?}");
    let topics = broker.topics("t.", DEADLINE).unwrap();
    assert_eq!(
        find(&topics, "t.events").unwrap().setting("retention.ms"),
        Some("-1"),
        "apply does not shorten the retention"
    );
}

#[tokio::test]
async fn too_few_partitions_and_copies_are_found() {
    let broker = broker();
    applied(&broker, &small()).await.unwrap();
    let mut more = small();
    more.topics.task_partitions = 3;
    let reported = findings(&broker, &more).await;
    assert!(
        reported.len() == 1 && reported[0].starts_with("Warning `t.tasks.echo`: 2 partitions, 3 are configured"),
        "{reported:?}"
    );
    let mut safer = small();
    safer.topics.replication = Some(3);
    let reported = findings(&broker, &safer).await;
    assert_eq!(reported.len(), 5, "{reported:#?}");
    assert!(reported[0].contains("replication is 1, expected 3"), "{}", reported[0]);
}
