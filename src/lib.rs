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

// Unit tests share the test kit, which names this crate.
#[cfg(test)]
extern crate self as kafleet;

#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod api;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod apps;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod bench;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod broker;
#[cfg(feature = "fleet")]
pub mod builder;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "fleet")]
pub mod config;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod control;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod dead_letters;
// Fields without a comment are explained by their names.
#[allow(missing_docs)]
pub mod documents;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod error_text;
#[cfg(feature = "fleet")]
pub mod handlers;
// The client needs only a part of it.
#[cfg_attr(not(feature = "fleet"), allow(dead_code))]
pub mod model;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod publish;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod runtime;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod store;
#[cfg(all(test, feature = "fleet"))]
#[path = "../tests/support"]
#[allow(unused, unreachable_pub, reason = "unit tests use a part of it")]
mod support {
    pub mod faults;
    pub mod wait;
}
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod telemetry;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod topics;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod tracker;
#[cfg(feature = "fleet")]
#[doc(hidden)]
pub mod worker;

#[cfg(feature = "fleet")]
pub use builder::app;
