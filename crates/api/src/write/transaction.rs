//! `POST /v1/batches?atomic=true`: creates the tasks of one tree in one transaction.

use super::idempotency::Outcomes;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_broker::BrokerError;
use kafleet_documents::CreateTask;
use kafleet_fleet::publish::{PublishError, PublishedTask};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_runtime::now_ms;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::Writes;
use super::idempotency::{SubmittedTask, as_published};
use super::lease::{Claim, Lease, PublishOutcome, RENEW_EVERY, WAIT_DEADLINE, in_progress, poll_pauses};
use super::unique::check_not_unique;
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;

/// Maximum tasks per transaction.
pub(crate) const MAX_ATOMIC_ITEMS: usize = 1_000;
/// Deadline of a transaction, including the wait for the previous one.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum concurrent claims.
const MAX_CONCURRENT_CLAIMS: usize = 64;
const NOTHING: &str = "nothing of the batch was published";

/// Attributes an error to an item of the batch.
fn at(n: usize, error: ApiError) -> ApiError {
    error.for_item(n, NOTHING)
}

/// State of an item's task before the transaction.
enum ItemState {
    /// The id was generated and cannot be taken.
    New,
    Ours(Lease),
    /// The task already exists.
    Existing(Box<TaskView>),
}

impl ItemState {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Ours(lease) => Some(lease),
            Self::New | Self::Existing(_) => None,
        }
    }
}

impl Writes {
    /// Validates the tasks of a batch, which are in one tree.
    pub(crate) async fn validate_all(
        &self,
        items: Vec<Result<CreateTask, ApiError>>,
        trace: Option<&Trace>,
    ) -> Result<Vec<TaskSpec>, ApiError> {
        let (now_ms, mut tasks) = (now_ms(), Vec::with_capacity(items.len()));
        let mut indexes = FxHashMap::<TaskId, usize>::default();
        for (n, item) in items.into_iter().enumerate() {
            let task = self.validate_next(item, now_ms, trace, &tasks, &indexes).await.map_err(|error| at(n, error))?;
            indexes.insert(task.id.clone(), n);
            tasks.push(task);
        }
        Ok(tasks)
    }

    async fn validate_next(
        &self,
        item: Result<CreateTask, ApiError>,
        now_ms: i64,
        trace: Option<&Trace>,
        before: &[TaskSpec],
        indexes: &FxHashMap<TaskId, usize>,
    ) -> Result<TaskSpec, ApiError> {
        let mut item = item?;
        if item.parent.is_some() {
            // Siblings of a batch are in its order.
            item.policy.rules.index.get_or_insert(before.len() as u32);
        }
        let mut task = self.checks.validate(item, now_ms, trace)?;
        check_not_unique(&task)?;
        self.checks.check_types(&task).await?;
        if let Some(first) = before.first().filter(|first| first.id.root() != task.id.root()) {
            let reason = format!("`{}` is not in the tree of `{}`", task.id, first.id.root());
            return Err(ApiError::new(Code::MultipleTrees, reason).hint("send one batch per tree, or omit `atomic`"));
        }
        if indexes.contains_key(&task.id) {
            return Err(ApiError::new(Code::DuplicateId, format!("`{}` is repeated in the batch", task.id)));
        }
        if let Some(parent) = task.id.parent_id() {
            (task.asof, task.run) = match indexes.get(&parent).and_then(|n| before.get(*n)) {
                Some(parent) => (parent.asof, parent.run),
                None => {
                    let parent = self.find_parent(&parent).await?;
                    (parent.asof(), parent.record.run)
                }
            };
        }
        Ok(task)
    }

