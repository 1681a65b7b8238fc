//! Routes of tasks and batches.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kafleet_config::Role;
use kafleet_documents::diagram::{Format, mermaid};
use kafleet_documents::{
    AppendLog, AttachmentDocument, BatchOutcome, CancelOutcome, CancelTask, CreateTask, LogDocument, PatchTask, Report,
    RetryTask, StartTask, Status, TaskPage, TaskSort, TreeNode,
};
use kafleet_model::json::JsonError;
use kafleet_model::query::{MAX_QUERY_BYTES, TaskQuery};
use kafleet_model::record::attachment::{Attachment, BYTES};
use kafleet_model::task::id::{MAX_LEVELS, TaskId};
use kafleet_model::units::duration::Millis;
use serde_json::value::RawValue;

use super::route::{DURATION, Route, TEXT, TYPE_NAME, delete, get, patch, post, put};
use crate::http::answer::{BytesAnswer, DescribedResponse, EventStream, WithStatus, json_answer};
use crate::http::input::{
    CallerTrace, Content, Input, JSON_PROBLEMS, PrefersText, RequestBody, json_bodies, parameter,
};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter, bad_parameter, is_ndjson, parse_error, read_json, unreadable};
use crate::service::batch::{self, Items};
use crate::service::context::{After, BodyMemory, LastEventId, Name, Paging, RequestContext};
use crate::service::list::MAX_SCAN_TIME;
use crate::service::log::{DEFAULT_LINES, Lines, MAX_LINES};
use crate::service::suggestions::{self, UnfinishedSearch};
use crate::service::tree::{DEFAULT_DEPTH, DEFAULT_LIMIT, MAX_LIMIT, TreeSize};
use crate::service::watch_fleet::{self, WatchScope};
use crate::service::{attachments, cancel, create, list, log, preview, report, retry, start, task, tree, watch, why};

json_bodies! { required CreateTask, Report, AppendLog; optional RetryTask, CancelTask, StartTask; }

impl Input for PatchTask {
    const PROBLEMS: &'static [Code] = JSON_PROBLEMS;
    const BODY: RequestBody = RequestBody::Json(|generator| generator.subschema_for::<Self>());

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        crate::service::patch::read(&request.body)
    }
}

/// Maximum time to wait for the end of a new task.
struct Wait(Option<Millis>);

impl Wait {
    const MAX: Millis = Millis::secs(300);
}

impl Input for Wait {
    const QUERY: &'static [Parameter] = &[Parameter {
        name: "wait",
        description: "Wait up to this long, at most 5m, for the task to end: 200 if it has ended, 202 if not.",
        schema: DURATION,
    }];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        match request.query.duration("wait")? {
            Some(wait) if wait > Self::MAX => Err(bad_parameter("wait", &format!("the maximum is {}", Self::MAX))),
            wait => Ok(Self(wait)),
        }
    }
}

parameter! {
    /// Whether all tasks of a batch are created, or none.
    Atomic(bool) = Parameter {
        name: "atomic",
        description: "Create all items or none, in one transaction: up to 1,000 tasks of one tree.",
        schema: r#"{"type": "boolean", "default": false}"#,
    }, |query, name| query.parsed(name)?.unwrap_or_default()
}

parameter! {
    /// Order of the listed tasks.
    Sort(TaskSort) = Parameter {
        name: "sort",
        description: "Order. `oldest` and `longest`, the time of open tasks in their state, sort the newest 10,000 tasks that \
                      match at most (`sorted` states how many), and need an indexed state, a tree, ids or `from`.",
        schema: r#"{"type": "string", "enum": ["newest", "oldest", "longest"], "default": "newest"}"#,
    }, |query, name| query.parsed(name)?.unwrap_or_default()
}

impl Input for Items {
    const PROBLEMS: &'static [Code] = JSON_PROBLEMS;
    const BODY: RequestBody = RequestBody::JsonOrLines(|generator| generator.subschema_for::<CreateTask>());

