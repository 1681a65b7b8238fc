//! Configuration (`kafleet.toml`): one module per section, with its checks.
//!
//! In: a file, environment variables and the overrides of the command line. Out: a [`Config`] in which every value is
//! checked, or the list of all problems, each with its place in the file. The structs are the file's contract:
//! `schemas/config.json` and the tables of docs/configuration.md are generated from them.
//!
//! Invariant: a role only gets a configuration without problems, and no other crate reads the file or checks a key of
//! it again (a built-in handler adds checks of its own section). Otherwise `kafleet doctor` would pass a file with
//! which a worker later fails. `Debug` never shows a secret, because configurations are logged.
//!
//! The settings of a type are listed once, in the table at the end of `type_settings.rs`; the struct of the file, the
//! policy in force and the constants of a Rust task type come from it.
//!
//! Read next: `load.rs` (from a file to a configuration), `type_settings.rs`, then `changes.rs` (what a reload
//! changes).

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::collections::BTreeMap;

use kafleet_model::retention::Lifetimes;
use kafleet_model::schedule::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[doc(hidden)]
mod api;
#[doc(hidden)]
mod apps;
#[doc(hidden)]
mod callbacks;
#[doc(hidden)]
mod changes;
mod checks;
mod colour;
mod document;
#[doc(hidden)]
mod email;
#[doc(hidden)]
mod email_address;
#[doc(hidden)]
mod kafka;
#[doc(hidden)]
mod load;
mod log;
#[doc(hidden)]
mod names;
mod ops;
#[doc(hidden)]
mod otel;
mod outbox;
mod policy;
#[doc(hidden)]
mod problem;
#[doc(hidden)]
mod redis;
mod rules;
#[doc(hidden)]
mod secrets;
mod shape;
#[doc(hidden)]
mod topics;
#[doc(hidden)]
mod topology;
#[doc(hidden)]
mod tracker;
mod type_rules;
mod type_settings;
mod types;
#[doc(hidden)]
mod variables;
#[doc(hidden)]
mod worker;

pub use self::redis::RedisConfig;
pub use api::{ApiConfig, MIN_TOKEN_CHARS, TRACE_ID, TokenConfig, UiConfig, UiMode};
pub use apps::{AppConfig, combine_policy, written_keys};
pub use callbacks::{CallbacksConfig, SecretConfig};
pub use changes::{ChangedKey, changes};
pub use colour::{Colour, HEADER_COLOURS};
pub use email::{EmailConfig, MailTls};
pub use email_address::{AddressPattern, parse_mailbox};
pub use kafka::Scalar;
pub use kafleet_model::adaptive::setting::{Adaptive, AdaptiveOverride};
pub use kafleet_model::batch::setting::{BatchPolicy, BatchSetting};
pub use kafleet_model::role::Role;
pub use kafleet_model::units::bytes::Bytes;
pub use kafleet_model::units::rate::{Rate, RateBy};
pub use load::{DEFAULT_BROKERS, DEFAULT_FILE, LoadedConfig, Overrides, load, load_with};
pub use log::{LogConfig, TaskLogCopy};
pub use names::{Names, TypeGroups, app_group};
pub use ops::OpsConfig;
pub use otel::{OtelConfig, traces_url};
pub use outbox::OutboxConfig;
pub use policy::{Alarm, ChildLimits, is_masked};
pub use problem::{ConfigProblem, Problems};
pub use secrets::without_userinfo;
pub use shape::schema;
pub use topics::TopicsConfig;
pub use topology::Topology;
pub use tracker::TrackerConfig;
pub use type_settings::{SettingScope, TYPE_SETTINGS, TypeConfig, TypePolicy, TypeSetting};
pub use types::{HandlerKind, Isolation, MAX_SLOTS, OnError, Order};
pub use variables::ProgramVariables;
pub use worker::{MAX_PAYLOAD, WorkerConfig};

/// kafleet.toml. Every section is optional; an empty file is valid.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[doc(hidden)]
pub struct Config {
    /// Settings of librdkafka, passed on unchanged (TLS, SASL and others).
    pub kafka: BTreeMap<String, Scalar>,
    pub redis: RedisConfig,
    pub topics: TopicsConfig,
    pub worker: WorkerConfig,
    pub tracker: TrackerConfig,
    pub api: ApiConfig,
    pub ops: OpsConfig,
    pub log: LogConfig,
    /// Tracing with OpenTelemetry. The standard `OTEL_*` variables override it.
    pub otel: OtelConfig,
    /// Enables the outbox, whose rows in a database `kafleet outbox` publishes as tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OutboxConfig")]
    pub outbox: Option<OutboxConfig>,
    /// Apps by name: programs in any language that declare task types and run their attempts.
    pub apps: BTreeMap<String, AppConfig>,
    /// Task types by name.
    pub types: BTreeMap<String, TypeConfig>,
    /// Enables callbacks, which are tasks of the type `kafleet-callback`, and limits their destinations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CallbacksConfig")]
    pub callbacks: Option<CallbacksConfig>,
    /// Enables emails, which are tasks of the type `kafleet-email`, and sets the SMTP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EmailConfig")]
    pub email: Option<EmailConfig>,
    /// Recurring schedules by name, applied with `kafleet schedules apply`.
    pub schedules: BTreeMap<String, Spec>,
}

impl Config {
    /// Maximum ages of trees and retention of their records.
    pub fn lifetimes(&self) -> Lifetimes {
        let retention = |(name, kind): (&String, &TypeConfig)| Some((name.as_str().into(), kind.retention?.as_i64()));
        Lifetimes {
            record_retention_ms: self.topics.record_retention.as_i64(),
            max_tree_age_ms: self.topics.max_tree_age.as_i64(),
            types: self.types.iter().filter_map(retention).collect(),
        }
    }
}

/// Implements `Debug` with secrets redacted.
macro_rules! debug_without_secrets {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                secrets::debug(stringify!($name), self, f)
            }
        }
    )+};
}
debug_without_secrets!(
    AppConfig,
    EmailConfig,
    CallbacksConfig,
    Config,
    OtelConfig,
    OutboxConfig,
    RedisConfig,
    ApiConfig,
    SecretConfig,
    TokenConfig,
    TypeConfig
);

#[cfg(test)]
mod tests;
