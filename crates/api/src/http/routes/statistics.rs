//! Routes of statistics, failures and requests.

use kafleet_documents::Slowest;
use kafleet_model::projection::audit::MAX_AUDIT;
use kafleet_runtime::now_ms;

use super::route::{Route, TIME, TYPE_NAME, get};
use crate::http::input::{Input, parameter};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter, Query, bad_parameter};
use crate::read::failures::ERROR_HOURS;
use crate::service::context::RequestContext;
use crate::service::statistics::{self, AuditQuery, DurationsQuery, FailuresQuery, Series, StatsQuery};

/// Default and maximum number of listed groups, attempts and requests.
const DEFAULT_LISTED: usize = 50;
const MAX_LISTED: usize = 200;

const TYPE: Parameter = Parameter { name: "type", description: "Only this type.", schema: TYPE_NAME };
const FROM: Parameter =
    Parameter { name: "from", description: "Start of the range. Default: an hour before `to`.", schema: TIME };
const TO: Parameter = Parameter { name: "to", description: "End of the range. Default: now.", schema: TIME };
const ENTRIES: Parameter = Parameter {
    name: "limit",
    description: "Maximum number of entries.",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 200, "default": 50}"#,
};

impl Input for StatsQuery {
    const QUERY: &'static [Parameter] = &[
        TYPE,
        Parameter {
            name: "by",
            description: "One series per type, for the 100 types with the most tasks.",
            schema: r#"{"enum": ["type"]}"#,
        },
        FROM,
        TO,
        Parameter {
            name: "step",
            description: "Length of the points. Default: the shortest that is kept and gives at most 400 points.",
            schema: r#"{"enum": ["1m", "10m", "1h", "1d"]}"#,
        },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let (from_ms, to_ms) = query.time_range()?;
        Ok(Self { series: series_of(query)?, from_ms, to_ms, step: query.duration("step")? })
    }
}

impl Input for DurationsQuery {
    const QUERY: &'static [Parameter] = &[TYPE, FROM, TO];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let (from_ms, to_ms) = query.time_range()?;
        Ok(Self { task_type: query.type_name("type")?, from_ms, to_ms })
    }
}

fn series_of(query: &Query) -> Result<Series, ApiError> {
    match (query.type_name("type")?, query.text("by")) {
        (Some(_), Some(_)) => Err(bad_parameter("by", "`type` selects one type: omit `by`")),
        (_, Some("type")) => Ok(Series::ByType),
        (_, Some(_)) => Err(bad_parameter("by", "the only value is `type`")),
        (Some(name), None) => Ok(Series::OfType(name)),
        (None, None) => Ok(Series::All),
    }
}

/// Type and number of entries of a list.
struct Entries {
    task_type: Option<String>,
    limit: usize,
}

impl Input for Entries {
    const QUERY: &'static [Parameter] = &[TYPE, ENTRIES];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let limit = request.query.number("limit", DEFAULT_LISTED, 1..=MAX_LISTED)?;
        Ok(Self { task_type: request.query.type_name("type")?, limit })
    }
}

impl Input for FailuresQuery {
    const QUERY: &'static [Parameter] = &[
        TYPE,
        Parameter { name: "kind", description: "Only errors of this kind.", schema: r#"{"type": "string"}"# },
        Parameter {
            name: "by",
            description: "Groups: `message` (type, kind and similar message), `kind` (type and kind), or `root`: the type of \
                          the root of the failed tasks, with type and kind, read from the newest 5,000 failed tasks.",
            schema: r#"{"enum": ["message", "kind", "root"], "default": "message"}"#,
        },
        Parameter {
            name: "since",
            description: "Count only tasks that ended within this time, such as `1h`, `24h` or `7d`. Default: all retained \
                          tasks.",
            schema: r#"{"type": "string"}"#,
        },
        Parameter {
            name: "sort",
            description: "Most tasks first, or the newest first or last task first.",
            schema: r#"{"enum": ["count", "first", "last"], "default": "count"}"#,
        },
        Parameter {
            name: "text",
            description: "Only groups of the first 200 whose kind, message or worker contains this text, in any case.",
            schema: r#"{"type": "string"}"#,
        },
        Parameter {
            name: "with_dead_letters",
            description: "Only errors with unresolved dead letters.",
            schema: r#"{"type": "boolean", "default": false}"#,
        },
        ENTRIES,
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let since = query.duration("since")?;
        Ok(Self {
            task_type: query.type_name("type")?,
            kind: query.text("kind").map(str::to_owned),
            by: query.parsed("by")?.unwrap_or_default(),
            since_ms: since.map(|since| now_ms().saturating_sub(since.as_i64())),
            sort: query.parsed("sort")?.unwrap_or_default(),
            text: query.text("text").map(str::to_owned),
            with_dead_letters: query.parsed("with_dead_letters")?.unwrap_or_default(),
            limit: query.number("limit", DEFAULT_LISTED, 1..=MAX_LISTED)?,
        })
    }
}

parameter! {
    /// Number of hours to include.
    Hours(i64) = Parameter {
        name: "hours",
        description: "Number of hours of log time to include, with the current one.",
        schema: r#"{"type": "integer", "minimum": 1, "maximum": 24, "default": 1}"#,
    }, |query, name| query.number(name, 1, 1..=ERROR_HOURS as usize)? as i64
}

impl Input for AuditQuery {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "by", description: "Only requests with this API token.", schema: r#"{"type": "string"}"# },
        Parameter { name: "action", description: "Only requests of this action.", schema: r#"{"type": "string"}"# },
        Parameter {
            name: "target",
            description: "Only requests whose target contains this text, in any case.",
            schema: r#"{"type": "string"}"#,
        },
        Parameter { name: "from", description: "Only requests at or after this time.", schema: TIME },
        Parameter { name: "to", description: "Only requests before this time.", schema: TIME },
        Parameter {
            name: "limit",
            description: "Maximum number of requests.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}"#,
        },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let (from_ms, to_ms) = query.time_range()?;
        let text = |name: &str| query.text(name).map(str::to_owned);
        let limit = query.number("limit", DEFAULT_LISTED, 1..=MAX_AUDIT)?;
        Ok(Self { by: text("by"), action: text("action"), target: text("target"), from_ms, to_ms, limit })
    }
}

pub(super) fn all() -> Vec<Route> {
    vec![
        get("/v1/stats", "Get counts and durations over time, of all tasks, of a type or by type", statistics::stats)
            .without([Code::KafkaUnavailable]),
        get("/v1/stats/durations", "Get the distributions of waits and run times", statistics::durations)
            .without([Code::KafkaUnavailable]),
        get("/v1/stats/slowest", "List the slowest attempts", slowest).without([Code::KafkaUnavailable]),
        get(
            "/v1/failures",
            "List the failed tasks by type and error, or by the type of their root",
            statistics::failures,
        ),
        get("/v1/audit", "List the audit log: requests of users, newest first", statistics::audit),
    ]
}

async fn slowest(context: RequestContext, Hours(hours): Hours, entries: Entries) -> Result<Slowest, ApiError> {
    statistics::slowest(context, entries.task_type.as_deref(), hours, entries.limit).await
}
