use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{Broker, CALL_DEADLINE, ConsumerSpec, GroupEvent, ProducerRecord, TopicSpec};
use kafleet_testkit::wait::{eventually, eventually_blocking};

use super::*;
use crate::cli::output::Paint;

const TOPIC: &str = "kafleet.tasks.echo";
/// Deadline for conditions that hold eventually, generous for a busy machine.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Returns a broker with a topic of two partitions; the first has ten records, at the times 0, 10, 20, …
async fn broker() -> Arc<dyn Broker> {
    let ticks = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let clock = ticks.clone();
    let options = MemoryBrokerOptions {
        clock: Arc::new(move || clock.load(std::sync::atomic::Ordering::Relaxed)),
        ..MemoryBrokerOptions::default()
    };
    let broker: Arc<dyn Broker> = MemoryBroker::new(options);
    let spec = TopicSpec { name: TOPIC.into(), partitions: 2, replication: None, config: Vec::new() };
    broker.apply_topics(&[spec], CALL_DEADLINE).unwrap();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    for n in 0..10 {
        ticks.store(n * 10, std::sync::atomic::Ordering::Relaxed);
        let record = ProducerRecord { topic: TOPIC, partition: Some(0), key: None, value: Some(b"1"), headers: &[] };
        producer.deliver(record, CALL_DEADLINE).await.unwrap();
    }
    broker
}

fn target(text: &str) -> OffsetsTarget {
    text.parse().unwrap()
}

async fn set(broker: &Arc<dyn Broker>, to: &str, at: At) -> Result<Vec<OffsetChange>, Failure> {
    let client = broker.client();
    let to = target(to);
    let Plan { changes, commits } = plan(&client, TOPIC, TOPIC, &to, at).await?;
    let set = client.set_group_offsets(TOPIC, commits).await;
    set.map(|()| changes).map_err(|error| failure(error, &to.task_type, TOPIC))
}

#[test]
fn targets_and_offsets_are_parsed() {
    assert_eq!(target("echo"), OffsetsTarget { task_type: "echo".into(), partition: None });
    assert_eq!(target("echo/3"), OffsetsTarget { task_type: "echo".into(), partition: Some(3) });
    for bad in ["", "echo/", "echo/x", "echo/-1", "Echo Echo"] {
        assert!(bad.parse::<OffsetsTarget>().is_err(), "{bad}");
    }
    for (text, at) in [
        ("earliest", At::Earliest),
        ("latest", At::Latest),
        ("17", At::Offset(17)),
        ("1970-01-01T00:00:05Z", At::Time(5_000)),
    ] {
        assert_eq!(text.parse(), Ok(at), "{text}");
    }
    assert!(matches!("2h".parse(), Ok(At::Time(_))));
    for bad in ["", "-1", "yesterday"] {
        assert!(bad.parse::<At>().is_err(), "{bad}");
    }
}

#[tokio::test]
async fn every_kind_of_offset_is_committed() {
    let broker = broker().await;
    for (at, expected) in [
        (At::Earliest, 0),
        (At::Latest, 10),
        (At::Offset(7), 7),
        (At::Time(35), 4),
        (At::Time(40), 4),
        (At::Time(0), 0),
        (At::Time(91), 10),
    ] {
        let changes = set(&broker, "echo/0", at).await.unwrap();
        assert_eq!(changes[0].now, expected, "{at:?}");
        let committed = broker.group_offsets(TOPIC, &[Partition::new(TOPIC, 0)], CALL_DEADLINE).unwrap();
        let committed = committed[0].clone().unwrap();
        assert_eq!(committed.offset, expected);
        assert_eq!(
            Metadata::decode(expected, &committed.metadata).unwrap().mark,
            Mark::Clean,
            "no crash is suspected at the start"
        );
    }
    let changes = set(&broker, "echo", At::Earliest).await.unwrap();
    let expected = "\
PARTITION  BEFORE  NOW  LOG START  LOG END
        0      10    0          0       10
        1  -         0          0        0";
    assert_eq!(rows(&changes).draw(Paint(false), false), expected);
}

#[tokio::test]
async fn missing_offset_or_partition_is_an_error() {
    let broker = broker().await;
    let outside = set(&broker, "echo/0", At::Offset(11)).await.unwrap_err();
    assert_eq!((outside.code, outside.hint.as_deref()), (Code::Usage, Some("it holds 0 to 10")));
    let partition = set(&broker, "echo/2", At::Earliest).await.unwrap_err();
    assert_eq!((partition.code, partition.hint.as_deref()), (Code::NotFound, Some("its partitions are 0 to 1")));
}

#[tokio::test]
async fn group_with_members_is_refused() {
    let broker = broker().await;
    let spec = ConsumerSpec { group: Some(TOPIC.into()), topics: vec![TOPIC.into()], ..ConsumerSpec::default() };
    let mut member = broker.consumer(&spec).unwrap();
    eventually_blocking("the member has joined", || {
        let events = member.poll(1, Duration::from_millis(10), &mut |_| {}).unwrap();
        events.iter().any(|event| matches!(event, GroupEvent::Assigned(_)))
    });
    let refused = set(&broker, "echo", At::Earliest).await.unwrap_err();
    assert_eq!(refused.code, Code::Failed);
    assert!(refused.message.contains("has members"), "{refused:?}");
    assert_eq!(refused.hint.as_deref(), Some("stop the workers of `echo`, run this again, then start them"));
}

