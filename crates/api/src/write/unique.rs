//! Submission of unique tasks: an ask, and the wait for the projection's decision about it.
//!
//! The ask is an event with the whole task. The tracker decides in the order of the log; the answer of the request is the
//! task that stands for the key then, with the verdict. A repeated request with the id of the first one gets the same.

use std::time::Duration;

use kafleet_fleet::publish::PublishedTask;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::limits::check_then;
use kafleet_model::task::{Position, TaskSpec};
use kafleet_model::unique::field::MAX_UNIQUE_PARAMS_BYTES;
use kafleet_model::unique::id::{ask_id, tag};
use kafleet_model::unique::{AskVerdict, KeyState, UniqueRule};
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;

use super::Writes;
use super::idempotency::SubmittedTask;
use super::validate::{SubmissionChecks, bad_field, of_flaw};
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::ReachedOffset;
use crate::read::reads::{Reads, unique_key};

/// Maximum wait for the decision about an ask: a tracker that takes over a partition needs some seconds.
const DECISION_DEADLINE: Duration = Duration::from_secs(10);

/// Rejects a unique task where its id must be known before the decision.
pub(crate) fn check_not_unique(task: &TaskSpec) -> Result<(), ApiError> {
    match task.ask_rule() {
        None => Ok(()),
        Some(_) => Err(ApiError::new(Code::UniqueRoot, "a task of an atomic batch cannot be unique")
            .pointer("/unique")
            .hint("submit it alone; its children are spawned by its handler")),
    }
}

