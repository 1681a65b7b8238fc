//! Validation: turns a submission into a task to publish, or an error.

use std::sync::Arc;

use axum::http::HeaderMap;
use kafleet_documents::CreateTask;
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::task::continuation::number_of;
use kafleet_model::task::field::Change;
use kafleet_model::task::hash::spawn_hash;
use kafleet_model::task::id::{BULK_TYPE, TaskId, check_type, clip};
use kafleet_model::task::limits::{Flaw, check_then};
use kafleet_model::task::param_tags::{PREFIX, is_param_tag};
use kafleet_model::task::{MAX_POLICY_BYTES, MAX_TEXT_CHARS, Policy, TaskSpec, Trace, parse_time};
use kafleet_model::units::duration::Millis;

use super::types::TypeCatalog;
use crate::http::problem::{ApiError, Code};

/// Maximum params size in bytes of compact JSON.
pub(crate) const MAX_PARAMS_BYTES: usize = 1 << 20;

/// Checks of submissions, which the API and the relay of an outbox share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SubmissionChecks {
    pub types: Arc<TypeCatalog>,
}

impl SubmissionChecks {
    /// Validates a submission as far as that is possible without IO, after the hooks of the application.
    pub(crate) fn validate(
        &self,
        mut input: CreateTask,
        now_ms: i64,
        trace: Option<&Trace>,
    ) -> Result<TaskSpec, ApiError> {
        if input.task_type == BULK_TYPE {
            let reason = format!("tasks of the type `{BULK_TYPE}` are created by the API");
            return Err(bad_field("type", reason).hint("request a bulk action instead"));
        }
        let CreateTask { task_type, params, key, policy, .. } = &mut input;
        let hooks = &self.types.registry.state().hooks;
        hooks.prepare(task_type, params, key, policy).map_err(|error| ApiError::new(Code::Rejected, error))?;
        self.validate_any_type(input, now_ms, trace)
    }

    /// Variant of [`Self::validate`] for tasks that the API creates itself.
    pub(crate) fn validate_any_type(
        &self,
        mut input: CreateTask,
        now_ms: i64,
        trace: Option<&Trace>,
    ) -> Result<TaskSpec, ApiError> {
        check_type(&input.task_type).map_err(|error| bad_field("type", error))?;
        let id = id_of(&input)?;
        check_params_size(&input.params)?;
        check_state(&input)?;
        if input.policy.rules.external {
            check_external(&input)?;
        } else {
            self.types.check_params(&input.task_type, &input.params, "/params")?;
        }
        let hash =
            spawn_hash(&input.task_type, &input.params).map_err(|error| bad_field("params", error.to_string()))?;
        check_short("key", input.key.as_deref())?;
        check_own_tags(&input.policy, "")?;
        let policy = self.policy_of(&mut input, &id, now_ms)?;
        self.types.check_continuation_params(&policy.rules.then, "/then")?;
        self.types.check_notifications(&policy.rules)?;
        let mut task = TaskSpec::new(id, input.task_type, input.params);
        task.set_policy(policy);
        task.hash = Some(hash.into());
        task.key = input.key.map(Into::into);
        task.trace = trace.cloned().map(Box::new);
        task.has_generated_id = input.id.is_none();
        task.is_group = input.state.is_some();
        self.make_unique(&mut task)?;
        task.index_params(&self.types.index(&task.task_type));
        Ok(task)
    }

    fn policy_of(&self, input: &mut CreateTask, id: &TaskId, now_ms: i64) -> Result<Policy, ApiError> {
        let mut policy = std::mem::take(&mut input.policy);
        policy.not_before_ms = self.start_time(input.delay, input.at.as_deref(), now_ms)?;
        policy.expires_at_ms = input.expires.map(|expires| expires.time_ms(now_ms));
        if input.block_when_done.is_some() && !policy.rules.external {
            return Err(bad_field("block_when_done", "it applies to external tasks only".into()));
        }
        policy.rules.block_when_done = input.block_when_done.unwrap_or(true);
        self.check_policy(&input.task_type, &policy, now_ms)?;
        check_then(id, &policy).map_err(of_flaw)?;
        Ok(policy)
    }

