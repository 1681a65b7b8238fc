//! Routes of types, kill switches and workers.

use super::errors::KILL;
use super::route::{RequestBody, ResponseBody, Route, Verb, of, operate, read};
use crate::api::documents as doc;
use crate::api::handlers::{operations, types, workers};
use crate::api::http::problem::Code;

pub(super) static ROUTES: &[Route] = &[
    Route {
        query: &[],
        problems: &[Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/types",
            "List the task types with task counts by state",
            ResponseBody::Json(of::<doc::Types>),
            |request| Box::pin(types::types(request)),
        )
    },
    Route {
        query: &[],
        problems: &[Code::UnknownType, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/types/{type}",
            "Get a task type with its task counts by state",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(types::one(request)),
        )
    },
    Route {
        problems: &[
            Code::BadParameter,
            Code::UnknownType,
            Code::NotVisibleYet,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read(
            "/v1/types/{type}/backlog",
            "Get the number of queued and running tasks of a type, for scaling",
            ResponseBody::Json(of::<doc::Backlog>),
            |request| Box::pin(types::backlog(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::PauseType>),
        ..operate(
            Verb::Post,
            "/v1/types/{type}/pause",
            "Pause a type; running attempts finish",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(operations::pause(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::ResumeType>),
        ..operate(
            Verb::Post,
            "/v1/types/{type}/resume",
            "Resume a paused type",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(operations::resume(request)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::SetLimits>),
        ..operate(
            Verb::Put,
            "/v1/types/{type}/limits",
            "Set the limits of a type; omitted limits revert to the configuration",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(operations::limits(request)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::SetCircuit>),
        ..operate(
            Verb::Put,
            "/v1/types/{type}/circuit",
            "Open or close the circuit of a type in all workers, or leave it to each of them",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(operations::circuit(request)),
        )
    },
    Route {
        ..operate(
            Verb::Delete,
            "/v1/types/{type}",
            "Delete the declaration of a type; its topics and tasks remain",
            ResponseBody::Json(of::<doc::TypeDocument>),
            |request| Box::pin(operations::forget(request)),
        )
    },
    Route {
        query: &[],
        problems: &[Code::KafkaUnavailable],
        ..read(
            "/v1/kill-switches",
            "List the active kill switches",
            ResponseBody::Json(of::<doc::KillSwitches>),
            |request| Box::pin(operations::list_kill_switches(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::SetKillSwitch>),
        problems: KILL,
        ..operate(
            Verb::Put,
            "/v1/kill-switches/{name}",
            "Set a kill switch: cancel tasks with this tag or id prefix instead of starting them",
            ResponseBody::Json(of::<doc::KillSwitchDocument>),
            |request| Box::pin(operations::set_kill_switch(request)),
        )
    },
    Route {
        successes: &[(200, "Deleted; the deleted kill switch.")],
        problems: KILL,
        ..operate(
            Verb::Delete,
            "/v1/kill-switches/{name}",
            "Delete a kill switch",
            ResponseBody::Json(of::<doc::KillSwitchDocument>),
            |request| Box::pin(operations::delete_kill_switch(request)),
        )
    },
    Route {
        query: &[],
        problems: &[],
        ..read(
            "/v1/workers",
            "List the workers with their last heartbeats",
            ResponseBody::Json(of::<doc::Workers>),
            |request| Box::pin(workers::workers(request)),
        )
    },
];
