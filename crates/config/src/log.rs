//! `[log]`: filter of log lines, and where the lines of tasks go besides their own log.

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
    /// Copy of the lines that tasks log, besides the log of each task. Default `none`.
    pub tasks: TaskLogCopy,
}

/// Second destination of the lines that tasks log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskLogCopy {
    /// Nowhere.
    #[default]
    None,
    /// To the worker's log on stderr, at level `info` with the target `kafleet::task`.
    Stderr,
}

pub(super) fn problems(document: &Document, log: &LogConfig) -> Option<UnlocatedProblem> {
    let filter = log.filter.as_ref()?;
    let refused = filter.is_empty() || EnvFilter::builder().parse(filter).is_err();
    refused.then(|| bad_value(document, "/log/filter", "a log filter, such as `debug` or `kafleet=debug,warn`"))
}
