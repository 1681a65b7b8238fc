//! The tracker, from the log to the store. Each case ends with the same question: does the store hold what a fold of the
//! same log into an empty store gives? On the broker and the store in memory, and on real Kafka and Redis where
//! `KAFLEET_TEST_KAFKA` and `KAFLEET_TEST_REDIS` are set, as `tests/services run` does.

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

/// Runs each of these cases in memory, and on Kafka and a Redis of its own where they are there.
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::memory::ground(3).0).await;
            })+
        }
        mod on_services {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some((ground, _server)) = crate::services::ground(2) else { return };
                super::$case(ground).await;
            })+
        }
    };
}

mod ages;
mod broker;
mod cases;
mod counts;
mod faults;
mod firing;
mod ground;
mod losses;
mod memory;
mod observed;
mod oracle;
mod rebuild;
mod records;
#[path = "../redis/mod.rs"]
#[allow(dead_code, reason = "the store's tests use more of it")]
mod redis;
mod schedules;
mod selfish;
mod services;
mod shaky;
mod story;
mod telling;
mod trouble;
mod waiting;
mod withdrawals;
