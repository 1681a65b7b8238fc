//! Route table: source of the router and of the OpenAPI description.

mod errors;
mod schedules;

use std::pin::Pin;

use axum::response::Response;
use schemars::{Schema, SchemaGenerator};

use errors::{
    ATTACH, ATTACHED, BATCH, CANCEL, CREATE, DETACH, DROP_ONE, FIND, KILL, OPERATE, PATCH, REDRIVE_ONE, REPORT, RETRY,
    SETTLE_MANY, TELL, WATCH,
};

use super::ops;
use super::problem::{ApiError, Code};
use super::request::ApiRequest;
use crate::api::documents as doc;
use crate::api::handlers::{
    attachments, batch, cancel, create, dead_letters, list, log, operations, patch, report, retry, task, tree, types, watch,
    watch_fleet, why, workers,
};
use crate::config::Role;
use crate::dead_letters::Fate;

pub enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// Generates the schema of a document.
pub type Describe = fn(&mut SchemaGenerator) -> Schema;

/// Query parameter.
pub struct Parameter {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON Schema, as text.
    pub schema: &'static str,
}

/// Request body.
pub enum RequestBody {
    Nothing,
    Json(Describe),
    /// Arbitrary bytes.
    Bytes,
    /// Optional JSON.
    MaybeJson(Describe),
    /// JSON array or NDJSON of items.
    JsonOrLines(Describe),
}

/// Response body.
#[derive(Clone, Copy)]
pub enum ResponseBody {
    Json(Describe),
    Text,
    Bytes,
    Events,
    AnyJson,
}

/// Request handler.
pub type Handler = fn(ApiRequest) -> HandlerFuture;
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

pub struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// Required role; `None` for public endpoints.
    pub role: Option<Role>,
    /// Accepts any `Host` even without tokens, for probes that address the pod by IP.
    pub any_host: bool,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    pub request: RequestBody,
    /// Success status codes with descriptions.
    pub successes: &'static [(u16, &'static str)],
    pub response: ResponseBody,
    /// Problem codes specific to this endpoint.
    pub problems: &'static [Code],
    pub handler: Handler,
}

impl Route {
    pub fn method(&self) -> &'static str {
        match self.verb {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }

    pub fn label(&self) -> String {
        format!("{} {}", self.method(), self.path)
    }
}

fn of<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const POSITION: &str = r#"{"type": "string", "pattern": "^[0-9]+:[0-9]+$"}"#;
const DURATION: &str = r#"{"type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)?$"}"#;
const TYPE_NAME: &str = r#"{"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}"#;
const TEXT: &str = r#"{"type": "string", "minLength": 1}"#;
const TIME: &str = r#"{"type": "string", "format": "date-time"}"#;
const PAGE_LIMIT: &str = r#"{"type": "integer", "minimum": 1, "maximum": 200, "default": 50}"#;

const AFTER: Parameter = Parameter {
    name: "after",
    description: "Return only data that includes the events up to this position, for read-your-writes consistency. \
                  Waits up to 5 s.",
    schema: POSITION,
};
const CURSOR: Parameter = Parameter { name: "cursor", description: "`next` of the previous page.", schema: TEXT };
const LIMIT: Parameter = Parameter { name: "limit", description: "Page size.", schema: PAGE_LIMIT };
const FROM_LINE: Parameter = Parameter {
    name: "from",
    description: "Number of the first line; the oldest line ever logged is 0.",
    schema: r#"{"type": "integer", "minimum": 0, "default": 0}"#,
};
const WAIT: Parameter = Parameter {
    name: "wait",
    description: "Wait up to this long, at most 5m, for the task to end: 200 if it has ended, 202 if not.",
    schema: DURATION,
};

/// Route that reads one task or a part of it.
const fn read(path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    Route {
        verb: Verb::Get,
        path,
        role: Some(Role::Read),
        any_host: false,
        summary,
        query: &[AFTER],
        request: RequestBody::Nothing,
        successes: &[(200, "Found.")],
        response,
        problems: FIND,
        handler,
    }
}

