//! Statistics: totals against the records after every event, and examples of what counts.

use std::collections::BTreeSet;

use super::*;
use crate::statistics::aggregate::Level;
use crate::statistics::{ALL, Statistics, StoredStatistics};

/// Fields of an aggregate in this order: opened, succeeded, failed, cancelled, expired, dropped, retried, duplicates.
fn counters(aggregate: &Aggregate) -> [u64; 8] {
    let Aggregate { opened, succeeded, failed, cancelled, expired, dropped, retried, duplicates, .. } = *aggregate;
    [opened, succeeded, failed, cancelled, expired, dropped, retried, duplicates]
}

/// Sum of a series: its days, and the open minute.
fn total(kept: &ProjectedStore, series: &str) -> Aggregate {
    let open = kept.overview.as_ref().and_then(|overview| overview.minute).unwrap_or_default();
    let mut sum = Aggregate::default();
    for ((_, key), aggregate) in kept.aggregates.iter().filter(|((name, _), _)| &**name == series) {
        let is_open = key.level == Level::Minute && key.number == open;
        if key.level == Level::Day || is_open {
            sum.merge(aggregate);
        }
    }
    sum
}

fn decoded(kept: &ProjectedStore) -> BTreeMap<TaskId, TaskRecord> {
    kept.task_records.iter().map(|(id, bytes)| (id.clone(), TaskRecord::decode(bytes).unwrap())).collect()
}

fn is_open(task: Option<&TaskRecord>, task_type: &str) -> bool {
    task.is_some_and(|task| task.task_type.as_deref() == Some(task_type) && !task.own.is_terminal())
}

/// Counts by comparing all records before and after an event.
fn count_differences(sums: &mut BTreeMap<Arc<str>, [u64; 8]>, before: &ProjectedStore, after: &ProjectedStore) {
    let (before, after) = (decoded(before), decoded(after));
    let types: BTreeSet<Arc<str>> =
        before.values().chain(after.values()).filter_map(|task| task.task_type.clone()).collect();
    for task_type in types {
        let sum = sums.entry(task_type.clone()).or_default();
        for (id, now) in &after {
            let was = before.get(id);
            let (was_open, open) = (is_open(was, &task_type), is_open(Some(now), &task_type));
            let is_same =
                was.is_some_and(|was| (was.own, was.run, &was.task_type) == (now.own, now.run, &now.task_type));
            let ended = now.task_type.as_ref() == Some(&task_type) && now.own.is_terminal() && !is_same;
            sum[0] += u64::from(!was_open && (open || ended));
            let index = [State::Succeeded, State::Failed, State::Cancelled, State::Expired];
            if let Some(index) = index.iter().position(|state| ended && *state == now.own) {
                sum[1 + index] += 1;
            }
            sum[5] += u64::from(was_open && !open && !ended);
            let repeated = now.history.duplicates - was.map_or(0, |was| was.history.duplicates);
            sum[7] += u64::from(repeated) * u64::from(now.task_type.as_ref() == Some(&task_type));
        }
    }
}

/// Checks the numbers of open and of failed tasks against the records.
fn expect_consistent(kept: &ProjectedStore) {
    let tasks = decoded(kept);
    let types: BTreeSet<Arc<str>> = tasks.values().filter_map(|task| task.task_type.clone()).collect();
    let mut errors: BTreeMap<(Arc<str>, Fingerprint), i64> = BTreeMap::new();
    for task_type in &types {
        let open = tasks.values().filter(|task| is_open(Some(task), task_type)).count() as i64;
        assert_eq!(total(kept, task_type).open_change(), open, "opened - ended - dropped of {task_type}");
        let of_type = tasks.values().filter(|task| task.task_type.as_ref() == Some(task_type));
        for task in of_type.filter(|task| matches!(task.own, State::Failed | State::Expired)) {
            *errors.entry((task_type.clone(), Fingerprint::of(task.outcome.error.as_deref()))).or_default() += 1;
        }
    }
    assert_eq!(kept.errors, errors, "failed tasks by error");
    assert_eq!(total(kept, ALL).open_change(), kept.open, "open tasks of all types");
    let pending = |state: &State| !state.is_terminal() && *state != State::WaitingForChildren;
    let counted: i64 = kept.counts.iter().filter(|((_, state), _)| pending(state)).map(|(_, count)| count).sum();
    assert_eq!(kept.open, counted, "open tasks by the counters");
    let failed = kept.index.iter().filter(|entry| entry.starts_with("(Failed")).count() as i64;
    assert_eq!(
        failed,
        2 * errors.values().sum::<i64>(),
        "entries in the indexes of failed tasks, by message and by kind"
    );
}

