//! `[api]`: address, tokens and size limits of the API.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Bytes;
use super::document::Document;
use super::rules::listen;
use super::shape::{Finding, bad_value};
use crate::model::record::attachment::MAX_BYTES;

/// Minimum length of a token.
pub const MIN_TOKEN_CHARS: usize = 16;

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Address to listen on. Any but a loopback address needs `tokens`.
    pub listen: String,
    /// Tokens of callers. Without tokens, which is allowed on loopback, every caller may do everything.
    pub tokens: Vec<TokenConfig>,
    /// Allow other than loopback addresses without tokens. Use only behind another means of access control.
    pub insecure_without_tokens: bool,
    /// Maximum size of a request body.
    pub max_body: Bytes,
    /// Maximum size of an attachment, at most 64 KiB.
    pub max_attachment: Bytes,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            tokens: Vec::new(),
            insecure_without_tokens: false,
            max_body: Bytes(8 << 20),
            max_attachment: Bytes(MAX_BYTES as u64),
        }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name shown in logs instead of the token.
    pub name: String,
    /// The token, of at least 16 characters; `${VARIABLE}` reads it from the environment.
    pub token: String,
    pub role: Role,
}

/// Permissions of a token; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Read,
    Submit,
    Operate,
}

pub(super) fn problems(document: &Document, api: &ApiConfig) -> Vec<Finding> {
    let mut found: Vec<_> =
        listen(&api.listen).map(|why| bad_value(document, "/api/listen", why)).into_iter().collect();
    if api.max_body == Bytes(0) {
        found.push(bad_value(document, "/api/max_body", "larger than zero"));
    }
    if api.max_attachment.as_usize() > MAX_BYTES {
        found.push(bad_value(document, "/api/max_attachment", "at most 64KiB"));
    }
    found.extend(token_problems(document));
    found
}

/// Checks tokens in the document: a token with an invalid key is not in the configuration, but its other keys count.
fn token_problems(document: &Document) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    let mut values = BTreeSet::new();
    let tokens = document.value.pointer("/api/tokens").and_then(Value::as_array);
    for (n, table) in tokens.into_iter().flatten().enumerate() {
        let at = |key: &str| format!("/api/tokens/{n}/{key}");
        let name = table["name"].as_str();
        let shown = name.map_or_else(|| format!("number {}", n + 1), |name| format!("`{name}`"));
        if let Some(token) = table["token"].as_str() {
            let length = token.chars().count();
            if length < MIN_TOKEN_CHARS || token.chars().any(|c| c.is_whitespace() || c.is_control()) {
                let what = format!(
                    "the token {shown} has {length} characters: it needs at least {MIN_TOKEN_CHARS}, without spaces"
                );
                found.push(Finding::new(at("token"), what).hint("generate one with `openssl rand -hex 24`"));
            }
            if !values.insert(token) {
                found.push(Finding::new(at("token"), format!("the token {shown} is the same as another token")));
            }
        }
        if name.is_some_and(|name| name.is_empty() || !names.insert(name)) {
            found.push(bad_value(document, &at("name"), "a unique name"));
        }
    }
    found
}
