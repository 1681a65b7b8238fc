//! `[outbox]`: the database whose committed rows become tasks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

/// Enables the outbox: tasks that applications submit in transactions of their database.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxConfig {
    /// URL of the Postgres database with the outbox: `postgres://user:password@host:5432/database?sslmode=require`. Only
    /// `kafleet outbox` and `kafleet doctor` connect to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<String>,
}

pub(super) fn problems(document: &Document, outbox: &OutboxConfig) -> Vec<UnlocatedProblem> {
    let Some(url) = &outbox.postgres else { return Vec::new() };
    let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    if rest.is_none_or(str::is_empty) {
        let wanted = "a Postgres URL: `postgres://` or `postgresql://`, followed by the host and the database";
        return vec![bad_value(document, "/outbox/postgres", wanted)];
    }
    // Only the user information of a URL is hidden in messages.
    if url.split_once('?').is_some_and(|(_, query)| query.split('&').any(|pair| pair.starts_with("password="))) {
        let message = "`outbox.postgres` has its password in the query of the URL";
        let hint = "write it before the host: `postgres://user:password@host/database`";
        return vec![UnlocatedProblem::new("/outbox/postgres", message).hint(hint)];
    }
    Vec::new()
}