/// Events of two types: the type of a task may change with its run.
fn any_typed_event() -> impl Strategy<Value = Event> {
    (any_event(), any::<bool>()).prop_map(|(mut event, other)| {
        if let Some(task) = event.task.as_mut().filter(|_| other) {
            task.task_type = "other".into();
        }
        event
    })
}

const HOUR: i64 = 3_600_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Statistics equal a count of the differences between all records, after every event.
    #[test]
    fn statistics_equal_a_comparison_of_all_records(log in prop::collection::vec(any_typed_event(), 1..50)) {
        let (mut before, mut sums) = (ProjectedStore::default(), BTreeMap::new());
        for n in 1..=log.len() {
            let after = fold_paced(&log[..n], n, 1_000, 20_000);
            expect_consistent(&after);
            count_differences(&mut sums, &before, &after);
            for (task_type, sum) in &sums {
                let mut counted = counters(&total(&after, task_type));
                // Attempts leave no trace in the record.
                counted[6] = 0;
                prop_assert_eq!(&counted, sum, "{} after {:?}", task_type, log[n - 1].kind());
            }
            before = after;
        }
    }

    /// Batch boundaries do not change any aggregate, and aggregates are dropped in time.
    #[test]
    fn aggregates_are_independent_of_batches(
        log in prop::collection::vec(any_typed_event(), 1..80), batch in 1usize..20, pace_ms in 1_000..30 * HOUR,
    ) {
        let all = fold_paced(&log, log.len(), 1_000, pace_ms);
        prop_assert_eq!(&fold_paced(&log, batch, 3, pace_ms), &all);
        let hour = all.overview.as_ref().and_then(Overview::open_hour).unwrap();
        prop_assert!(all.aggregates.keys().all(|(_, key)| key.number >= key.level.first_kept(hour)));
        prop_assert!(all.error_summaries.keys().all(|(_, kept)| *kept >= hour - 24));
        let listed: BTreeSet<_> = all.overview.iter().flat_map(|overview| &overview.series).map(|listed| listed.name.clone()).collect();
        prop_assert_eq!(listed, all.aggregates.keys().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>());
    }

    /// A fold that begins after the first events counts exactly once no task is left from before its beginning.
    #[test]
    fn cut_log_counts_exactly_after_the_tasks_from_before_it(
        early in prop::collection::vec(any_typed_event(), 1..40),
        late in prop::collection::vec(any_typed_event(), 1..40),
        cut in any::<prop::sample::Index>(),
        batch in 1usize..20,
        pace_ms in 1_000..3 * HOUR,
    ) {
        let first = cut.index(early.len());
        let late = late.into_iter().map(|event| Event { id: id(&format!("late-{}", event.id)), ..event });
        let exact_from_ms = 1_000 + early.len() as i64 * pace_ms;
        let log: Vec<Event> = early.into_iter().chain(late).collect();
        let exact = |kept: &ProjectedStore| -> Vec<_> {
            let aggregates = kept.aggregates.clone().into_iter();
            aggregates.filter(|((_, key), _)| key.starts_ms() >= exact_from_ms).collect()
        };
        let errors = |kept: &ProjectedStore| -> Vec<_> {
            let summaries = kept.error_summaries.clone().into_iter();
            summaries.filter(|((_, hour), _)| hour * HOUR >= exact_from_ms).collect()
        };
        let (uncut, rest) = (fold_paced(&log, 7, 1_000, pace_ms), fold_cut(&log, first, batch, 3, pace_ms));
        prop_assert_eq!(rest.overview.as_ref().map(|overview| overview.began), Some(first as i64));
        prop_assert_eq!(exact(&rest), exact(&uncut));
        prop_assert_eq!(errors(&rest), errors(&uncut));
    }
}

