//! Routes of recurring schedules.

use kafleet_config::Role;
use kafleet_documents::{NewSchedule, ScheduleDocument, ScheduleTimes};
use kafleet_model::schedule::{CONFIG_OWNER, Spec};
use kafleet_model::task::id::clip;

use super::route::{Route, TIME, delete, get, post, put};
use crate::http::answer::WithStatus;
use crate::http::input::{Input, json_bodies, parameter};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter, bad_parameter};
use crate::service::context::{Name, RequestContext};
use crate::service::schedule_previews;
use crate::service::schedules::{self, BackfillRange, DEFAULT_TIMES, MAX_TIMES, PutOutcome};

json_bodies! { required NewSchedule, Spec; optional; }

/// Firing times to list.
struct TimesQuery {
    after_ms: Option<i64>,
    count: usize,
}

impl Input for TimesQuery {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "after", description: "Only times after this one. Default: now.", schema: TIME },
        Parameter {
            name: "count",
            description: "Maximum number of times.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}"#,
        },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let after_ms = request.query.time("after")?;
        Ok(Self { after_ms, count: request.query.number("count", DEFAULT_TIMES, 1..=MAX_TIMES)? })
    }
}

parameter! {
    /// Source that manages the schedule.
    Owner(Option<String>) = Parameter {
        name: "owner",
        description: "Source that manages the schedule by `kafleet schedules apply`: `config`, or `app/` and the name of an \
                      app. Omitted: people manage it.",
        schema: r#"{"type": "string", "pattern": "^(config|app/[A-Za-z0-9._-]{1,64})$"}"#,
    }, |query, name| owner_of(query.parsed(name)?)?
}

fn owner_of(text: Option<String>) -> Result<Option<String>, ApiError> {
    let is_app = |name: &str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let is_valid = |text: &String| text == CONFIG_OWNER || text.strip_prefix("app/").is_some_and(is_app);
    match text {
        Some(text) if !is_valid(&text) => {
            Err(bad_parameter("owner", &format!("`{}` is neither `config` nor `app/NAME`", clip(&text))))
        }
        owner => Ok(owner),
    }
}

impl Input for BackfillRange {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "from", description: "Start of the time range, inclusive.", schema: TIME },
        Parameter { name: "to", description: "End of the time range, inclusive. Default: now.", schema: TIME },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let from_ms = request.query.time("from")?.ok_or_else(|| bad_parameter("from", "it is required"))?;
        Ok(Self { from_ms, to_ms: request.query.time("to")? })
    }
}

pub(super) fn all() -> Vec<Route> {
    let requested = (202, "Requested from the tracker; `done` is true if the task has been created.");
    let backfilled = (202, "Requested from the tracker; `done` is true if the tasks have been created.");
    let with_unknown_schedule = |route: Route| route.problems([Code::UnknownSchedule]);
    vec![
        get("/v1/schedules", "List the recurring schedules, by id", schedules::list),
        post("/v1/schedules", "Create a schedule", schedules::create)
            .success([(201, "Created; it fires from now on.")])
            .problems([Code::DuplicateSchedule, Code::TooManySchedules, Code::UnknownType, Code::Schema]),
        with_unknown_schedule(get("/v1/schedules/{id}", "Get a schedule", schedules::show)),
        with_unknown_schedule(get("/v1/schedules/{id}/times", "List the firing times of a schedule", times)),
        put("/v1/schedules/{id}", "Replace or create a schedule", replace)
            .success([(200, "Replaced; changed times apply from now on."), (201, "Created.")])
            .problems([Code::TooManySchedules, Code::UnknownType, Code::Schema]),
        post("/v1/schedules/{id}/preview", "Check a definition, and list its next times", schedule_previews::preview)
            .role(Role::Read)
            .success([(200, "Checked; nothing was changed. `valid` is false if the definition would be refused.")]),
        with_unknown_schedule(delete("/v1/schedules/{id}", "Delete a schedule", schedules::delete))
            .success([(200, "Deleted; the deleted schedule. Its tasks stay.")]),
        with_unknown_schedule(post(
            "/v1/schedules/{id}/pause",
            "Pause a schedule; tasks already created continue",
            schedules::pause,
        ))
        .success([(200, "Paused; it does not fire until resumed.")]),
        with_unknown_schedule(post("/v1/schedules/{id}/resume", "Resume a paused schedule", schedules::resume))
            .success([(200, "Resumed; it fires from now on, and missed times are not made up for.")]),
        with_unknown_schedule(post("/v1/schedules/{id}/trigger", "Run a schedule once, now", schedules::trigger))
            .success([requested])
            .problems([Code::UnknownType]),
        with_unknown_schedule(get(
            "/v1/schedules/{id}/backfill",
            "Count the tasks that a backfill would create",
            schedule_previews::backfill,
        ))
        .problems([Code::TooManyTimes]),
        with_unknown_schedule(post(
            "/v1/schedules/{id}/backfill",
            "Create the missing tasks of past firing times",
            schedules::backfill,
        ))
        .success([backfilled])
        .problems([Code::UnknownType, Code::TooManyTimes]),
    ]
}

async fn times(context: RequestContext, name: Name, query: TimesQuery) -> Result<ScheduleTimes, ApiError> {
    schedules::times(context, name, query.after_ms, query.count).await
}

async fn replace(
    context: RequestContext,
    Name(id): Name,
    Owner(owner): Owner,
    spec: Spec,
) -> Result<WithStatus<ScheduleDocument>, ApiError> {
    let PutOutcome { schedule, is_new } = schedules::put(context, id, spec, owner).await?;
    Ok(WithStatus(if is_new { 201 } else { 200 }, schedule))
}
