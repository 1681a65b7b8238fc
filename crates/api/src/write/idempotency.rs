//! Idempotent submission: a client-supplied id stands for one task.
//!
//! Before publishing, the id is reserved together with a hash of type and params; once both publishes are
//! acknowledged, the reservation gets the position. Reservations only guard against concurrent requests; the log is
//! the source of truth. They are lost with the store: an id is free only if the store covers its partition, before the id
//! is reserved and after it.

use kafleet_broker::BrokerError;
use kafleet_fleet::publish::PUBLISH_DEADLINE;
use kafleet_fleet::publish::{PublishError, PublishedTask};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::retention::{Expiry, ExpiryKind};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, TaskSpec};
use kafleet_model::trace::{SpanContext, SpanId};
use kafleet_model::unique::AskVerdict;
use kafleet_runtime::now_ms;
use kafleet_store::Checkpoint;
use tokio::time::Instant;

use super::Writes;
use super::lease::{Claim, Lease, PublishOutcome, WAIT_DEADLINE, in_progress, poll_pauses};
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::read::reads::Reads;

/// Time before the removal of a finished tree from which it accepts no more children. A child published earlier
/// reopens the tree, a later one would have no parent. Covers [`PUBLISH_DEADLINE`] for the record and for its event,
/// and clock differences.
const REMOVAL_MARGIN_MS: i64 = 2 * PUBLISH_DEADLINE.as_millis() as i64 + 10_000;

/// Task of a submission.
pub struct SubmittedTask {
    pub task: TaskView,
    /// The task did not exist before.
    pub is_new: bool,
    /// Verdict about a unique task.
    pub verdict: Option<AskVerdict>,
}

impl SubmittedTask {
    /// Submission of a task that was submitted before.
    pub(crate) fn existing(task: TaskView) -> Self {
        Self { task, is_new: false, verdict: None }
    }
}

/// Outcomes of several submissions, in order.
pub(crate) type Outcomes = Vec<(Option<TaskId>, Result<SubmittedTask, ApiError>)>;

impl Writes {
    /// Returns the parent of a new task. Fails if it does not exist or is about to be removed.
    pub(crate) async fn find_parent(&self, parent: &TaskId) -> Result<TaskView, ApiError> {
        let parent_task = self
            .reads
            .find(parent, None)
            .await
            .map_err(|error| if error.is(Code::NotFound) { unknown_parent(parent) } else { error })?;
        let Ok(root) = TaskId::parse(parent.root()) else { return Ok(parent_task) };
        let root_task = if root == *parent { Some(parent_task.clone()) } else { self.reads.read(&root).await? };
        // The tree was removed just after the parent was read.
        let Some(root_task) = root_task else { return Err(unknown_parent(parent)) };
        let is_removed_soon = |expiry: Expiry| {
            expiry.due_ms <= now_ms().max(root_task.checkpoint.log_time_ms).saturating_add(REMOVAL_MARGIN_MS)
        };
        if root_task.record.times.expiry.filter(|expiry| expiry.kind == ExpiryKind::Done).is_some_and(is_removed_soon) {
            let within = REMOVAL_MARGIN_MS / 1_000;
            let reason = format!("the tree of `{root}` has finished and will be removed within {within} s");
            let error = ApiError::new(Code::UnknownParent, reason).pointer("/parent");
            Err(error.hint("retry a task of the tree first, which reopens it, or submit the task as a root"))
        } else {
            Ok(parent_task)
        }
    }

    pub(crate) async fn submit(&self, task: TaskSpec) -> Result<SubmittedTask, ApiError> {
        if task.ask_rule().is_some() {
            return self.ask(task).await;
        }
        if task.has_generated_id {
            return self.publish(&task).await;
        }
        let deadline = Instant::now() + WAIT_DEADLINE;
        let (mut waited, mut pauses) = (false, poll_pauses());
        loop {
            if let Some(existing) = self.existing(&task).await? {
                return Ok(SubmittedTask::existing(existing));
            }
            match self.leases.claim(&task).await? {
                Claim::Ours(lease) => match self.publish_leased(&task, lease, waited).await {
                    // The store has lost data since the first look, and with it perhaps the reservation of the id.
                    Err(error) if error.is(Code::NotVisibleYet) && Instant::now() < deadline => {}
                    done => return done,
                },
                Claim::Published(position) => {
                    return Ok(SubmittedTask::existing(as_published(&task, position, &self.reads)));
                }
                Claim::Busy if Instant::now() >= deadline => return Err(in_progress(&task.id)),
                Claim::Busy => tokio::time::sleep(pauses.next_wait()).await,
            }
            waited = true;
        }
    }

    /// Publishes a task under its lease. `waited`: another request held the lease before and may have published the
    /// task.
    async fn publish_leased(&self, task: &TaskSpec, lease: Lease, waited: bool) -> Result<SubmittedTask, ApiError> {
        let leases = std::slice::from_ref(&lease);
        let publish = async {
            match self.find_published_earlier(task, waited || lease.taken_over).await? {
                Some(existing) => Ok(SubmittedTask::existing(existing)),
                None => self.publish(task).await,
            }
        };
        let published = self.leases.while_renewing(leases, publish).await;
        let outcome = match &published {
            Ok(created) if created.is_new => PublishOutcome::Published(created.task.position()),
            Err(error) if error.may_have_happened() => PublishOutcome::InDoubt,
            _ => PublishOutcome::Released,
        };
        self.leases.finish(std::iter::once((&lease, outcome))).await;
        published
    }