    /// Parses the items one by one, so that an invalid item does not fail the others.
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let body = &request.body;
        if is_ndjson(&request.headers) {
            let lines = body.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
            return Ok(Self(lines.filter(|line| !line.is_empty()).map(read_json).collect()));
        }
        let items: Vec<&RawValue> =
            serde_json::from_slice(body).map_err(|error| match JsonError::of_parser(body, error) {
                JsonError::Syntax(error) => parse_error(&error, String::new()),
                error => unreadable(&error),
            })?;
        Ok(Self(items.into_iter().map(|item| read_json(item.get().as_bytes())).collect()))
    }
}

impl Input for UnfinishedSearch {
    const QUERY: &'static [Parameter] = &[
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
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let text = request.query.text("q").unwrap_or_default().to_owned();
        let at = request.query.number("at", text.chars().count(), 0..=MAX_QUERY_BYTES)?;
        Ok(Self { text, at })
    }
}

impl Input for TreeSize {
    const QUERY: &'static [Parameter] = &[
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
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let depth = request.query.number("depth", DEFAULT_DEPTH, 0..=MAX_LEVELS)?;
        Ok(Self { depth, limit: request.query.number("limit", DEFAULT_LIMIT, 1..=MAX_LIMIT)? })
    }
}

impl Input for Format {
    const QUERY: &'static [Parameter] = &[Parameter {
        name: "format",
        description: "`json`, or a diagram as text: `mermaid` (`text/vnd.mermaid`).",
        schema: r#"{"type": "string", "enum": ["json", "mermaid"], "default": "json"}"#,
    }];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        Ok(request.query.parsed("format")?.unwrap_or_default())
    }
}

const FROM_LINE: Parameter = Parameter {
    name: "from",
    description: "Number of the first line; the oldest line ever logged is 0.",
    schema: r#"{"type": "integer", "minimum": 0, "default": 0}"#,
};

parameter! {
    /// Number of the first line of a log.
    FirstLine(u64) = FROM_LINE, |query, name| query.number(name, 0, 0..=usize::MAX)? as u64
}

impl Input for Lines {
    const QUERY: &'static [Parameter] = &[
        FROM_LINE,
        Parameter {
            name: "limit",
            description: "Maximum number of lines.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000}"#,
        },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let FirstLine(from) = FirstLine::read(request)?;
        Ok(Self::From { from, limit: request.query.number("limit", DEFAULT_LINES, 1..=MAX_LINES)? })
    }
}

impl Input for WatchScope {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "type", description: "Only tasks of this type.", schema: TYPE_NAME },
        Parameter { name: "root", description: "Only this task and its descendants.", schema: TEXT },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let root = request.query.text("root").map(TaskId::parse).transpose();
        let task_type = request.query.type_name("type")?;
        Ok(Self { root: root.map_err(|error| bad_parameter("root", &error.to_string()))?, task_type })
    }
}

pub(super) fn all() -> Vec<Route> {
    [creations(), reads(), changes(), logs(), files(), streams()].into_iter().flatten().collect()
}

fn creations() -> Vec<Route> {
    let task = [
        Code::BadId,
        Code::UnknownParent,
        Code::UnknownType,
        Code::DuplicateId,
        Code::Schema,
        Code::Rejected,
        Code::UniqueRoot,
    ];
    let outcome = [Code::NotVisibleYet, Code::InProgress, Code::NotDecided];
    let batch = "Create up to 10,000 tasks, each with its own outcome, or atomically the tasks of one tree";
    vec![
        post("/v1/tasks", "Create a task", create_task)
            .role(Role::Submit)
            .success([
                (201, "Created; `position` is the position of its `submitted` event."),
                (200, "The same task already exists, or another one stands for a unique task; or, with `wait`, the task has ended."),
                (202, "With `wait`: the task has not ended yet."),
            ])
            .problems(task)
            .problems(outcome)
            .problems([Code::NotAnnounced]),
        post("/v1/preview", "Check a task without creating it", preview::preview)
            .role(Role::Submit)
            .success([(200, "Checked; nothing was created. `valid` is false if the task would be refused.")])
            .problems([Code::NotVisibleYet]),
        // The problems of items are those of a batch with `atomic`.
        post("/v1/batches", batch, create_batch)
            .role(Role::Submit)
            .success([(200, "One outcome per item, in order.")])
            .problems(task)
            .problems(outcome)
            .problems([Code::TooManyItems, Code::MultipleTrees]),
    ]
}

