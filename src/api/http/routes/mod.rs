//! The one table of calls: the router and the published description are both made from it.

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

/// Makes the schema of a document.
pub type Describe = fn(&mut SchemaGenerator) -> Schema;

/// A query parameter.
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    /// JSON Schema, as text.
    pub schema: &'static str,
}

/// The body of a request.
pub enum Takes {
    Nothing,
    Json(Describe),
    /// Any bytes.
    Bytes,
    /// JSON, or nothing.
    MaybeJson(Describe),
    /// An array, or NDJSON, of these.
    JsonOrLines(Describe),
}

/// The body of an answer.
#[derive(Clone, Copy)]
pub enum Gives {
    Json(Describe),
    Text,
    Bytes,
    Events,
    AnyJson,
}

/// Answers a call.
pub type Run = fn(ApiRequest) -> Answer;
pub type Answer = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

pub struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// None: needs no token.
    pub role: Option<Role>,
    /// Answered for any `Host`, also where there are no tokens: probes name the address of the pod.
    pub any_host: bool,
    pub about: &'static str,
    pub query: &'static [Parameter],
    pub takes: Takes,
    /// Statuses of success.
    pub answers: &'static [(u16, &'static str)],
    pub gives: Gives,
    /// What it refuses with, besides what every call may.
    pub refusals: &'static [Code],
    pub run: Run,
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
    about: "Answer only when the events up to this position are folded in: one's own writes are seen. Waits up to 5 s.",
    schema: POSITION,
};
const CURSOR: Parameter = Parameter { name: "cursor", about: "`next` of the page before.", schema: TEXT };
const LIMIT: Parameter = Parameter { name: "limit", about: "Tasks on a page.", schema: PAGE_LIMIT };
const FROM_LINE: Parameter = Parameter {
    name: "from",
    about: "The number of the first line; the oldest ever is 0.",
    schema: r#"{"type": "integer", "minimum": 0, "default": 0}"#,
};
const WAIT: Parameter = Parameter {
    name: "wait",
    about: "Wait up to so long, at most 5m, for the task to finish: 200 when it has, 202 when it has not.",
    schema: DURATION,
};

/// A read of one task, or of what hangs on it.
const fn read(path: &'static str, about: &'static str, gives: Gives, run: Run) -> Route {
    Route {
        verb: Verb::Get,
        path,
        role: Some(Role::Read),
        any_host: false,
        about,
        query: &[AFTER],
        takes: Takes::Nothing,
        answers: &[(200, "Found.")],
        gives,
        refusals: FIND,
        run,
    }
}

/// Something that operators do; the answer says how it is then.
const fn operate(verb: Verb, path: &'static str, about: &'static str, gives: Gives, run: Run) -> Route {
    Route {
        verb,
        role: Some(Role::Operate),
        query: &[],
        answers: &[(200, "Told to the workers.")],
        refusals: OPERATE,
        ..read(path, about, gives, run)
    }
}

/// What anybody may see who can reach the process.
const fn open(path: &'static str, about: &'static str, gives: Gives, run: Run) -> Route {
    let refusals = &[Code::ForbiddenHost];
    Route { role: None, query: &[], answers: &[(200, "OK.")], refusals, ..read(path, about, gives, run) }
}

/// An endpoint for probes and scrapers.
const fn probe(path: &'static str, about: &'static str, gives: Gives, run: Run) -> Route {
    Route { any_host: true, refusals: &[], ..open(path, about, gives, run) }
}

/// Every call.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(schedules::ROUTES)
}

