//! Routes of dead letters.

use kafleet_documents::{DeadLetterResults, DeadLetterSelection, RedriveDeadLetter};
use kafleet_fleet::dead_letters::{DeadLetterId, Filter, Resolution};

use super::route::{Route, TEXT, TIME, TYPE_NAME, get, post};
use crate::http::input::{Input, json_bodies};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter};
use crate::service::context::RequestContext;
use crate::service::dead_letters;

json_bodies! { required DeadLetterSelection; optional RedriveDeadLetter; }

impl Input for DeadLetterId {
    const PROBLEMS: &'static [Code] = &[Code::BadId, Code::NotFound, Code::NotVisibleYet];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        dead_letters::letter_id(&request.segments.next().unwrap_or_default())
    }
}

impl Input for Filter {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "type", description: "Only dead letters of this type.", schema: TYPE_NAME },
        Parameter { name: "code", description: "Only dead letters with this code.", schema: TEXT },
        Parameter { name: "from", description: "Only tasks dead-lettered at or after this time.", schema: TIME },
        Parameter { name: "to", description: "Only tasks dead-lettered before this time.", schema: TIME },
    ];
    const PROBLEMS: &'static [Code] = &[Code::UnknownType];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let (from_ms, to_ms) = request.query.time_range()?;
        let code = request.query.text("code").map(str::to_owned);
        Ok(Self { task_type: request.query.type_name("type")?, code, from_ms, to_ms })
    }
}

pub(super) fn all() -> Vec<Route> {
    let (drop_many, redrive_many) = ("/v1/dead-letters/drop", "/v1/dead-letters/redrive");
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
        post(drop_many, "Drop the newest dead letters of a type", drop_selected)
            .problems([Code::UnknownType, Code::NotVisibleYet]),
        post(redrive_many, "Redrive the newest dead letters of a type", redrive_selected)
            .problems([Code::UnknownType, Code::NotVisibleYet]),
    ]
}

async fn drop_selected(context: RequestContext, selection: DeadLetterSelection) -> Result<DeadLetterResults, ApiError> {
    dead_letters::resolve_many(context, selection, Resolution::Dropped).await
}

async fn redrive_selected(
    context: RequestContext,
    selection: DeadLetterSelection,
) -> Result<DeadLetterResults, ApiError> {
    dead_letters::resolve_many(context, selection, Resolution::Redriven).await
}
