//! `[worker]`: memory, shutdown and size limits of workers.

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Bytes;
use super::checks::{MIN_MEMORY, positive};
use super::document::{Document, join};
use super::shape::{UnlocatedProblem, bad_value};

/// Maximum size of params and results. Records may have 4 MiB; the rest is for headers and the enclosing event.
pub const MAX_PAYLOAD: Bytes = Bytes(3 << 20);

/// Usual names of headers that contain a correlation id.
const CORRELATION_HEADERS: [&str; 5] =
    ["correlation-id", "correlation_id", "x-correlation-id", "x-request-id", "kafka_correlationId"];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// Consumer group shared by all types that name none. Default: each type has a group of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Memory limit of all tasks in the worker: prefetched, waiting, running, retrying and unreported.
    pub memory_limit: Bytes,
    /// Time for running attempts to finish on shutdown and on rebalance.
    pub drain_timeout: Millis,
    /// Commit interval.
    pub commit_interval: Millis,
    /// Time for a cancelled or timed-out attempt to stop by itself.
    pub grace: Millis,
    /// Delay of the `started` event, which is omitted if the attempt ends within it.
    pub started_delay: Millis,
    /// Longest wait, for a start time or the next attempt, in the worker; longer waits are left to the tracker. Types
    /// with an order always wait in the worker.
    pub inline_retry_max: Millis,
    /// Maximum size of params.
    pub max_params: Bytes,
    /// Maximum size of results; larger ones fail as `result_too_large`.
    pub max_output: Bytes,
    /// Headers of a task that are copied to its result, so that a producer can match results to requests. Names are
    /// case-insensitive.
    pub correlation_headers: Vec<String>,
    /// Attempts have no time limits, and blocked processes of apps are not killed, for debuggers. Set by
    /// `dev --no-timeouts`, and no key of the section.
    #[serde(skip)]
    pub no_timeouts: bool,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            group: None,
            memory_limit: Bytes(128 << 20),
            drain_timeout: Millis::secs(30),
            commit_interval: Millis(200),
            grace: Millis::secs(5),
            started_delay: Millis(5),
            inline_retry_max: Millis::secs(30),
            max_params: Bytes(1 << 20),
            max_output: Bytes(256 << 10),
            correlation_headers: CORRELATION_HEADERS.map(str::to_owned).into(),
            no_timeouts: false,
        }
    }
}

pub(super) fn problems(document: &Document, worker: &WorkerConfig) -> Vec<UnlocatedProblem> {
    let mut problems = positive(
        document,
        "/worker",
        [("drain_timeout", Some(worker.drain_timeout)), ("commit_interval", Some(worker.commit_interval))],
    );
    if worker.memory_limit < MIN_MEMORY {
        problems.push(bad_value(document, "/worker/memory_limit", &format!("at least `{MIN_MEMORY}`")));
    }
    for (key, bytes) in [("max_params", worker.max_params), ("max_output", worker.max_output)] {
        if bytes == Bytes(0) || bytes > MAX_PAYLOAD {
            problems.push(bad_value(document, &join("/worker", key), &format!("between `1B` and `{MAX_PAYLOAD}`")));
        }
    }
    problems
}