impl SubmissionChecks {
    /// Gives a unique task its key, its complete rule, and an id with the tag of the key. A task without a key of its own is
    /// unique if it is a root and the setting of its type finds one.
    pub(super) fn make_unique(&self, task: &mut TaskSpec) -> Result<(), ApiError> {
        let own = task.policy.as_ref().and_then(|policy| policy.unique.clone());
        let setting = self.types.policy(&task.task_type).and_then(|policy| policy.unique);
        if own.is_some() && !task.id.is_root() {
            let reason = format!("`{}` is a child: only a root can be unique", task.id);
            return Err(ApiError::new(Code::UniqueRoot, reason)
                .pointer("/unique")
                .hint("omit `unique`; a child with an id of its own exists once in its tree"));
        }
        if own.is_some() && task.is_external() {
            return Err(bad_field("unique", "external tasks do not support `unique`".to_owned()));
        }
        let headers = task.policy.as_ref().map(|policy| policy.rules.headers.clone()).unwrap_or_default();
        let header = |name: &str| {
            headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        let key = match own.as_ref().and_then(UniqueRule::key) {
            Some(key) => Some(key.to_owned()),
            None if !task.id.is_root() || task.is_external() => None,
            None => match &setting {
                Some(setting) => setting
                    .key_of(&task.params, task.key.as_deref(), header)
                    .map_err(|error| bad_field("params", error))?,
                None => None,
            },
        };
        let Some(key) = key else {
            return match own {
                Some(_) => Err(bad_field("unique", "the task has no key".to_owned())
                    .hint("name it in `unique`, or set `by` in `unique` of the type")),
                None => Ok(()),
            };
        };
        let rule = own.unwrap_or_default().complete(key.clone(), setting.as_ref());
        rule.check_complete().map_err(|error| bad_field("unique", error))?;
        check_unique(task, &rule, self.types.max_tree_age)?;
        task.policy.get_or_insert_default().unique = Some(rule);
        let tag = tag(&task.task_type, &key);
        if task.id.tag() != Some(&tag) {
            let id = TaskId::parse(&ask_id(&tag, task.id.as_str()));
            task.id = id.map_err(|error| ApiError::new(Code::BadId, error.to_string()).pointer("/id"))?;
        }
        task.policy.as_deref().map_or(Ok(()), |policy| check_then(&task.id, policy)).map_err(of_flaw)
    }
}

impl Writes {
    /// Asks for a unique task, and returns the task that stands for its key.
    pub(super) async fn ask(&self, task: TaskSpec) -> Result<SubmittedTask, ApiError> {
        if !task.has_generated_id
            && let Some(decided) = decided(&self.reads, &task.id, None).await?
        {
            return Ok(decided);
        }
        let published = self.publisher.publish(task.clone(), now_ms()).await;
        let PublishedTask { position, .. } = published.map_err(|error| self.publish_error(&task, error))?;
        let partition = self.publisher.topology.partition_of(&task.id);
        let reached = self.reads.wait_until_projected(partition, position.offset + 1, DECISION_DEADLINE).await;
        match reached {
            Ok(ReachedOffset::Yes) => {}
            Ok(ReachedOffset::Not(_)) => return Err(not_decided(&task.id, position)),
            Err(error) => return Err(error.existing(&task.id)),
        }
        decided(&self.reads, &task.id, Some(position)).await?.ok_or_else(|| not_decided(&task.id, position))
    }
}

/// Checks what concerns unique tasks alone.
fn check_unique(task: &TaskSpec, rule: &UniqueRule, furthest: Millis) -> Result<(), ApiError> {
    if task.policy.as_ref().is_some_and(|policy| policy.not_before_ms.is_some()) {
        let reason = "a unique task has no start time of its own".to_owned();
        return Err(bad_field("delay", reason).hint("omit `delay` and `at`, or use the mode `debounce`"));
    }
    let bytes = task.params.text().len();
    if bytes > MAX_UNIQUE_PARAMS_BYTES {
        let reason =
            format!("the params of a unique task have {bytes} bytes; the maximum is {MAX_UNIQUE_PARAMS_BYTES}");
        let hint = "store the data elsewhere and pass a link";
        return Err(ApiError::new(Code::TooLarge, reason).pointer("/params").hint(hint));
    }
    let longest = rule.longest();
    if longest > furthest {
        let reason = format!("`{longest}` is longer than a tree may stay open, {furthest}");
        return Err(bad_field("unique", reason));
    }
    Ok(())
}

/// Returns the task that stands for an ask, once it is decided. `position`: of the ask, if it is projected.
async fn decided(reads: &Reads, ask: &TaskId, position: Option<Position>) -> Result<Option<SubmittedTask>, ApiError> {
    let Some(tag) = ask.tag() else { return Ok(None) };
    let key = unique_key(reads, tag).await?;
    let answer = key.as_ref().and_then(|key| key.answer(ask.as_str()));
    let (verdict, standing) = match answer {
        Some(answer) => (answer.verdict, answer.task.to_string()),
        // The key has forgotten the ask among many newer ones, or was forgotten itself.
        None => match reads.read_covered(ask).await? {
            Some(_) if is_kept(key.as_ref(), ask) => (AskVerdict::Kept, ask.to_string()),
            Some(_) => (AskVerdict::Started, ask.to_string()),
            None => match key.as_ref().and_then(|key| key.standing()).filter(|_| position.is_some()) {
                Some(standing) => (AskVerdict::Joined, standing.to_owned()),
                None => return Ok(None),
            },
        },
    };
    let id = TaskId::parse(&standing).map_err(|error| ApiError::new(Code::BadId, error.to_string()))?;
    let task = reads.find(&id, None).await?;
    let is_new = verdict != AskVerdict::Joined && position.is_some();
    Ok(Some(SubmittedTask { task, is_new, verdict: Some(verdict) }))
}

/// Returns true if the task of an ask is the kept one of its key.
fn is_kept(key: Option<&KeyState>, ask: &TaskId) -> bool {
    key.and_then(|key| key.kept.as_ref()).is_some_and(|kept| *kept.id == *ask.as_str())
}

fn not_decided(id: &TaskId, position: Position) -> ApiError {
    let seconds = DECISION_DEADLINE.as_secs();
    let reason =
        format!("the ask for `{id}` was written at {position}, but no tracker has decided about it within {seconds} s");
    ApiError::new(Code::NotDecided, reason)
        .hint(format!("it will be decided: repeat the request with the id `{id}`, which gets the same verdict"))
        .existing(id)
}
