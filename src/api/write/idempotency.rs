//! Publishing a draft so that an id given by a client stands for one task.
//!
//! An id is reserved before publishing, with a hash of type and params, and gets its position once both publishes are
//! acknowledged. It is a guard against several requests at the same moment, not truth: that is the log.

use tokio::time::Instant;

use super::lease::{Claim, Ending, Lease, WAIT_DEADLINE, in_progress, poll_pauses};
use super::validate::Draft;
use crate::api::Api;
use crate::api::http::problem::{ApiError, Code};
use crate::api::read::consistency::TaskView;
use crate::broker::BrokerError;
use crate::model::outbox::MAX_KEPT_BYTES;
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::Position;
use crate::publish::{PublishError, Published};
use crate::runtime::now_ms;
use crate::store::Checkpoint;

/// What became of a draft.
pub enum Submitted {
    Created(TaskView),
    /// The same task was there already.
    Existing(TaskView),
}

/// A publish that did not succeed.
struct Failed {
    refusal: ApiError,
    /// Something of it may be in Kafka.
    perhaps_out: bool,
}

impl Api {
    pub async fn submit(&self, draft: Draft) -> Result<Submitted, ApiError> {
        self.check_waiting_room(&draft).await?;
        if draft.generated {
            let position = self.publish(&draft).await.map_err(|failed| failed.refusal)?;
            return Ok(Submitted::Created(as_published(&draft, position)));
        }
        let deadline = Instant::now() + WAIT_DEADLINE;
        let (mut waited, mut pauses) = (false, poll_pauses());
        loop {
            if let Some(existing) = self.existing(&draft).await? {
                return Ok(Submitted::Existing(existing));
            }
            match self.claim(&draft).await? {
                Claim::Ours(lease) => return self.publish_leased(&draft, lease, waited).await,
                Claim::Published(position) => return Ok(Submitted::Existing(as_published(&draft, position))),
                Claim::Busy if Instant::now() >= deadline => return Err(in_progress(&draft.id)),
                Claim::Busy => tokio::time::sleep(pauses.next_wait()).await,
            }
            waited = true;
        }
    }

    /// The tracker keeps only so many bytes of tasks that wait for their time; what goes beyond would fail.
    pub async fn check_waiting_room(&self, draft: &Draft) -> Result<(), ApiError> {
        if draft.new.policy.not_before_ms.is_none() {
            return Ok(());
        }
        let kept = self.fence(self.publisher.partition_of(&draft.id)).await?.map_or(0, |fence| fence.kept_bytes);
        // The rest is for what is on its way.
        if kept < MAX_KEPT_BYTES / 10 * 9 {
            return Ok(());
        }
        let why =
            format!("{kept} bytes of tasks wait for their time in this events partition: at most {MAX_KEPT_BYTES} are kept");
        Err(ApiError::new(Code::TooManyWaiting, why).hint("submit it nearer to its time, or use more events partitions"))
    }

    /// Publishes a task whose id is ours. `waited`: another request may have published it and died before it could say so.
    async fn publish_leased(&self, draft: &Draft, lease: Lease, waited: bool) -> Result<Submitted, ApiError> {
        let leases = std::slice::from_ref(&lease);
        let publish = async {
            match self.left_behind(draft, waited || lease.taken_over).await {
                Ok(Some(found)) => Ok(Submitted::Existing(found)),
                Ok(None) => self.publish(draft).await.map(|position| Submitted::Created(as_published(draft, position))),
                Err(refusal) => Err(Failed { refusal, perhaps_out: false }),
            }
        };
        let published = self.renewing(leases, publish).await;
        let ending = match &published {
            Ok(Submitted::Created(found)) => Ending::Published(found.position()),
            Err(failed) if failed.perhaps_out => Ending::InDoubt,
            Ok(Submitted::Existing(_)) | Err(_) => Ending::Released,
        };
        self.end(std::iter::once((&lease, ending))).await;
        published.map_err(|failed| failed.refusal)
    }