fn of_type(mut event: Event, task_type: &str) -> Event {
    event.task.as_mut().unwrap().task_type = task_type.into();
    event
}

fn echo(log: &[Event]) -> [u64; 8] {
    counters(&total(&fold_log(log, 3, 100), "echo"))
}

#[test]
fn each_run_counts_once_and_later_ends_as_duplicates() {
    let log = [submitted("a"), event(Kind::Started, "a"), failed("a"), event(Kind::Succeeded, "a")];
    assert_eq!(echo(&log), [1, 0, 1, 0, 0, 0, 0, 1]);
    let again = [in_run(submitted("a"), 2), in_run(event(Kind::Succeeded, "a"), 2)];
    assert_eq!(echo(&[&log[..], &again].concat()), [2, 1, 1, 0, 0, 0, 0, 1]);
    // A new run of a task that is still open neither ends nor drops it.
    assert_eq!(echo(&[submitted("a"), in_run(submitted("a"), 2)]), [1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn task_counts_once_its_type_is_known() {
    let late = [event(Kind::Succeeded, "a"), submitted("a")];
    assert_eq!(echo(&late[..1]), [0; 8]);
    assert_eq!(echo(&late), [1, 1, 0, 0, 0, 0, 0, 0]);
    let changed = [submitted("a"), in_run(of_type(submitted("a"), "other"), 2)];
    let kept = fold_log(&changed, 1, 100);
    assert_eq!(counters(&total(&kept, "echo")), [1, 0, 0, 0, 0, 1, 0, 0], "the task continues as another type");
    assert_eq!(counters(&total(&kept, "other")), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(counters(&total(&kept, ALL)), [2, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn external_task_counts_each_reported_end_and_no_times() {
    let log = [external("x", false), reported("x", State::Running), reported("x", State::Succeeded)];
    let log = [&log[..], &[reported("x", State::Running), reported("x", State::Failed)]].concat();
    let kept = fold_log(&log, 2, 100);
    let aggregate = total(&kept, "echo");
    assert_eq!(counters(&aggregate), [2, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!((aggregate.wait.count(), aggregate.run.count(), aggregate.busy_ms), (0, 0, 0));
}

#[test]
fn removed_open_task_counts_as_dropped() {
    let task = fold_log(&[submitted("a")], 1, 100).task("a");
    let ended = fold_log(&[submitted("b"), failed("b")], 1, 100).task("b");
    let mut working_set = WorkingSet::default();
    let changes = working_set.remove(vec![(id("a"), task), (id("b"), ended)], 5 * HOUR).unwrap();
    let mut kept = ProjectedStore::default();
    kept.apply_statistics(changes.statistics);
    assert_eq!((counters(&total(&kept, "echo"))[5], kept.open), (1, -1));
    assert!(changes.errors.iter().all(|(_, _, change)| *change == -1) && changes.errors.len() == 1);
}

#[test]
fn waits_and_durations_are_those_of_the_writers_clocks() {
    let at = |mut event: Event, at_ms: i64| {
        event.at_ms = at_ms;
        event
    };
    let planned = Policy { not_before_ms: Some(1_000), ..Policy::default() };
    let aggregate = |log: &[Event]| total(&fold_log(log, 2, 100), "echo");
    let first = [with_policy("a", planned), at(event(Kind::Started, "a"), 1_010)];
    assert_eq!(aggregate(&first).wait.max_ms(), 10, "the wait begins at the planned start");
    // A start that precedes the announcement in the log counts with the announcement.
    let early = [at(event(Kind::Started, "a"), 11), submitted("a")];
    assert_eq!((aggregate(&early[..1]).wait.count(), aggregate(&early).wait.max_ms()), (0, 7));
    let ends = [submitted("a"), at(began(retrying("a", 1, 90), Some(20)), 50)];
    let ends = [&ends[..], &[at(began(event(Kind::Succeeded, "a"), Some(100)), 400)]].concat();
    let sum = aggregate(&ends);
    assert_eq!((sum.busy_ms, sum.run.count(), sum.run.max_ms(), sum.retried), (330, 1, 300, 1));
    assert_eq!((sum.wait.count(), sum.wait.max_ms()), (1, 16), "only the first attempt of a run waits");
    // Clocks that contradict each other give 0.
    assert_eq!(aggregate(&[submitted("a"), at(event(Kind::Started, "a"), 1)]).wait.max_ms(), 0);
    let retry = at(event(Kind::RetryRequested, "a"), 1_000);
    let again = [&ends[..], &[retry, in_run(at(event(Kind::Started, "a"), 1_900), 2)]].concat();
    assert_eq!(
        (aggregate(&again).wait.count(), aggregate(&again).wait.max_ms()),
        (2, 900),
        "a retry waits from its request"
    );
}

#[test]
fn errors_count_attempts_and_ended_tasks() {
    let log =
        [submitted("a"), retrying("a", 1, 90), event(Kind::Released, "a"), failed("a"), submitted("b"), failed("b")];
    let kept = fold_log(&log, 2, 100);
    let errors = &kept.error_summaries[&("echo".into(), 0)].errors;
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].attempts, errors[0].tasks, &*errors[0].text), (3, 2, "broken"));
    assert_eq!(errors[0].first_end_ms, Some(1_003), "not the time of the failed attempt");
}

#[test]
fn types_beyond_the_limit_share_a_series() {
    let log: Vec<Event> = (0..210).map(|n| of_type(submitted(&format!("t{n}")), &format!("type-{n}"))).collect();
    let kept = fold_log(&log, 50, 1_000);
    assert_eq!(kept.overview.as_ref().unwrap().series.len(), 202, "200 types, all, and others");
    assert_eq!((total(&kept, "~").opened, total(&kept, "*").opened), (10, 210));
    assert_eq!((total(&kept, "type-199").opened, total(&kept, "type-200").opened), (1, 0));
}

/// A writer that resumes from the store continues as if it had not stopped.
#[test]
fn resumed_statistics_continue() {
    let observation = |n: u64| crate::statistics::Observation {
        task_type: Some(format!("type-{}", n % 3).into()),
        opened: true,
        wait_ms: Some(n),
        errors: vec![(Fingerprint(n % 20), "text".into(), Some(n as i64))],
        ..Default::default()
    };
    let run = |resumes: bool| {
        let (mut kept, mut statistics) = (ProjectedStore::default(), Statistics::begin(7));
        for n in 0..400 {
            statistics.advance(n as i64 * 1_000_000);
            statistics.record(observation(n));
            if n % 7 == 0 {
                kept.apply_statistics(statistics.take_changes().unwrap());
            }
            if resumes && n % 21 == 0 {
                let overview = kept.overview.clone();
                let open = overview.as_ref().unwrap().open_aggregates();
                let hour = overview.as_ref().unwrap().open_hour().unwrap();
                let aggregates = kept.aggregates.iter().filter(|((_, key), _)| open.contains(key));
                let errors = kept.error_summaries.iter().filter(|((_, of), _)| *of == hour);
                let stored = StoredStatistics {
                    overview,
                    aggregates: aggregates
                        .map(|((name, key), aggregate)| (name.clone(), *key, aggregate.clone()))
                        .collect(),
                    errors: errors.map(|((name, _), aggregate)| (name.clone(), aggregate.clone())).collect(),
                };
                statistics = Statistics::resume(stored, 99);
            }
        }
        kept.apply_statistics(statistics.take_changes().unwrap());
        kept
    };
    let kept = run(true);
    assert_eq!(kept, run(false));
    assert_eq!(kept.overview.unwrap().began, 7);
}