    pub(crate) async fn submit_atomic(&self, tasks: Vec<TaskSpec>) -> Result<Outcomes, ApiError> {
        let deadline = Instant::now() + WAIT_DEADLINE;
        let states = self.claim_all(&tasks, deadline).await?;
        let states = self.reclaim_mixed(&tasks, states, deadline).await?;
        let leases: Vec<Lease> = states.iter().filter_map(|item_state| item_state.lease().cloned()).collect();
        let existing = states.iter().filter(|item_state| matches!(item_state, ItemState::Existing(_))).count();
        if existing == tasks.len() {
            let existing = |(task, item_state): (TaskSpec, ItemState)| match item_state {
                ItemState::Existing(view) => (Some(task.id), Ok(SubmittedTask::existing(*view))),
                _ => (Some(task.id), Err(ApiError::internal())),
            };
            return Ok(tasks.into_iter().zip(states).map(existing).collect());
        }
        if let Some(n) = states.iter().position(|item_state| matches!(item_state, ItemState::Existing(_))) {
            self.leases.release(leases.iter()).await;
            let id = &tasks[n].id;
            let reason = format!("`{id}` already exists, but other tasks of the batch do not");
            return Err(at(n, ApiError::new(Code::DuplicateId, reason).existing(id)));
        }
        let published = self.leases.while_renewing(&leases, self.publish_atomic(tasks.clone())).await;
        let outcomes_by_lease = states.iter().enumerate().filter_map(|(n, item_state)| {
            let outcome = match &published {
                Ok(published) => {
                    published.get(n).map_or(PublishOutcome::InDoubt, |done| PublishOutcome::Published(done.position))
                }
                Err(error) if error.may_have_happened() => PublishOutcome::InDoubt,
                Err(_) => PublishOutcome::Released,
            };
            Some((item_state.lease()?, outcome))
        });
        self.leases.finish(outcomes_by_lease).await;
        let created = |(task, done): (TaskSpec, PublishedTask)| {
            let published = as_published(&task, done.position, &self.reads);
            (Some(task.id), Ok(SubmittedTask { task: published, is_new: true, verdict: None }))
        };
        Ok(tasks.into_iter().zip(published?).map(created).collect())
    }

    /// Claims all ids or none. While waiting for an id, a batch holds only ids that sort before it, so that two
    /// batches cannot deadlock.
    async fn claim_all(&self, tasks: &[TaskSpec], deadline: Instant) -> Result<Vec<ItemState>, ApiError> {
        let mut states: Vec<Option<ItemState>> = tasks.iter().map(|_| None).collect();
        let (mut waited, mut renewed, mut pauses) = (false, Instant::now(), poll_pauses());
        loop {
            let open = (0..tasks.len()).filter(|n| states[*n].is_none());
            let claims: Vec<_> = open.map(|n| async move { (n, self.item_state(&tasks[n], waited).await) }).collect();
            let claims: Vec<_> = stream::iter(claims).buffered(MAX_CONCURRENT_CLAIMS).collect().await;
            let (mut busy, mut wrong) = (None::<usize>, None);
            for (n, item_state) in claims {
                match item_state {
                    Ok(Some(item_state)) => states[n] = Some(item_state),
                    Ok(None) => busy = busy.filter(|first| tasks[*first].id < tasks[n].id).or(Some(n)),
                    Err(error) => wrong = wrong.or(Some(at(n, error))),
                }
            }
            let timed_out = busy.filter(|_| Instant::now() >= deadline).map(|n| at(n, in_progress(&tasks[n].id)));
            let wrong = wrong.or(timed_out);
            let Some(first) = busy.filter(|_| wrong.is_none()) else {
                let Some(error) = wrong else { return Ok(states.into_iter().flatten().collect()) };
                self.leases.release(states.iter().flatten().filter_map(ItemState::lease)).await;
                return Err(error);
            };
            let behind = states.iter_mut().zip(tasks).filter(|(_, task)| task.id > tasks[first].id);
            let released: Vec<ItemState> = behind.filter_map(|(item_state, _)| item_state.take()).collect();
            self.leases.release(released.iter().filter_map(ItemState::lease)).await;
            if renewed.elapsed() >= RENEW_EVERY {
                self.leases.renew(states.iter().flatten().filter_map(ItemState::lease)).await;
                renewed = Instant::now();
            }
            tokio::time::sleep(pauses.next_wait()).await;
            waited = true;
        }
    }

