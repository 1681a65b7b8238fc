//! Conformance suite of the stores: in memory always, on Redis if `KAFLEET_TEST_REDIS` names one
//! (`redis://127.0.0.1:6379`), and then also on a cluster and a master behind sentinels, which `topologies` starts
//! from `redis-server` in the path. Each case has its own key prefix. `redis_only` covers faults that only Redis can
//! have.

mod cases;
mod fixture;
mod losses;
mod permissions;
mod redis_only;
mod topologies;

/// Runs each case as a test over each store, and all of them in sequence over servers started for them.
macro_rules! conformance {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let fixture = crate::store_conformance::fixture::Fixture::memory();
                crate::store_conformance::cases::$case(&fixture).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(fixture) = crate::store_conformance::fixture::Fixture::redis(stringify!($case)) else { return };
                fixture.wipe().await;
                crate::store_conformance::cases::$case(&fixture).await;
                fixture.wipe().await;
            })*
        }
        async fn every_case(fixture: impl Fn(&str) -> crate::store_conformance::fixture::Fixture) {
            $(
                eprintln!("{}", stringify!($case));
                crate::store_conformance::cases::$case(&fixture(stringify!($case))).await;
            )*
        }
    };
}

conformance! {
    partition_starts_without_a_checkpoint,
    batch_from_a_stale_checkpoint_is_rejected,
    second_writer_fences_the_first,
    wiped_store_is_detected,
    restored_store_is_detected,
    temporary_data_is_detected,
    store_restored_twice_is_detected,
    writer_is_closed_after_a_rejection,
    empty_batch_moves_the_checkpoint,
    records_round_trip,
    batch_larger_than_a_command_is_atomic,
    indexes_are_ordered,
    task_moves_between_indexes,
    pages_continue_after_removed_entries,
    pages_are_exact_when_all_entries_share_a_time,
    pages_are_stable_under_writes,
    counts_add_up_over_partitions,
    logs_keep_newest_lines_and_their_numbers,
    logs_are_bounded_in_bytes,
    log_continues_under_the_next_writer,
    id_is_reserved_once,
    reservation_is_replaced_only_by_its_holder,
    renewed_lease_does_not_expire,
    reservation_expires,
    notices_name_changed_tasks,
    slow_listener_receives_a_gap,
    outbox_is_read_with_its_checkpoint,
    finished_roots_are_ordered_by_removal_time,
    deferred_records_stay_until_they_are_dropped,
    attachments_stay_until_removed_or_their_task_is,
    partitions_are_isolated,
    statistics_are_read_with_counters_and_checkpoint,
    removed_aggregates_are_gone,
    errors_are_grouped_by_frequency,
    errors_are_grouped_by_kind,
    recent_failures_are_counted_from_a_time,
    newest_requests_are_kept,
    totals_name_lost_statistics,
}
