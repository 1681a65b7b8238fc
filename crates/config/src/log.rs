//! `[log]`: filter of log lines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

/// Section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Log lines to write, such as `debug` or `kafleet=debug,warn`; `KAFLEET_LOG` overrides it. Default `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

pub(super) fn problems(document: &Document, log: &LogConfig) -> Option<UnlocatedProblem> {
    let filter = log.filter.as_ref()?;
    let refused = filter.is_empty() || EnvFilter::builder().parse(filter).is_err();
    refused.then(|| bad_value(document, "/log/filter", "a log filter, such as `debug` or `kafleet=debug,warn`"))
}