static ROUTES: &[Route] = &[
    Route {
        verb: Verb::Post,
        path: "/v1/tasks",
        role: Some(Role::Submit),
        any_host: false,
        about: "Create a task",
        query: &[WAIT],
        takes: Takes::Json(of::<doc::CreateTask>),
        answers: &[
            (201, "Created; `position` is where its `submitted` event lies."),
            (200, "The same task exists already; or, with `wait`, it has finished."),
            (202, "With `wait`: it has not finished yet."),
        ],
        gives: Gives::Json(of::<doc::Status>),
        refusals: CREATE,
        run: |call| Box::pin(create::create(call)),
    },
    Route {
        verb: Verb::Post,
        path: "/v1/batches",
        role: Some(Role::Submit),
        any_host: false,
        about: "Create up to 10,000 tasks, each with its own outcome; or the tasks of one tree, all or none",
        query: &[Parameter {
            name: "atomic",
            about: "All of them or none, in one transaction: up to 1,000 tasks of one tree.",
            schema: r#"{"type": "boolean", "default": false}"#,
        }],
        takes: Takes::JsonOrLines(of::<doc::CreateTask>),
        answers: &[(200, "One outcome per item, in order.")],
        gives: Gives::Json(of::<doc::BatchOutcome>),
        refusals: BATCH,
        run: |call| Box::pin(batch::create(call)),
    },
    Route {
        query: &[
            Parameter { name: "type", about: "Only this type.", schema: r#"{"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}"# },
            Parameter { name: "state", about: "Only this state.", schema: r##"{"$ref": "#/components/schemas/State"}"## },
            Parameter {
                name: "level",
                about: "`roots`: only tasks without a parent, whatever else is asked for; `any`: tasks of all levels. With a \
                        `state` that is indexed (running, retrying, scheduled, cancelling, warning, failed, cancelled) these come \
                        by their own times; otherwise trees come by the times of their roots, parents before children.",
                schema: r#"{"type": "string", "enum": ["roots", "any"], "default": "roots"}"#,
            },
            Parameter { name: "tag", about: "Only those with this tag.", schema: TEXT },
            Parameter { name: "creator", about: "Only this creator's.", schema: TEXT },
            Parameter { name: "name", about: "Only those whose name begins so.", schema: TEXT },
            Parameter {
                name: "name_like",
                about: "Only those with a name that this regular expression matches anywhere (`^` and `$` tie it).",
                schema: r#"{"type": "string", "minLength": 1, "maxLength": 512}"#,
            },
            Parameter {
                name: "error",
                about: "Only those with an error of this kind, or with one like this text: numbers, ids and quoted values may differ.",
                schema: TEXT,
            },
            Parameter { name: "from", about: "First seen at this time or later.", schema: TIME },
            Parameter { name: "to", about: "First seen before this time.", schema: TIME },
            Parameter { name: "root", about: "Only this task and everything below it, parents before children.", schema: TEXT },
            CURSOR,
            LIMIT,
            AFTER,
        ],
        refusals: &[
            Code::BadParameter,
            Code::BadCursor,
            Code::NotFound,
            Code::Behind,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read("/v1/tasks", "List and search tasks, newest first", Gives::Json(of::<doc::TaskPage>), |call| {
            Box::pin(list::list(call))
        })
    },
    read("/v1/tasks/{id}", "The status of a task", Gives::Json(of::<doc::Status>), |call| Box::pin(task::status(call))),
    read("/v1/tasks/{id}/state", "Only its state", Gives::Json(of::<doc::StateDocument>), |call| Box::pin(task::state(call))),
    Route {
        verb: Verb::Put,
        path: "/v1/tasks/{id}/state",
        role: Some(Role::Submit),
        any_host: false,
        about: "Report the state of an external task",
        query: &[],
        takes: Takes::Json(of::<doc::Report>),
        answers: &[(200, "In the history; `ignored` says whether it changed anything.")],
        gives: Gives::Json(of::<doc::ReportOutcome>),
        refusals: REPORT,
        run: |call| Box::pin(report::report(call)),
    },
    Route {
        verb: Verb::Patch,
        path: "/v1/tasks/{id}",
        role: Some(Role::Submit),
        any_host: false,
        about: "Change what a task was made with",
        query: &[],
        takes: Takes::Json(of::<doc::PatchTask>),
        answers: &[(200, "Changed; the status as it is then.")],
        gives: Gives::Json(of::<doc::Status>),
        refusals: PATCH,
        run: |call| Box::pin(patch::patch(call)),
    },
    Route {
        verb: Verb::Post,
        path: "/v1/tasks/{id}/retry",
        role: Some(Role::Operate),
        any_host: false,
        about: "Start a task anew that has ended, or what failed below it",
        query: &[],
        takes: Takes::MaybeJson(of::<doc::RetryTask>),
        answers: &[(202, "Decided: the task, or what failed below it, runs again in `run`.")],
        gives: Gives::Json(of::<doc::RetryOutcome>),
        refusals: RETRY,
        run: |call| Box::pin(retry::retry(call)),
    },
    Route {
        query: &[CURSOR, LIMIT, AFTER],
        ..read("/v1/tasks/{id}/children", "Its direct children, oldest first", Gives::Json(of::<doc::TaskPage>), |call| {
            Box::pin(task::children(call))
        })
    },
    Route {
        query: &[
            Parameter {
                name: "depth",
                about: "Levels below the task.",
                schema: r#"{"type": "integer", "minimum": 0, "maximum": 64, "default": 3}"#,
            },
            Parameter {
                name: "limit",
                about: "Tasks below the task.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}"#,
            },
            Parameter {
                name: "format",
                about: "`json`, or a picture as text: `mermaid` (`text/vnd.mermaid`), `dot` (`text/vnd.graphviz`).",
                schema: r#"{"type": "string", "enum": ["json", "mermaid", "dot"], "default": "json"}"#,
            },
            AFTER,
        ],
        ..read("/v1/tasks/{id}/tree", "The task with what is below it", Gives::Json(of::<doc::TreeNode>), |call| {
            Box::pin(tree::tree(call))
        })
    },
    read("/v1/tasks/{id}/history", "What happened to it", Gives::Json(of::<doc::History>), |call| Box::pin(task::history(call))),
    read("/v1/tasks/{id}/why", "Why it is where it is", Gives::Json(of::<doc::Why>), |call| Box::pin(why::why(call))),
    Route {
        query: &[
            FROM_LINE,
            Parameter {
                name: "limit",
                about: "Lines at most.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}"#,
            },
            AFTER,
        ],
        ..read("/v1/tasks/{id}/log", "Its log lines", Gives::Json(of::<doc::LogDocument>), |call| Box::pin(log::page(call)))
    },
    Route {
        verb: Verb::Post,
        path: "/v1/tasks/{id}/log",
        role: Some(Role::Submit),
        any_host: false,
        about: "Append lines to its log",
        query: &[],
        takes: Takes::Json(of::<doc::AppendLog>),
        answers: &[(202, "Written; they are in its log once they are folded.")],
        gives: Gives::Json(of::<doc::LogAppended>),
        refusals: TELL,
        run: |call| Box::pin(log::append(call)),
    },
    Route {
        query: &[FROM_LINE, AFTER],
        refusals: WATCH,
        ..read("/v1/tasks/{id}/log/watch", "Its log lines now and as they come (server-sent events)", Gives::Events, |call| {
            Box::pin(log::watch(call))
        })
    },
    read("/v1/tasks/{id}/attachments", "What is attached to it", Gives::Json(of::<doc::Attachments>), |call| {
        Box::pin(attachments::list(call))
    }),
    Route {
        refusals: ATTACHED,
        ..read("/v1/tasks/{id}/attachments/{name}", "An attachment, as it was put", Gives::Bytes, |call| {
            Box::pin(attachments::get(call))
        })
    },
    Route {
        verb: Verb::Put,
        path: "/v1/tasks/{id}/attachments/{name}",
        role: Some(Role::Submit),
        any_host: false,
        about: "Attach up to 64 KiB, or replace what has the name",
        query: &[],
        takes: Takes::Bytes,
        answers: &[(200, "It is there.")],
        gives: Gives::Json(of::<doc::AttachmentDocument>),
        refusals: ATTACH,
        run: |call| Box::pin(attachments::put(call)),
    },
    Route {
        verb: Verb::Delete,
        role: Some(Role::Submit),
        query: &[],
        answers: &[(200, "It is gone; it was so.")],
        refusals: DETACH,
        ..read(
            "/v1/tasks/{id}/attachments/{name}",
            "Take an attachment away",
            Gives::Json(of::<doc::AttachmentDocument>),
            |call| Box::pin(attachments::delete(call)),
        )
    },
    Route {
        refusals: &[
            Code::BadId,
            Code::NotFound,
            Code::NoParams,
            Code::ParamsGone,
            Code::ParamsUnreadable,
            Code::Behind,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read("/v1/tasks/{id}/params", "Its params, read from Kafka", Gives::Json(of::<doc::Params>), |call| {
            Box::pin(task::params(call))
        })
    },
    Route {
        refusals: WATCH,
        ..read("/v1/tasks/{id}/watch", "Its status now and at every change (server-sent events)", Gives::Events, |call| {
            Box::pin(watch::task(call))
        })
    },
    Route {
        query: &[
            Parameter { name: "type", about: "Only tasks of this type.", schema: TYPE_NAME },
            Parameter { name: "root", about: "Only this task and everything below it.", schema: TEXT },
        ],
        refusals: &[Code::BadParameter, Code::Overloaded],
        ..read("/v1/watch", "Which tasks change (server-sent events)", Gives::Events, |call| Box::pin(watch_fleet::watch(call)))
    },
    Route {
        query: &[],
        refusals: &[Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read("/v1/types", "The task types and how many tasks are in which state", Gives::Json(of::<doc::Types>), |call| {
            Box::pin(types::types(call))
        })
    },
    Route {
        refusals: &[Code::BadParameter, Code::UnknownType, Code::Behind, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/types/{type}/backlog",
            "Queued and running tasks of a type: what scaling follows",
            Gives::Json(of::<doc::Backlog>),
            |call| Box::pin(types::backlog(call)),
        )
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::CancelTask>),
        answers: &[(202, "The request is written, and workers hear of it."), (200, "It had been asked for already.")],
        refusals: CANCEL,
        ..operate(
            Verb::Post,
            "/v1/tasks/{id}/cancel",
            "Cancel a task and what is below it",
            Gives::Json(of::<doc::CancelOutcome>),
            |call| Box::pin(cancel::cancel(call)),
        )
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::PauseType>),
        ..operate(
            Verb::Post,
            "/v1/types/{type}/pause",
            "Start nothing of a type; what runs ends",
            Gives::Json(of::<doc::TypeDocument>),
            |call| Box::pin(operations::pause(call)),
        )
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::ResumeType>),
        ..operate(
            Verb::Post,
            "/v1/types/{type}/resume",
            "Go on with a type that is paused",
            Gives::Json(of::<doc::TypeDocument>),
            |call| Box::pin(operations::resume(call)),
        )
    },
    Route {
        takes: Takes::Json(of::<doc::SetLimits>),
        ..operate(
            Verb::Put,
            "/v1/types/{type}/limits",
            "Set the limits of a type; what is left out is again as the configuration says",
            Gives::Json(of::<doc::TypeDocument>),
            |call| Box::pin(operations::limits(call)),
        )
    },
    Route {
        query: &[],
        refusals: &[Code::KafkaUnavailable],
        ..read("/v1/kill", "The kill switches that are on", Gives::Json(of::<doc::Kills>), |call| {
            Box::pin(operations::kills(call))
        })
    },
    Route {
        takes: Takes::MaybeJson(of::<doc::SetKill>),
        refusals: KILL,
        ..operate(
            Verb::Put,
            "/v1/kill/{name}",
            "Cancel tasks with this tag, or whose ids begin so, instead of starting them",
            Gives::Json(of::<doc::KillDocument>),
            |call| Box::pin(operations::kill(call)),
        )
    },
    Route {
        answers: &[(200, "Off; it was so.")],
        refusals: KILL,
        ..operate(Verb::Delete, "/v1/kill/{name}", "Take a kill switch off", Gives::Json(of::<doc::KillDocument>), |call| {
            Box::pin(operations::unkill(call))
        })
    },
    Route {
        query: &[],
        refusals: &[],
        ..read("/v1/workers", "The workers, as their heartbeats tell", Gives::Json(of::<doc::Workers>), |call| {
            Box::pin(workers::workers(call))
        })
    },
    Route {
        query: &[
            Parameter { name: "type", about: "Only this type's.", schema: TYPE_NAME },
            Parameter { name: "code", about: "Only those with this code.", schema: TEXT },
            Parameter { name: "from", about: "Given up at this time or later.", schema: TIME },
            Parameter { name: "to", about: "Given up before this time.", schema: TIME },
            CURSOR,
            LIMIT,
        ],
        refusals: &[Code::BadParameter, Code::BadCursor, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/dead",
            "Dead letters that wait to be redriven or dropped, newest first",
            Gives::Json(of::<doc::DeadPage>),
            |call| Box::pin(dead_letters::list(call)),
        )
    },
    Route {
        query: &[],
        refusals: &[Code::BadId, Code::NotFound, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read("/v1/dead/{letter}", "A dead letter with its original record", Gives::Json(of::<doc::DeadRecord>), |call| {
            Box::pin(dead_letters::show(call))
        })
    },
    Route {
        refusals: DROP_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead/{letter}/drop",
            "Drop a dead letter: nobody needs it any more",
            Gives::Json(of::<doc::DeadOutcome>),
            |call| Box::pin(dead_letters::one(call, Fate::Dropped)),
        )
    },
    Route {
        refusals: REDRIVE_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead/{letter}/redrive",
            "Try a dead letter's task again, in a new run",
            Gives::Json(of::<doc::DeadOutcome>),
            |call| Box::pin(dead_letters::one(call, Fate::Redriven)),
        )
    },
    Route {
        takes: Takes::Json(of::<doc::DeadSelection>),
        refusals: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead/drop",
            "Drop the newest dead letters of a type",
            Gives::Json(of::<doc::DeadOutcome>),
            |call| Box::pin(dead_letters::many(call, Fate::Dropped)),
        )
    },
    Route {
        takes: Takes::Json(of::<doc::DeadSelection>),
        refusals: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead/redrive",
            "Try the newest dead letters of a type again",
            Gives::Json(of::<doc::DeadOutcome>),
            |call| Box::pin(dead_letters::many(call, Fate::Redriven)),
        )
    },
    probe("/healthz", "Whether the process is alive", Gives::AnyJson, |call| Box::pin(ops::healthz(call))),
    Route {
        refusals: &[Code::NotReady],
        ..probe("/readyz", "Whether it is ready for work", Gives::AnyJson, |call| Box::pin(ops::readyz(call)))
    },
    probe("/metrics", "Metrics in Prometheus' text format", Gives::Text, |call| Box::pin(ops::metrics(call))),
    open("/openapi.json", "This description of the api", Gives::AnyJson, |call| Box::pin(ops::openapi(call))),
    open("/", "Where things are", Gives::Text, |call| Box::pin(ops::front(call))),
];

#[cfg(test)]
mod tests;
