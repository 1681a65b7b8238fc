//! The tracker from the log to the store. Each case ends by comparing the store with a fold of the same log into an
//! empty store. Runs on the broker and store in memory, and on real Kafka and Redis if `KAFLEET_TEST_KAFKA` and
//! `KAFLEET_TEST_REDIS` are set, as `tests/services run` does.

/// Runs each case in memory and, if available, on Kafka with a Redis of its own.
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::tracker::memory::fixture(3).0).await;
            })+
        }
        mod on_services {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some((fixture, _server)) = crate::tracker::services::fixture(2) else { return };
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
mod fixture;
mod lost_keys;
mod lost_tasks;
mod memory;
mod notifications;
mod outages;
mod outbox;
mod rebuild;
mod records;
mod schedules;
mod services;
mod steps;
mod waiting;
mod withdrawals;
