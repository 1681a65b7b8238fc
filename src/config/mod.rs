//! Configuration (kafleet.toml): one module per section, with its checks.
//!
//! The structs are the file's contract: `schemas/config.json` is generated from them. Loading an invalid file returns
//! the list of all its problems.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::retention::Lifetimes;
use crate::model::schedule::Spec;

#[doc(hidden)]
mod api;
#[doc(hidden)]
mod apps;
#[doc(hidden)]
mod callbacks;
#[doc(hidden)]
mod changes;
#[doc(hidden)]
mod checks;
#[doc(hidden)]
mod document;
#[doc(hidden)]
mod email;
#[doc(hidden)]
mod email_address;
#[doc(hidden)]
mod kafka;
#[doc(hidden)]
mod load;
#[doc(hidden)]
mod log;
#[doc(hidden)]
mod names;
#[doc(hidden)]
mod ops;
#[doc(hidden)]
mod otel;
mod policy;
#[doc(hidden)]
mod problem;
#[doc(hidden)]
mod redis;
#[doc(hidden)]
mod rules;
#[doc(hidden)]
mod secrets;
#[doc(hidden)]
mod shape;
#[doc(hidden)]
mod topics;
#[doc(hidden)]
mod topology;
#[doc(hidden)]
mod tracker;
#[doc(hidden)]
mod type_rules;
mod type_settings;
mod types;
#[doc(hidden)]
mod variables;
#[doc(hidden)]
mod worker;

pub use self::redis::RedisConfig;
pub use crate::model::units::bytes::Bytes;
pub use crate::model::units::rate::{Rate, RateBy};
pub use api::{ApiConfig, MIN_TOKEN_CHARS, Role, TRACE_ID, TokenConfig, UiConfig, UiMode};
pub use apps::{AppConfig, combine_policy, written_keys};
pub use callbacks::{CallbacksConfig, SecretConfig};
pub use changes::{ChangedKey, changes};
pub use email::{EmailConfig, MailTls};
pub use email_address::{AddressPattern, parse_mailbox};
pub use kafka::Scalar;
pub use load::{DEFAULT_BROKERS, DEFAULT_FILE, LoadedConfig, Overrides, load, load_with};
pub use log::LogConfig;
pub use names::{Names, TypeGroups, app_group};
pub use ops::OpsConfig;
pub use otel::{OtelConfig, traces_url};
pub use policy::{Alarm, ChildLimits};
pub use problem::{ConfigProblem, Problems};
pub(crate) use secrets::without_userinfo;
pub use shape::schema;
pub use topics::TopicsConfig;
pub use topology::Topology;
pub use tracker::TrackerConfig;
pub(crate) use type_settings::with_type_settings;
pub use type_settings::{SettingScope, TYPE_SETTINGS, TypeConfig, TypePolicy, TypeSetting};
pub use types::{HandlerKind, Isolation, MAX_SLOTS, OnError, Order};
pub use variables::ProgramVariables;
pub use worker::{MAX_PAYLOAD, WorkerConfig};

/// kafleet.toml. Every section is optional; an empty file is valid.
#[doc(hidden)]
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
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
    RedisConfig,
    ApiConfig,
    SecretConfig,
    TokenConfig,
    TypeConfig
);

#[cfg(test)]
mod tests;
