//! Routes of named views.

use kafleet_documents::SetView;

use super::route::{Route, delete, get, put};
use crate::http::input::{Input, json_bodies};
use crate::http::problem::{ApiError, Code};
use crate::http::request::ApiRequest;
use crate::service::views::{self, ViewName};

json_bodies! { required; optional SetView; }

impl Input for ViewName {
    const PROBLEMS: &'static [Code] = &[Code::BadView];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        request.segments.next().unwrap_or_default().parse()
    }
}

pub(super) fn all() -> Vec<Route> {
    let view = "/v1/views/{name}";
    vec![
        get("/v1/views", "List the named views that the caller may see", views::list).without([Code::StoreUnavailable]),
        get(view, "Get a named view", views::show).problems([Code::UnknownView]).without([Code::StoreUnavailable]),
        put(view, "Create or replace a named view: search, order and columns of a list of tasks", views::set)
            .success([(200, "Stored; the view.")])
            .problems([Code::TooManyViews])
            .without([Code::StoreUnavailable]),
        delete(view, "Delete a named view", views::delete)
            .success([(200, "Deleted; the deleted view.")])
            .problems([Code::UnknownView])
            .without([Code::StoreUnavailable]),
    ]
}