/// A running worker that refuses a partition starts at the offset from the control topic and removes the record.
#[tokio::test(flavor = "multi_thread")]
async fn running_workers_apply_offsets() {
    use kafleet_config::{Config, Topology};
    use kafleet_fleet::control::settings::{mark_partition_consumed, set_fleet};
    use kafleet_handlers::builtin::register_samples;
    use kafleet_runtime::{Health, Shutdown};
    let broker: Arc<dyn Broker> = MemoryBroker::new(MemoryBrokerOptions::default());
    let names = Names::new("kafleet");
    let mut registry = Registry::default();
    let config = Config::default();
    register_samples(&mut registry);
    kafleet_fleet::topics::apply(&broker.client(), &config, &registry, CALL_DEADLINE).await.unwrap();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    set_fleet(&producer, &names, config.topics.events_partitions).await.unwrap();
    mark_partition_consumed(&producer, &names, "echo", 1).await.unwrap();
    for _ in 0..3 {
        let record = ProducerRecord { topic: TOPIC, partition: Some(1), key: None, value: Some(b"1"), headers: &[] };
        producer.deliver(record, CALL_DEADLINE).await.unwrap();
    }
    let health = Health::default();
    let shutdown = Shutdown::new();
    let setup = kafleet_worker::WorkerSetup {
        types: vec!["echo".into()],
        config: config.worker.clone(),
        max_tree_age: config.topics.max_tree_age,
        health: health.clone(),
        ..kafleet_worker::WorkerSetup::new(
            broker.clone(),
            registry,
            Topology::new(names.clone(), config.topics.events_partitions),
            kafleet_telemetry::Metrics::new().unwrap(),
        )
    };
    let worker = tokio::spawn(kafleet_worker::run(setup, shutdown.clone()));
    let is_refused = async || health.reasons().iter().any(|(part, _)| part.ends_with("/1"));
    eventually("the partition is refused", is_refused).await;
    let Plan { changes, commits } =
        plan(&broker.client(), TOPIC, TOPIC, &target("echo/1"), At::Offset(1)).await.unwrap();
    assert!(matches!(broker.set_group_offsets(TOPIC, &commits, CALL_DEADLINE), Err(BrokerError::Refused(_))));
    assert!(changes[0].is_invalid());
    live::apply(&broker.client(), &names, "echo", &changes).await.unwrap();
    eventually("the worker resumes and is healthy", async || {
        let committed = broker.group_offsets(TOPIC, &[Partition::new(TOPIC, 1)], CALL_DEADLINE).unwrap().remove(0);
        committed.is_some_and(|committed| committed.offset >= 3) && health.reasons().is_empty()
    })
    .await;
    shutdown.begin();
    tokio::time::timeout(TEST_DEADLINE, worker).await.expect("in time").unwrap().unwrap();
}

/// Tests of `offsets move`.
mod moves {
    use std::collections::BTreeMap;

    use super::super::move_group::move_commits;
    use super::*;
    use parking_lot::Mutex;

    use kafleet_broker::Consumer;
    use kafleet_config::{Names, TypeGroups};
    use kafleet_fleet::control::settings::{mark_partition_consumed, read_control};
    use kafleet_testkit::faults::{FaultRules, send};

    const SMALL: &str = "kafleet.group.small";

    /// Names of a fleet whose type `echo` has this group.
    fn names(group: &str) -> Names {
        let by_type = BTreeMap::from([("echo".to_owned(), group.to_owned())]);
        Names::new("kafleet").with_groups(TypeGroups { by_type, default: None })
    }

    /// Returns a broker whose type `echo` has consumed its first partition up to offset 4, in its own group.
    async fn consumed() -> Arc<dyn Broker> {
        let broker = broker().await;
        let spec = TopicSpec { name: "kafleet.control".into(), partitions: 1, replication: None, config: Vec::new() };
        broker.apply_topics(&[spec], CALL_DEADLINE).unwrap();
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        mark_partition_consumed(&producer, &names("echo"), "echo", 0).await.unwrap();
        broker.set_group_offsets(TOPIC, &[commit_of(4)], CALL_DEADLINE).unwrap();
        broker
    }

    fn commit_of(offset: i64) -> Commit {
        Commit { partition: Partition::new(TOPIC, 0), offset, metadata: format!("metadata of {offset}") }
    }

    fn committed(broker: &Arc<dyn Broker>, group: &str) -> Option<(i64, String)> {
        let commit = broker.group_offsets(group, &[Partition::new(TOPIC, 0)], CALL_DEADLINE).unwrap().remove(0);
        commit.map(|commit| (commit.offset, commit.metadata))
    }

    async fn recorded(broker: &Arc<dyn Broker>) -> String {
        read_control(&broker.client(), &names("echo")).await.unwrap().group_of("echo").to_owned()
    }

