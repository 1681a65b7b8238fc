//! The calls about recurring schedules.

use super::errors::{SCHEDULE, SCHEDULED};
use super::{Gives, Parameter, Route, TIME, Takes, Verb, of, operate, read};
use crate::api::documents as doc;
use crate::api::handlers::schedules;
use crate::api::http::problem::Code;

pub static ROUTES: &[Route] = &[
    Route {
        query: &[],
        refusals: &[Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read("/v1/schedules", "The recurring schedules, by id", Gives::Json(of::<doc::Schedules>), |call| {
            Box::pin(schedules::list(call))
        })
    },
    Route {
        takes: Takes::Json(of::<doc::NewSchedule>),
        answers: &[(201, "It fires from now on.")],
        refusals: SCHEDULE,
        ..operate(Verb::Post, "/v1/schedules", "Create a schedule", Gives::Json(of::<doc::ScheduleDocument>), |call| {
            Box::pin(schedules::create(call))
        })
    },
    Route {
        query: &[],
        refusals: SCHEDULED,
        ..read("/v1/schedules/{id}", "A schedule", Gives::Json(of::<doc::ScheduleDocument>), |call| {
            Box::pin(schedules::show(call))
        })
    },
    Route {
        query: &[
            Parameter { name: "after", about: "Times after this one; default now.", schema: TIME },
            Parameter {
                name: "count",
                about: "So many times.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}"#,
            },
        ],
        refusals: SCHEDULED,
        ..read("/v1/schedules/{id}/times", "When it fires", Gives::Json(of::<doc::ScheduleTimes>), |call| {
            Box::pin(schedules::times(call))
        })
    },
    Route {
        query: &[Parameter {
            name: "applied",
            about: "It comes from a file: `kafleet schedules apply`.",
            schema: r#"{"type": "boolean", "default": false}"#,
        }],
        takes: Takes::Json(of::<crate::model::schedule::Spec>),
        answers: &[(200, "Changed; given other times, it has no past."), (201, "Created.")],
        refusals: SCHEDULE,
        ..operate(
            Verb::Put,
            "/v1/schedules/{id}",
            "Change a schedule as a whole, or create it",
            Gives::Json(of::<doc::ScheduleDocument>),
            |call| Box::pin(schedules::put(call)),
        )
    },
    Route {
        answers: &[(200, "It is gone; it was so. Its tasks stay.")],
        refusals: SCHEDULED,
        ..operate(Verb::Delete, "/v1/schedules/{id}", "Delete a schedule", Gives::Json(of::<doc::ScheduleDocument>), |call| {
            Box::pin(schedules::delete(call))
        })
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::PauseType>),
        answers: &[(200, "It fires nothing until it is resumed.")],
        refusals: SCHEDULE,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/pause",
            "Fire nothing; what was made goes on",
            Gives::Json(of::<doc::ScheduleDocument>),
            |call| Box::pin(schedules::pause(call)),
        )
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::ResumeType>),
        answers: &[(200, "It fires from now on; what was between is not made up for.")],
        refusals: SCHEDULE,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/resume",
            "Go on with a schedule that is paused",
            Gives::Json(of::<doc::ScheduleDocument>),
            |call| Box::pin(schedules::resume(call)),
        )
    },
    Route {
        answers: &[(202, "The tracker is told; `done` says whether the task is made already.")],
        refusals: SCHEDULED,
        ..operate(Verb::Post, "/v1/schedules/{id}/run", "Run it once, now", Gives::Json(of::<doc::ScheduleAsked>), |call| {
            Box::pin(schedules::run(call))
        })
    },
    Route {
        query: &[
            Parameter { name: "from", about: "Times from this one on.", schema: TIME },
            Parameter { name: "to", about: "Up to this one; default now.", schema: TIME },
        ],
        answers: &[(202, "The tracker is told; `done` says whether the tasks are made already.")],
        refusals: SCHEDULED,
        ..operate(
            Verb::Post,
            "/v1/schedules/{id}/backfill",
            "Make up for past times that have no task",
            Gives::Json(of::<doc::ScheduleAsked>),
            |call| Box::pin(schedules::backfill(call)),
        )
    },
];
