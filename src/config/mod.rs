//! What may be written in kafleet.toml, and what it means.
//!
//! The structs here are the file's contract: `schemas/config.json` is generated from them. A file that does not fit is
//! answered with the whole list of its problems, never with the first one only and never with a panic.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::retention::Lifetimes;
use crate::model::schedule::Spec;
use crate::model::units::duration::Millis;

mod callbacks;
mod document;
mod email;
mod load;
mod names;
mod policy;
mod problem;
mod rate;
mod rules;
mod secrets;
mod shape;

pub use crate::model::units::bytes::Bytes;
pub use callbacks::{CallbacksConfig, SecretConfig};
pub use email::{EmailConfig, MailTls};
pub use load::{DEFAULT_BROKERS, DEFAULT_FILE, Loaded, Overrides, load, load_with};
pub use names::Names;
pub use policy::{Alarm, CellLimits, ErrorKinds, TypePolicy};
pub use problem::{Problem, Problems};
pub use rate::{Rate, RateBy};
pub use rules::{MAX_PAYLOAD, MIN_TOKEN_CHARS};
pub use shape::schema;

/// kafleet.toml. Every key has a default; an empty file is a valid one.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Passed to librdkafka as it is: any of its keys (TLS, SASL and the rest).
    pub kafka: BTreeMap<String, Scalar>,
    pub redis: RedisConfig,
    pub topics: TopicsConfig,
    pub worker: WorkerConfig,
    pub tracker: TrackerConfig,
    pub api: ApiConfig,
    pub ops: OpsConfig,
    /// The task types, by name.
    pub types: BTreeMap<String, TypeConfig>,
    /// What callbacks may do. With this section there are callbacks, as tasks of the type `kafleet-callback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CallbacksConfig")]
    pub callbacks: Option<CallbacksConfig>,
    /// How mails go out. With this section there are mails, as tasks of the type `kafleet-email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EmailConfig")]
    pub email: Option<EmailConfig>,
    /// Recurring schedules, by name; `kafleet schedules apply` tells them to the fleet.
    pub schedules: BTreeMap<String, Spec>,
}

/// A text, a whole number, a number, or `true`/`false`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://`, `redis-cluster://host,host`, `redis-sentinel://host,host/master`, each with `rediss` for TLS;
    /// `redis+unix:///path`.
    pub url: String,
    /// Instead of the one in the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Instead of the one in the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The sentinels' own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_password: Option<String>,
    /// How long to wait for an answer.
    pub response_timeout: Millis,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            username: None,
            password: None,
            sentinel_password: None,
            response_timeout: Millis::secs(10),
        }
    }
}

/// As librdkafka takes it.
impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopicsConfig {
    /// Every topic and Redis key begins with it.
    pub prefix: String,
    /// Partitions of the events topic. Fixed once topics are applied.
    #[schemars(range(min = 1, max = 1024))]
    pub events_partitions: u32,
    /// Partitions of a task topic, unless the type says otherwise.
    #[schemars(range(min = 1, max = 1024))]
    pub task_partitions: u32,
    /// Copies of each partition; default: 3, or as many as there are brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub replication: Option<u32>,
    /// How long task topics keep records.
    pub task_retention: Millis,
    /// How long dead letters are kept.
    pub dead_retention: Millis,
    /// A tree may be open at most this long.
    pub max_tree_age: Millis,
    /// How long records of finished trees are kept.
    pub record_retention: Millis,
    /// How often every role checks that its topics are there and as they must be.
    pub check_interval: Millis,
}

impl Default for TopicsConfig {
    fn default() -> Self {
        const DAY: u64 = 86_400;
        Self {
            prefix: "kafleet".into(),
            events_partitions: 16,
            task_partitions: 8,
            replication: None,
            task_retention: Millis::secs(30 * DAY),
            dead_retention: Millis::secs(90 * DAY),
            max_tree_age: Millis::secs(30 * DAY),
            record_retention: Millis::secs(7 * DAY),
            check_interval: Millis::secs(60),
        }
    }
}

