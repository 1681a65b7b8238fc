//! Place of the web UI in the API: pages beside the endpoints. The API does not know their code.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tokio_util::sync::DropGuard;

use crate::state::Api;

/// Opens the pages over the state of an API. `None`: the configuration wants none.
pub type OpenPages = fn(&Arc<Api>) -> Option<Pages>;

/// Pages beside the endpoints.
pub struct Pages {
    /// Routes of the pages.
    pub router: Router,
    /// Whether a page takes the place of the endpoint `/`.
    pub has_root: bool,
    /// Page for a path that does not exist, if a browser asks for it.
    pub missing: fn(&Api, &Request) -> Option<Response>,
    /// Background task of the pages, which ends when this is dropped.
    pub listening: DropGuard,
}
