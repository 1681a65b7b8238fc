//! `POST /v1/batches?atomic=true`: creates the tasks of one tree in one transaction.

use super::idempotency::Outcomes;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::Writes;
use super::idempotency::{SubmitOutcome, as_published};
use super::lease::{Claim, Lease, PublishOutcome, RENEW_EVERY, WAIT_DEADLINE, in_progress, poll_pauses};
use super::validate::Draft;
use crate::documents::CreateTask;
use crate::api::http::problem::{ApiError, Code};
use crate::api::read::consistency::TaskView;
use crate::broker::BrokerError;
use crate::model::task::Trace;
use crate::model::task::id::TaskId;
use crate::publish::{PublishError, PublishedTask};
use crate::runtime::now_ms;

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

/// State of a draft before the transaction.
enum DraftState {
    /// The id was generated and cannot be taken.
    New,
    Ours(Lease),
    /// The task already exists.
    Existing(Box<TaskView>),
}

impl DraftState {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Ours(lease) => Some(lease),
            Self::New | Self::Existing(_) => None,
        }
    }
}

impl Writes {
    pub(crate) async fn drafts(
        &self,
        items: Vec<Result<CreateTask, ApiError>>,
        trace: Option<&Trace>,
    ) -> Result<Vec<Draft>, ApiError> {
        let (now_ms, mut drafts) = (now_ms(), Vec::with_capacity(items.len()));
        let mut indexes = FxHashMap::<TaskId, usize>::default();
        for (n, item) in items.into_iter().enumerate() {
            let draft = self.next_draft(item, now_ms, trace, &drafts, &indexes).await.map_err(|error| at(n, error))?;
            indexes.insert(draft.id.clone(), n);
            drafts.push(draft);
        }
        Ok(drafts)
    }

    async fn next_draft(
        &self,
        item: Result<CreateTask, ApiError>,
        now_ms: i64,
        trace: Option<&Trace>,
        before: &[Draft],
        indexes: &FxHashMap<TaskId, usize>,
    ) -> Result<Draft, ApiError> {
        let mut draft = self.draft(item?, now_ms, trace)?;
        self.check_types(&draft).await?;
        if let Some(first) = before.first().filter(|first| first.id.root() != draft.id.root()) {
            let reason = format!("`{}` is not in the tree of `{}`", draft.id, first.id.root());
            return Err(ApiError::new(Code::MultipleTrees, reason).hint("send one batch per tree, or omit `atomic`"));
        }
        if indexes.contains_key(&draft.id) {
            return Err(ApiError::new(Code::DuplicateId, format!("`{}` is repeated in the batch", draft.id)));
        }
        if let Some(parent) = draft.id.parent_id() {
            (draft.new.asof, draft.new.run) = match indexes.get(&parent).and_then(|n| before.get(*n)) {
                Some(parent) => (parent.new.asof, parent.new.run),
                None => {
                    let parent = self.find_parent(&parent).await?;
                    (parent.asof(), parent.record.run)
                }
            };
        }
        Ok(draft)
    }

    pub(crate) async fn submit_atomic(&self, drafts: Vec<Draft>) -> Result<Outcomes, ApiError> {
        let deadline = Instant::now() + WAIT_DEADLINE;
        let states = self.claim_all(&drafts, deadline).await?;
        let states = self.reclaim_mixed(&drafts, states, deadline).await?;
        let leases: Vec<Lease> = states.iter().filter_map(|draft_state| draft_state.lease().cloned()).collect();
        let existing = states.iter().filter(|draft_state| matches!(draft_state, DraftState::Existing(_))).count();
        if existing == drafts.len() {
            let existing = |(draft, draft_state): (Draft, DraftState)| match draft_state {
                DraftState::Existing(found) => (Some(draft.id), Ok(SubmitOutcome::Existing(*found))),
                _ => (Some(draft.id), Err(ApiError::internal())),
            };
            return Ok(drafts.into_iter().zip(states).map(existing).collect());
        }
        if let Some(n) = states.iter().position(|draft_state| matches!(draft_state, DraftState::Existing(_))) {
            self.leases.release(leases.iter()).await;
            let id = &drafts[n].id;
            let reason = format!("`{id}` already exists, but other tasks of the batch do not");
            return Err(at(n, ApiError::new(Code::DuplicateId, reason).existing(id)));
        }
        let published = self.leases.while_renewing(&leases, self.publish_atomic(&drafts)).await;
        let outcomes_by_lease = states.iter().enumerate().filter_map(|(n, draft_state)| {
            let outcome = match &published {
                Ok(published) => {
                    published.get(n).map_or(PublishOutcome::InDoubt, |done| PublishOutcome::Published(done.position))
                }
                Err((_, true)) => PublishOutcome::InDoubt,
                Err((_, false)) => PublishOutcome::Released,
            };
            Some((draft_state.lease()?, outcome))
        });
        self.leases.finish(outcomes_by_lease).await;
        let published = published.map_err(|(error, _)| error)?;
        let created = |(draft, done): (Draft, PublishedTask)| {
            let found = as_published(&draft, done.position, self.publisher.sampler());
            (Some(draft.id), Ok(SubmitOutcome::Created(found)))
        };
        Ok(drafts.into_iter().zip(published).map(created).collect())
    }

