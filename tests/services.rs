//! Tests of the roles and of the backends, in memory, and on a real Kafka and Redis where `tests/services run` sets
//! their addresses. One binary, because each one links the whole library.

mod api;
mod cli;
mod client;
mod digest_tree;
mod email;
mod fleet;
mod kafka_broker;
mod store_conformance;
mod tracker;
mod ui;
mod worker;
