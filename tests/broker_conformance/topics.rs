//! Creating, altering and listing topics; unknown topics and partitions.

use kafleet::broker::{BrokerError, Partition, ProducerRecord, TopicChange, TopicOutcome};

use crate::Case;
use crate::kit::{DEADLINE, Kit, eventually_blocking, spec, value_record};

pub const CASES: &[Case] = &[
    ("topics_are_created_altered_or_unchanged", topics_are_created_altered_or_unchanged),
    ("partition_count_is_never_reduced", partition_count_is_never_reduced),
    ("invalid_topic_does_not_affect_the_others", invalid_topic_does_not_affect_the_others),
    ("unknown_topics_and_partitions_are_rejected", unknown_topics_and_partitions_are_rejected),
];

fn topics_are_created_altered_or_unchanged(kit: &Kit) {
    let name = kit.name("t");
    let apply = |partitions, config: &[(&str, &str)]| {
        let mut outcomes = kit.broker.apply_topics(&[spec(&name, partitions, config)], DEADLINE).unwrap();
        assert_eq!((outcomes.len(), &outcomes[0].name), (1, &name));
        outcomes.remove(0).change
    };
    let seen = |partitions: u32, bytes: &str| {
        eventually_blocking("the change is visible", || {
            let topics = kit.broker.topics(&name, DEADLINE).unwrap();
            let entry = ("max.message.bytes".to_owned(), bytes.to_owned());
            topics.len() == 1 && topics[0].partitions == partitions && topics[0].config.contains(&entry)
        });
    };
    let config = [("cleanup.policy", "compact"), ("max.message.bytes", "5000")];
    assert_eq!(apply(2, &config), TopicChange::Created);
    seen(2, "5000");
    assert_eq!(apply(2, &config), TopicChange::Unchanged);
    let TopicChange::Altered(changes) = apply(5, &[("max.message.bytes", "6000")]) else { panic!("not altered") };
    assert!(changes.iter().any(|change| change.contains("partitions")), "{changes:?}");
    assert!(changes.iter().any(|change| change.contains("max.message.bytes")), "{changes:?}");
    seen(5, "6000");
    let topics = kit.broker.topics(&name, DEADLINE).unwrap();
    let kept = ("cleanup.policy".to_owned(), "compact".to_owned());
    assert!(topics[0].config.contains(&kept), "a key missing in the spec is kept: {:?}", topics[0].config);
    assert!(topics[0].replication >= 1);
}

fn partition_count_is_never_reduced(kit: &Kit) {
    let topic = kit.topic(3);
    let outcomes = kit.broker.apply_topics(&[spec(&topic, 1, &[])], DEADLINE).unwrap();
    assert_eq!(outcomes[0].change, TopicChange::Unchanged);
    assert_eq!(kit.broker.topics(&topic, DEADLINE).unwrap()[0].partitions, 3);
}

fn invalid_topic_does_not_affect_the_others(kit: &Kit) {
    let (good, bad_value) = (kit.name("good"), kit.name("bad"));
    let specs =
        [spec("no topic name", 1, &[]), spec(&bad_value, 1, &[("max.message.bytes", "many")]), spec(&good, 1, &[])];
    let outcomes = kit.broker.apply_topics(&specs, DEADLINE).unwrap();
    let failed = |outcome: &TopicOutcome| matches!(outcome.change, TopicChange::Failed(_));
    assert_eq!(outcomes.iter().map(failed).collect::<Vec<_>>(), [true, true, false], "{outcomes:?}");
    assert_eq!(outcomes[2], TopicOutcome { name: good, change: TopicChange::Created });
    assert!(kit.broker.topics(&bad_value, DEADLINE).unwrap().is_empty());
}

fn unknown_topics_and_partitions_are_rejected(kit: &Kit) {
    let unknown =
        |result: Result<(), BrokerError>| assert!(matches!(result, Err(BrokerError::Unknown(_))), "{result:?}");
    let known = kit.topic(1);
    for at in [Partition::new(kit.name("missing"), 0), Partition::new(known, 7)] {
        unknown(kit.broker.watermarks(&at, DEADLINE).map(drop));
        unknown(kit.broker.read_at(&at, 0, DEADLINE).map(drop));
        unknown(kit.send(&value_record(&at, "x")).map(drop));
    }
    let missing = kit.name("missing");
    let keyed = ProducerRecord { topic: &missing, partition: None, key: Some(b"k"), value: None, headers: &[] };
    unknown(kit.send(&keyed).map(drop));
    assert!(kit.broker.topics(&missing, DEADLINE).unwrap().is_empty(), "a send does not create a topic");
}
