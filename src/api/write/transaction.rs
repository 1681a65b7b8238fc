//! `POST /v1/batches?atomic=true`: the tasks of one tree, all of them or none.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::idempotency::{Submitted, as_published};
use super::lease::{Claim, Ending, Lease, RENEW_EVERY, WAIT_DEADLINE, in_progress, poll_pauses};
use super::validate::{Draft, trace_of};
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::CreateTask;
use crate::api::handlers::batch::{Outcomes, items_of, told};
use crate::api::handlers::task::json_answer;
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::broker::{BrokerError, TransactionalProducer};
use crate::model::task::Trace;
use crate::model::task::id::TaskId;
use crate::publish::{PublishError, Published};
use crate::runtime::now_ms;

/// The most tasks in one transaction.
pub const MAX_TOGETHER: usize = 1_000;
/// How long a transaction may take, the wait for the one before included.
const DEADLINE: Duration = Duration::from_secs(10);
/// Ids looked up at once.
const AT_ONCE: usize = 64;
const NOTHING: &str = "nothing of the batch was published";

/// The one producer of this process for transactions. None: none is open.
pub type Sender = Arc<Mutex<Option<Box<dyn TransactionalProducer>>>>;

pub async fn create(call: ApiRequest) -> Result<Response, ApiError> {
    let api = call.api.clone();
    let items = items_of(&call)?;
    if items.len() > MAX_TOGETHER {
        let why = format!("the batch has {} items: at most {MAX_TOGETHER} go together", items.len());
        return Err(ApiError::new(Code::TooManyItems, why).hint("send the rest as a second batch below the same root"));
    }
    let drafts = api.drafts(items, trace_of(&call.headers).as_deref()).await?;
    let room = call.room;
    let outcomes = detached(async move {
        let done = api.submit_together(drafts).await;
        drop(room);
        done
    });
    Ok(json_answer(200, &told(outcomes.await?)))
}

/// Names the item that is wrong.
fn at(n: usize, refusal: ApiError) -> ApiError {
    refusal.of_item(n, NOTHING)
}

/// The draft of a batch in relation to the fleet, before anything is published.
enum Standing {
    /// The id was generated: nobody else can have it.
    New,
    Ours(Lease),
    /// The task exists.
    There(Box<TaskView>),
}

impl Standing {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Ours(lease) => Some(lease),
            Self::New | Self::There(_) => None,
        }
    }
}