    /// Rejects options that no task may have, or that contradict those of the type.
    pub(crate) fn check_policy(&self, task_type: &str, policy: &Policy, now_ms: i64) -> Result<(), ApiError> {
        check_size(policy)?;
        self.types.limits().check_policy(policy, now_ms).map_err(of_flaw)?;
        if let Some(topic) = &policy.reply_to {
            self.types.topology.names.check_reply_topic(topic).map_err(|error| bad_field("reply_to", error))?;
        }
        self.types.check_with_type(task_type, policy)
    }

    /// Returns the earliest start time; `None` for an immediate start.
    pub(crate) fn start_time(
        &self,
        delay: Option<Millis>,
        at: Option<&str>,
        now_ms: i64,
    ) -> Result<Option<i64>, ApiError> {
        let start = match (delay, at) {
            (Some(_), Some(_)) => return Err(bad_field("at", "`delay` and `at` are mutually exclusive".into())),
            (Some(delay), None) => now_ms.saturating_add(delay.as_i64()),
            (None, Some(at)) => parse_time(at).map_err(|error| bad_field("at", error))?,
            (None, None) => return Ok(None),
        };
        let furthest = self.types.max_tree_age;
        if start > now_ms.saturating_add(furthest.as_i64()) {
            let field = if at.is_some() { "at" } else { "delay" };
            return Err(bad_field(field, format!("the task would start more than {furthest} from now")).hint(
                "submit it closer to its start time, or raise `topics.max_tree_age`, the longest time a tree may \
                 stay open",
            ));
        }
        Ok((start > now_ms).then_some(start))
    }

    pub(crate) async fn check_types(&self, task: &TaskSpec) -> Result<(), ApiError> {
        if !task.is_external() {
            self.types.check_type_exists(&task.task_type).await?;
        }
        let Some(policy) = &task.policy else { return Ok(()) };
        self.types.check_continuation_types(&policy.rules.then).await?;
        self.types.check_notification_types(&policy.rules).await
    }
}

fn id_of(input: &CreateTask) -> Result<TaskId, ApiError> {
    let bad = |pointer: &'static str| {
        move |reason: kafleet_model::task::id::IdError| ApiError::new(Code::BadId, reason.to_string()).pointer(pointer)
    };
    if let Some(parent) = &input.parent {
        TaskId::parse(parent).map_err(bad("/parent"))?;
    }
    if input.id.is_some() && input.id_prefix.is_some() {
        return Err(bad_field("id_prefix", "`id` and `id_prefix` are mutually exclusive".into()));
    }
    let made = format!("{}{}", input.id_prefix.as_deref().unwrap_or_default(), uuid::Uuid::now_v7());
    if input.id_prefix.is_some() {
        TaskId::resolve(&made, None).map_err(bad("/id_prefix"))?;
    }
    let id = TaskId::resolve(input.id.as_deref().unwrap_or(&made), input.parent.as_deref()).map_err(bad("/id"))?;
    if !id.is_root() && number_of(id.segment()).is_some() {
        let reason = format!("`{}` is reserved for continuations of the parent", id.segment());
        return Err(ApiError::new(Code::BadId, reason)
            .pointer("/id")
            .hint("choose another id, or add the task to `then` of the parent"));
    }
    Ok(id)
}

fn check_params_size(params: &RawJson) -> Result<(), ApiError> {
    let bytes = params.text().len();
    if bytes > MAX_PARAMS_BYTES {
        return Err(ApiError::new(
            Code::TooLarge,
            format!("the params have {bytes} bytes; the maximum is {MAX_PARAMS_BYTES}"),
        )
        .pointer("/params")
        .hint("store the data elsewhere and pass a link"));
    }
    Ok(())
}

