//! Route of exports.

use kafleet_documents::{ExportFormat, TaskColumns};
use kafleet_model::query::TaskQuery;

use super::route::{Route, TEXT, get};
use crate::http::answer::BytesAnswer;
use crate::http::input::Input;
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter};
use crate::service::context::RequestContext;
use crate::service::export::{self, DEFAULT_TASKS, ExportQuery, MAX_TASKS};

/// Form and size of an export.
struct ExportOptions {
    format: ExportFormat,
    columns: Option<TaskColumns>,
    limit: usize,
    cursor: Option<String>,
}

impl Input for ExportOptions {
    const QUERY: &'static [Parameter] = &[
        Parameter {
            name: "format",
            description: "`jsonl`: a status document per line and a last line `{\"end\": …}`; `csv`: a line of names, a line \
                          per task and a last line that begins with `#`.",
            schema: r#"{"type": "string", "enum": ["jsonl", "csv"], "default": "jsonl"}"#,
        },
        Parameter {
            name: "columns",
            description: "Names of columns with commas, such as `id,state,error`. Default: whole documents, or the usual \
                          columns of CSV.",
            schema: TEXT,
        },
        Parameter {
            name: "limit",
            description: "Maximum number of tasks.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000000, "default": 10000}"#,
        },
        Parameter { name: "cursor", description: "`next` of the end of an earlier export.", schema: TEXT },
    ];
    const PROBLEMS: &'static [Code] = &[Code::BadCursor];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        Ok(Self {
            format: query.parsed("format")?.unwrap_or_default(),
            columns: query.parsed("columns")?,
            limit: query.number("limit", DEFAULT_TASKS, 1..=MAX_TASKS)?,
            cursor: query.text("cursor").map(str::to_owned),
        })
    }
}

pub(super) fn all() -> Vec<Route> {
    vec![
        get("/v1/export", "Export the tasks that match a search as JSON lines or CSV", export_tasks)
            .success([(200, "Lines of text. The last one states whether the export is complete.")])
            .problems([Code::Overloaded]),
    ]
}

async fn export_tasks(
    context: RequestContext,
    query: TaskQuery,
    options: ExportOptions,
) -> Result<BytesAnswer, ApiError> {
    let ExportOptions { format, columns, limit, cursor } = options;
    export::export(context, ExportQuery { query, format, columns, limit, cursor }).await.map(BytesAnswer)
}
