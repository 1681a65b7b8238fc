//! kafleet: a Kafka-native task fleet.
//!
//! Producers publish typed tasks to per-type Kafka topics, stateless workers run them and publish events, a
//! tracker projects the events into Redis, and an API serves the state. The modules in the order of the data flow:
//! `model` → `config` → `handlers` → `publish` → `broker` → `worker` → `tracker` → `store` → `api` → `cli`.
//!
//! An application with its own task types starts with [`app()`] and uses [`handlers`], the types of [`config`] that
//! its constants name, and the parts of [`model`] that its code receives. The other modules are hidden from the
//! documentation: they are public for the crate's own tests and may change in any release.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[doc(hidden)]
pub mod api;
#[doc(hidden)]
pub mod apps;
#[doc(hidden)]
pub mod bench;
#[doc(hidden)]
pub mod broker;
pub mod builder;
#[doc(hidden)]
pub mod cli;
pub mod config;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod dead_letters;
#[doc(hidden)]
pub mod error_text;
pub mod handlers;
pub mod model;
#[doc(hidden)]
pub mod publish;
#[doc(hidden)]
pub mod runtime;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod telemetry;
#[doc(hidden)]
pub mod topics;
#[doc(hidden)]
pub mod tracker;
#[doc(hidden)]
pub mod worker;

pub use builder::app;
