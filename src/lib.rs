//! kafleet: a Kafka-native task fleet.
//!
//! Producers publish typed tasks to per-type Kafka topics, stateless workers run them and publish events, a
//! tracker projects the events into Redis, and an API serves the state. The modules in the order of the data flow:
//!
//! [`model`] → [`config`] → [`handlers`] → [`publish`] → [`broker`] → [`worker`] → [`tracker`] → [`store`] → [`api`] →
//! [`cli`]. An application with its own task types starts with [`app()`].

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod api;
pub mod app;
pub mod bench;
pub mod broker;
pub mod cli;
pub mod config;
pub mod control;
pub mod dead_letters;
pub mod handlers;
pub mod model;
pub mod publish;
pub mod runtime;
pub mod store;
pub mod telemetry;
pub mod topics;
pub mod tracker;
pub mod worker;

pub use app::app;