/// Rejects initial states other than that of a group.
fn check_state(input: &CreateTask) -> Result<(), ApiError> {
    match input.state {
        Some(_) if !input.policy.rules.external => Err(bad_field("state", "it applies to external tasks only".into())),
        Some(state) if state != State::WaitingForChildren => {
            let reason = format!("a task cannot be created as `{state}`, only as `waiting_for_children`");
            Err(bad_field("state", reason).hint("create it without a state, and report others afterwards"))
        }
        _ => Ok(()),
    }
}

/// Rejects the creation of a group without its children.
pub(crate) fn check_no_group(task: &TaskSpec) -> Result<(), ApiError> {
    if !task.is_group {
        return Ok(());
    }
    let reason = "it is allowed in atomic batches only: without its children the task would end at once";
    Err(bad_field("state", reason.into()).hint("send the task and its children as one atomic batch"))
}

/// Rejects fields that have no effect on external tasks.
fn check_external(input: &CreateTask) -> Result<(), ApiError> {
    let lost = [
        ("params", !input.params.is_null()),
        ("key", input.key.is_some()),
        ("delay", input.delay.is_some()),
        ("at", input.at.is_some()),
        ("expires", input.expires.is_some()),
    ];
    let of_attempts = Policy::fields().filter(|field| field.change == Change::BeforePublish);
    let of_attempts = of_attempts.map(|field| (field.name, input.policy.is_set(field)));
    match lost.into_iter().chain(of_attempts).find(|(_, given)| *given) {
        Some((field, _)) => {
            let reason = format!("external tasks do not support `{field}`");
            Err(bad_field(field, reason).hint("use `options` for data about the task"))
        }
        None => Ok(()),
    }
}

/// Rejects options that do not fit into a record.
pub(crate) fn check_size(policy: &Policy) -> Result<(), ApiError> {
    let bytes = serde_json::to_vec(&policy.rules).map_or(0, |text| text.len());
    if bytes > MAX_POLICY_BYTES {
        let reason = format!("the options have {bytes} bytes; the maximum is {MAX_POLICY_BYTES}");
        return Err(ApiError::new(Code::TooLarge, reason).pointer("/options"));
    }
    Ok(())
}

/// Rejects tags that only kafleet gives, of a task and of its continuations.
pub(crate) fn check_own_tags(policy: &Policy, at: &str) -> Result<(), ApiError> {
    if let Some(tag) = policy.tags.iter().find(|tag| is_param_tag(tag)) {
        return Err(reserved_tag(tag).below(at));
    }
    let mut continuations = policy.rules.then.iter().enumerate();
    continuations.try_for_each(|(n, then)| check_own_tags(&then.policy, &format!("{at}/then/{n}")))
}

pub(crate) fn reserved_tag(tag: &str) -> ApiError {
    bad_field("tags", format!("the tag `{}` begins with `{PREFIX}`", clip(tag)))
        .hint("kafleet gives such tags to tasks of types with `index`; choose another tag")
}

fn check_short(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some(text) if text.chars().count() > MAX_TEXT_CHARS => {
            Err(bad_field(field, format!("it is longer than {MAX_TEXT_CHARS} characters")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn of_flaw((at, error): Flaw) -> ApiError {
    ApiError::new(Code::BadField, error).pointer(at)
}

pub(crate) fn bad_field(field: &str, reason: String) -> ApiError {
    ApiError::new(Code::BadField, reason).pointer(format!("/{field}"))
}

/// Extracts the W3C trace context; malformed values are dropped.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<Arc<Trace>> {
    let text =
        |name: &str| headers.get(name)?.to_str().ok().filter(|text| text.len() <= MAX_TEXT_CHARS).map(str::to_owned);
    let parent = text("traceparent").filter(|text| text.len() >= 55 && text.is_ascii())?;
    Some(Arc::new(Trace { parent, state: text("tracestate") }))
}
