use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::memory::{Faults, MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset, TopicSpec};
use kafleet_model::event::Kind;
use kafleet_model::json::RawJson;
use kafleet_model::retry::Waits;
use kafleet_model::task::decode::{RecordSource, read_record};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{MAX_ATTEMPTS, MAX_RETRIES, MAX_RUN, Policy, Position, ReceivedTask, RunProgress, TaskSpec};
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;

use super::*;
use proptest::prelude::*;

const CALL_DEADLINE: Duration = Duration::from_secs(60);

struct Fixture {
    broker: Arc<MemoryBroker>,
    publisher: Publisher,
}

fn topic(name: String) -> TopicSpec {
    TopicSpec { name, partitions: 4, replication: None, config: Vec::new() }
}

fn fixture(faults: Faults, inline_delivery: bool, topics: &[String]) -> Fixture {
    let broker = MemoryBroker::new(MemoryBrokerOptions { faults, inline_delivery, ..MemoryBrokerOptions::default() });
    let topology = Topology::new(Names::new("t"), 4);
    broker.apply_topics(&topics.iter().cloned().map(topic).collect::<Vec<_>>(), CALL_DEADLINE).unwrap();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    Fixture { publisher: Publisher::new(producer, topology, "test"), broker }
}

fn both() -> [String; 2] {
    [Names::new("t").tasks("echo"), Names::new("t").events()]
}

fn tasks(count: usize) -> Vec<TaskSpec> {
    let id = |n: usize| TaskId::parse(&format!("t-{n}")).unwrap();
    let task = |n: usize| TaskSpec::new(id(n), "echo", RawJson::of(&n).unwrap());
    (0..count).map(task).collect()
}

impl Fixture {
    /// The keys in a topic, in any order.
    fn keys(&self, topic: &str) -> Vec<String> {
        let mut consumer: Box<dyn Consumer> = self.broker.consumer(&ConsumerSpec::default()).unwrap();
        let all: Vec<_> = (0..4).map(|number| (Partition::new(topic, number), StartOffset::Beginning)).collect();
        consumer.assign(&all).unwrap();
        let end = |(partition, _): &(Partition, StartOffset)| {
            self.broker.watermarks(partition, CALL_DEADLINE).unwrap().high as usize
        };
        let count = all.iter().map(end).sum::<usize>();
        let mut keys = Vec::new();
        while keys.len() < count {
            let mut take = |record: &kafleet_broker::RecordRef<'_>| {
                keys.push(String::from_utf8(record.key.unwrap().to_vec()).unwrap());
                if let Some(Ok(event)) = record.value.filter(|_| topic.ends_with("events")).map(Event::decode) {
                    assert!(event.kind() == Kind::Submitted && event.task.is_some());
                }
            };
            consumer.poll(1_000, Duration::from_millis(100), &mut take).unwrap();
        }
        keys
    }
}

#[tokio::test]
async fn many_tasks_are_published_in_order_despite_transient_failures() {
    let faults = Faults { seed: 7, unavailable: 0.2, lost_acknowledgement: 0.1, ..Faults::default() };
    let fixture = fixture(faults, false, &both());
    let outcomes = fixture.publisher.publish_all(tasks(12_000), now_ms()).await;
    let published: Vec<PublishedTask> = outcomes.into_iter().map(Result::unwrap).collect();
    let ids: Vec<String> = published.iter().map(|published| published.id.to_string()).collect();
    assert_eq!(ids, (0..12_000).map(|n| format!("t-{n}")).collect::<Vec<_>>());
    for topic in both() {
        let mut keys = fixture.keys(&topic);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 12_000, "{topic}");
    }
    // The position is that of the event.
    let last = published.last().unwrap();
    let at = Partition::new(both()[1].as_str(), last.position.partition);
    let record = fixture.broker.read_at(&at, last.position.offset, CALL_DEADLINE).unwrap().unwrap();
    assert_eq!(record.key.unwrap(), b"t-11999");
}

#[tokio::test]
async fn each_of_many_tasks_has_its_own_outcome() {
    let fixture = fixture(Faults::default(), false, &both());
    let mut many = tasks(4);
    many[1].task_type = "No such type!".into();
    many[2].policy.get_or_insert_default().rules.external = true;
    many[3].task_type = "unknown".into();
    let outcomes = fixture.publisher.publish_all(many, now_ms()).await;
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(PublishError::Invalid(_))), "{outcomes:?}");
    assert!(matches!(outcomes[3], Err(PublishError::NotPublished(BrokerError::Unknown(_)))), "{outcomes:?}");
    assert_eq!(fixture.keys(&both()[0]), ["t-0"]);
    let mut announced = fixture.keys(&both()[1]);
    announced.sort();
    assert_eq!(announced, ["t-0", "t-2"]);
}

/// A task that starts later has no record on its topic: its event contains the record.
#[tokio::test]
async fn scheduled_task_is_deferred_at_the_tracker() {
    let fixture = fixture(Faults::default(), false, &both());
    let mut many = tasks(2);
    let now = now_ms();
    many[1].policy.get_or_insert_default().not_before_ms = Some(now + 60_000);
    let outcomes = fixture.publisher.publish_all(many, now).await;
    assert_eq!(fixture.keys(&both()[0]), ["t-0"]);
    let position = outcomes[1].as_ref().unwrap().position;
    let at = Partition::new(both()[1].as_str(), position.partition);
    let record = fixture.broker.read_at(&at, position.offset, CALL_DEADLINE).unwrap().unwrap();
    let event = Event::decode(&record.value.unwrap()).unwrap();
    assert_eq!((event.kind(), event.payload.due_ms()), (Kind::Scheduled, Some(now + 60_000)));
    assert_eq!(event.payload.record().unwrap().params.text(), "1");
}

