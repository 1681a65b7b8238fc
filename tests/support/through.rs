//! Delegation of broker and consumer methods to the field `inner` of a test double.

macro_rules! through {
    ($($method:ident),+) => {
        $(through!(@ $method);)+
    };
    (@ producer) => {
        fn producer(
            &self,
            sink: std::sync::Arc<dyn kafleet::broker::DeliverySink>,
        ) -> Result<std::sync::Arc<dyn kafleet::broker::Producer>, kafleet::broker::BrokerError> {
            self.inner.producer(sink)
        }
    };
    (@ transactional_producer) => {
        fn transactional_producer(
            &self,
            name: &str,
        ) -> Result<Box<dyn kafleet::broker::TransactionalProducer>, kafleet::broker::BrokerError> {
            self.inner.transactional_producer(name)
        }
    };
    (@ topics) => {
        fn topics(
            &self,
            prefix: &str,
            deadline: std::time::Duration,
        ) -> Result<Vec<kafleet::broker::TopicInfo>, kafleet::broker::BrokerError> {
            self.inner.topics(prefix, deadline)
        }
    };
    (@ apply_topics) => {
        fn apply_topics(
            &self,
            topics: &[kafleet::broker::TopicSpec],
            deadline: std::time::Duration,
        ) -> Result<Vec<kafleet::broker::TopicOutcome>, kafleet::broker::BrokerError> {
            self.inner.apply_topics(topics, deadline)
        }
    };
    (@ ends) => {
        fn ends(
            &self,
            partition: &kafleet::broker::Partition,
            deadline: std::time::Duration,
        ) -> Result<kafleet::broker::Watermarks, kafleet::broker::BrokerError> {
            self.inner.ends(partition, deadline)
        }
    };
    (@ look) => {
        fn first_visible(
            &self,
            partition: &kafleet::broker::Partition,
            offset: i64,
            deadline: std::time::Duration,
        ) -> Result<kafleet::broker::CommittedProbe, kafleet::broker::BrokerError> {
            self.inner.first_visible(partition, offset, deadline)
        }
    };
    (@ group_offsets) => {
        fn group_offsets(
            &self,
            group: &str,
            at: &[kafleet::broker::Partition],
            deadline: std::time::Duration,
        ) -> Result<Vec<Option<kafleet::broker::Committed>>, kafleet::broker::BrokerError> {
            self.inner.group_offsets(group, at, deadline)
        }
    };
    (@ set_group_offsets) => {
        fn set_group_offsets(
            &self,
            group: &str,
            commits: &[kafleet::broker::Commit],
            deadline: std::time::Duration,
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.set_group_offsets(group, commits, deadline)
        }
    };
    (@ assign) => {
        fn assign(
            &mut self,
            starts: &[(kafleet::broker::Partition, kafleet::broker::StartOffset)],
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.assign(starts)
        }
    };
    (@ release) => {
        fn release(&mut self, partitions: &[kafleet::broker::Partition]) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.release(partitions)
        }
    };
    (@ commit) => {
        fn commit(&mut self, commits: &[kafleet::broker::Commit]) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.commit(commits)
        }
    };
    (@ commit_sync) => {
        fn commit_sync(&mut self, commits: &[kafleet::broker::Commit]) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.commit_sync(commits)
        }
    };
    (@ committed) => {
        fn committed(
            &mut self,
            partitions: &[kafleet::broker::Partition],
            deadline: std::time::Duration,
        ) -> Result<Vec<Option<kafleet::broker::Committed>>, kafleet::broker::BrokerError> {
            self.inner.committed(partitions, deadline)
        }
    };
    (@ pause) => {
        fn pause(
            &mut self,
            partitions: &[kafleet::broker::Partition],
            paused: bool,
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.inner.pause(partitions, paused)
        }
    };
    (@ positions) => {
        fn positions(&mut self) -> Result<Vec<(kafleet::broker::Partition, i64)>, kafleet::broker::BrokerError> {
            self.inner.positions()
        }
    };
    (@ close) => {
        fn close(self: Box<Self>, deadline: std::time::Duration) {
            self.inner.close(deadline);
        }
    };
}