fn reads() -> Vec<Route> {
    vec![
        get("/v1/tasks", "List and search tasks, newest first", list_tasks),
        get("/v1/suggestions", "Complete a search", suggestions::suggestions).without([Code::KafkaUnavailable]),
        get("/v1/tasks/{id}", "Get the status of a task", task::status),
        get("/v1/tasks/{id}/state", "Get only the state of a task", task::state),
        get("/v1/tasks/{id}/children", "List the direct children of a task, oldest first", task::children),
        get("/v1/tasks/{id}/tree", "Get a task with its descendants", get_tree),
        get("/v1/tasks/{id}/history", "Get the history of a task", task::history),
        get("/v1/tasks/{id}/why", "Explain the state of a task", why::why),
        get("/v1/tasks/{id}/params", "Get the params of a task, read from Kafka", task::params).problems([
            Code::NoParams,
            Code::ParamsGone,
            Code::ParamsUnreadable,
        ]),
    ]
}

fn changes() -> Vec<Route> {
    let retried = (202, "Accepted: the task, or the failed tasks of its tree, run again as run `run`.");
    vec![
        put("/v1/tasks/{id}/state", "Report the state of an external task", report::report)
            .role(Role::Submit)
            .success([(200, "Recorded in the history; `ignored` is true if the report had no effect.")])
            .problems([Code::NotExternal, Code::BadState]),
        patch("/v1/tasks/{id}", "Change a task", crate::service::patch::patch)
            .role(Role::Submit)
            .success([(200, "Changed; the new status.")])
            .problems([Code::NotChangeable]),
        post("/v1/tasks/{id}/retry", "Retry a task that has ended, or the failed tasks of its tree", retry::retry)
            .success([retried])
            .problems([Code::NotFinished, Code::TooManyRuns, Code::NothingToRetry, Code::ExternalTask, Code::NoParams]),
        post("/v1/tasks/{id}/start", "Start a task now that waits for its start or its next attempt", start::start)
            .role(Role::Submit)
            .success([(200, "Its delay has ended; `held_by` lists what still holds it.")])
            .problems([Code::NotChangeable, Code::AlreadyFinished]),
        post("/v1/tasks/{id}/cancel", "Cancel a task and its descendants", cancel_task)
            .success([
                (202, "The cancel has been written and is sent to the workers."),
                (200, "Already requested earlier."),
            ])
            .problems([Code::AlreadyFinished]),
    ]
}

fn logs() -> Vec<Route> {
    vec![
        get("/v1/tasks/{id}/log", "Read the log of a task", read_log),
        post("/v1/tasks/{id}/log", "Append lines to the log of a task", log::append)
            .role(Role::Submit)
            .success([(202, "Written; visible once projected.")]),
    ]
}

fn files() -> Vec<Route> {
    let file = "/v1/tasks/{id}/attachments/{name}";
    vec![
        get("/v1/tasks/{id}/attachments", "List the attachments of a task", attachments::list),
        get(file, "Get an attachment", get_attachment).problems([Code::UnknownAttachment]),
        put(file, "Create or replace an attachment of up to 64 KiB", put_attachment)
            .role(Role::Submit)
            .success([(200, "Stored; the attachment.")])
            .problems([Code::BadField, Code::TooManyAttachments]),
        delete(file, "Delete an attachment", attachments::delete)
            .role(Role::Submit)
            .success([(200, "Deleted; the deleted attachment.")])
            .problems([Code::UnknownAttachment]),
    ]
}

fn streams() -> Vec<Route> {
    let stream = |route: Route| route.problems([Code::Overloaded]);
    vec![
        stream(get("/v1/tasks/{id}/watch", "Follow the status of a task (server-sent events)", watch::task)),
        stream(get("/v1/tasks/{id}/log/watch", "Follow the log of a task (server-sent events)", watch_log)),
        stream(get("/v1/watch", "Follow which tasks change (server-sent events)", watch_fleet::watch))
            .without([Code::StoreUnavailable, Code::KafkaUnavailable]),
    ]
}

