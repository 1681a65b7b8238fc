//! Routes of bulk actions.

use super::errors::BULK;
use super::route::{LIMIT, RequestBody, ResponseBody, Route, Verb, of, operate, read};
use crate::api::documents as doc;
use crate::api::handlers::bulk;
use crate::api::http::problem::Code;
use crate::config::Role;

pub(super) static ROUTES: &[Route] = &[
    Route {
        query: &[LIMIT],
        problems: &[Code::BadParameter, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable],
        ..read(
            "/v1/bulk",
            "List the newest bulk actions whose requests are still in the audit log",
            ResponseBody::Json(of::<doc::TaskPage>),
            |request| Box::pin(bulk::list(request)),
        )
    },
    Route {
        request: RequestBody::Json(of::<doc::BulkRequest>),
        successes: &[(
            202,
            "Accepted. The response is the task of the bulk action, which can be read, watched and cancelled like any task.",
        )],
        problems: BULK,
        ..operate(
            Verb::Post,
            "/v1/bulk",
            "Cancel, retry or start all tasks that match a search",
            ResponseBody::Json(of::<doc::Status>),
            |request| Box::pin(bulk::order(request)),
        )
    },
    Route {
        role: Some(Role::Read),
        request: RequestBody::Json(of::<doc::BulkSelection>),
        successes: &[(200, "Counted; nothing was changed.")],
        problems: BULK,
        ..operate(
            Verb::Post,
            "/v1/bulk/preview",
            "Count the tasks that a bulk action would change",
            ResponseBody::Json(of::<doc::BulkPreview>),
            |request| Box::pin(bulk::preview(request)),
        )
    },
];