    /// Adds a member to a group, of a type of its own.
    fn join(broker: &Arc<dyn Broker>, group: &str) -> Box<dyn Consumer> {
        let spec = TopicSpec { name: "other".into(), partitions: 1, replication: None, config: Vec::new() };
        broker.apply_topics(&[spec], CALL_DEADLINE).unwrap();
        let spec = ConsumerSpec { group: Some(group.into()), topics: vec!["other".into()], ..ConsumerSpec::default() };
        let mut member = broker.consumer(&spec).unwrap();
        member.poll(1, Duration::from_millis(10), &mut |_| {}).unwrap();
        member
    }

    /// Broker on which a member joins the group of the type as soon as a record is sent.
    fn joining(broker: &Arc<dyn Broker>) -> Arc<dyn Broker> {
        let faults = FaultRules::default();
        let (inner, member) = (broker.clone(), Mutex::new(None));
        faults.on(send("")).times(1).run(move || *member.lock() = Some(join(&inner, TOPIC)));
        faults.broker(broker.clone())
    }

    #[tokio::test]
    async fn commits_are_moved_with_their_metadata_and_back() {
        let broker = consumed().await;
        for (group, id) in [("small", SMALL), ("echo", TOPIC)] {
            // An older commit that an earlier move has left in the group.
            broker.set_group_offsets(id, &[commit_of(2)], CALL_DEADLINE).unwrap();
            move_commits(&broker.client(), &names(group), "echo", group).await.unwrap();
            assert_eq!(
                (committed(&broker, id), recorded(&broker).await),
                (Some((4, "metadata of 4".into())), group.into())
            );
        }
        broker.set_group_offsets(TOPIC, &[commit_of(9)], CALL_DEADLINE).unwrap();
        move_commits(&broker.client(), &names("small"), "echo", "small").await.unwrap();
        assert_eq!(committed(&broker, SMALL), Some((9, "metadata of 9".into())));
    }

    #[tokio::test]
    async fn move_is_refused_while_either_group_has_members() {
        let broker = consumed().await;
        for group in [TOPIC, SMALL] {
            let member = join(&broker, group);
            let refused = move_commits(&broker.client(), &names("small"), "echo", "small").await.unwrap_err();
            assert!(refused.message.contains(&format!("the group `{group}` has members")), "{refused:?}");
            assert_eq!(recorded(&broker).await, "echo");
            member.close(CALL_DEADLINE);
        }
        move_commits(&broker.client(), &names("small"), "echo", "small").await.unwrap();
    }

    /// A worker that joins the group of the commits while they are moved: Kafka refuses the move, which is taken back.
    #[tokio::test]
    async fn move_is_taken_back_if_a_worker_joins_meanwhile() {
        let broker = consumed().await;
        let refused = move_commits(&joining(&broker).client(), &names("small"), "echo", "small").await.unwrap_err();
        assert!(refused.message.contains("the group `kafleet.tasks.echo` has members"), "{refused:?}");
        let settings = read_control(&broker.client(), &names("echo")).await.unwrap();
        assert_eq!((settings.group_of("echo"), settings.groups.moving_to("echo")), ("echo", None));
        assert_eq!(committed(&broker, SMALL), None);
    }

    /// A move that was interrupted after its record can be run again, or taken back.
    #[tokio::test]
    async fn interrupted_move_can_be_repeated_or_taken_back() {
        for (group, id) in [("small", SMALL), ("echo", TOPIC)] {
            let broker = consumed().await;
            let producer = SharedProducer::open(broker.clone(), None).unwrap();
            kafleet_fleet::control::record_group_move(&producer, &names("small"), "echo", "echo", "small")
                .await
                .unwrap();
            move_commits(&broker.client(), &names(group), "echo", group).await.unwrap();
            let settings = read_control(&broker.client(), &names("echo")).await.unwrap();
            assert_eq!((settings.group_of("echo"), settings.groups.moving_to("echo")), (group, None));
            assert_eq!(committed(&broker, id), Some((4, "metadata of 4".into())));
        }
    }

    #[tokio::test]
    async fn group_that_is_not_configured_is_refused() {
        let broker = consumed().await;
        let refused = move_commits(&broker.client(), &names("small"), "echo", "smal").await.unwrap_err();
        assert_eq!(refused.message, "`--to smal`: the configured group of the type `echo` is `small`");
        assert_eq!(refused.hint.as_deref(), Some("set `group = \"smal\"` in `[types.echo]`, or pass `--to small`"));
    }

    #[tokio::test]
    async fn move_is_refused_if_a_commit_is_lost() {
        let broker = consumed().await;
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        mark_partition_consumed(&producer, &names("echo"), "echo", 1).await.unwrap();
        let refused = move_commits(&broker.client(), &names("small"), "echo", "small").await.unwrap_err();
        assert!(refused.message.contains("no committed offset for kafleet.tasks.echo/1"), "{refused:?}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("kafleet offsets init echo/1")));
        assert_eq!(recorded(&broker).await, "echo");
    }
}
