//! Routes of recurring schedules.

use super::errors::{SCHEDULE, SCHEDULED};
use super::route::{RequestBody, ResponseBody, Route, TIME, Verb, of, operate, read};
use crate::api::documents as doc;
use crate::api::handlers::schedules;
use crate::api::http::problem::Code;
use crate::api::http::request::Parameter;

pub(super) static ROUTES: &[Route] = &[
    Route {
        query: &[],
        problems: &[Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/schedules",
            "List the recurring schedules, by id",
            ResponseBody::Json(of::<doc::Schedules>),
            |request| Box::pin(schedules::list(request)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::NewSchedule>),
        successes: &[(201, "Created; it fires from now on.")],
        problems: SCHEDULE,
        ..operate(
            Verb::Post,
            "/v1/schedules",
            "Create a schedule",
            ResponseBody::Json(of::<doc::ScheduleDocument>),
            |request| Box::pin(schedules::create(request)),
        )
    },
    Route {
        query: &[],
        problems: SCHEDULED,
        ..read("/v1/schedules/{id}", "Get a schedule", ResponseBody::Json(of::<doc::ScheduleDocument>), |request| {
            Box::pin(schedules::show(request))
        })
    },
    Route {
        query: &[
            Parameter { name: "after", description: "Only times after this one. Default: now.", schema: TIME },
            Parameter {
                name: "count",
                description: "Maximum number of times.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}"#,
            },
        ],
        problems: SCHEDULED,
        ..read(
            "/v1/schedules/{id}/times",
            "List the firing times of a schedule",
            ResponseBody::Json(of::<doc::ScheduleTimes>),
            |request| Box::pin(schedules::times(request)),
        )
    },
    Route {
        query: &[Parameter {
            name: "applied",
            description: "The schedule is managed by a configuration file (`kafleet schedules apply`).",
            schema: r#"{"type": "boolean", "default": false}"#,
        }],
        request: RequestBody::Json(of::<crate::model::schedule::Spec>),
        successes: &[(200, "Replaced; changed times apply from now on."), (201, "Created.")],
        problems: SCHEDULE,
        ..operate(
            Verb::Put,
            "/v1/schedules/{id}",
            "Replace or create a schedule",
            ResponseBody::Json(of::<doc::ScheduleDocument>),
            |request| Box::pin(schedules::put(request)),
        )
    },
    Route {
        successes: &[(200, "Deleted; the deleted schedule. Its tasks stay.")],
        problems: SCHEDULED,
        ..operate(
            Verb::Delete,
            "/v1/schedules/{id}",
            "Delete a schedule",
            ResponseBody::Json(of::<doc::ScheduleDocument>),
            |request| Box::pin(schedules::delete(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::PauseType>),
        successes: &[(200, "Paused; it does not fire until resumed.")],
        problems: SCHEDULE,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/pause",
            "Pause a schedule; tasks already created continue",
            ResponseBody::Json(of::<doc::ScheduleDocument>),
            |request| Box::pin(schedules::pause(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::ResumeType>),
        successes: &[(200, "Resumed; it fires from now on, and missed times are not made up for.")],
        problems: SCHEDULE,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/resume",
            "Resume a paused schedule",
            ResponseBody::Json(of::<doc::ScheduleDocument>),
            |request| Box::pin(schedules::resume(request)),
        )
    },
    Route {
        successes: &[(202, "Requested from the tracker; `done` is true if the task has been created.")],
        problems: SCHEDULED,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/trigger",
            "Run a schedule once, now",
            ResponseBody::Json(of::<doc::ScheduleRequestOutcome>),
            |request| Box::pin(schedules::run(request)),
        )
    },
    Route {
        query: &[
            Parameter { name: "from", description: "Start of the time range, inclusive.", schema: TIME },
            Parameter { name: "to", description: "End of the time range, inclusive. Default: now.", schema: TIME },
        ],
        successes: &[(202, "Requested from the tracker; `done` is true if the tasks have been created.")],
        problems: SCHEDULED,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/backfill",
            "Create the missing tasks of past firing times",
            ResponseBody::Json(of::<doc::ScheduleRequestOutcome>),
            |request| Box::pin(schedules::backfill(request)),
        )
    },
];
