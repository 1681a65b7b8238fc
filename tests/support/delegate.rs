//! Delegation of trait methods from a test double to what it wraps.

use futures::future::BoxFuture;
use kafleet::store::StoreError;

/// Response of a store, as `async_trait` declares it.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Implements methods of a trait by calls of an expression after `self.`, as in
/// `delegate!(Broker via [inner]: topics, watermarks)`.
///
/// In place of crates: `delegate` repeats each signature at each use, `ambassador` delegates whole traits only.
macro_rules! delegate {
    ($trait:ident via $to:tt: $($method:ident),+ $(,)?) => {
        $(delegate!(@ $trait $method $to);)+
    };
    (@ Broker consumer [$($to:tt)+]) => {
        fn consumer(
            &self,
            spec: &kafleet::broker::ConsumerSpec,
        ) -> Result<Box<dyn kafleet::broker::Consumer>, kafleet::broker::BrokerError> {
            self.$($to)+.consumer(spec)
        }
    };
    (@ Broker producer [$($to:tt)+]) => {
        fn producer(
            &self,
            sink: std::sync::Arc<dyn kafleet::broker::DeliverySink>,
        ) -> Result<std::sync::Arc<dyn kafleet::broker::Producer>, kafleet::broker::BrokerError> {
            self.$($to)+.producer(sink)
        }
    };
    (@ Broker transactional_producer [$($to:tt)+]) => {
        fn transactional_producer(
            &self,
            name: &str,
        ) -> Result<Box<dyn kafleet::broker::TransactionalProducer>, kafleet::broker::BrokerError> {
            self.$($to)+.transactional_producer(name)
        }
    };
    (@ Broker topics [$($to:tt)+]) => {
        fn topics(
            &self,
            prefix: &str,
            deadline: std::time::Duration,
        ) -> Result<Vec<kafleet::broker::TopicInfo>, kafleet::broker::BrokerError> {
            self.$($to)+.topics(prefix, deadline)
        }
    };
    (@ Broker apply_topics [$($to:tt)+]) => {
        fn apply_topics(
            &self,
            topics: &[kafleet::broker::TopicSpec],
            deadline: std::time::Duration,
        ) -> Result<Vec<kafleet::broker::TopicOutcome>, kafleet::broker::BrokerError> {
            self.$($to)+.apply_topics(topics, deadline)
        }
    };
    (@ Broker watermarks [$($to:tt)+]) => {
        fn watermarks(
            &self,
            partition: &kafleet::broker::Partition,
            deadline: std::time::Duration,
        ) -> Result<kafleet::broker::Watermarks, kafleet::broker::BrokerError> {
            self.$($to)+.watermarks(partition, deadline)
        }
    };
    (@ Broker first_visible [$($to:tt)+]) => {
        fn first_visible(
            &self,
            partition: &kafleet::broker::Partition,
            offset: i64,
            deadline: std::time::Duration,
        ) -> Result<kafleet::broker::CommittedProbe, kafleet::broker::BrokerError> {
            self.$($to)+.first_visible(partition, offset, deadline)
        }
    };
    (@ Broker group_offsets [$($to:tt)+]) => {
        fn group_offsets(
            &self,
            group: &str,
            partitions: &[kafleet::broker::Partition],
            deadline: std::time::Duration,
        ) -> Result<Vec<Option<kafleet::broker::Committed>>, kafleet::broker::BrokerError> {
            self.$($to)+.group_offsets(group, partitions, deadline)
        }
    };
    (@ Broker set_group_offsets [$($to:tt)+]) => {
        fn set_group_offsets(
            &self,
            group: &str,
            commits: &[kafleet::broker::Commit],
            deadline: std::time::Duration,
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.set_group_offsets(group, commits, deadline)
        }
    };
    (@ Consumer assign [$($to:tt)+]) => {
        fn assign(
            &mut self,
            starts: &[(kafleet::broker::Partition, kafleet::broker::StartOffset)],
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.assign(starts)
        }
    };
    (@ Consumer release [$($to:tt)+]) => {
        fn release(&mut self, partitions: &[kafleet::broker::Partition]) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.release(partitions)
        }
    };
    (@ Consumer commit [$($to:tt)+]) => {
        fn commit(&mut self, commits: &[kafleet::broker::Commit]) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.commit(commits)
        }
    };
    (@ Consumer commit_sync [$($to:tt)+]) => {
        fn commit_sync(&mut self, commits: &[kafleet::broker::Commit]) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.commit_sync(commits)
        }
    };
    (@ Consumer committed [$($to:tt)+]) => {
        fn committed(
            &mut self,
            partitions: &[kafleet::broker::Partition],
            deadline: std::time::Duration,
        ) -> Result<Vec<Option<kafleet::broker::Committed>>, kafleet::broker::BrokerError> {
            self.$($to)+.committed(partitions, deadline)
        }
    };
    (@ Consumer pause [$($to:tt)+]) => {
        fn pause(
            &mut self,
            partitions: &[kafleet::broker::Partition],
            paused: bool,
        ) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.pause(partitions, paused)
        }
    };
    (@ Consumer hold [$($to:tt)+]) => {
        fn hold(&mut self, topic: &str, held: bool) {
            self.$($to)+.hold(topic, held);
        }
    };
    (@ Consumer positions [$($to:tt)+]) => {
        fn positions(&mut self) -> Result<Vec<(kafleet::broker::Partition, i64)>, kafleet::broker::BrokerError> {
            self.$($to)+.positions()
        }
    };
    (@ Consumer close [$($to:tt)+]) => {
        fn close(self: Box<Self>, deadline: std::time::Duration) {
            self.$($to)+.close(deadline);
        }
    };
    (@ Producer flush [$($to:tt)+]) => {
        fn flush(&self, deadline: std::time::Duration) -> Result<(), kafleet::broker::BrokerError> {
            self.$($to)+.flush(deadline)
        }
    };
    (@ Producer purge [$($to:tt)+]) => {
        fn purge(&self) {
            self.$($to)+.purge();
        }
    };
    // The signatures below are those that `async_trait` generates: it does not see into macros.
    (@ Store open [$($to:tt)+]) => {
        fn open<'life0, 'async_trait>(
            &'life0 self,
            partition: u32,
        ) -> crate::support::delegate::StoreFuture<
            'async_trait,
            (Box<dyn kafleet::store::PartitionWriter>, Option<kafleet::store::Checkpoint>),
        >
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.open(partition).await })
        }
    };
    (@ Store nodes [$($to:tt)+]) => {
        fn nodes<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partition: u32,
            ids: &'life1 [kafleet::model::task::id::TaskId],
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<Option<kafleet::model::record::TaskRecord>>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.nodes(partition, ids).await })
        }
    };
    (@ Store checkpoints [$($to:tt)+]) => {
        fn checkpoints<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partitions: &'life1 [u32],
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<Option<kafleet::store::Checkpoint>>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.checkpoints(partitions).await })
        }
    };
    (@ Store page [$($to:tt)+]) => {
        fn page<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 self,
            partition: u32,
            index: &'life1 kafleet::store::Index,
            after: Option<&'life2 kafleet::store::Entry>,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<kafleet::store::Entry>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.page(partition, index, after, limit).await })
        }
    };
    (@ Store done [$($to:tt)+]) => {
        fn done<'life0, 'async_trait>(
            &'life0 self,
            partition: u32,
            after_ms: i64,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<kafleet::store::Entry>>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.done(partition, after_ms, limit).await })
        }
    };
    (@ Store outbox [$($to:tt)+]) => {
        fn outbox<'life0, 'async_trait>(
            &'life0 self,
            partition: u32,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::store::Outbox>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.outbox(partition, limit).await })
        }
    };
    (@ Store deferred [$($to:tt)+]) => {
        fn deferred<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partition: u32,
            ids: &'life1 [kafleet::model::task::id::TaskId],
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<Option<Vec<u8>>>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.deferred(partition, ids).await })
        }
    };
    (@ Store counts [$($to:tt)+]) => {
        fn counts<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partitions: &'life1 [u32],
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<kafleet::store::TypeCount>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.counts(partitions).await })
        }
    };
    (@ Store statistics [$($to:tt)+]) => {
        fn statistics<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 self,
            partition: u32,
            series: &'life1 [std::sync::Arc<str>],
            aggregates: &'life2 [kafleet::model::statistics::aggregate::AggregateKey],
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::store::PartitionStatistics>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.statistics(partition, series, aggregates).await })
        }
    };
    (@ Store error_summaries [$($to:tt)+]) => {
        fn error_summaries<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 self,
            partition: u32,
            task_type: &'life1 str,
            hours: &'life2 [i64],
        ) -> crate::support::delegate::StoreFuture<
            'async_trait,
            Vec<(i64, kafleet::model::statistics::errors::ErrorSummary)>,
        >
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.error_summaries(partition, task_type, hours).await })
        }
    };
    (@ Store error_groups [$($to:tt)+]) => {
        fn error_groups<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partition: u32,
            task_type: &'life1 str,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::store::ErrorGroups>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.error_groups(partition, task_type, limit).await })
        }
    };
    (@ Store requests [$($to:tt)+]) => {
        fn requests<'life0, 'async_trait>(
            &'life0 self,
            partition: u32,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<
            'async_trait,
            Vec<kafleet::model::projection::audit::AuditEntry>,
        >
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.requests(partition, limit).await })
        }
    };
    (@ Store log_lines [$($to:tt)+]) => {
        fn log_lines<'life0, 'life1, 'async_trait>(
            &'life0 self,
            partition: u32,
            id: &'life1 kafleet::model::task::id::TaskId,
            from: u64,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::store::LogPage>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.log_lines(partition, id, from, limit).await })
        }
    };
    (@ Store attachment [$($to:tt)+]) => {
        fn attachment<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 self,
            partition: u32,
            id: &'life1 kafleet::model::task::id::TaskId,
            name: &'life2 str,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Option<Vec<u8>>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.attachment(partition, id, name).await })
        }
    };
    (@ Store reserve [$($to:tt)+]) => {
        fn reserve<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 self,
            partition: u32,
            id: &'life1 kafleet::model::task::id::TaskId,
            run: u32,
            mark: &'life2 kafleet::store::Reservation,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Option<kafleet::store::Reservation>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.reserve(partition, id, run, mark).await })
        }
    };
    (@ Store replace_reservation [$($to:tt)+]) => {
        fn replace_reservation<'life0, 'life1, 'life2, 'life3, 'async_trait>(
            &'life0 self,
            partition: u32,
            id: &'life1 kafleet::model::task::id::TaskId,
            run: u32,
            held: &'life2 kafleet::store::Reservation,
            mark: Option<&'life3 kafleet::store::Reservation>,
        ) -> crate::support::delegate::StoreFuture<'async_trait, bool>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, 'life3: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.replace_reservation(partition, id, run, held, mark).await })
        }
    };
    (@ Store notices [$($to:tt)+]) => {
        fn notices<'life0, 'async_trait>(
            &'life0 self,
        ) -> crate::support::delegate::StoreFuture<
            'async_trait,
            futures::stream::BoxStream<'static, kafleet::store::Notice>,
        >
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.notices().await })
        }
    };
    (@ Store check [$($to:tt)+]) => {
        fn check<'life0, 'async_trait>(
            &'life0 self,
        ) -> crate::support::delegate::StoreFuture<'async_trait, ()>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.check().await })
        }
    };
    (@ PartitionWriter lifetimes [$($to:tt)+]) => {
        fn lifetimes<'life0, 'async_trait>(
            &'life0 mut self,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Option<kafleet::model::retention::Lifetimes>>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.lifetimes().await })
        }
    };
    (@ PartitionWriter statistics [$($to:tt)+]) => {
        fn statistics<'life0, 'async_trait>(
            &'life0 mut self,
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::model::statistics::StoredStatistics>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.statistics().await })
        }
    };
    (@ PartitionWriter done [$($to:tt)+]) => {
        fn done<'life0, 'async_trait>(
            &'life0 mut self,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<kafleet::store::Entry>>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.done(limit).await })
        }
    };
    (@ PartitionWriter nodes [$($to:tt)+]) => {
        fn nodes<'life0, 'life1, 'async_trait>(
            &'life0 mut self,
            ids: &'life1 [kafleet::model::task::id::TaskId],
        ) -> crate::support::delegate::StoreFuture<'async_trait, Vec<Option<kafleet::model::record::TaskRecord>>>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.nodes(ids).await })
        }
    };
    (@ PartitionWriter check [$($to:tt)+]) => {
        fn check<'life0, 'async_trait>(
            &'life0 mut self,
        ) -> crate::support::delegate::StoreFuture<'async_trait, ()>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.check().await })
        }
    };
    (@ PartitionWriter verify_totals [$($to:tt)+]) => {
        fn verify_totals<'life0, 'async_trait>(
            &'life0 mut self,
        ) -> crate::support::delegate::StoreFuture<'async_trait, Option<String>>
        where
            'life0: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.verify_totals().await })
        }
    };
    (@ PartitionWriter audit [$($to:tt)+]) => {
        fn audit<'life0, 'life1, 'life2, 'async_trait>(
            &'life0 mut self,
            index: &'life1 kafleet::store::Index,
            after: Option<&'life2 kafleet::store::Entry>,
            limit: usize,
        ) -> crate::support::delegate::StoreFuture<'async_trait, kafleet::store::AuditPage>
        where
            'life0: 'async_trait, 'life1: 'async_trait, 'life2: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.audit(index, after, limit).await })
        }
    };
    (@ PartitionWriter mark_damaged [$($to:tt)+]) => {
        fn mark_damaged<'life0, 'life1, 'async_trait>(
            &'life0 mut self,
            reason: &'life1 str,
        ) -> crate::support::delegate::StoreFuture<'async_trait, ()>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.mark_damaged(reason).await })
        }
    };
    (@ PartitionWriter apply [$($to:tt)+]) => {
        fn apply<'life0, 'life1, 'async_trait>(
            &'life0 mut self,
            changes: &'life1 kafleet::model::projection::changes::Changes,
            from: Option<kafleet::store::Checkpoint>,
            to: kafleet::store::Checkpoint,
        ) -> crate::support::delegate::StoreFuture<'async_trait, ()>
        where
            'life0: 'async_trait, 'life1: 'async_trait, Self: 'async_trait,
        {
            Box::pin(async move { self.$($to)+.apply(changes, from, to).await })
        }
    };
}
