//! kafleet: a Kafka-native task fleet.
//!
//! Producers publish typed tasks to per-type Kafka topics, stateless workers consume them and publish what happened, a
//! tracker folds those events into Redis, and an api answers from there. The folder list is the data's path:
//!
//! [`model`] → [`config`] → [`handlers`] → [`publish`] → [`broker`] → [`worker`] → [`tracker`] → [`store`] → [`api`] → [`cli`]. A fleet of your own begins with [`app()`].

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