    /// Returns the task if an earlier request published it without recording that, or if the record of that was lost with
    /// the store: call it while the id is reserved. Projection lag does not block the publish, a gap in the store does.
    pub(crate) async fn find_published_earlier(
        &self,
        task: &TaskSpec,
        taken_over: bool,
    ) -> Result<Option<TaskView>, ApiError> {
        if taken_over
            && let Err(error) = self.reads.find_optional(&task.id).await
            && !error.is(Code::NotVisibleYet)
        {
            return Err(error);
        }
        let existing = self.reads.read(&task.id).await?;
        Self::same_task(task, existing)
    }

    /// Returns the existing task with this id, in this run or a later one; fails if it is a different task. Waits until
    /// the store covers the task's partition.
    pub(crate) async fn existing(&self, task: &TaskSpec) -> Result<Option<TaskView>, ApiError> {
        Self::same_task(task, self.reads.read_covered(&task.id).await?)
    }

    fn same_task(task: &TaskSpec, existing: Option<TaskView>) -> Result<Option<TaskView>, ApiError> {
        let Some(existing) = existing else { return Ok(None) };
        let record = &existing.record;
        // A task of an earlier run of the parent does not count.
        if !record.definition.announced || record.run < task.run {
            return Ok(None);
        }
        let same_type = record.task_type.as_deref() == Some(&*task.task_type);
        let same_kind = record.is_external() == task.is_external();
        if same_type && same_kind && record.definition.hash == task.hash {
            return Ok(Some(existing));
        }
        Err(id_taken(&task.id))
    }

    async fn publish(&self, task: &TaskSpec) -> Result<SubmittedTask, ApiError> {
        let outcome = match self.publisher.publish(task.clone(), now_ms()).await {
            // The record is written; retry only the announcement.
            Err(PublishError::NotAnnounced { task, .. }) => self.publisher.announce(*task, now_ms()).await,
            outcome => outcome,
        };
        let PublishedTask { position, .. } = outcome.map_err(|error| self.publish_error(task, error))?;
        Ok(SubmittedTask { task: as_published(task, position, &self.reads), is_new: true, verdict: None })
    }

    pub(super) fn publish_error(&self, task: &TaskSpec, error: PublishError) -> ApiError {
        let id = &task.id;
        let again = format!("it is safe to repeat the request with the id `{id}`");
        let message = error.to_string();
        match error {
            PublishError::Invalid(reason) => ApiError::new(Code::BadField, reason),
            PublishError::NotPublished(BrokerError::TooLarge(reason)) => ApiError::new(Code::TooLarge, reason),
            PublishError::NotPublished(BrokerError::Unknown(_)) => self.types.unknown_type(&task.task_type, &[]),
            PublishError::NotPublished(BrokerError::InDoubt(reason) | BrokerError::Fatal(reason)) => {
                let reason = format!("the task `{id}` may or may not have been published: {reason}");
                ApiError::new(Code::OutcomeUnknown, reason).hint(again).existing(id)
            }
            PublishError::NotPublished(_) => ApiError::new(Code::KafkaUnavailable, message).hint(again),
            PublishError::NotAnnounced { .. } => ApiError::new(
                Code::NotAnnounced,
                format!("the task `{id}` has been published and will run, but was not announced: {message}"),
            )
            .hint(again)
            .existing(id),
        }
    }
}

pub(crate) fn id_taken(id: &TaskId) -> ApiError {
    ApiError::new(
        Code::DuplicateId,
        format!("`{id}` is the id of another task with a different type or different params"),
    )
    .hint("choose another id; the same id, type and params return the existing task")
    .existing(id)
}

/// Builds the record that the projection will create for a task just published.
pub(crate) fn as_published(task: &TaskSpec, position: Position, reads: &Reads) -> TaskView {
    let now_ms = now_ms();
    let mut record = TaskRecord::expected(task.run, now_ms);
    record.times.due_ms = task.policy.as_ref().and_then(|policy| policy.not_before_ms).filter(|at| *at > now_ms);
    record.own = if record.times.due_ms.is_some() { State::Scheduled } else { State::Queued };
    record.state = record.own;
    record.task_type = Some(task.task_type.clone());
    record.times.created_at_ms = Some(now_ms);
    record.definition.policy = task.policy.clone();
    let span_id = SpanId::of_send(&task.id, task.run);
    record.definition.trace = task.trace_context().map(|given| SpanContext { span_id, ..given });
    let checkpoint = Checkpoint { offset: position.offset + 1, ..Checkpoint::default() };
    let partition = u32::try_from(position.partition).unwrap_or_default();
    TaskView {
        id: task.id.clone(),
        partition,
        checkpoint,
        record,
        superseded: false,
        sampler: reads.sampler,
        masks: reads.masks.clone(),
    }
}

pub(crate) fn unknown_parent(parent: &TaskId) -> ApiError {
    ApiError::new(Code::UnknownParent, format!("there is no task `{parent}`"))
        .pointer("/parent")
        .hint("create the parent first; in a batch, put it before its children")
}