    /// Claims all ids or none. While waiting for an id, a batch holds only ids that sort before it, so that two
    /// batches cannot deadlock.
    async fn claim_all(&self, drafts: &[Draft], deadline: Instant) -> Result<Vec<DraftState>, ApiError> {
        let mut states: Vec<Option<DraftState>> = drafts.iter().map(|_| None).collect();
        let (mut waited, mut renewed, mut pauses) = (false, Instant::now(), poll_pauses());
        loop {
            let open = (0..drafts.len()).filter(|n| states[*n].is_none());
            let claims: Vec<_> = open.map(|n| async move { (n, self.draft_state(&drafts[n], waited).await) }).collect();
            let claims: Vec<_> = stream::iter(claims).buffered(MAX_CONCURRENT_CLAIMS).collect().await;
            let (mut busy, mut wrong) = (None::<usize>, None);
            for (n, draft_state) in claims {
                match draft_state {
                    Ok(Some(draft_state)) => states[n] = Some(draft_state),
                    Ok(None) => busy = busy.filter(|first| drafts[*first].id < drafts[n].id).or(Some(n)),
                    Err(error) => wrong = wrong.or(Some(at(n, error))),
                }
            }
            let timed_out = busy.filter(|_| Instant::now() >= deadline).map(|n| at(n, in_progress(&drafts[n].id)));
            let wrong = wrong.or(timed_out);
            let Some(first) = busy.filter(|_| wrong.is_none()) else {
                let Some(error) = wrong else { return Ok(states.into_iter().flatten().collect()) };
                self.leases.release(states.iter().flatten().filter_map(DraftState::lease)).await;
                return Err(error);
            };
            let behind = states.iter_mut().zip(drafts).filter(|(_, draft)| draft.id > drafts[first].id);
            let released: Vec<DraftState> = behind.filter_map(|(draft_state, _)| draft_state.take()).collect();
            self.leases.release(released.iter().filter_map(DraftState::lease)).await;
            if renewed.elapsed() >= RENEW_EVERY {
                self.leases.renew(states.iter().flatten().filter_map(DraftState::lease)).await;
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
        drafts: &[Draft],
        states: Vec<DraftState>,
        deadline: Instant,
    ) -> Result<Vec<DraftState>, ApiError> {
        let is_mixed = states.iter().any(|draft_state| matches!(draft_state, DraftState::Existing(_)))
            && states.iter().any(|draft_state| draft_state.lease().is_some());
        if !is_mixed {
            return Ok(states);
        }
        self.leases.release(states.iter().filter_map(DraftState::lease)).await;
        if let Some(first) = drafts.first()
            && let Some(lag) = self.reads.lag_at_end(self.publisher.partition_of(&first.id)).await?
        {
            return Err(lag);
        }
        self.claim_all(drafts, deadline).await
    }

    /// Returns `None` while another request publishes the task. `waited`: another request held the lease before.
    async fn draft_state(&self, draft: &Draft, waited: bool) -> Result<Option<DraftState>, ApiError> {
        if draft.generated {
            return Ok(Some(DraftState::New));
        }
        if let Some(found) = self.existing(draft).await? {
            return Ok(Some(DraftState::Existing(Box::new(found))));
        }
        let lease = match self.leases.claim(draft).await? {
            Claim::Ours(lease) => lease,
            Claim::Published(position) => {
                return Ok(Some(DraftState::Existing(Box::new(as_published(
                    draft,
                    position,
                    self.publisher.sampler(),
                )))));
            }
            Claim::Busy => return Ok(None),
        };
        let found = self.find_published_earlier(draft, waited || lease.taken_over).await;
        if !matches!(found, Ok(None)) {
            self.leases.release(std::iter::once(&lease)).await;
        }
        Ok(Some(found?.map_or(DraftState::Ours(lease), |found| DraftState::Existing(Box::new(found)))))
    }

    /// Publishes in one transaction. The flag of an error is set if the transaction may have been committed.
    async fn publish_atomic(&self, drafts: &[Draft]) -> Result<Vec<PublishedTask>, (ApiError, bool)> {
        let tasks: Vec<_> = drafts.iter().map(|draft| draft.new.clone()).collect();
        let (publisher, sender) = (self.publisher.clone(), self.producer.clone());
        let name = self.transactional_id.clone();
        let timed_out = |_| {
            (ApiError::new(Code::Overloaded, format!("other batches are in progress; {NOTHING}")).hint("retry"), false)
        };
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
            Err(error) => Err((in_doubt(&error.to_string()), true)),
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

fn from_publish_error(error: PublishError) -> (ApiError, bool) {
    match error {
        PublishError::NotPublished(BrokerError::InDoubt(reason)) => (in_doubt(&reason), true),
        PublishError::NotPublished(BrokerError::TooLarge(reason)) => {
            (ApiError::new(Code::TooLarge, format!("{reason}; {NOTHING}")), false)
        }
        PublishError::NotPublished(reason) => {
            (ApiError::new(Code::KafkaUnavailable, format!("{reason}; {NOTHING}")).hint("retry"), false)
        }
        error => (ApiError::new(Code::BadField, format!("{error}; {NOTHING}")), false),
    }
}
