//! Params of the tasks that deliver notifications.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{Callback, Email};
use crate::json::RawJson;

/// Params of a callback task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbackParams {
    /// URL to call. `${name}` in its path or query refers to a secret of `[callbacks.secrets]`.
    pub url: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Name of the secret that signs the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Request body, sent unchanged.
    pub body: RawJson,
}

impl CallbackParams {
    pub fn new(callback: &Callback, body: RawJson) -> Self {
        let Callback { url, headers, secret, .. } = callback.clone();
        Self { url, headers, secret, body }
    }
}

/// Params of an email task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmailParams {
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    /// Subject template. Default: the task and its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Body template. Default: a summary of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Values for the templates, in the format of a callback's body.
    pub about: RawJson,
}

impl EmailParams {
    pub fn new(email: &Email, about: RawJson) -> Self {
        let Email { to, cc, bcc, subject, body, .. } = email.clone();
        Self { to, cc, bcc, subject, body, about }
    }
}