#[tokio::test]
async fn unannounced_task_is_announced_later() {
    let fixture = fixture(Faults::default(), false, &both()[..1]);
    let outcomes = fixture.publisher.publish_all(tasks(2), now_ms()).await;
    fixture.broker.apply_topics(&[topic(both()[1].clone())], CALL_DEADLINE).unwrap();
    for outcome in outcomes {
        let Err(PublishError::NotAnnounced { task, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(task.position.is_some());
        fixture.publisher.announce(*task, now_ms()).await.unwrap();
    }
    assert_eq!(fixture.keys(&both()[0]).len(), 2);
    assert_eq!(fixture.keys(&both()[1]).len(), 2);
}

#[tokio::test]
async fn unacknowledged_task_fails_at_the_deadline() {
    let faults = Faults { unavailable: 1.0, ..Faults::default() };
    let mut fixture = fixture(faults, false, &both());
    fixture.publisher.deadline = Duration::from_millis(300);
    let outcomes = fixture.publisher.publish_all(tasks(3), now_ms()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(PublishError::NotPublished(_)))), "{outcomes:?}");
    let published = fixture.publisher.publish(tasks(1).remove(0), now_ms()).await;
    assert!(matches!(published, Err(PublishError::NotPublished(_))), "{published:?}");
}

#[tokio::test]
async fn missing_outcome_is_reported_as_in_doubt() {
    // A delayed record of an inline producer waits for a call that never comes.
    let faults = Faults { delay: 1.0, ..Faults::default() };
    let mut fixture = fixture(faults, true, &both());
    fixture.publisher.deadline = Duration::from_millis(300);
    let outcomes = fixture.publisher.publish_all(tasks(1), now_ms()).await;
    assert!(matches!(outcomes[0], Err(PublishError::NotPublished(BrokerError::InDoubt(_)))), "{outcomes:?}");
}

/// An earlier attempt may have succeeded, whatever the last one reports.
#[tokio::test]
async fn failed_publish_reports_whether_its_record_may_be_written() {
    for seed in 0..20 {
        let faults = Faults { seed, unavailable: 0.5, lost_acknowledgement: 0.5, ..Faults::default() };
        let mut fixture = fixture(faults, false, &both());
        fixture.publisher.deadline = Duration::from_millis(30);
        let Err(PublishError::NotPublished(error)) = fixture.publisher.publish(tasks(1).remove(0), now_ms()).await
        else {
            panic!("nothing is ever acknowledged")
        };
        let is_out = !fixture.keys(&both()[0]).is_empty();
        assert!(
            matches!(error, BrokerError::InDoubt(_)) || !is_out,
            "seed {seed}: the record is written, but the error is `{error}`"
        );
    }
}

proptest! {
    /// Records of kafleet's own publisher decode to the same task.
    #[test]
    fn published_task_is_decoded_unchanged(
        id in "[A-Za-z0-9._~@-]{1,20}(:[A-Za-z0-9._~@-]{1,20}){0,3}".prop_filter("an id", |id| TaskId::parse(id).is_ok()),
        run in 1..=MAX_RUN,
        attempts_used in 0..=MAX_ATTEMPTS,
        waits in prop::option::of((1..u32::MAX, 0..i64::MAX)),
        created_at_ms in 0..253_402_300_799_999i64,
        asof in prop::option::of(0..i64::MAX),
        announced in any::<bool>(),
        retries in prop::option::of(0..=MAX_RETRIES),
        timeout in prop::option::of(0..1_000_000_000u64),
        name in prop::option::of("\\PC{1,40}"),
        tags in prop::collection::vec("[a-z]{1,8}", 0..4),
        expires_at_ms in prop::option::of(0..253_402_300_799_999i64),
    ) {
        let policy = Policy { retries, timeout: timeout.map(Millis), name, tags, expires_at_ms, ..Policy::default() };
        let task = TaskSpec::new(TaskId::parse(&id).unwrap(), "echo", RawJson::null());
        let mut task = TaskSpec { run, created_at_ms, asof, announced, ..task };
        task.set_policy(policy);
        let waits = waits.map_or_else(Waits::default, |(number, since_ms)| Waits { number, since_ms });
        let progress = RunProgress { attempts: attempts_used, waits, backoff_from: attempts_used / 2 };
        let headers = record_headers(&task, &progress, "test");
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let position = Position { partition: 3, offset: 41 };
        let (task_type, value) = (&Arc::from("echo"), Some(b"null".as_slice()));
        let source = RecordSource { task_type, position, timestamp_ms: 0, value };
        let again = read_record(&source, headers.iter().map(|(name, value)| (*name, Some(*value)))).unwrap();
        let expected = ReceivedTask { task, position, progress, has_foreign_headers: false };
        prop_assert_eq!(format!("{again:?}"), format!("{expected:?}"));
    }
}
