//! `[ops]`: address of the health and metrics endpoint.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::listen;
use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

/// Section `[ops]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpsConfig {
    /// Address at which any role serves `/healthz`, `/readyz` and `/metrics`. Empty: none.
    pub listen: String,
}

pub(super) fn problems(document: &Document, ops: &OpsConfig) -> Option<UnlocatedProblem> {
    let expected = listen(&ops.listen).filter(|_| !ops.listen.is_empty());
    expected.map(|expected| bad_value(document, "/ops/listen", expected))
}