impl Config {
    /// How long trees and their records last.
    pub fn lifetimes(&self) -> Lifetimes {
        let own = |(name, kind): (&String, &TypeConfig)| Some((name.as_str().into(), kind.retention?.as_i64()));
        Lifetimes {
            record_retention_ms: self.topics.record_retention.as_i64(),
            max_tree_age_ms: self.topics.max_tree_age.as_i64(),
            types: self.types.iter().filter_map(own).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// Bytes of everything held: prefetched, waiting, running, retrying and unreported tasks.
    pub memory_limit: Bytes,
    /// How long running attempts may finish on shutdown and on rebalance.
    pub drain_timeout: Millis,
    /// How often finished work is committed.
    pub commit_interval: Millis,
    /// How long a cancelled or timed-out attempt may take to stop by itself.
    pub grace: Millis,
    /// How long `started` waits for the result that would make it needless.
    pub started_delay: Millis,
    /// Without order, what waits longer than this for its time or its next attempt waits at the tracker, not in the worker.
    pub inline_retry_max: Millis,
    /// Params larger than this are refused.
    pub max_params: Bytes,
    /// Results larger than this fail as `result_too_large`.
    pub max_output: Bytes,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            memory_limit: Bytes(128 << 20),
            drain_timeout: Millis::secs(30),
            commit_interval: Millis(200),
            grace: Millis::secs(5),
            started_delay: Millis(5),
            inline_retry_max: Millis::secs(30),
            max_params: Bytes(1 << 20),
            max_output: Bytes(256 << 10),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrackerConfig {
    /// Events folded in one step at most.
    #[schemars(range(min = 1, max = 100_000))]
    pub batch_events: usize,
    /// Records kept in memory per partition, between batches.
    #[schemars(range(min = 1_000, max = 10_000_000))]
    pub cache_records: usize,
    /// Events waiting per partition before it is paused.
    #[schemars(range(min = 1_000, max = 1_000_000))]
    pub queue_events: usize,
    /// Announce tasks that producers have published without `ce_announced`, so that they show as queued before a worker
    /// takes them. It reads every task topic; a fleet whose producers all announce can do without.
    pub observe: bool,
    /// A partition of the events topic that holds records and has no events for so long gets one that moves its time: ages
    /// are counted by the log's own time.
    pub tick: Millis,
    /// A worker that is not heard of for so long is silent, and the tasks it runs are told so. Default: three missed
    /// heartbeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_silent: Option<Millis>,
    /// How often each partition of the store is audited: the server's settings and evictions, the counters, and 250
    /// records, in turn.
    pub audit_interval: Millis,
}

impl Default for TrackerConfig {
    fn default() -> Self {
        Self {
            batch_events: 1_000,
            cache_records: 4_000,
            queue_events: 5_000,
            observe: true,
            tick: Millis::secs(60),
            worker_silent: None,
            audit_interval: Millis::secs(5),
        }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Address to listen on. Outside loopback it needs `tokens`.
    pub listen: String,
    /// Who may call. None on loopback: everybody may do everything.
    pub tokens: Vec<TokenConfig>,
    /// Serve outside loopback without tokens. Only behind something else that keeps people out.
    pub insecure_without_tokens: bool,
    /// The largest request body.
    pub max_body: Bytes,
    /// The largest attachment of a task, at most 64 KiB.
    pub max_attachment: Bytes,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            tokens: Vec::new(),
            insecure_without_tokens: false,
            max_body: Bytes(8 << 20),
            max_attachment: Bytes(crate::model::record::attachment::MAX_BYTES as u64),
        }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Shown in logs instead of the token.
    pub name: String,
    /// At least 16 characters; `${VARIABLE}` takes it from the environment.
    pub token: String,
    pub role: Role,
}

/// What a token may do; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Read,
    Submit,
    Operate,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpsConfig {
    /// Where a worker or tracker serves `/healthz`, `/readyz` and `/metrics`. Empty: nowhere.
    pub listen: String,
}

/// Attempts at once in one worker, at most.
pub const MAX_SLOTS: u32 = 100_000;

/// One `[types.<name>]`.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TypeConfig {
    /// What runs it: `echo`, `foreach`, `exec` or `http`. Left out for a type that is registered in Rust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<HandlerKind>,
    /// Attempts at once in one worker; default: the number of cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub concurrency: Option<u32>,
    /// Attempts at once in all workers together, at least one per partition of the task topic. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
    /// How many attempts may begin in a time, in all workers together. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Attempts after the first. Default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub retries: Option<u32>,
    /// Default 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    /// Default 3s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    /// Of one attempt. Default 120s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Of the task, all its attempts and waits together, from its creation (or from `ce_notbefore`). Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    /// An attempt that shows no sign of life for so long fails as `stalled`: no progress, log line or heartbeat. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<Millis>,
    /// How long the records of a finished tree are kept whose root has this type. Default: `topics.record_retention`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Millis>,
    /// Kinds of errors that are tried again, also where the handler says that it is of no use; `*` is any that is not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retry_on: Vec<String>,
    /// Kinds of errors that are final, also where the handler would try again; `*` is any that is not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fail_on: Vec<String>,
    /// What a failed attempt leads to. Default `retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// More failed attempts than this within `failure_period` stop the type in this worker, with an alarm. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_failures: Option<u32>,
    /// Default 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_period: Option<Millis>,
    /// Where attempts run: in the worker (`none`), or in child processes (`process`). Rust handlers only. Default `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// A child process is replaced after so many attempts. Default 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub isolation_tasks: Option<u32>,
    /// Memory of one child process at most; above half of it, it is replaced after its attempt. Default 512MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation_memory: Option<Bytes>,
    /// A file with the JSON Schema of the params, relative to kafleet.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<PathBuf>,
    /// Also publish results to the type's results topic.
    pub publish_results: bool,
    /// Partitions of the task topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub partitions: Option<u32>,
    /// `exec`: the program and its arguments. No shell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// `exec`: variables added to the program's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `exec`: the program's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// `exec`: exit codes that mean "try again". Default 75 (EX_TEMPFAIL); every other but 0 fails the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_exit_codes: Option<Vec<i32>>,
    /// `http`: where to send the params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `http`: POST (default), PUT or PATCH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `http`: headers; `${VARIABLE}` keeps secrets out of the file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// What runs the tasks of a type that has no Rust code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandlerKind {
    Echo,
    Foreach,
    Exec,
    Http,
}

impl HandlerKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Foreach => "foreach",
            Self::Exec => "exec",
            Self::Http => "http",
        }
    }
}

/// In which order the tasks of a type run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Any; the fastest.
    #[default]
    None,
    /// One at a time per key; keys run in parallel.
    Key,
    /// One at a time per partition.
    Partition,
}

/// Where the attempts of a type run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In the worker's own process; the fastest.
    #[default]
    None,
    /// Each in a child process, which serves one attempt at a time: what takes it down takes down nothing else.
    Process,
}

/// What a failed attempt leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Another attempt, until `retries` are used up.
    #[default]
    Retry,
    /// The task has failed.
    Fail,
    /// The task is passed over: it succeeds with a warning and the result `null`.
    Skip,
}

/// Shown without what is secret.
macro_rules! debug_without_secrets {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                secrets::debug(stringify!($name), self, f)
            }
        }
    )+};
}
debug_without_secrets!(EmailConfig, CallbacksConfig, Config, RedisConfig, ApiConfig, SecretConfig, TokenConfig, TypeConfig);

#[cfg(test)]
mod tests;
