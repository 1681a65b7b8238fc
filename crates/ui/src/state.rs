//! State shared by the requests of the UI.

use std::sync::Arc;

use axum::extract::FromRef;
use kafleet_api::state::Api;

use super::live::Live;

/// The API, and the state shared by open pages.
#[derive(Clone)]
pub(super) struct Ui {
    pub api: Arc<Api>,
    pub live: Arc<Live>,
}

impl FromRef<Ui> for Arc<Api> {
    fn from_ref(ui: &Ui) -> Self {
        ui.api.clone()
    }
}
