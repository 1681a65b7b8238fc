//! Tasks of producers that do not announce them.

use std::time::Duration;

use kafleet::broker::{Commit, Partition, ProducerRecord, TopicSpec};
use kafleet::control::record_group;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;

use crate::tracker::fixture::{Fixture, eventually, until_known};

const CALL: Duration = Duration::from_secs(60);

impl Fixture {
    fn task_topic(&self, name: &str) -> String {
        let name = self.names.tasks(name);
        let spec = TopicSpec { name: name.clone(), partitions: 2, replication: None, config: Vec::new() };
        self.broker.apply_topics(&[spec], CALL).unwrap();
        until_known(&*self.broker, &name, 2);
        name
    }

    async fn put(&self, topic: &str, id: &str, headers: &[(&str, &[u8])]) -> i64 {
        let headers: Vec<(&str, &[u8])> = headers.iter().copied().chain([("ce_id", id.as_bytes())]).collect();
        let record = ProducerRecord { topic, partition: Some(1), key: None, value: Some(b"{}"), headers: &headers };
        self.producer.deliver(record, CALL).await.unwrap().offset
    }

    async fn state_of(&self, id: &str) -> Option<State> {
        let id = TaskId::parse(id).unwrap();
        let partition = self.partition_of(id.root());
        self.store.task_records(partition, &[id]).await.unwrap().remove(0).map(|task_record| task_record.state)
    }

    async fn is_queued(&self, id: &str) {
        eventually(&format!("`{id}` is queued"), || async { self.state_of(id).await == Some(State::Queued) }).await;
    }
}

/// Unannounced tasks become queued without a worker; announced tasks and invalid records are ignored; topics may be
/// added.
pub async fn unannounced_tasks_are_announced(fixture: Fixture) {
    let topic = fixture.task_topic("plain");
    fixture.put(&topic, "early", &[]).await;
    let tracker = fixture.tracker().await;
    fixture.is_queued("early").await;
    fixture.put(&topic, "quiet", &[("ce_announced", b"1")]).await;
    fixture.put(&topic, "no:path", &[]).await;
    let offset = fixture.put(&topic, "late", &[("ce_name", b"a name")]).await;
    fixture.is_queued("late").await;
    let late = TaskId::parse("late").unwrap();
    let task_record =
        fixture.store.task_records(fixture.partition_of("late"), &[late]).await.unwrap().remove(0).unwrap();
    assert_eq!(
        task_record.definition.position.map(|position| (position.partition, position.offset)),
        Some((1, offset))
    );
    assert_eq!(task_record.definition.policy.and_then(|policy| policy.name).as_deref(), Some("a name"));
    assert_eq!((fixture.state_of("quiet").await, fixture.state_of("no").await), (None, None));
    let other = fixture.task_topic("other");
    fixture.put(&other, "elsewhere", &[]).await;
    fixture.is_queued("elsewhere").await;
    tracker.expect_ready().await;
    let submitted = |name: &str| tracker.metrics.tasks.submitted.with_label_values(&[name]).get();
    // A task is counted when its announcement is acknowledged, which may be after its projection.
    eventually("the tasks are counted", async || (submitted("plain"), submitted("other")) == (2, 1)).await;
    tracker.stop().await;
}

/// A new announcer continues at the committed offset, and the first one at the workers' offset: completed and perhaps
/// removed tasks do not reappear.
pub async fn only_new_tasks_are_announced(fixture: Fixture) {
    let topic = fixture.task_topic("plain");
    fixture.put(&topic, "done", &[]).await;
    fixture.put(&topic, "open", &[]).await;
    // The commits are in a shared group that the tracker's configuration does not name.
    let control = TopicSpec { name: fixture.names.control(), partitions: 1, replication: None, config: Vec::new() };
    fixture.broker.apply_topics(std::slice::from_ref(&control), CALL).unwrap();
    until_known(&*fixture.broker, &control.name, 1);
    record_group(&fixture.producer, &fixture.names, "plain", "small").await.unwrap();
    let commit = Commit { partition: Partition::new(topic.as_str(), 1), offset: 1, metadata: String::new() };
    fixture.broker.set_group_offsets(&fixture.names.group_id("plain", "small"), &[commit], CALL).unwrap();
    let first = fixture.tracker().await;
    fixture.is_queued("open").await;
    // Uncommitted records would be announced again.
    let (group, at) = (fixture.names.announcer_group(), Partition::new(topic.as_str(), 1));
    let committed = || async {
        let committed = fixture.broker.group_offsets(&group, std::slice::from_ref(&at), CALL).unwrap().remove(0);
        committed.is_some_and(|committed| committed.offset >= 2)
    };
    eventually("the offset is committed", committed).await;
    first.stop().await;
    let events: i64 = fixture.all().into_iter().map(|partition| fixture.end(partition)).sum();
    fixture.put(&topic, "new", &[]).await;
    let second = fixture.tracker().await;
    fixture.is_queued("new").await;
    second.stop().await;
    assert_eq!(fixture.state_of("done").await, None);
    let now: i64 = fixture.all().into_iter().map(|partition| fixture.end(partition)).sum();
    assert_eq!(now, events + 1, "no task was announced twice");
}
