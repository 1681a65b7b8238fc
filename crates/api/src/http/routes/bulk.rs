//! Routes of bulk actions.

use kafleet_config::Role;
use kafleet_documents::{BulkPreview, BulkRequest, BulkSelection, TaskPage};

use super::route::{Route, get, post};
use crate::http::input::{LIMIT, json_bodies, parameter};
use crate::http::problem::{ApiError, Code};
use crate::service::bulk;
use crate::service::context::{MAX_PAGE, PAGE, RequestContext};
use crate::service::list::MAX_SCAN_TIME;

json_bodies! { required BulkRequest, BulkSelection; optional; }

parameter! {
    /// Page size of a list with one page.
    PageSize(usize) = LIMIT, |query, name| query.number(name, PAGE, 1..=MAX_PAGE)?
}

pub(super) fn all() -> Vec<Route> {
    vec![
        get("/v1/bulk", "List the newest bulk actions whose requests are still in the audit log", list)
            .problems([Code::NotVisibleYet]),
        post("/v1/bulk", "Cancel, retry or start all tasks that match a search, or redrive dead letters", bulk::request)
            .success([(
                202,
                "Accepted. The response is the task of the bulk action, which can be read, watched and cancelled like any task.",
            )])
            .problems([Code::BadId, Code::UnknownType, Code::NotVisibleYet]),
        post("/v1/bulk/preview", "Count the tasks that a bulk action would change", preview)
            .role(Role::Read)
            .success([(200, "Counted; nothing was changed.")])
            .problems([Code::BadId, Code::UnknownType, Code::NotVisibleYet]),
    ]
}

async fn list(RequestContext { api, .. }: RequestContext, PageSize(limit): PageSize) -> Result<TaskPage, ApiError> {
    bulk::newest(&api, limit).await
}

async fn preview(
    RequestContext { api, .. }: RequestContext,
    selection: BulkSelection,
) -> Result<BulkPreview, ApiError> {
    bulk::preview(&api, selection, MAX_SCAN_TIME).await
}
