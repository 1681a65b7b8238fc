//! Routes of statistics, failures and requests.

use super::route::{AFTER, ResponseBody, Route, TIME, TYPE_NAME, of, read};
use crate::api::documents as doc;
use crate::api::handlers::statistics;
use crate::api::http::problem::Code;
use crate::api::http::request::Parameter;

const TYPE: Parameter = Parameter { name: "type", description: "Only this type.", schema: TYPE_NAME };
const LISTED: Parameter = Parameter {
    name: "limit",
    description: "Maximum number of entries.",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 200, "default": 50}"#,
};

pub(super) static ROUTES: &[Route] = &[
    Route {
        query: &[
            TYPE,
            Parameter {
                name: "by",
                description: "One series per type, for the 100 types with the most tasks.",
                schema: r#"{"enum": ["type"]}"#,
            },
            Parameter { name: "from", description: "Start of the range. Default: an hour before `to`.", schema: TIME },
            Parameter { name: "to", description: "End of the range. Default: now.", schema: TIME },
            Parameter {
                name: "step",
                description: "Length of the points. Default: the shortest that is kept and gives at most 400 points.",
                schema: r#"{"enum": ["1m", "10m", "1h", "1d"]}"#,
            },
        ],
        problems: &[Code::BadParameter, Code::StoreUnavailable],
        ..read(
            "/v1/stats",
            "Get counts and durations over time, of all tasks, of a type or by type",
            ResponseBody::Json(of::<doc::Stats>),
            |request| Box::pin(statistics::stats(request)),
        )
    },
    Route {
        query: &[
            TYPE,
            Parameter {
                name: "hours",
                description: "Number of hours of log time to include, with the current one.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 24, "default": 1}"#,
            },
            LISTED,
        ],
        problems: &[Code::BadParameter, Code::StoreUnavailable],
        ..read("/v1/stats/slowest", "List the slowest attempts", ResponseBody::Json(of::<doc::Slowest>), |request| {
            Box::pin(statistics::slowest(request))
        })
    },
    Route {
        query: &[TYPE, LISTED, AFTER],
        problems: &[Code::BadParameter, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/failures",
            "List the failed tasks by type and error",
            ResponseBody::Json(of::<doc::Failures>),
            |request| Box::pin(statistics::failures(request)),
        )
    },
    Route {
        query: &[
            Parameter {
                name: "limit",
                description: "Maximum number of requests.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}"#,
            },
            AFTER,
        ],
        problems: &[Code::BadParameter, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/audit",
            "List the audit log: requests of users, newest first",
            ResponseBody::Json(of::<doc::Audit>),
            |request| Box::pin(statistics::audit(request)),
        )
    },
];