    /// The task, where an earlier request has published it and not said so. A fold that is behind does not hold up the publish.
    pub async fn left_behind(&self, draft: &Draft, taken_over: bool) -> Result<Option<TaskView>, ApiError> {
        if !taken_over {
            return Ok(None);
        }
        match self.find_any(&draft.id).await {
            Ok(_) => self.existing(draft).await,
            Err(refusal) if refusal.is(Code::Behind) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// The task that has the id in this run or a later one, if it is the same one; a refusal if it is another.
    pub async fn existing(&self, draft: &Draft) -> Result<Option<TaskView>, ApiError> {
        let Some(found) = self.look(&draft.id).await? else { return Ok(None) };
        let node = &found.node;
        // One of an earlier run counts for nothing below a parent that was started anew.
        if !node.announced || node.run < draft.new.run {
            return Ok(None);
        }
        let same_type = node.task_type.as_deref() == Some(&*draft.new.task_type);
        let same_kind = node.is_external() == draft.is_external();
        if same_type && same_kind && node.hash.as_deref() == Some(&draft.hash) {
            return Ok(Some(found));
        }
        Err(taken(draft))
    }

    async fn publish(&self, draft: &Draft) -> Result<Position, Failed> {
        let outcome = match self.publisher.publish(draft.new.clone(), now_ms()).await {
            // The record is out; only the announcement is sent again.
            Err(PublishError::Out { task, .. }) => self.publisher.announce(*task, now_ms()).await,
            outcome => outcome,
        };
        match outcome {
            Ok(Published { position, .. }) => Ok(position),
            Err(error) => Err(self.failed(draft, error)),
        }
    }

    fn failed(&self, draft: &Draft, error: PublishError) -> Failed {
        let refusal = self.explain(draft, error);
        Failed { perhaps_out: refusal.leaves_open(), refusal }
    }

    fn explain(&self, draft: &Draft, error: PublishError) -> ApiError {
        let id = &draft.id;
        let again = format!("it is safe to repeat the request with the id `{id}`");
        let told = error.to_string();
        match error {
            PublishError::Invalid(why) => ApiError::new(Code::BadField, why),
            PublishError::NotOut(BrokerError::TooLarge(why)) => ApiError::new(Code::TooLarge, why),
            PublishError::NotOut(BrokerError::Unknown(_)) => self.unknown_type(&draft.new.task_type, &[]),
            PublishError::NotOut(BrokerError::InDoubt(why) | BrokerError::Fatal(why)) => {
                let why = format!("the task `{id}` may be published or not: {why}");
                ApiError::new(Code::OutcomeUnknown, why).hint(again).existing(id)
            }
            PublishError::NotOut(_) => ApiError::new(Code::KafkaUnavailable, told).hint(again),
            PublishError::Out { .. } => {
                ApiError::new(Code::NotAnnounced, format!("the task `{id}` is out and will run: {told}")).hint(again).existing(id)
            }
        }
    }
}

pub fn taken(draft: &Draft) -> ApiError {
    ApiError::new(Code::DuplicateId, format!("`{}` is another task already: its type or its params differ", draft.id))
        .hint("choose another id; the same id, type and params would give the existing task")
        .existing(&draft.id)
}

/// The record that the fold will make of a task that was just published.
pub fn as_published(draft: &Draft, position: Position) -> TaskView {
    let now_ms = now_ms();
    let mut node = TaskRecord::expected(draft.new.run, now_ms);
    let scheduled = draft.new.policy.not_before_ms.is_some_and(|at| at > now_ms);
    node.own = if scheduled { State::Scheduled } else { State::Queued };
    node.state = node.own;
    node.due_ms = draft.new.policy.not_before_ms.filter(|_| scheduled);
    node.task_type = Some(draft.new.task_type.clone());
    node.created_at_ms = Some(now_ms);
    node.policy = Some(Box::new(draft.new.policy.clone()));
    let fence = Checkpoint { offset: position.offset + 1, ..Checkpoint::default() };
    let partition = u32::try_from(position.partition).unwrap_or_default();
    TaskView { id: draft.id.clone(), partition, fence, node, superseded: false }
}
