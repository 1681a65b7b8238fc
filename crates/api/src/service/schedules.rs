//! Endpoints for recurring schedules. Changes go to the control topic; the tracker carries them out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_documents::{
    LastFiring, NewSchedule, PauseDocument, PauseType, ResumeType, ScheduleDocument, ScheduleNote,
    ScheduleRequestOutcome, ScheduleTimes, Schedules,
};
use kafleet_fleet::control::CONTROL_VERSION;
use kafleet_fleet::control::schedules::{MAX_REQUESTS, MAX_SCHEDULES, ScheduleKey, ScheduleRequest, ScheduleSpan};
use kafleet_model::event::Event;
use kafleet_model::record::state::State;
use kafleet_model::schedule::step::ScheduleProgress;
use kafleet_model::schedule::{self, Schedule, Spec, SpecError, Template, Times, check_name, run_of, task_of};
use kafleet_model::task::Policy;
use kafleet_model::task::id::{TaskId, clip};
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use serde::Serialize;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::context::{Name, RequestContext, check_reason};
use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::http::request::bad_parameter;
use crate::state::Api;
use crate::write::validate::{check_own_tags, of_flaw};

/// Maximum wait until this API has read its own control record, or until the tracker has processed a request.
const READ_BACK_DEADLINE: Duration = Duration::from_secs(5);
/// Upcoming firing times in a schedule document.
const LISTED_TIMES: usize = 5;
/// Default number of listed firing times.
pub const DEFAULT_TIMES: usize = 10;
/// Maximum number of listed firing times.
pub(crate) const MAX_TIMES: usize = 1_000;
/// Schedules of a list up to which the states of all recent runs are read, besides those of the last ones.
const MAX_WITH_STATES: usize = 200;
/// Maximum firing times per backfill.
const MAX_BACKFILL: usize = 1_000;

/// Lists the schedules by id.
pub async fn list(RequestContext { api, .. }: RequestContext) -> Result<Schedules, ApiError> {
    api.fleet.wait_for_control_state().await?;
    let existing: Vec<(String, Arc<Schedule>)> = {
        let control = api.fleet.control.state();
        control.plan.schedules.iter().map(|(id, schedule)| (id.clone(), schedule.clone())).collect()
    };
    Ok(Schedules { schedules: schedule_documents(&api, existing).await? })
}

pub async fn show(
    RequestContext { api, role, .. }: RequestContext,
    Name(id): Name,
) -> Result<ScheduleDocument, ApiError> {
    let existing = find_schedule(&api, &id).await?;
    let mut document = schedule_document(&api, id, existing.clone()).await?;
    if role.sees_masked() {
        document.spec = existing.spec.clone();
    }
    Ok(document)
}

/// Lists firing times of a schedule. `after_ms`: only later ones; by default those from now on.
pub async fn times(
    RequestContext { api, .. }: RequestContext,
    Name(id): Name,
    after_ms: Option<i64>,
    count: usize,
) -> Result<ScheduleTimes, ApiError> {
    let existing = find_schedule(&api, &id).await?;
    let times = firing_times(&existing.spec)?.upcoming(after_ms.unwrap_or_else(now_ms), count);
    Ok(ScheduleTimes { id, times: times.into_iter().map(time_text).collect() })
}

/// Creates a schedule, which fires from now on.
pub async fn create(context: RequestContext, input: NewSchedule) -> Result<ScheduleDocument, ApiError> {
    let NewSchedule { id, spec, paused } = input;
    check_name(&id).map_err(|error| ApiError::new(Code::BadField, error).pointer("/id"))?;
    let api = &context.api;
    check_spec(api, &spec, "/spec").await?;
    let change = api.fleet.begin_schedule_change().await?;
    api.fleet.wait_for_control_state().await?;
    if api.fleet.control.state().plan.schedules.contains_key(&id) {
        return Err(ApiError::new(Code::DuplicateSchedule, format!("the schedule `{id}` already exists"))
            .pointer("/id")
            .hint(format!("change it with PUT /v1/schedules/{id}, or delete it first")));
    }
    let now = now_ms();
    let paused = paused.then_some(schedule::SchedulePause { at_ms: now, reason: None, by: context.caller() });
    let new = Schedule { v: CONTROL_VERSION, at_ms: now, from_ms: now, paused, owner: None, spec };
    set_schedule(api, change, context.operation("create_schedule", &id, None), new).await
}

