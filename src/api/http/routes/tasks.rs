//! Routes of tasks and batches.

use super::errors::{ATTACH, ATTACHED, BATCH, CANCEL, CREATE, DETACH, PATCH, REPORT, RETRY, TELL, WATCH};
use super::route::{
    AFTER, CURSOR, FROM_LINE, LIMIT, RequestBody, ResponseBody, Route, TEXT, TIME, TYPE_NAME, Verb, WAIT, of, operate,
    read,
};
use crate::api::documents as doc;
use crate::api::handlers::{
    attachments, batch, cancel, create, list, log, patch, report, retry, suggestions, task, tree, watch, watch_fleet,
    why,
};
use crate::api::http::problem::Code;
use crate::api::http::request::Parameter;
use crate::config::Role;

pub(super) static ROUTES: &[Route] = &[
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
            Parameter {
                name: "root",
                description: "Only this task and its descendants, parents before children.",
                schema: TEXT,
            },
            Parameter {
                name: "q",
                description: "Search, such as `type:resize,thumb state:failed -tag:test \"build main\"`, instead of the \
                              filters above (docs/search.md). A mistake is marked by `span` of the problem.",
                schema: r#"{"type": "string", "minLength": 1, "maxLength": 8192}"#,
            },
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
    Route {
        query: &[
            Parameter {
                name: "q",
                description: "Unfinished search.",
                schema: r#"{"type": "string", "minLength": 1, "maxLength": 8192}"#,
            },
            Parameter {
                name: "at",
                description: "Position of the text cursor, in characters. Default: the end of the search.",
                schema: r#"{"type": "integer", "minimum": 0, "maximum": 8192}"#,
            },
        ],
        problems: &[Code::BadParameter, Code::StoreUnavailable],
        ..read("/v1/suggestions", "Complete a search", ResponseBody::Json(of::<doc::Suggestions>), |request| {
            Box::pin(suggestions::suggestions(request))
        })
    },
    read("/v1/tasks/{id}", "Get the status of a task", ResponseBody::Json(of::<doc::Status>), |request| {
        Box::pin(task::status(request))
    }),
    read(
        "/v1/tasks/{id}/state",
        "Get only the state of a task",
        ResponseBody::Json(of::<doc::StateDocument>),
        |request| Box::pin(task::state(request)),
    ),
    Route {
        verb: Verb::Put,
        path: "/v1/tasks/{id}/state",
        role: Some(Role::Submit),
        any_host: false,
        summary: "Report the state of an external task",
        query: &[],
        request: RequestBody::Json(of::<doc::Report>),
        successes: &[(200, "Recorded in the history; `ignored` is true if the report had no effect.")],
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
                description: "`json`, or a diagram as text: `mermaid` (`text/vnd.mermaid`).",
                schema: r#"{"type": "string", "enum": ["json", "mermaid"], "default": "json"}"#,
            },
            AFTER,
        ],
        ..read(
            "/v1/tasks/{id}/tree",
            "Get a task with its descendants",
            ResponseBody::Json(of::<doc::TreeNode>),
            |request| Box::pin(tree::tree(request)),
        )
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
        ..read(
            "/v1/tasks/{id}/log/watch",
            "Follow the log of a task (server-sent events)",
            ResponseBody::Events,
            |request| Box::pin(log::watch(request)),
        )
    },
    read(
        "/v1/tasks/{id}/attachments",
        "List the attachments of a task",
        ResponseBody::Json(of::<doc::Attachments>),
        |request| Box::pin(attachments::list(request)),
    ),
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
        ..read(
            "/v1/tasks/{id}/watch",
            "Follow the status of a task (server-sent events)",
            ResponseBody::Events,
            |request| Box::pin(watch::task(request)),
        )
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
        request: RequestBody::MaybeJson(of::<doc::CancelTask>),
        successes: &[
            (202, "The cancel has been written and is sent to the workers."),
            (200, "Already requested earlier."),
        ],
        problems: CANCEL,
        ..operate(
            Verb::Post,
            "/v1/tasks/{id}/cancel",
            "Cancel a task and its descendants",
            ResponseBody::Json(of::<doc::CancelOutcome>),
            |request| Box::pin(cancel::cancel(request)),
        )
    },
];
