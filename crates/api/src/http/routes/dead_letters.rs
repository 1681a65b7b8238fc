//! Routes of dead letters.

use kafleet_documents::{DeadLetterSelection, DropDeadLetter, RedriveDeadLetter};
use kafleet_fleet::dead_letters::{DeadLetterId, Filter};

use super::route::{Route, TEXT, TIME, TYPE_NAME, get, post};
use crate::http::input::{Input, json_bodies};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter};
use crate::service::dead_letters::{self, LetterQuery};

json_bodies! { required DeadLetterSelection; optional DropDeadLetter, RedriveDeadLetter; }

impl Input for DeadLetterId {
    const PROBLEMS: &'static [Code] = &[Code::BadId, Code::NotFound, Code::NotVisibleYet];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        dead_letters::letter_id(&request.segments.next().unwrap_or_default())
    }
}

impl Input for LetterQuery {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "type", description: "Only dead letters of this type.", schema: TYPE_NAME },
        Parameter { name: "code", description: "Only dead letters with this code.", schema: TEXT },
        Parameter {
            name: "kind",
            description: "Only dead letters of tasks that ended with an error of this kind.",
            schema: TEXT,
        },
        Parameter {
            name: "error",
            description: "Only dead letters of tasks that ended with this error: its `error` in the list of failures.",
            schema: r#"{"type": "string", "pattern": "^[0-9a-f]{16}$"}"#,
        },
        Parameter { name: "from", description: "Only tasks dead-lettered at or after this time.", schema: TIME },
        Parameter { name: "to", description: "Only tasks dead-lettered before this time.", schema: TIME },
        Parameter {
            name: "without_failure",
            description: "Only dead letters that belong to no failed task: records that are not tasks, and tasks whose \
                          record has been removed.",
            schema: r#"{"type": "boolean", "default": false}"#,
        },
    ];
    const PROBLEMS: &'static [Code] = &[Code::UnknownType];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let query = &request.query;
        let (from_ms, to_ms) = query.time_range()?;
        let (task_type, code) = (query.type_name("type")?, query.text("code").map(str::to_owned));
        Ok(Self {
            filter: Filter { task_type, code, from_ms, to_ms, resolved_by: None },
            kind: query.text("kind").map(str::to_owned),
            error: query.parsed("error")?,
            without_failure: query.parsed("without_failure")?.unwrap_or_default(),
        })
    }
}

pub(super) fn all() -> Vec<Route> {
    vec![
        get("/v1/dead-letters", "List the unresolved dead letters, newest first", dead_letters::list),
        get("/v1/dead-letters/{letter}", "Get a dead letter with its original record", dead_letters::show),
        post("/v1/dead-letters/{letter}/drop", "Drop a dead letter", dead_letters::drop_one)
            .problems([Code::AlreadyDropped, Code::AlreadyRedriven]),
        post(
            "/v1/dead-letters/{letter}/redrive",
            "Redrive a dead letter: run its task again, in a new run, also with other params",
            dead_letters::redrive_one,
        )
        .problems([
            Code::Schema,
            Code::NotFinished,
            Code::DeadLetterSuperseded,
            Code::AlreadyDropped,
            Code::AlreadyRedriven,
            Code::UnreadableDeadLetter,
            Code::TooManyRuns,
            Code::ExternalTask,
            Code::NoParams,
            Code::ParamsGone,
        ]),
        post("/v1/dead-letters/drop", "Drop the newest dead letters of a type", dead_letters::drop_many)
            .problems([Code::UnknownType, Code::NotVisibleYet]),
    ]
}