async fn create_task(
    context: RequestContext,
    Wait(wait): Wait,
    input: CreateTask,
    CallerTrace(trace): CallerTrace,
    memory: BodyMemory,
) -> Result<DescribedResponse<Status>, ApiError> {
    let created = create::create(context.clone(), input, memory, trace.as_deref(), wait.map(Into::into)).await?;
    let status = match (wait, created.is_new) {
        (Some(_), _) if !created.task.record.state.is_terminal() => 202,
        (Some(_), _) | (None, false) => 200,
        (None, true) => 201,
    };
    let document = Status { verdict: created.verdict, ..context.status(&created.task) };
    let mut response = json_answer(status, &document);
    // Ids consist of characters that are valid in a path.
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/tasks/{}", created.task.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(DescribedResponse::new(response))
}

async fn create_batch(
    context: RequestContext,
    Atomic(atomic): Atomic,
    items: Items,
    CallerTrace(trace): CallerTrace,
    memory: BodyMemory,
) -> Result<BatchOutcome, ApiError> {
    batch::create(context, items, memory, trace, atomic).await
}

async fn list_tasks(
    context: RequestContext,
    query: TaskQuery,
    Sort(sort): Sort,
    page: Paging,
    after: After,
) -> Result<TaskPage, ApiError> {
    list::list_sorted(context, query, sort, page, after, MAX_SCAN_TIME).await
}

async fn get_tree(
    context: RequestContext,
    id: TaskId,
    size: TreeSize,
    format: Format,
    after: After,
) -> Result<DescribedResponse<TreeNode>, ApiError> {
    let tree = tree::tree(context, id, size, after).await?;
    let diagram = || ([(header::CONTENT_TYPE, "text/vnd.mermaid; charset=utf-8")], mermaid(&tree));
    Ok(match format {
        Format::Json => DescribedResponse::new(json_answer(200, &tree)),
        Format::Mermaid => DescribedResponse::new(diagram()),
    })
}

async fn cancel_task(
    context: RequestContext,
    id: TaskId,
    input: CancelTask,
) -> Result<WithStatus<CancelOutcome>, ApiError> {
    let outcome = cancel::cancel(context, id, input).await?;
    Ok(WithStatus(if outcome.already_requested == Some(true) { 200 } else { 202 }, outcome))
}

async fn read_log(
    context: RequestContext,
    id: TaskId,
    lines: Lines,
    after: After,
    PrefersText(is_text): PrefersText,
) -> Result<DescribedResponse<LogDocument>, ApiError> {
    let page = log::page(context, id, lines, after).await?;
    if !is_text {
        return Ok(DescribedResponse::new(json_answer(200, &page)));
    }
    let text: String = page.lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect();
    Ok(DescribedResponse::new(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text)))
}

async fn watch_log(
    context: RequestContext,
    id: TaskId,
    FirstLine(from): FirstLine,
    after: After,
    LastEventId(last): LastEventId,
) -> Result<EventStream, ApiError> {
    // Resumes after the last line that the client received before it was disconnected.
    let from = last.and_then(|id| id.parse().ok()).unwrap_or(from);
    log::watch(context, id, from, after).await
}

async fn get_attachment(
    context: RequestContext,
    id: TaskId,
    Name(name): Name,
    after: After,
) -> Result<BytesAnswer, ApiError> {
    attachments::get(context, id, &name, after).await.map(|attachment| BytesAnswer(attachment_response(attachment)))
}

/// Response with the content of an attachment.
pub fn attachment_response(attachment: Attachment) -> Response {
    let media = HeaderValue::from_str(&attachment.media).unwrap_or(HeaderValue::from_static(BYTES));
    // Prevents browsers from rendering an attachment as a page of this origin.
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    (StatusCode::OK, headers, attachment.data).into_response()
}

async fn put_attachment(
    context: RequestContext,
    id: TaskId,
    Name(name): Name,
    content: Content,
) -> Result<AttachmentDocument, ApiError> {
    attachments::put(context, id, &name, content.media.as_deref(), &content.bytes).await
}
