//! kafleet: a Kafka-native task fleet. This package is the program and what applications depend on; its parts are the
//! crates of `crates/`, which it re-exports.
//!
//! Producers publish typed tasks to per-type Kafka topics, stateless workers run them and publish events, a
//! tracker projects the events into Redis, and an API serves the state. The modules in the order of the data flow:
//! `model` → `config` → `handlers` → `publish` → `broker` → `worker` → `tracker` → `store` → `api` → `cli`.
//!
//! An application with its own task types starts with [`app()`] and uses [`handlers`], the types of [`config`] that
//! its constants name, and the parts of [`model`] that its code receives. The other modules are hidden from the
//! documentation: they are public for the tests in `tests/` and may change in any release.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[doc(hidden)]
pub mod cli;

pub mod builder;

pub use builder::app;
pub use kafleet_client as client;
pub use kafleet_config as config;
pub use kafleet_documents as documents;
pub use kafleet_handlers as handlers;
pub use kafleet_model as model;

#[doc(hidden)]
pub use kafleet_api as api;
#[doc(hidden)]
pub use kafleet_apps as apps;
#[doc(hidden)]
pub use kafleet_bench as bench;
#[doc(hidden)]
pub use kafleet_broker as broker;
#[doc(hidden)]
pub use kafleet_fleet::{control, dead_letters, publish, topics};
#[doc(hidden)]
pub use kafleet_outbox as outbox;
#[doc(hidden)]
pub use kafleet_runtime as runtime;
#[doc(hidden)]
pub use kafleet_runtime::error_text;
#[doc(hidden)]
pub use kafleet_store as store;
#[doc(hidden)]
pub use kafleet_telemetry as telemetry;
#[doc(hidden)]
pub use kafleet_tracker as tracker;
#[doc(hidden)]
pub use kafleet_ui as ui;
#[doc(hidden)]
pub use kafleet_worker as worker;
