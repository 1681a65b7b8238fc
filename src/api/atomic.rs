//! `POST /v1/batches?atomic=true`: the tasks of one tree, all of them or none.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;
use tokio::sync::Mutex;

use super::Api;
use super::batch::{Outcomes, items_of, told};
use super::call::Call;
use super::documents::CreateTask;
use super::fresh::Found;
use super::outside::{detached, stored};
use super::problem::{Code, Refusal};
use super::reserve::{Submitted, as_published, taken};
use super::submit::{Draft, trace_of};
use super::tasks::json_answer;
use crate::broker::{AtomicProducer, BrokerError};
use crate::model::id::TaskId;
use crate::model::task::Trace;
use crate::publish::{PublishError, Published};
use crate::runtime::now_ms;
use crate::store::Reservation;

/// The most tasks in one transaction.
pub const MAX_TOGETHER: usize = 1_000;
/// How long a transaction may take, the wait for the one before included.
const DEADLINE: Duration = Duration::from_secs(10);
/// Ids looked up at once.
const AT_ONCE: usize = 64;
const NOTHING: &str = "nothing of the batch was published";

/// The one producer of this process for transactions. None: none is open.
pub type Sender = Arc<Mutex<Option<Box<dyn AtomicProducer>>>>;

pub async fn create(call: Call) -> Result<Response, Refusal> {
    let api = call.api.clone();
    let items = items_of(&call)?;
    if items.len() > MAX_TOGETHER {
        let why = format!("the batch has {} items: at most {MAX_TOGETHER} go together", items.len());
        return Err(Refusal::new(Code::TooManyItems, why).hint("send the rest as a second batch below the same root"));
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
fn at(n: usize, refusal: Refusal) -> Refusal {
    refusal.of_item(n, NOTHING)
}

/// What is known of an id before anything is published.
enum Claim {
    New { reserved: bool },
    There(Box<Found>),
}

impl Api {
    async fn drafts(&self, items: Vec<Result<CreateTask, Refusal>>, trace: Option<&Trace>) -> Result<Vec<Draft>, Refusal> {
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
        item: Result<CreateTask, Refusal>,
        now_ms: i64,
        trace: Option<&Trace>,
        before: &[Draft],
        places: &FxHashMap<TaskId, usize>,
    ) -> Result<Draft, Refusal> {
        let mut draft = self.draft(item?, now_ms, trace)?;
        self.check_type_of(&draft).await?;
        self.check_waiting_room(&draft).await?;
        if let Some(first) = before.first().filter(|first| first.id.root() != draft.id.root()) {
            let why = format!("`{}` is not of the tree of `{}`", draft.id, first.id.root());
            return Err(Refusal::new(Code::SeveralTrees, why).hint("send one batch for each tree, or leave out `atomic`"));
        }
        if places.contains_key(&draft.id) {
            return Err(Refusal::new(Code::DuplicateId, format!("`{}` is in the batch twice", draft.id)));
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

    async fn submit_together(self: &Arc<Self>, drafts: Vec<Draft>) -> Result<Outcomes, Refusal> {
        let looked: Vec<_> = drafts.iter().map(|draft| self.claim(draft)).collect();
        let claims: Vec<Result<Claim, Refusal>> = stream::iter(looked).buffered(AT_ONCE).collect().await;
        let there = claims.iter().filter(|claim| matches!(claim, Ok(Claim::There(_)))).count();
        let wrong = claims.iter().enumerate().find_map(|(n, claim)| Some(at(n, claim.as_ref().err()?.clone())));
        if wrong.is_none() && there == drafts.len() {
            let existing = |(draft, claim): (Draft, Result<Claim, Refusal>)| match claim {
                Ok(Claim::There(found)) => (Some(draft.id), Ok(Submitted::Existing(*found))),
                _ => (Some(draft.id), Err(Refusal::internal())),
            };
            return Ok(drafts.into_iter().zip(claims).map(existing).collect());
        }
        let partly = claims.iter().zip(&drafts).enumerate().find(|(_, (claim, _))| matches!(claim, Ok(Claim::There(_))));
        let partly = partly.map(|(n, (_, draft))| {
            let why = format!("`{}` exists already, and others of the batch do not", draft.id);
            at(n, Refusal::new(Code::DuplicateId, why).existing(&draft.id))
        });
        let published = match wrong.or(partly) {
            Some(refusal) => Err((refusal, false)),
            None => self.publish_together(&drafts).await,
        };
        self.settle_claims(&drafts, &claims, &published).await;
        let published = published.map_err(|(refusal, _)| refusal)?;
        let created = |(draft, done): (Draft, Published)| {
            let found = as_published(&draft, done.position);
            (Some(draft.id), Ok(Submitted::Created(found)))
        };
        Ok(drafts.into_iter().zip(published).map(created).collect())
    }

    /// Reserves an id, unless its task is there.
    async fn claim(&self, draft: &Draft) -> Result<Claim, Refusal> {
        if draft.generated {
            return Ok(Claim::New { reserved: false });
        }
        if let Some(found) = self.existing(draft).await? {
            return Ok(Claim::There(Box::new(found)));
        }
        let partition = self.publisher.partition_of(&draft.id);
        let mark = Reservation { hash: draft.hash.clone(), position: None };
        match stored(self.store.reserve(partition, &draft.id, draft.new.run, &mark)).await? {
            None => Ok(Claim::New { reserved: true }),
            Some(other) if other.hash != draft.hash => Err(taken(draft)),
            Some(Reservation { position: Some(position), .. }) => Ok(Claim::There(Box::new(as_published(draft, position)))),
            // Somebody, perhaps this client before, did not get to the end.
            Some(_) => Ok(Claim::New { reserved: false }),
        }
    }

    /// Gives reserved ids their places, or gives them up; where the outcome is not known they end by themselves.
    async fn settle_claims(
        &self,
        drafts: &[Draft],
        claims: &[Result<Claim, Refusal>],
        published: &Result<Vec<Published>, (Refusal, bool)>,
    ) {
        if matches!(published, Err((_, true))) {
            return;
        }
        let position = |n: usize| Some(published.as_ref().ok()?.get(n)?.position);
        let settle = |(n, (draft, claim)): (usize, (&Draft, &Result<Claim, Refusal>))| {
            let reserved = matches!(claim, Ok(Claim::New { reserved: true }));
            let mark = position(n).map(|position| Reservation { hash: draft.hash.clone(), position: Some(position) });
            let (partition, id, run) = (self.publisher.partition_of(&draft.id), draft.id.clone(), draft.new.run);
            async move {
                if reserved && let Err(why) = stored(self.store.set_reservation(partition, &id, run, mark.as_ref())).await {
                    tracing::warn!(%id, ?why, "a reservation could not be settled; it ends by itself");
                }
            }
        };
        let settled: Vec<_> = drafts.iter().zip(claims).enumerate().map(settle).collect();
        stream::iter(settled).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// In one transaction. The flag: it may have happened.
    async fn publish_together(self: &Arc<Self>, drafts: &[Draft]) -> Result<Vec<Published>, (Refusal, bool)> {
        let tasks: Vec<_> = drafts.iter().map(|draft| draft.new.clone()).collect();
        let (publisher, sender) = (self.publisher.clone(), self.sender.clone());
        let name = self.sender_name.clone();
        let late =
            |_| (Refusal::new(Code::Overloaded, format!("other batches take all the time; {NOTHING}")).hint("try again"), false);
        let mut sender = tokio::time::timeout(DEADLINE, sender.lock_owned()).await.map_err(late)?;
        let done = self.kafka(DEADLINE * 3, move |broker| {
            let mut producer = match sender.take() {
                Some(producer) => producer,
                None => broker.atomic_producer(&name)?,
            };
            let done = publisher.publish_together(&mut *producer, tasks, now_ms(), DEADLINE);
            // After anything else a new one is opened, which settles what this one has left.
            *sender = done.is_ok().then_some(producer);
            Ok(done)
        });
        match done.await {
            Ok(Ok(published)) => Ok(published),
            Ok(Err(error)) => Err(refused(error)),
            // It was not waited for any longer, and may go on.
            Err(refusal) => Err((refusal.hint("repeat it with the same ids"), true)),
        }
    }
}

fn refused(error: PublishError) -> (Refusal, bool) {
    match error {
        PublishError::NotOut(BrokerError::InDoubt(why)) => {
            let told = format!("the batch may be published as a whole, or not at all: {why}");
            (
                Refusal::new(Code::KafkaUnavailable, told)
                    .hint("repeat it with the same ids: what is there is not published again"),
                true,
            )
        }
        PublishError::NotOut(BrokerError::TooLarge(why)) => (Refusal::new(Code::TooLarge, format!("{why}; {NOTHING}")), false),
        PublishError::NotOut(why) => (Refusal::new(Code::KafkaUnavailable, format!("{why}; {NOTHING}")).hint("try again"), false),
        error => (Refusal::new(Code::BadField, format!("{error}; {NOTHING}")), false),
    }
}
