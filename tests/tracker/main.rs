//! The tracker from the log to the store. Each case ends by comparing the store with a fold of the same log into an
//! empty store. Runs on the broker and store in memory, and on real Kafka and Redis if `KAFLEET_TEST_KAFKA` and
//! `KAFLEET_TEST_REDIS` are set, as `tests/services run` does.

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

/// Runs each case in memory and, if available, on Kafka with a Redis of its own.
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::memory::fixture(3).0).await;
            })+
        }
        mod on_services {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some((fixture, _server)) = crate::services::fixture(2) else { return };
                super::$case(fixture).await;
            })+
        }
    };
}

mod ages;
mod announcements;
mod broker;
mod cases;
mod counts;
mod event_log;
mod faults;
mod faulty;
mod fixture;
mod lost_keys;
mod memory;
mod notifications;
mod oracle;
mod outages;
mod outbox;
mod rebuild;
mod records;
#[path = "../redis/mod.rs"]
#[allow(dead_code, reason = "the store's tests use more of it")]
mod redis;
mod schedules;
mod services;
mod sole_owner;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test crate uses a part of it")]
mod support;
mod waiting;
mod withdrawals;