/// Schedule that has been replaced or created.
pub struct PutOutcome {
    pub schedule: ScheduleDocument,
    /// The schedule did not exist before.
    pub is_new: bool,
}

/// Replaces or creates a schedule. `owner`: source that manages it, instead of people.
pub async fn put(
    context: RequestContext,
    id: String,
    mut spec: Spec,
    owner: Option<String>,
) -> Result<PutOutcome, ApiError> {
    let api = &context.api;
    check_name(&id).map_err(|error| ApiError::new(Code::BadField, error))?;
    let earlier = api.fleet.control.state().plan.schedules.get(&id).cloned();
    if let Some(earlier) = earlier {
        api.reads.masks.restore_template(&mut spec.task, &earlier.spec.task);
    }
    check_spec(api, &spec, "").await?;
    let change = api.fleet.begin_schedule_change().await?;
    api.fleet.wait_for_control_state().await?;
    let (now, existing) = (now_ms(), api.fleet.control.state().plan.schedules.get(&id).cloned());
    let (from_ms, paused) = match &existing {
        Some(existing) if existing.spec.same_times(&spec) => (existing.from_ms, existing.paused.clone()),
        // New times apply from now on; nothing is made up for.
        Some(existing) => (now, existing.paused.clone()),
        None => (now, None),
    };
    let new = Schedule { v: CONTROL_VERSION, at_ms: now, from_ms, paused, owner: owner.map(Into::into), spec };
    let action = if existing.is_some() { "update_schedule" } else { "create_schedule" };
    let schedule = set_schedule(api, change, context.operation(action, &id, None), new).await?;
    Ok(PutOutcome { schedule, is_new: existing.is_none() })
}

/// Deletes a schedule, and returns it. Its tasks stay.
pub async fn delete(context: RequestContext, Name(id): Name) -> Result<ScheduleDocument, ApiError> {
    let api = &context.api;
    let change = api.fleet.begin_schedule_change().await?;
    let existing = find_schedule(api, &id).await?;
    let deleted = schedule_document(api, id.clone(), existing).await?;
    let operation = context.operation("delete_schedule", &id, None);
    write_schedule(api, change, operation, ScheduleKey::Schedule(id), None::<Arc<Schedule>>).await?;
    Ok(deleted)
}

/// Pauses a schedule; tasks already created continue.
pub async fn pause(
    context: RequestContext,
    Name(id): Name,
    PauseType { reason }: PauseType,
) -> Result<ScheduleDocument, ApiError> {
    check_reason(reason.as_deref())?;
    let api = &context.api;
    let change = api.fleet.begin_schedule_change().await?;
    let existing = find_schedule(api, &id).await?;
    let now = now_ms();
    let operation = context.operation("pause_schedule", &id, reason.as_deref());
    let paused = Some(schedule::SchedulePause { at_ms: now, reason, by: context.caller() });
    set_schedule(api, change, operation, Schedule { paused, at_ms: now, ..(*existing).clone() }).await
}

/// Resumes a paused schedule, which fires from now on.
pub async fn resume(
    context: RequestContext,
    Name(id): Name,
    ResumeType {}: ResumeType,
) -> Result<ScheduleDocument, ApiError> {
    let api = &context.api;
    let change = api.fleet.begin_schedule_change().await?;
    let existing = find_schedule(api, &id).await?;
    if existing.paused.is_none() {
        return schedule_document(api, id, existing).await;
    }
    let now = now_ms();
    let new = Schedule { paused: None, at_ms: now, from_ms: now, ..(*existing).clone() };
    set_schedule(api, change, context.operation("resume_schedule", &id, None), new).await
}

/// Hint after a requested run with an unknown outcome.
const REPEAT_RUN: &str =
    "repeat the request only if `last` of the schedule shows no new task; otherwise the repeat starts a second one";

