//! Tasks of producers who know nothing of announcements.

use std::time::Duration;

use kafleet::broker::{Commit, Partition, ProducerRecord, TopicSpec};
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;

use crate::ground::{Ground, until, until_known};

const CALL: Duration = Duration::from_secs(60);

impl Ground {
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
        self.link.deliver(record, CALL).await.unwrap().offset
    }

    async fn state_of(&self, id: &str) -> Option<State> {
        let id = TaskId::parse(id).unwrap();
        let partition = self.partition_of(id.root());
        self.store.nodes(partition, &[id]).await.unwrap().remove(0).map(|node| node.state)
    }

    async fn is_queued(&self, id: &str) {
        until(&format!("`{id}` is queued"), || async { self.state_of(id).await == Some(State::Queued) }).await;
    }
}

/// They are queued without a worker; what is announced, or is no task, is not announced again; a topic may come later.
pub async fn foreign_tasks_are_announced(ground: Ground) {
    let topic = ground.task_topic("plain");
    ground.put(&topic, "early", &[]).await;
    let tracker = ground.tracker().await;
    ground.is_queued("early").await;
    ground.put(&topic, "quiet", &[("ce_announced", b"1")]).await;
    ground.put(&topic, "no:path", &[]).await;
    let offset = ground.put(&topic, "late", &[("ce_name", b"a name")]).await;
    ground.is_queued("late").await;
    let late = TaskId::parse("late").unwrap();
    let node = ground.store.nodes(ground.partition_of("late"), &[late]).await.unwrap().remove(0).unwrap();
    assert_eq!(node.position.map(|position| (position.partition, position.offset)), Some((1, offset)));
    assert_eq!(node.policy.and_then(|policy| policy.name).as_deref(), Some("a name"));
    assert_eq!((ground.state_of("quiet").await, ground.state_of("no").await), (None, None));
    let other = ground.task_topic("other");
    ground.put(&other, "elsewhere", &[]).await;
    ground.is_queued("elsewhere").await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// A successor goes on where the last one stopped, and the first of all where the workers are: tasks that are done, and
/// perhaps forgotten, do not come back.
pub async fn only_what_is_new_is_announced(ground: Ground) {
    let topic = ground.task_topic("plain");
    ground.put(&topic, "done", &[]).await;
    ground.put(&topic, "open", &[]).await;
    let commit = Commit { partition: Partition::new(topic.as_str(), 1), offset: 1, metadata: String::new() };
    ground.broker.set_group_offsets(&ground.names.group("plain"), &[commit], CALL).unwrap();
    let first = ground.tracker().await;
    ground.is_queued("open").await;
    // What it has not told the group yet, the next one would announce again.
    let (group, at) = (ground.names.observer_group(), Partition::new(topic.as_str(), 1));
    let told = || async {
        let told = ground.broker.group_offsets(&group, std::slice::from_ref(&at), CALL).unwrap().remove(0);
        told.is_some_and(|told| told.offset >= 2)
    };
    until("the group is told", told).await;
    first.stop().await;
    let events: i64 = ground.all().into_iter().map(|partition| ground.end(partition)).sum();
    ground.put(&topic, "new", &[]).await;
    let second = ground.tracker().await;
    ground.is_queued("new").await;
    second.stop().await;
    assert_eq!(ground.state_of("done").await, None);
    let now: i64 = ground.all().into_iter().map(|partition| ground.end(partition)).sum();
    assert_eq!(now, events + 1, "nothing was announced twice");
}
