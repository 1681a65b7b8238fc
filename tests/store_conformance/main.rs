//! What every store promises, over each of them: the memory store always, Redis when `KAFLEET_TEST_REDIS` names one
//! (`redis://127.0.0.1:6379`), and then also a cluster and a master behind sentinels, which `topologies` starts from
//! `redis-server` in the path. Each case has a key prefix of its own. `redis_only` is for what only Redis can do wrong.

mod bench;
mod cases;
mod losses;
mod redis_only;
#[path = "../redis/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tracker's tests use more of it")]
mod servers;
mod topologies;

/// Each case as a test over each store, and all of them in a row over servers that were started for them.
macro_rules! conformance {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let bench = crate::bench::Bench::memory();
                crate::cases::$case(&bench).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(bench) = crate::bench::Bench::redis(stringify!($case)) else { return };
                bench.wipe().await;
                crate::cases::$case(&bench).await;
                bench.wipe().await;
            })*
        }
        async fn every_case(bench: impl Fn(&str) -> crate::bench::Bench) {
            $(
                eprintln!("{}", stringify!($case));
                crate::cases::$case(&bench(stringify!($case))).await;
            )*
        }
    };
}

conformance! {
    a_partition_begins_without_a_fence,
    a_batch_from_a_stale_place_changes_nothing,
    of_two_writers_the_second_wins,
    a_wiped_store_is_noticed,
    a_store_that_went_back_is_noticed,
    what_came_and_went_is_noticed,
    a_store_that_went_back_twice_is_noticed,
    a_writer_is_closed_after_a_refusal,
    an_empty_batch_moves_the_fence,
    records_come_back_as_they_were,
    a_batch_larger_than_a_command_is_one,
    indexes_have_their_order,
    a_task_moves_between_indexes,
    pages_go_on_after_what_is_gone,
    pages_are_exact_where_all_share_a_time,
    pages_are_stable_under_writes,
    counts_add_up_over_partitions,
    logs_keep_their_newest_lines_and_their_numbers,
    logs_are_bounded_in_bytes,
    a_log_goes_on_under_the_next_writer,
    an_id_is_reserved_once,
    a_reservation_is_replaced_by_its_holder_alone,
    a_renewed_lease_does_not_expire,
    a_reservation_expires,
    notices_tell_what_changed,
    a_slow_listener_is_told_of_a_gap,
    what_is_due_comes_with_its_fence,
    finished_roots_come_by_the_time_of_their_removal,
    kept_records_stay_until_they_are_dropped,
    attachments_stay_until_they_are_taken_away_or_their_task_goes,
    partitions_are_apart,
}
