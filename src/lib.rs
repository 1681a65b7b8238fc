//! kafleet: a Kafka-native task fleet.
//!
//! Producers publish typed tasks to per-type Kafka topics, stateless workers consume them and publish what happened, a
//! tracker folds those events into Redis, and an api answers from there. The folder list is the data's path:
//!
//! [`model`] → [`config`] → [`handlers`] → [`broker`] → [`worker`] → [`tracker`] → [`store`] → [`api`] → [`cli`].

pub mod broker;
pub mod model;
pub mod store;