/// Runs a schedule once, now.
pub async fn trigger(context: RequestContext, Name(id): Name) -> Result<ScheduleRequestOutcome, ApiError> {
    let api = &context.api;
    let existing = find_schedule(api, &id).await?;
    api.types.check_type_exists(&existing.spec.task.task_type).await?;
    let name = request_name();
    let tasks = vec![run_of(&id, &name)];
    let operation = context.operation("run_schedule", &id, None);
    let done = request_runs(api, operation, name, None, tasks).await;
    done.map_err(|error| error.hint_if_unknown(REPEAT_RUN))
}

/// Time range of a backfill.
pub struct BackfillRange {
    pub from_ms: i64,
    /// End of the range, inclusive; `None`: now.
    pub to_ms: Option<i64>,
}

/// Creates the missing tasks of past firing times.
pub async fn backfill(
    context: RequestContext,
    Name(id): Name,
    range: BackfillRange,
) -> Result<ScheduleRequestOutcome, ApiError> {
    let span = backfill_span(&range)?;
    let api = &context.api;
    let existing = find_schedule(api, &id).await?;
    api.types.check_type_exists(&existing.spec.task.task_type).await?;
    let times = backfill_times(&existing.spec, span)?;
    let tasks = times.iter().map(|time| task_of(&id, *time)).collect();
    let operation = context.operation("backfill_schedule", &id, None);
    request_runs(api, operation, request_name(), Some(span), tasks).await
}

/// Times of a backfill.
pub(super) fn backfill_times(spec: &Spec, span: ScheduleSpan) -> Result<Vec<i64>, ApiError> {
    let mut times = firing_times(spec)?.upcoming(span.from_ms - 1, MAX_BACKFILL + 1);
    times.retain(|time| *time <= span.to_ms);
    if times.len() > MAX_BACKFILL {
        let reason = format!("there are more than {MAX_BACKFILL} times between `from` and `to`");
        return Err(ApiError::new(Code::TooManyTimes, reason).hint("split the backfill into shorter spans"));
    }
    Ok(times)
}

pub(super) fn backfill_span(range: &BackfillRange) -> Result<ScheduleSpan, ApiError> {
    let (now, from_ms) = (now_ms(), range.from_ms);
    let to_ms = range.to_ms.unwrap_or(now);
    if to_ms > now {
        return Err(bad_parameter("to", "it is in the future: a backfill covers past times only"));
    }
    if to_ms < from_ms {
        return Err(bad_parameter("to", "it is before `from`"));
    }
    Ok(ScheduleSpan { from_ms, to_ms })
}

/// Makes requests of the same millisecond distinct.
fn request_name() -> String {
    format!("{}-{:04x}", schedule::stamp(now_ms()), fastrand::u16(..))
}

fn firing_times(spec: &Spec) -> Result<Times, ApiError> {
    Times::of(spec).map_err(|errors| {
        let error = errors.first().map(|flaw| flaw.message.clone()).unwrap_or_default();
        ApiError::new(Code::BadField, format!("the times of the spec are invalid: {error}"))
    })
}

fn paused(paused: &schedule::SchedulePause) -> PauseDocument {
    PauseDocument { since: time_text(paused.at_ms), reason: paused.reason.clone(), by: paused.by.clone() }
}

fn note(note: &schedule::step::ScheduleDecision, states: &BTreeMap<String, State>) -> ScheduleNote {
    let (time, at) = (time_text(note.time_ms), time_text(note.at_ms));
    let state = note.task.as_ref().and_then(|task| states.get(task).copied());
    ScheduleNote { outcome: note.outcome, time, at, task: note.task.clone(), count: note.count, state }
}

/// Returns an existing schedule.
pub(super) async fn find_schedule(api: &Api, id: &str) -> Result<Arc<Schedule>, ApiError> {
    api.fleet.wait_for_control_state().await?;
    let existing = api.fleet.control.state().plan.schedules.get(id).cloned();
    existing.ok_or_else(|| {
        ApiError::new(Code::UnknownSchedule, format!("there is no schedule `{}`", clip(id)))
            .hint("list them with GET /v1/schedules")
    })
}

/// Error of a field of a definition that is at `at`.
pub(super) fn flaw_of(flaw: SpecError, at: &str) -> ApiError {
    let error = ApiError::new(Code::BadField, flaw.message).pointer(format!("{at}/{}", flaw.at));
    flaw.hint.map_or(error.clone(), |hint| error.hint(hint))
}

