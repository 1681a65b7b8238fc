//! `[types.<name>]`: handler, limits and policy of a type.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, ProgramVariables, Rate};
use crate::model::units::duration::Millis;

/// Maximum of `concurrency`.
pub const MAX_SLOTS: u32 = 100_000;

/// Section `[types.<name>]`.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TypeConfig {
    /// Handler: `echo`, `foreach`, `exec` or `http`. Omitted for a type that is registered in Rust or declared by an app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<HandlerKind>,
    /// Consumer group that the type shares with others of the same `group`; its own name: a group of its own. Default:
    /// `worker.group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Concurrent attempts per worker. Default: the number of cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub concurrency: Option<u32>,
    /// Concurrent attempts in all workers together, at least one per partition of the task topic. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
    /// Rate limit of starting attempts, for all workers together. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Order in which tasks run. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Number of retries. Default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub retries: Option<u32>,
    /// Wait before the second attempt; doubles with each further attempt. Default 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    /// Maximum wait between two attempts. Default 3s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    /// Time of an attempt after which its failure starts the backoff again. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_reset: Option<Millis>,
    /// Time after the first wait of a run from which on waits count as attempts; 0: each counts. Default 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Millis>,
    /// Time limit of one attempt. Default 120s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Time limit of the task with all attempts and waits, from its creation (or `ce_notbefore`). Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    /// Time without progress, log line or heartbeat after which an attempt fails as `stalled`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<Millis>,
    /// Retention of finished trees whose root has this type. Default: `topics.record_retention`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Millis>,
    /// Error kinds that are retried even if the handler declares them final; `*` is any kind not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retry_on: Vec<String>,
    /// Error kinds that are final even if the handler would retry them; `*` is any kind not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fail_on: Vec<String>,
    /// Consequence of a failed attempt. Default `retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Number of failed attempts within `failure_period` above which the worker starts no more tasks of the type.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_failures: Option<u32>,
    /// Period of `max_failures`. Default 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_period: Option<Millis>,
    /// Error kinds that open the circuit of the type: while most attempts fail with them, only single probes start. Empty:
    /// the type has no circuit. Default: `unreachable`, `overloaded` and `timeout` for `http`, otherwise none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trip_on: Option<Vec<String>>,
    /// Names of headers of the task's record that handlers in Rust and apps can read, such as `x-tenant`. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub keep_headers: Vec<String>,
    /// Isolation of attempts: in the worker (`none`, default) or in child processes (`process`). For types in Rust; a type
    /// of an app shares its processes with no other attempt meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Number of attempts after which a child process is replaced. Default 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub isolation_tasks: Option<u32>,
    /// Memory limit of a child process. A process that holds more than half of it after an attempt is replaced. Default
    /// 512MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation_memory: Option<Bytes>,
    /// File with the JSON Schema of the params, relative to kafleet.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<PathBuf>,
    /// Publish results to the type's results topic.
    pub publish_results: bool,
    /// Partitions of the task topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub partitions: Option<u32>,
    /// `exec`: program and arguments, run without a shell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Environment variables of `exec` programs, and of child processes of types in Rust, in addition to those that are
    /// inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Inherit the worker's environment variables, except for those that kafleet.toml expands and kafleet's own secrets
    /// (default). `false`: only `PATH`, `HOME` and other ordinary ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherit: Option<bool>,
    /// `exec`: working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// `exec`: exit codes that are retried. Default 75 (EX_TEMPFAIL); any other code except 0 fails the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_exit_codes: Option<Vec<i32>>,
    /// `exec`: exit codes after which the task waits, which does not count as an attempt. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wait_exit_codes: Vec<i32>,
    /// `http`: URL that receives the params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `http`: POST (default), PUT or PATCH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `http`: request headers; `${VARIABLE}` reads secrets from the environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// `http`: send a request once more if the service closes a kept connection instead of answering. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resend_on_close: Option<bool>,
}

impl TypeConfig {
    /// Environment variables of the programs of the type.
    pub fn variables(&self) -> ProgramVariables {
        ProgramVariables { own: self.env.clone(), inherit: self.inherit.unwrap_or(true) }
    }
}

/// Built-in handler of a type without Rust code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandlerKind {
    Echo,
    Foreach,
    Exec,
    Http,
}

impl HandlerKind {
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Foreach => "foreach",
            Self::Exec => "exec",
            Self::Http => "http",
        }
    }
}

/// Order in which the tasks of a type run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No order; the fastest.
    #[default]
    None,
    /// Sequential per key; keys run in parallel.
    Key,
    /// Sequential per partition.
    Partition,
}

/// Isolation of the attempts of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In the worker's own process; the fastest.
    #[default]
    None,
    /// In child processes, each of which runs one attempt at a time, so that a crash affects no other attempt.
    Process,
}

/// Consequence of a failed attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Another attempt, until `retries` are used up.
    #[default]
    Retry,
    /// The task fails.
    Fail,
    /// The task is skipped: it succeeds with a warning and the result `null`.
    Skip,
}
