//! The whole path: publish, work, fold, answer. In one process on the broker and the store in memory; where
//! `KAFLEET_TEST_KAFKA` and `KAFLEET_TEST_REDIS` are set, as `tests/services run` does, also on real Kafka and Redis, and
//! with roles as processes that are killed.

/// Each case in memory, and on Kafka and Redis where they are.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::inside::Fleet::in_memory().await).await;
            })*
        }
        mod on_kafka_and_redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(fleet) = crate::inside::Fleet::real().await else { return };
                super::$case(fleet).await;
            })*
        }
    };
}

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

mod anew;
mod cancelling;
mod cancels;
mod dead;
mod following;
mod inside;
mod later;
mod letters;
mod once;
#[path = "../tracker/oracle.rs"]
#[allow(dead_code, reason = "the tracker's tests use more of it")]
mod oracle;
mod policies;
mod processes;
mod rebuilding;
mod receiver;
#[path = "../redis/server.rs"]
#[allow(dead_code, reason = "the tracker's tests use more of it")]
mod redis;
mod resuming;
mod silent;
mod stopping;
mod survival;
mod tasks;
mod telling;
mod together;
#[path = "../topics/mod.rs"]
mod topics;
mod trees;
mod whole_path;
mod wire;
