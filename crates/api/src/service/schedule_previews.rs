//! Requests about schedules without effect: what a definition, or a backfill, would do.

use kafleet_documents::{BackfillPreview, SchedulePreview};
use kafleet_model::schedule::{Spec, Times, check_name, task_of};
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::{Name, RequestContext};
use super::preview::client_problems;
use super::schedules::{
    BackfillRange, DEFAULT_TIMES, backfill_span, backfill_times, check_spec, find_schedule, flaw_of, task_states,
};
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Maximum number of ids in a preview of a backfill.
const MAX_LISTED: usize = 10;

/// Checks a definition as `PUT /v1/schedules/{id}` would, and lists its next times.
pub async fn preview(
    RequestContext { api, .. }: RequestContext,
    Name(id): Name,
    spec: Spec,
) -> Result<SchedulePreview, ApiError> {
    api.fleet.wait_for_control_state().await?;
    let problems = client_problems(errors_of(&api, &id, &spec).await)?;
    let times = Times::of(&spec).map(|times| times.upcoming(now_ms(), DEFAULT_TIMES)).unwrap_or_default();
    Ok(SchedulePreview {
        valid: problems.is_empty(),
        problems,
        exists: api.fleet.control.state().plan.schedules.contains_key(&id),
        description: spec.words(),
        times: times.into_iter().map(time_text).collect(),
    })
}

/// All errors of the definition itself, or else the first one of its task in this fleet.
async fn errors_of(api: &Api, id: &str, spec: &Spec) -> Vec<ApiError> {
    let name = check_name(id).err().map(|error| ApiError::new(Code::BadField, error).pointer("/id"));
    let mut errors: Vec<ApiError> = name.into_iter().collect();
    errors.extend(spec.errors().into_iter().map(|flaw| flaw_of(flaw, "")));
    if errors.is_empty() {
        errors.extend(check_spec(api, spec, "").await.err());
    }
    errors
}

/// Counts the tasks that a backfill of the same range would create.
pub async fn backfill(
    RequestContext { api, .. }: RequestContext,
    Name(id): Name,
    range: BackfillRange,
) -> Result<BackfillPreview, ApiError> {
    let existing = find_schedule(&api, &id).await?;
    let times = backfill_times(&existing.spec, backfill_span(&range)?)?;
    let tasks: Vec<String> = times.iter().map(|time| task_of(&id, *time)).collect();
    let ids = tasks.iter().filter_map(|task| TaskId::parse(task).ok()).collect();
    let known = task_states(&api, ids).await?;
    api.reads.check_covered(None).await?;
    let missing: Vec<String> = tasks.into_iter().filter(|task| !known.contains_key(task)).collect();
    Ok(BackfillPreview {
        id,
        times: times.len() as u64,
        existing: (times.len() - missing.len()) as u64,
        missing: missing.len() as u64,
        tasks: missing.into_iter().take(MAX_LISTED).collect(),
    })
}