    /// Claims all ids again if some tasks exist and others do not: their transaction may have become visible during
    /// the lookups, for the first time or after the store was lost. All events of a tree lie in one partition, so a
    /// transaction is visible as a whole once the projection has reached the partition's end.
    async fn reclaim_mixed(
        &self,
        tasks: &[TaskSpec],
        states: Vec<ItemState>,
        deadline: Instant,
    ) -> Result<Vec<ItemState>, ApiError> {
        let is_mixed = states.iter().any(|item_state| matches!(item_state, ItemState::Existing(_)))
            && states.iter().any(|item_state| item_state.lease().is_some());
        if !is_mixed {
            return Ok(states);
        }
        self.leases.release(states.iter().filter_map(ItemState::lease)).await;
        if let Some(first) = tasks.first()
            && let Some(lag) = self.reads.lag_at_end(self.reads.topology.partition_of(&first.id)).await?
        {
            return Err(lag);
        }
        self.claim_all(tasks, deadline).await
    }

    /// Returns `None` while another request publishes the task. `waited`: another request held the lease before.
    async fn item_state(&self, task: &TaskSpec, waited: bool) -> Result<Option<ItemState>, ApiError> {
        if task.has_generated_id {
            return Ok(Some(ItemState::New));
        }
        let existing = |view| Ok(Some(ItemState::Existing(Box::new(view))));
        if let Some(view) = self.existing(task).await? {
            return existing(view);
        }
        let lease = match self.leases.claim(task).await? {
            Claim::Ours(lease) => lease,
            Claim::Published(position) => return existing(as_published(task, position, &self.reads)),
            Claim::Busy => return Ok(None),
        };
        let view = self.find_published_earlier(task, waited || lease.taken_over).await;
        if !matches!(view, Ok(None)) {
            self.leases.release(std::iter::once(&lease)).await;
        }
        view?.map_or(Ok(Some(ItemState::Ours(lease))), existing)
    }

    /// Publishes in one transaction.
    async fn publish_atomic(&self, tasks: Vec<TaskSpec>) -> Result<Vec<PublishedTask>, ApiError> {
        let (publisher, sender) = (self.publisher.clone(), self.producer.clone());
        let name = self.transactional_id.clone();
        let timed_out =
            |_| ApiError::new(Code::Overloaded, format!("other batches are in progress; {NOTHING}")).hint("retry");
        let mut sender = tokio::time::timeout(DEADLINE, sender.lock_owned()).await.map_err(timed_out)?;
        let broker = self.reads.broker.with_deadline(DEADLINE * 3);
        let done = broker.call(move |broker, _| {
            let mut producer = match sender.take() {
                Some(producer) => producer,
                // Nothing of this batch has been sent yet.
                None => match broker.transactional_producer(&name) {
                    Ok(producer) => producer,
                    Err(error) => {
                        return Ok(Err(PublishError::NotPublished(BrokerError::Unavailable(error.to_string()))));
                    }
                },
            };
            let done = publisher.publish_atomically(&mut *producer, tasks, now_ms(), DEADLINE);
            // After an error a new producer is opened, which aborts or completes the transaction of the old one.
            *sender = done.is_ok().then_some(producer);
            Ok::<_, BrokerError>(done)
        });
        match done.await {
            Ok(Ok(published)) => Ok(published),
            Ok(Err(error)) => Err(from_publish_error(error)),
            // The call timed out but may still complete in the background.
            Err(error) => Err(in_doubt(&error.to_string())),
        }
    }
}

fn in_doubt(reason: &str) -> ApiError {
    ApiError::new(
        Code::OutcomeUnknown,
        format!("the batch may have been published as a whole, or not at all: {reason}"),
    )
    .hint("repeat it with the same ids: existing tasks are not published again")
}

fn from_publish_error(error: PublishError) -> ApiError {
    match error {
        PublishError::NotPublished(BrokerError::InDoubt(reason)) => in_doubt(&reason),
        PublishError::NotPublished(BrokerError::TooLarge(reason)) => {
            ApiError::new(Code::TooLarge, format!("{reason}; {NOTHING}"))
        }
        PublishError::NotPublished(reason) => {
            ApiError::new(Code::KafkaUnavailable, format!("{reason}; {NOTHING}")).hint("retry")
        }
        error => ApiError::new(Code::BadField, format!("{error}; {NOTHING}")),
    }
}
