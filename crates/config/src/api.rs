//! `[api]`: address, tokens and size limits of the API.

use std::collections::BTreeSet;

use kafleet_model::record::attachment::MAX_BYTES;
use kafleet_model::role::Role;
use kafleet_model::schedule::time_zone;
use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Bytes;
use super::checks::listen;
use super::colour::Colour;
use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

/// Minimum length of a token.
pub const MIN_TOKEN_CHARS: usize = 16;
/// Maximum length of the name of a fleet.
const MAX_NAME_CHARS: usize = 40;
/// Placeholder of a trace's id in `trace_url`.
pub const TRACE_ID: &str = "{trace_id}";

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
    /// Web UI.
    pub ui: UiConfig,
}

/// Web UI, served at the address of the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UiConfig {
    pub mode: UiMode,
    /// Path of the UI behind a proxy that keeps it, such as `/kafleet`. Default: none, the UI is at `/`.
    pub base_path: String,
    /// Lifetime of a session: 1m to 30d.
    pub session: Millis,
    /// Allow logins over plain HTTP at other than loopback addresses. Anyone on the network path can take over such a
    /// session.
    pub insecure_cookies: bool,
    /// Link from a task to its trace, such as `https://jaeger.example.com/trace/{trace_id}`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_url: Option<String>,
    /// Name of the fleet in the header, the titles of windows and the login, at most 40 characters. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Colour of the fleet in the header and the icon, which distinguishes the windows of several fleets: `blue`,
    /// `green`, `grey`, `orange`, `pink`, `purple`, `red`, `teal`, `yellow` or `#rrggbb`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colour: Option<String>,
    /// Time zone of the fleet, such as `Europe/Berlin`: that of times on pages, unless the reader chooses another one.
    pub zone: String,
}

/// Availability of the UI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UiMode {
    /// Pages and actions, as the role of the token permits.
    #[default]
    Full,
    /// Pages without actions.
    ReadOnly,
    /// No UI.
    Off,
}

impl Default for UiConfig {
    fn default() -> Self {
        Self {
            mode: UiMode::Full,
            base_path: String::new(),
            session: Millis::secs(12 * 3_600),
            insecure_cookies: false,
            trace_url: None,
            name: None,
            colour: None,
            zone: "UTC".into(),
        }
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            tokens: Vec::new(),
            insecure_without_tokens: false,
            max_body: Bytes(8 << 20),
            max_attachment: Bytes(MAX_BYTES as u64),
            ui: UiConfig::default(),
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

pub(super) fn problems(document: &Document, api: &ApiConfig) -> Vec<UnlocatedProblem> {
    let mut problems: Vec<_> =
        listen(&api.listen).map(|error| bad_value(document, "/api/listen", error)).into_iter().collect();
    if api.max_body == Bytes(0) {
        problems.push(bad_value(document, "/api/max_body", "larger than zero"));
    }
    if api.max_attachment.as_usize() > MAX_BYTES {
        problems.push(bad_value(document, "/api/max_attachment", "at most 64KiB"));
    }
    problems.extend(ui_problems(document, &api.ui));
    problems.extend(token_problems(document));
    problems
}

fn ui_problems(document: &Document, ui: &UiConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    let is_path = |path: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '-');
        path.strip_prefix('/').is_some_and(|path| {
            path.split('/').all(|part| !part.is_empty() && !matches!(part, "." | "..") && part.chars().all(is_allowed))
        })
    };
    if !ui.base_path.is_empty() && !is_path(&ui.base_path) {
        problems.push(bad_value(
            document,
            "/api/ui/base_path",
            "a path such as `/kafleet`, without a slash at its end",
        ));
    }
    if !(Millis::secs(60)..=Millis::secs(30 * 86_400)).contains(&ui.session) {
        problems.push(bad_value(document, "/api/ui/session", "1m to 30d"));
    }
    if ui.trace_url.as_deref().is_some_and(|template| !is_trace_url(template)) {
        let allowed =
            "an `http://` or `https://` URL with `{trace_id}`, such as `https://jaeger.example.com/trace/{trace_id}`";
        problems.push(bad_value(document, "/api/ui/trace_url", allowed));
    }
    problems.extend(fleet_problems(document, ui));
    problems
}

/// Checks by what people recognize a fleet.
fn fleet_problems(document: &Document, ui: &UiConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    let is_name = |name: &str| {
        let has_length = (1..=MAX_NAME_CHARS).contains(&name.chars().count());
        has_length && name.trim() == name && !name.chars().any(char::is_control)
    };
    if ui.name.as_deref().is_some_and(|name| !is_name(name)) {
        let allowed = format!("a name of 1 to {MAX_NAME_CHARS} characters, without spaces around it");
        problems.push(bad_value(document, "/api/ui/name", &allowed));
    }
    if let Some(Err(allowed)) = ui.colour.as_deref().map(Colour::parse) {
        problems.push(bad_value(document, "/api/ui/colour", &allowed));
    }
    if time_zone(&ui.zone).is_none() {
        problems.push(bad_value(document, "/api/ui/zone", "a time zone such as `Europe/Berlin` or `UTC`"));
    }
    problems
}

/// Checks the template of a link: no other scheme may follow from it, and no other placeholder.
fn is_trace_url(template: &str) -> bool {
    let example = template.replace(TRACE_ID, "0af7651916cd43dd8448eb211c80319c");
    let is_url = url::Url::parse(&example).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    template.contains(TRACE_ID) && is_url && !example.contains(['{', '}'])
}

/// Checks tokens in the document: a token with an invalid key is not in the configuration, but its other keys count.
fn token_problems(document: &Document) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
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
                let message = format!(
                    "the token {shown} has {length} characters: it needs at least {MIN_TOKEN_CHARS}, without spaces"
                );
                problems
                    .push(UnlocatedProblem::new(at("token"), message).hint("generate one with `openssl rand -hex 24`"));
            }
            if !values.insert(token) {
                problems.push(UnlocatedProblem::new(
                    at("token"),
                    format!("the token {shown} is the same as another token"),
                ));
            }
        }
        if name.is_some_and(|name| name.is_empty() || !names.insert(name)) {
            problems.push(bad_value(document, &at("name"), "a unique name"));
        }
    }
    problems
}