pub(super) async fn check_spec(api: &Api, spec: &Spec, at: &str) -> Result<(), ApiError> {
    if let Some(flaw) = spec.errors().into_iter().next() {
        return Err(flaw_of(flaw, at));
    }
    let task = &spec.task;
    check_own_tags(&task.policy, &format!("{at}/task"))?;
    check_limits(api, task, &format!("{at}/task"))?;
    let position = |error: ApiError, below: &str| error.pointer(format!("{at}/task/{below}"));
    api.types.check_type_exists(&task.task_type).await.map_err(|error| position(error, "type"))?;
    api.types.check_params(&task.task_type, &task.params, &format!("{at}/task/params"))?;
    let (rules, at) = (&task.policy.rules, format!("{at}/task"));
    api.types.check_continuation_params(&rules.then, &format!("{at}/then"))?;
    api.types.check_continuation_types(&rules.then).await.map_err(|error| error.below(&at))?;
    api.types.check_notifications(rules).map_err(|error| error.below(&at))?;
    api.types.check_notification_types(rules).await.map_err(|error| error.below(&at))
}

/// Rejects a task whose limits no task may have, or that contradict those of its type.
fn check_limits(api: &Api, task: &Template, at: &str) -> Result<(), ApiError> {
    let (limits, now_ms) = (api.types.limits(), now_ms());
    let expires_at_ms = task.expires.map(|span| now_ms.saturating_add(span.as_i64()));
    let policy = Policy { expires_at_ms, ..task.policy.clone() };
    limits.check_policy(&policy, now_ms).map_err(|flaw| of_flaw(flaw).below(at))?;
    api.types.check_with_type(&task.task_type, &policy).map_err(|error| error.below(at))
}

/// Records a request for the audit, then writes or deletes a schedule record. Continues if the client disconnects, and
/// keeps `held` until this API has read the record.
async fn write_schedule<T: Serialize + Send + Sync + 'static>(
    api: &Arc<Api>,
    held: impl Send + 'static,
    operation: Event,
    key: ScheduleKey,
    record: Option<Arc<T>>,
) -> Result<(), ApiError> {
    let api = api.clone();
    let write = async move {
        let _held = held;
        api.fleet.record_operation(&operation).await?;
        api.fleet.write_schedule(&key, record.as_deref()).await
    };
    detached(write).await
}

async fn set_schedule(
    api: &Arc<Api>,
    change: OwnedMutexGuard<()>,
    operation: Event,
    new: Schedule,
) -> Result<ScheduleDocument, ApiError> {
    let id = operation.key();
    let full = {
        let schedules = &api.fleet.control.state().plan.schedules;
        schedules.len() >= MAX_SCHEDULES && !schedules.contains_key(id)
    };
    if full {
        return Err(ApiError::new(Code::TooManySchedules, format!("there are already {MAX_SCHEDULES} schedules"))
            .hint("delete one: DELETE /v1/schedules/{id}"));
    }
    let (id, new) = (id.to_owned(), Arc::new(new));
    write_schedule(api, change, operation, ScheduleKey::Schedule(id.clone()), Some(new.clone())).await?;
    schedule_document(api, id, new).await
}

/// Requests runs from the tracker, and waits for it within a deadline.
async fn request_runs(
    api: &Arc<Api>,
    operation: Event,
    name: String,
    backfill: Option<ScheduleSpan>,
    tasks: Vec<String>,
) -> Result<ScheduleRequestOutcome, ApiError> {
    if api.fleet.control.state().plan.requests.len() >= MAX_REQUESTS {
        let reason = format!("{MAX_REQUESTS} schedule requests are already pending");
        return Err(ApiError::new(Code::Overloaded, reason).hint("check that a tracker is running"));
    }
    let id = operation.key().to_owned();
    let record = ScheduleRequest { v: CONTROL_VERSION, at_ms: now_ms(), backfill };
    let request = (id.clone(), name.clone());
    let key = ScheduleKey::ScheduleRequest(id.clone(), name);
    write_schedule(api, (), operation, key, Some(Arc::new(record))).await?;
    let done = has_run(api, &request).await;
    Ok(ScheduleRequestOutcome { id, tasks, done })
}

