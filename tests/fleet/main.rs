//! The whole path: publish, work, fold, answer. In one process on the broker and the store in memory; where
//! `KAFLEET_TEST_KAFKA` and `KAFLEET_TEST_REDIS` are set, as `tests/services run` does, also on real Kafka and Redis, and
//! with roles as processes that are killed.

mod cancelling;
mod following;
mod inside;
mod later;
#[path = "../tracker/oracle.rs"]
#[allow(dead_code, reason = "the tracker's tests use more of it")]
mod oracle;
mod policies;
mod processes;
#[path = "../tracker/redis.rs"]
#[allow(dead_code, reason = "the tracker's tests use more of it")]
mod redis;
mod resuming;
mod silent;
mod survival;
mod tasks;
mod trees;
mod whole_path;