impl Api {
    async fn drafts(&self, items: Vec<Result<CreateTask, ApiError>>, trace: Option<&Trace>) -> Result<Vec<Draft>, ApiError> {
        let (now_ms, mut drafts) = (now_ms(), Vec::with_capacity(items.len()));
        let mut places = FxHashMap::<TaskId, usize>::default();
        for (n, item) in items.into_iter().enumerate() {
            let draft = self.next_draft(item, now_ms, trace, &drafts, &places).await.map_err(|refusal| at(n, refusal))?;
            places.insert(draft.id.clone(), n);
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
        places: &FxHashMap<TaskId, usize>,
    ) -> Result<Draft, ApiError> {
        let mut draft = self.draft(item?, now_ms, trace)?;
        self.check_type_of(&draft).await?;
        self.check_waiting_room(&draft).await?;
        if let Some(first) = before.first().filter(|first| first.id.root() != draft.id.root()) {
            let why = format!("`{}` is not of the tree of `{}`", draft.id, first.id.root());
            return Err(ApiError::new(Code::SeveralTrees, why).hint("send one batch for each tree, or leave out `atomic`"));
        }
        if places.contains_key(&draft.id) {
            return Err(ApiError::new(Code::DuplicateId, format!("`{}` is in the batch twice", draft.id)));
        }
        if let Some(parent) = draft.id.parent_id() {
            (draft.new.asof, draft.new.run) = match places.get(&parent).and_then(|n| before.get(*n)) {
                Some(parent) => (parent.new.asof, parent.new.run),
                None => {
                    let parent = self.find_parent(&parent).await?;
                    (Some(parent.fence.offset), parent.node.run)
                }
            };
        }
        Ok(draft)
    }

    async fn submit_together(self: &Arc<Self>, drafts: Vec<Draft>) -> Result<Outcomes, ApiError> {
        let deadline = Instant::now() + WAIT_DEADLINE;
        let standings = self.claim_all(&drafts, deadline).await?;
        let standings = self.settle_mixed(&drafts, standings, deadline).await?;
        let leases: Vec<Lease> = standings.iter().filter_map(|standing| standing.lease().cloned()).collect();
        let there = standings.iter().filter(|standing| matches!(standing, Standing::There(_))).count();
        if there == drafts.len() {
            let existing = |(draft, standing): (Draft, Standing)| match standing {
                Standing::There(found) => (Some(draft.id), Ok(Submitted::Existing(*found))),
                _ => (Some(draft.id), Err(ApiError::internal())),
            };
            return Ok(drafts.into_iter().zip(standings).map(existing).collect());
        }
        if let Some(n) = standings.iter().position(|standing| matches!(standing, Standing::There(_))) {
            self.release(leases.iter()).await;
            let id = &drafts[n].id;
            let why = format!("`{id}` exists already, and others of the batch do not");
            return Err(at(n, ApiError::new(Code::DuplicateId, why).existing(id)));
        }
        let published = self.renewing(&leases, self.publish_together(&drafts)).await;
        let endings = standings.iter().enumerate().filter_map(|(n, standing)| {
            let ending = match &published {
                Ok(published) => published.get(n).map_or(Ending::InDoubt, |done| Ending::Published(done.position)),
                Err((_, true)) => Ending::InDoubt,
                Err((_, false)) => Ending::Released,
            };
            Some((standing.lease()?, ending))
        });
        self.end(endings).await;
        let published = published.map_err(|(refusal, _)| refusal)?;
        let created = |(draft, done): (Draft, Published)| {
            let found = as_published(&draft, done.position);
            (Some(draft.id), Ok(Submitted::Created(found)))
        };
        Ok(drafts.into_iter().zip(published).map(created).collect())
    }

    /// Takes the leases on all ids, or none. A batch that waits for an id holds only ids that sort before it, so that two
    /// batches never wait for each other.
    async fn claim_all(&self, drafts: &[Draft], deadline: Instant) -> Result<Vec<Standing>, ApiError> {
        let mut standings: Vec<Option<Standing>> = drafts.iter().map(|_| None).collect();
        let (mut waited, mut renewed, mut pauses) = (false, Instant::now(), poll_pauses());
        loop {
            let open = (0..drafts.len()).filter(|n| standings[*n].is_none());
            let tried: Vec<_> = open.map(|n| async move { (n, self.standing(&drafts[n], waited).await) }).collect();
            let tried: Vec<_> = stream::iter(tried).buffered(AT_ONCE).collect().await;
            let (mut busy, mut wrong) = (None::<usize>, None);
            for (n, standing) in tried {
                match standing {
                    Ok(Some(standing)) => standings[n] = Some(standing),
                    Ok(None) => busy = busy.filter(|first| drafts[*first].id < drafts[n].id).or(Some(n)),
                    Err(refusal) => wrong = wrong.or(Some(at(n, refusal))),
                }
            }
            let late = busy.filter(|_| Instant::now() >= deadline).map(|n| at(n, in_progress(&drafts[n].id)));
            let wrong = wrong.or(late);
            let Some(first) = busy.filter(|_| wrong.is_none()) else {
                let Some(refusal) = wrong else { return Ok(standings.into_iter().flatten().collect()) };
                self.release(standings.iter().flatten().filter_map(Standing::lease)).await;
                return Err(refusal);
            };
            let behind = standings.iter_mut().zip(drafts).filter(|(_, draft)| draft.id > drafts[first].id);
            let given_up: Vec<Standing> = behind.filter_map(|(standing, _)| standing.take()).collect();
            self.release(given_up.iter().filter_map(Standing::lease)).await;
            if renewed.elapsed() >= RENEW_EVERY {
                self.renew(standings.iter().flatten().filter_map(Standing::lease)).await;
                renewed = Instant::now();
            }
            tokio::time::sleep(pauses.next_wait()).await;
            waited = true;
        }
    }

    /// Claims all ids once more where some tasks exist and some do not: they may be of a transaction that was being folded
    /// while the ids were looked up. All events of a tree lie in one partition, so what is committed together is found
    /// together behind the first of them.
    async fn settle_mixed(
        &self,
        drafts: &[Draft],
        standings: Vec<Standing>,
        deadline: Instant,
    ) -> Result<Vec<Standing>, ApiError> {
        let is_mixed = standings.iter().any(|standing| matches!(standing, Standing::There(_)))
            && standings.iter().any(|standing| standing.lease().is_some());
        if !is_mixed {
            return Ok(standings);
        }
        self.release(standings.iter().filter_map(Standing::lease)).await;
        self.claim_all(drafts, deadline).await
    }

    /// `None`: another request publishes the task at this moment. `waited`: another one did before.
    async fn standing(&self, draft: &Draft, waited: bool) -> Result<Option<Standing>, ApiError> {
        if draft.generated {
            return Ok(Some(Standing::New));
        }
        if let Some(found) = self.existing(draft).await? {
            return Ok(Some(Standing::There(Box::new(found))));
        }
        let lease = match self.claim(draft).await? {
            Claim::Ours(lease) => lease,
            Claim::Published(position) => return Ok(Some(Standing::There(Box::new(as_published(draft, position))))),
            Claim::Busy => return Ok(None),
        };
        let found = self.left_behind(draft, waited || lease.taken_over).await;
        if !matches!(found, Ok(None)) {
            self.release(std::iter::once(&lease)).await;
        }
        Ok(Some(found?.map_or(Standing::Ours(lease), |found| Standing::There(Box::new(found)))))
    }

    /// In one transaction. The flag: it may have happened.
    async fn publish_together(self: &Arc<Self>, drafts: &[Draft]) -> Result<Vec<Published>, (ApiError, bool)> {
        let tasks: Vec<_> = drafts.iter().map(|draft| draft.new.clone()).collect();
        let (publisher, sender) = (self.publisher.clone(), self.sender.clone());
        let name = self.sender_name.clone();
        let late =
            |_| (ApiError::new(Code::Overloaded, format!("other batches take all the time; {NOTHING}")).hint("try again"), false);
        let mut sender = tokio::time::timeout(DEADLINE, sender.lock_owned()).await.map_err(late)?;
        let broker = self.broker.with_deadline(DEADLINE * 3);
        let done = broker.call(move |broker, _| {
            let mut producer = match sender.take() {
                Some(producer) => producer,
                // Nothing of this batch is sent yet.
                None => match broker.atomic_producer(&name) {
                    Ok(producer) => producer,
                    Err(error) => return Ok(Err(PublishError::NotOut(BrokerError::Unavailable(error.to_string())))),
                },
            };
            let done = publisher.publish_together(&mut *producer, tasks, now_ms(), DEADLINE);
            // After anything else a new one is opened, which settles what this one has left.
            *sender = done.is_ok().then_some(producer);
            Ok::<_, BrokerError>(done)
        });
        match done.await {
            Ok(Ok(published)) => Ok(published),
            Ok(Err(error)) => Err(refused(error)),
            // It was not waited for any longer, and may go on.
            Err(error) => Err((in_doubt(&error.to_string()), true)),
        }
    }
}

fn in_doubt(why: &str) -> ApiError {
    ApiError::new(Code::OutcomeUnknown, format!("the batch may be published as a whole, or not at all: {why}"))
        .hint("repeat it with the same ids: what is there is not published again")
}

fn refused(error: PublishError) -> (ApiError, bool) {
    match error {
        PublishError::NotOut(BrokerError::InDoubt(why)) => (in_doubt(&why), true),
        PublishError::NotOut(BrokerError::TooLarge(why)) => (ApiError::new(Code::TooLarge, format!("{why}; {NOTHING}")), false),
        PublishError::NotOut(why) => {
            (ApiError::new(Code::KafkaUnavailable, format!("{why}; {NOTHING}")).hint("try again"), false)
        }
        error => (ApiError::new(Code::BadField, format!("{error}; {NOTHING}")), false),
    }
}