/// Waits until the tracker has run a request. Returns false if it has not within the deadline.
async fn has_run(api: &Api, request: &(String, String)) -> bool {
    let (end, mut changes) = (Instant::now() + READ_BACK_DEADLINE, api.fleet.control.changes());
    loop {
        changes.get_and_mark();
        if !api.fleet.control.state().plan.requests.contains_key(request) {
            return true;
        }
        if api.reads.shutdown.is_draining() || !matches!(timeout_at(end, changes.changed()).await, Ok(Ok(()))) {
            return false;
        }
    }
}

async fn schedule_document(api: &Api, id: String, schedule: Arc<Schedule>) -> Result<ScheduleDocument, ApiError> {
    let documents = schedule_documents(api, vec![(id, schedule)]).await?;
    documents.into_iter().next().ok_or_else(ApiError::internal)
}

async fn schedule_documents(
    api: &Api,
    schedules: Vec<(String, Arc<Schedule>)>,
) -> Result<Vec<ScheduleDocument>, ApiError> {
    let states: Vec<Arc<ScheduleProgress>> = {
        let control = api.fleet.control.state();
        schedules.iter().map(|(id, _)| control.plan.states.get(id).cloned().unwrap_or_default()).collect()
    };
    let last = states.iter().filter_map(|state| state.last.as_ref().map(|last| &last.task));
    let has_recent = schedules.len() <= MAX_WITH_STATES;
    let recent = states
        .iter()
        .filter(|_| has_recent)
        .flat_map(|state| state.recent.iter().filter_map(|note| note.task.as_ref()));
    let shown: BTreeSet<TaskId> = last.chain(recent).filter_map(|task| TaskId::parse(task).ok()).collect();
    let ended = task_states(api, shown.into_iter().collect()).await?;
    let mut documents = Vec::with_capacity(schedules.len());
    for ((id, schedule), state) in schedules.into_iter().zip(states) {
        let error = trouble(api, &schedule).await;
        let mut document = document(id, &schedule, &state, &ended, error);
        api.reads.masks.hide_in_template(&mut document.spec.task);
        documents.push(document);
    }
    Ok(documents)
}

/// Reason why a schedule cannot fire.
async fn trouble(api: &Api, schedule: &Schedule) -> Option<String> {
    match api.types.check_type_exists(&schedule.spec.task.task_type).await {
        Err(error) if error.is(Code::UnknownType) => Some(error.document().detail),
        _ => None,
    }
}

/// Reads the states of tasks that have a record.
pub(super) async fn task_states(api: &Api, ids: Vec<TaskId>) -> Result<BTreeMap<String, State>, ApiError> {
    let mut by_partition = BTreeMap::<u32, Vec<TaskId>>::new();
    ids.into_iter().for_each(|id| by_partition.entry(api.topology.partition_of(&id)).or_default().push(id));
    let mut states = BTreeMap::new();
    for (partition, ids) in by_partition {
        let records = api.reads.records(partition, &ids).await?;
        states.extend(ids.iter().zip(records).filter_map(|(id, record)| Some((id.to_string(), record?.state))));
    }
    Ok(states)
}

fn document(
    id: String,
    schedule: &Schedule,
    state: &ScheduleProgress,
    states: &BTreeMap<String, State>,
    error: Option<String>,
) -> ScheduleDocument {
    let times = Times::of(&schedule.spec).ok();
    let next = times.map(|times| state.upcoming(schedule, &times, now_ms(), LISTED_TIMES)).unwrap_or_default();
    ScheduleDocument {
        id,
        description: schedule.spec.words(),
        spec: schedule.spec.clone(),
        paused: schedule.paused.as_ref().map(paused),
        owner: schedule.owner.as_deref().map(str::to_owned),
        changed_at: time_text(schedule.at_ms),
        next: next.into_iter().map(time_text).collect(),
        fired: state.fired,
        skipped: state.skipped,
        missed: state.missed,
        waiting: state.waiting_ms.map(time_text),
        last: state.last.as_ref().map(|last| LastFiring {
            time: time_text(last.time_ms),
            at: time_text(last.at_ms),
            task: last.task.clone(),
            state: states.get(&last.task).copied(),
        }),
        recent: state.recent.iter().map(|decision| note(decision, states)).collect(),
        error,
    }
}