/// Route of an operator command that responds with the resulting state.
const fn operate(verb: Verb, path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    Route {
        verb,
        role: Some(Role::Operate),
        query: &[],
        successes: &[(200, "Accepted and sent to the workers.")],
        problems: OPERATE,
        ..read(path, summary, response, handler)
    }
}

/// Public route.
const fn open(path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    let problems = &[Code::ForbiddenHost];
    Route { role: None, query: &[], successes: &[(200, "OK.")], problems, ..read(path, summary, response, handler) }
}

/// Route for probes and scrapers.
const fn probe(path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    Route { any_host: true, problems: &[], ..open(path, summary, response, handler) }
}

/// Returns all routes.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(schedules::ROUTES)
}

static ROUTES: &[Route] = &[
    Route {
        verb: Verb::Post,
        path: "/v1/tasks",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Create a task",
        query: &[WAIT],
        request: RequestBody::Json(of::<doc::CreateTask>),
        successes: &[
            (201, "Created; `position` is the position of its `submitted` event."),
            (200, "The same task already exists; or, with `wait`, the task has ended."),
            (202, "With `wait`: the task has not ended yet."),
        ],
        response: ResponseBody::Json(of::<doc::Status>),
        problems: CREATE,
        handler: |request| Box::pin(create::create(request)),
    },
    Route {
        verb: Verb::Post,
        path: "/v1/batches",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Create up to 10,000 tasks, each with its own outcome, or atomically the tasks of one tree",
        query: &[Parameter {
            name: "atomic",
            description: "Create all items or none, in one transaction: up to 1,000 tasks of one tree.",
            schema: r#"{"type": "boolean", "default": false}"#,
        }],
        request: RequestBody::JsonOrLines(of::<doc::CreateTask>),
        successes: &[(200, "One outcome per item, in order.")],
        response: ResponseBody::Json(of::<doc::BatchOutcome>),
        problems: BATCH,
        handler: |request| Box::pin(batch::create(request)),
    },
    Route {
        query: &[
            Parameter {
                name: "type",
                description: "Only tasks of this type.",
                schema: r#"{"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}"#,
            },
            Parameter {
                name: "state",
                description: "Only tasks in this state.",
                schema: r##"{"$ref": "#/components/schemas/State"}"##,
            },
            Parameter {
                name: "level",
                description: "`roots`: only tasks without a parent; `any`: tasks of all levels. With an indexed \
                              `state` (running, retrying, scheduled, cancelling, warning, failed, cancelled), tasks \
                              are sorted by their own times; otherwise trees are sorted by the times of their roots, \
                              with parents before children.",
                schema: r#"{"type": "string", "enum": ["roots", "any"], "default": "roots"}"#,
            },
            Parameter { name: "tag", description: "Only tasks with this tag.", schema: TEXT },
            Parameter { name: "creator", description: "Only tasks of this creator.", schema: TEXT },
            Parameter { name: "name", description: "Only tasks whose name starts with this prefix.", schema: TEXT },
            Parameter {
                name: "name_like",
                description: "Only tasks whose name matches this regular expression anywhere (anchor it with `^` and \
                              `$`).",
                schema: r#"{"type": "string", "minLength": 1, "maxLength": 512}"#,
            },
            Parameter {
                name: "error",
                description: "Only tasks with an error of this kind, or with a similar error message: numbers, ids \
                              and quoted values may differ.",
                schema: TEXT,
            },
            Parameter { name: "from", description: "Only tasks first seen at or after this time.", schema: TIME },
            Parameter { name: "to", description: "Only tasks first seen before this time.", schema: TIME },
            Parameter { name: "root", description: "Only this task and its descendants, parents before children.", schema: TEXT },
            CURSOR,
            LIMIT,
            AFTER,
        ],
        problems: &[
            Code::BadParameter,
            Code::BadCursor,
            Code::NotFound,
            Code::NotVisibleYet,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read("/v1/tasks", "List and search tasks, newest first", ResponseBody::Json(of::<doc::TaskPage>), |request| {
            Box::pin(list::list(request))
        })
    },
    read("/v1/tasks/{id}", "Get the status of a task", ResponseBody::Json(of::<doc::Status>), |request| {
        Box::pin(task::status(request))
    }),
    read("/v1/tasks/{id}/state", "Get only the state of a task", ResponseBody::Json(of::<doc::StateDocument>), |request| {
        Box::pin(task::state(request))
    }),
    Route {
        verb: Verb::Put,
        path: "/v1/tasks/{id}/state",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Report the state of an external task",
        query: &[],
        request: RequestBody::Json(of::<doc::Report>),
        successes: &[(200, "Recorded in the history; `ignored` tells whether the report had an effect.")],
        response: ResponseBody::Json(of::<doc::ReportOutcome>),
        problems: REPORT,
        handler: |request| Box::pin(report::report(request)),
    },
    Route {
        verb: Verb::Patch,
        path: "/v1/tasks/{id}",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Change a task",
        query: &[],
        request: RequestBody::Json(of::<doc::PatchTask>),
        successes: &[(200, "Changed; the new status.")],
        response: ResponseBody::Json(of::<doc::Status>),
        problems: PATCH,
        handler: |request| Box::pin(patch::patch(request)),
    },
    Route {
        verb: Verb::Post,
        path: "/v1/tasks/{id}/retry",
        role: Some(Role::Operate),
        any_host: false,
        summary: "Retry a task that has ended, or the failed tasks of its tree",
        query: &[],
        request: RequestBody::MaybeJson(of::<doc::RetryTask>),
        successes: &[(202, "Accepted: the task, or the failed tasks of its tree, run again as run `run`.")],
        response: ResponseBody::Json(of::<doc::RetryOutcome>),
        problems: RETRY,
        handler: |request| Box::pin(retry::retry(request)),
    },
    Route {
        query: &[CURSOR, LIMIT, AFTER],
        ..read(
            "/v1/tasks/{id}/children",
            "List the direct children of a task, oldest first",
            ResponseBody::Json(of::<doc::TaskPage>),
            |request| Box::pin(task::children(request)),
        )
    },
    Route {
        query: &[
            Parameter {
                name: "depth",
                description: "Maximum depth below the task.",
                schema: r#"{"type": "integer", "minimum": 0, "maximum": 64, "default": 3}"#,
            },
            Parameter {
                name: "limit",
                description: "Maximum number of tasks below the task.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}"#,
            },
            Parameter {
                name: "format",
                description: "`json`, or a diagram as text: `mermaid` (`text/vnd.mermaid`), `dot` \
                              (`text/vnd.graphviz`).",
                schema: r#"{"type": "string", "enum": ["json", "mermaid", "dot"], "default": "json"}"#,
            },
            AFTER,
        ],
        ..read("/v1/tasks/{id}/tree", "Get a task with its descendants", ResponseBody::Json(of::<doc::TreeNode>), |request| {
            Box::pin(tree::tree(request))
        })
    },
    read("/v1/tasks/{id}/history", "Get the history of a task", ResponseBody::Json(of::<doc::History>), |request| {
        Box::pin(task::history(request))
    }),
    read("/v1/tasks/{id}/why", "Explain the state of a task", ResponseBody::Json(of::<doc::Why>), |request| {
        Box::pin(why::why(request))
    }),
    Route {
        query: &[
            FROM_LINE,
            Parameter {
                name: "limit",
                description: "Maximum number of lines.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}"#,
            },
            AFTER,
        ],
        ..read("/v1/tasks/{id}/log", "Read the log of a task", ResponseBody::Json(of::<doc::LogDocument>), |request| {
            Box::pin(log::page(request))
        })
    },
    Route {
        verb: Verb::Post,
        path: "/v1/tasks/{id}/log",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Append lines to the log of a task",
        query: &[],
        request: RequestBody::Json(of::<doc::AppendLog>),
        successes: &[(202, "Written; visible once projected.")],
        response: ResponseBody::Json(of::<doc::LogAppended>),
        problems: TELL,
        handler: |request| Box::pin(log::append(request)),
    },
    Route {
        query: &[FROM_LINE, AFTER],
        problems: WATCH,
        ..read("/v1/tasks/{id}/log/watch", "Follow the log of a task (server-sent events)", ResponseBody::Events, |request| {
            Box::pin(log::watch(request))
        })
    },
    read("/v1/tasks/{id}/attachments", "List the attachments of a task", ResponseBody::Json(of::<doc::Attachments>), |request| {
        Box::pin(attachments::list(request))
    }),
    Route {
        problems: ATTACHED,
        ..read("/v1/tasks/{id}/attachments/{name}", "Get an attachment", ResponseBody::Bytes, |request| {
            Box::pin(attachments::get(request))
        })
    },
    Route {
        verb: Verb::Put,
        path: "/v1/tasks/{id}/attachments/{name}",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Create or replace an attachment of up to 64 KiB",
        query: &[],
        request: RequestBody::Bytes,
        successes: &[(200, "Stored; the attachment.")],
        response: ResponseBody::Json(of::<doc::AttachmentDocument>),
        problems: ATTACH,
        handler: |request| Box::pin(attachments::put(request)),
    },
    Route {
        verb: Verb::Delete,
        role: Some(Role::Submit),
        query: &[],
        successes: &[(200, "Deleted; the deleted attachment.")],
        problems: DETACH,
        ..read(
            "/v1/tasks/{id}/attachments/{name}",
            "Delete an attachment",
            ResponseBody::Json(of::<doc::AttachmentDocument>),
            |request| Box::pin(attachments::delete(request)),
        )
    },
    Route {
        problems: &[
            Code::BadId,
            Code::NotFound,
            Code::NoParams,
            Code::ParamsGone,
            Code::ParamsUnreadable,
            Code::NotVisibleYet,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read(
            "/v1/tasks/{id}/params",
            "Get the params of a task, read from Kafka",
            ResponseBody::Json(of::<doc::Params>),
            |request| Box::pin(task::params(request)),
        )
    },
    Route {
        problems: WATCH,
        ..read("/v1/tasks/{id}/watch", "Follow the status of a task (server-sent events)", ResponseBody::Events, |request| {
            Box::pin(watch::task(request))
        })
    },
    Route {
        query: &[
            Parameter { name: "type", description: "Only tasks of this type.", schema: TYPE_NAME },
            Parameter { name: "root", description: "Only this task and its descendants.", schema: TEXT },
        ],
        problems: &[Code::BadParameter, Code::Overloaded],
        ..read("/v1/watch", "Follow which tasks change (server-sent events)", ResponseBody::Events, |request| {
            Box::pin(watch_fleet::watch(request))
        })
    },
    Route {
        query: &[],
        problems: &[Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read("/v1/types", "List the task types with task counts by state", ResponseBody::Json(of::<doc::Types>), |request| {
            Box::pin(types::types(request))
        })
    },
    Route {
        problems: &[Code::BadParameter, Code::UnknownType, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/types/{type}/backlog",
            "Get the number of queued and running tasks of a type, for scaling",
            ResponseBody::Json(of::<doc::Backlog>),
            |request| Box::pin(types::backlog(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::CancelTask>),
        successes: &[(202, "The cancel has been written and is sent to the workers."), (200, "Already requested earlier.")],
        problems: CANCEL,
        ..operate(
            Verb::Post,
            "/v1/tasks/{id}/cancel",
            "Cancel a task and its descendants",
            ResponseBody::Json(of::<doc::CancelOutcome>),
            |request| Box::pin(cancel::cancel(request)),
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
        query: &[],
        problems: &[Code::KafkaUnavailable],
        ..read("/v1/kill", "List the active kill switches", ResponseBody::Json(of::<doc::Kills>), |request| {
            Box::pin(operations::list_kill_switches(request))
        })
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::SetKill>),
        problems: KILL,
        ..operate(
            Verb::Put,
            "/v1/kill/{name}",
            "Set a kill switch: cancel tasks with this tag or id prefix instead of starting them",
            ResponseBody::Json(of::<doc::KillDocument>),
            |request| Box::pin(operations::set_kill_switch(request)),
        )
    },
    Route {
        successes: &[(200, "Deleted; the deleted kill switch.")],
        problems: KILL,
        ..operate(
            Verb::Delete,
            "/v1/kill/{name}",
            "Delete a kill switch",
            ResponseBody::Json(of::<doc::KillDocument>),
            |request| Box::pin(operations::delete_kill_switch(request)),
        )
    },
    Route {
        query: &[],
        problems: &[],
        ..read("/v1/workers", "List the workers with their last heartbeats", ResponseBody::Json(of::<doc::Workers>), |request| {
            Box::pin(workers::workers(request))
        })
    },
    Route {
        query: &[
            Parameter { name: "type", description: "Only dead letters of this type.", schema: TYPE_NAME },
            Parameter { name: "code", description: "Only dead letters with this code.", schema: TEXT },
            Parameter { name: "from", description: "Only tasks dead-lettered at or after this time.", schema: TIME },
            Parameter { name: "to", description: "Only tasks dead-lettered before this time.", schema: TIME },
            CURSOR,
            LIMIT,
        ],
        problems: &[Code::BadParameter, Code::BadCursor, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read("/v1/dead", "List the unresolved dead letters, newest first", ResponseBody::Json(of::<doc::DeadPage>), |request| {
            Box::pin(dead_letters::list(request))
        })
    },
    Route {
        query: &[],
        problems: &[Code::BadId, Code::NotFound, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/dead/{letter}",
            "Get a dead letter with its original record",
            ResponseBody::Json(of::<doc::DeadRecord>),
            |request| Box::pin(dead_letters::show(request)),
        )
    },
    Route {
        problems: DROP_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead/{letter}/drop",
            "Drop a dead letter",
            ResponseBody::Json(of::<doc::DeadOutcome>),
            |request| Box::pin(dead_letters::one(request, Fate::Dropped)),
        )
    },
    Route {
        problems: REDRIVE_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead/{letter}/redrive",
            "Redrive a dead letter: run its task again, in a new run",
            ResponseBody::Json(of::<doc::DeadOutcome>),
            |request| Box::pin(dead_letters::one(request, Fate::Redriven)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::DeadSelection>),
        problems: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead/drop",
            "Drop the newest dead letters of a type",
            ResponseBody::Json(of::<doc::DeadOutcome>),
            |request| Box::pin(dead_letters::many(request, Fate::Dropped)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::DeadSelection>),
        problems: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead/redrive",
            "Redrive the newest dead letters of a type",
            ResponseBody::Json(of::<doc::DeadOutcome>),
            |request| Box::pin(dead_letters::many(request, Fate::Redriven)),
        )
    },
    probe("/healthz", "Liveness probe", ResponseBody::AnyJson, |request| Box::pin(ops::healthz(request))),
    Route {
        problems: &[Code::NotReady],
        ..probe("/readyz", "Readiness probe", ResponseBody::AnyJson, |request| Box::pin(ops::readyz(request)))
    },
    probe("/metrics", "Metrics in the Prometheus text format", ResponseBody::Text, |request| Box::pin(ops::metrics(request))),
    open("/openapi.json", "OpenAPI description", ResponseBody::AnyJson, |request| Box::pin(ops::openapi(request))),
    open("/", "List of endpoints", ResponseBody::Text, |request| Box::pin(ops::index(request))),
];

#[cfg(test)]
mod tests;
