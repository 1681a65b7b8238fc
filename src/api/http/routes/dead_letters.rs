//! Routes of dead letters.

use super::errors::{DROP_ONE, REDRIVE_ONE, SETTLE_MANY};
use super::route::{CURSOR, LIMIT, RequestBody, ResponseBody, Route, TEXT, TIME, TYPE_NAME, Verb, of, operate, read};
use crate::api::documents as doc;
use crate::api::handlers::dead_letters;
use crate::api::http::problem::Code;
use crate::api::http::request::Parameter;
use crate::dead_letters::Resolution;

pub(super) static ROUTES: &[Route] = &[
    Route {
        query: &[
            Parameter { name: "type", description: "Only dead letters of this type.", schema: TYPE_NAME },
            Parameter { name: "code", description: "Only dead letters with this code.", schema: TEXT },
            Parameter { name: "from", description: "Only tasks dead-lettered at or after this time.", schema: TIME },
            Parameter { name: "to", description: "Only tasks dead-lettered before this time.", schema: TIME },
            CURSOR,
            LIMIT,
        ],
        problems: &[
            Code::BadParameter,
            Code::BadCursor,
            Code::UnknownType,
            Code::StoreUnavailable,
            Code::KafkaUnavailable,
        ],
        ..read(
            "/v1/dead-letters",
            "List the unresolved dead letters, newest first",
            ResponseBody::Json(of::<doc::DeadLetterPage>),
            |request| Box::pin(dead_letters::list(request)),
        )
    },
    Route {
        query: &[],
        problems: &[Code::BadId, Code::NotFound, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/dead-letters/{letter}",
            "Get a dead letter with its original record",
            ResponseBody::Json(of::<doc::DeadLetterDetail>),
            |request| Box::pin(dead_letters::show(request)),
        )
    },
    Route {
        problems: DROP_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead-letters/{letter}/drop",
            "Drop a dead letter",
            ResponseBody::Json(of::<doc::DeadLetterResults>),
            |request| Box::pin(dead_letters::drop_one(request)),
        )
    },
    Route {
        request: RequestBody::MaybeJson(of::<doc::RedriveDeadLetter>),
        problems: REDRIVE_ONE,
        ..operate(
            Verb::Post,
            "/v1/dead-letters/{letter}/redrive",
            "Redrive a dead letter: run its task again, in a new run, also with other params",
            ResponseBody::Json(of::<doc::DeadLetterResults>),
            |request| Box::pin(dead_letters::redrive_one(request)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::DeadLetterSelection>),
        problems: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead-letters/drop",
            "Drop the newest dead letters of a type",
            ResponseBody::Json(of::<doc::DeadLetterResults>),
            |request| Box::pin(dead_letters::many(request, Resolution::Dropped)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::DeadLetterSelection>),
        problems: SETTLE_MANY,
        ..operate(
            Verb::Post,
            "/v1/dead-letters/redrive",
            "Redrive the newest dead letters of a type",
            ResponseBody::Json(of::<doc::DeadLetterResults>),
            |request| Box::pin(dead_letters::many(request, Resolution::Redriven)),
        )
    },
];
