//! The whole path: publish, execute, fold, query. In one process on the in-memory broker and store; where
//! `KAFLEET_TEST_KAFKA` and `KAFLEET_TEST_REDIS` are set, as `tests/services run` does, also on real Kafka and Redis,
//! and with roles as processes that are killed.

/// Declares each case twice: in memory, and on Kafka and Redis.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::fleet::in_process::Fleet::in_memory().await).await;
            })*
        }
        mod on_kafka_and_redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(fleet) = crate::fleet::in_process::Fleet::with_services().await else { return };
                super::$case(fleet).await;
            })*
        }
    };
}

mod acls;
mod adaptive;
mod atomic_batches;
mod cancel_cli;
mod cancel_latency;
mod collector;
mod commit_metadata;
mod continuations;
mod dead_letter_listing;
mod dead_letters;
mod delays_and_retries;
mod emptied_store;
mod end_to_end;
mod exact_values;
mod failure_policies;
mod fault_proxy;
mod http_receiver;
mod idempotent_creation;
mod in_process;
mod kafka_acls;
mod kafka_transactions;
mod large_tree;
mod live_rebuild;
mod notifications;
mod process_crashes;
mod rebuild_after_wipe;
mod silent_worker;
mod task_types;
mod tracing;
mod tracker_crash_points;
mod unique_tasks;
