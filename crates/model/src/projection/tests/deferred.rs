//! Deferred tasks and their releases.

use super::*;
use crate::outbox::{Timer, TimerKind};
use crate::retry::RunUsage;

#[test]
fn scheduled_task_waits_with_its_record_until_its_release() {
    let scheduled = deferred("a", 700);
    let projected = fold_log(std::slice::from_ref(&scheduled), 1, 9);
    let task = projected.task("a");
    assert_eq!(
        (task.state, task.times.due_ms, task.definition.record_event_offset),
        (State::Scheduled, Some(700), Some(0))
    );
    assert_eq!(task.timer().map(|timer| (timer.due_ms, timer.kind)), Some((700, TimerKind::Release)));
    assert_eq!(projected.deferred[&id("a")], record().encode().unwrap());
    let log = [scheduled.clone(), event(Kind::Released, "a"), scheduled.clone(), event(Kind::Started, "a"), scheduled];
    assert_eq!(states(&log, "a"), ["scheduled", "queued", "queued", "running", "running"]);
    assert!(
        fold_log(&log[..2], 2, 9).deferred.is_empty(),
        "a record deferred and released within one batch is never stored"
    );
    assert!(fold_log(&log, 1, 9).deferred.is_empty());
}

#[test]
fn deferred_retry_waits_until_its_release_or_the_end_of_the_task() {
    let retrying = retrying("a", 2, 900);
    let ends = [Kind::Released, Kind::Succeeded, Kind::Failed, Kind::Cancelled].map(|kind| (kind, 0));
    // Late events of a worker that was cut off in its next attempt before another one deferred the record.
    let goes_on = [Kind::Started, Kind::Warned, Kind::Retrying, Kind::Scheduled, Kind::Progress, Kind::Submitted];
    for (next, projected) in ends.into_iter().chain(goes_on.map(|kind| (kind, 1))) {
        let mut next = event(next, "a");
        next.attempt = 3;
        let log = [submitted("a"), retrying.clone(), next];
        assert_eq!(fold_log(&log, 2, 9).deferred.len(), projected, "{log:?}");
    }
    let projected = fold_log(&[submitted("a"), retrying, released(2)], 1, 9);
    assert_eq!((projected.task("a").attempt, projected.task("a").state), (2, State::Queued));
}

#[test]
fn unknown_kind_does_not_defer_its_record() {
    let mut retrying = event(Kind::Retrying, "a");
    retrying.attempt = 1;
    retrying.payload.set_due(900);
    let unknown =
        br#"{"v":2,"kind":"rested","id":"a","attempt":2,"at_ms":5,"data":{"due_ms":900,"record":{"headers":[],"params":1}}}"#;
    let unknown = Event::decode(unknown).unwrap();
    let projected = fold_log(&[submitted("a"), retrying, unknown], 1, 9);
    assert_eq!((projected.deferred.len(), projected.task("a").timer()), (0, None));
}

/// A worker that missed the acknowledgement of its events sends them again, after later events.
#[test]
fn resent_events_neither_remove_nor_restore_a_deferred_record() {
    let retrying = retrying("a", 2, 900);
    for kind in [Kind::Started, Kind::Warned, Kind::Retrying] {
        let mut again = event(kind, "a");
        again.attempt = 2;
        let projected = fold_log(&[submitted("a"), retrying.clone(), again], 1, 9);
        assert_eq!((projected.deferred.len(), projected.task("a").state), (1, State::Retrying), "{kind:?}");
        assert!(projected.task("a").timer().is_some_and(|timer| timer.kind == TimerKind::Release), "{kind:?}");
    }
    let mut third = event(Kind::Started, "a");
    third.attempt = 3;
    let log = [submitted("a"), retrying.clone(), released(2), retrying.clone(), third, retrying];
    assert_eq!(states(&log, "a"), ["queued", "retrying", "queued", "queued", "running", "running"]);
    assert!(fold_log(&log, 1, 9).deferred.is_empty());
}

fn released(attempt: u32) -> Event {
    Event { attempt, ..event(Kind::Released, "a") }
}

/// A repeated parent publishes its child again. The first copy waits for its second attempt when the other copy is
/// released, whose first attempt fails too: whichever of the two waits is released in the end.
#[test]
fn release_of_one_wait_does_not_end_another() {
    let scheduled = deferred("a", 700);
    let retrying = retrying("a", 1, 900);
    let log = [scheduled.clone(), released(0), scheduled, retrying.clone(), released(0), retrying, released(1)];
    let expected = ["scheduled", "queued", "queued", "retrying", "retrying", "retrying", "queued"];
    assert_eq!(states(&log, "a"), expected);
    for waits in 4..7 {
        let projected = fold_log(&log[..waits], 1, 9);
        assert_eq!(
            (projected.deferred.len(), projected.task("a").timer().map(|timer| timer.kind)),
            (1, Some(TimerKind::Release)),
            "{waits}"
        );
    }
    assert!(fold_log(&log, 1, 9).deferred.is_empty());
}

/// A worker is killed in the second attempt. The worker that takes over counts from the beginning and defers the record
/// after a first attempt without a `started` event: it no longer has the record itself.
#[test]
fn record_deferred_after_a_takeover_is_stored() {
    let at = |kind, attempt| Event { attempt, ..event(kind, "a") };
    let handed = |attempt| Event { attempt, ..with_record(at(Kind::Retrying, attempt), 900) };
    let first = [submitted("a"), at(Kind::Started, 1), at(Kind::Retrying, 1), at(Kind::Started, 2), handed(1)];
    let second = [released(1), at(Kind::Started, 2), at(Kind::Retrying, 2), at(Kind::Started, 3), handed(2)];
    for log in [first.to_vec(), [first, second].concat()] {
        let projected = fold_log(&log, 1, 9);
        let task = projected.task("a");
        assert_eq!(
            (projected.deferred.len(), task.state, task.attempt),
            (1, State::Retrying, log[log.len() - 1].attempt)
        );
        assert!(task.timer().is_some_and(|timer| timer.kind == TimerKind::Release));
    }
}

fn waits(attempt: u32, waits: u32, due_ms: i64) -> Event {
    let failure = AttemptFailure::new("rate_limited", "later", attempt);
    let payload = Payload::Retrying { failure, due_ms: None, record: None, waits };
    with_record(Event { attempt, ..event(payload, "a") }, due_ms)
}

fn released_after(attempt: u32, waits: u32) -> Event {
    Event { attempt, ..event(Payload::Released { position: None, waits, ask: None }, "a") }
}

fn record_with_waits(waits: &str) -> RecordCopy {
    RecordCopy::of(None, [("ce_waits", waits.as_bytes())].into_iter(), RawJson::null())
}

#[test]
fn wait_counts_as_no_attempt() {
    let started = |attempt| Event { attempt, ..event(Kind::Started, "a") };
    let log = [submitted("a"), started(1), waits(1, 1, 900)];
    let task = fold_log(&log, 1, 9).task("a");
    assert_eq!(
        (task.state, task.attempt, task.deferral.waits, task.history.ends_with_wait(1)),
        (State::Retrying, 0, 1, true)
    );
    assert_eq!(task.outcome.error.map(|error| error.kind).as_deref(), Some("rate_limited"));
    let mut log = log.to_vec();
    let mut failed = retrying("a", 1, 950);
    failed.payload.set_record(record_with_waits("1,900"));
    log.extend([released_after(0, 1), started(1), failed]);
    let task = fold_log(&log, 2, 9).task("a");
    assert_eq!(
        (task.attempt, task.deferral.waits, task.history.ends_with_wait(1)),
        (1, 1, false),
        "a failure is an attempt"
    );
    log.extend([released_after(1, 1), waits(2, 2, 990)]);
    let projected = fold_log(&log, 3, 9);
    assert_eq!((projected.task("a").used(), projected.deferred.len()), (RunUsage { attempts: 1, waits: 2 }, 1));
    log.extend([in_run(submitted("a"), 2)]);
    assert_eq!(fold_log(&log, 1, 9).task("a").used(), RunUsage::default(), "a new run has used nothing");
}

/// A task was published twice. One record has waited, the other has failed and replaces it: the release names what the
/// other has used, so that its wait repeats no handover.
#[test]
fn wait_of_one_record_is_not_counted_for_another() {
    let mut log = vec![submitted("a"), waits(1, 1, 900), retrying("a", 1, 700)];
    let used = fold_log(&log, 1, 9).task("a").used();
    assert_eq!(used, RunUsage { attempts: 1, waits: 0 });
    log.extend([released_after(used.attempts, used.waits), waits(2, 1, 990)]);
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task("a").state, projected.deferred.len()), (State::Retrying, 1));
    assert_eq!(projected.task("a").used(), RunUsage { attempts: 1, waits: 1 });
}

/// The attempts are the same in both waits, only the number of waits differs.
#[test]
fn resent_wait_neither_ends_nor_repeats_a_later_one() {
    let (first, second) = (waits(1, 1, 700), waits(1, 2, 900));
    let log = [
        submitted("a"),
        first.clone(),
        released_after(0, 1),
        first.clone(),
        second.clone(),
        first,
        released_after(0, 1),
        released_after(0, 2),
        second,
    ];
    let expected = ["queued", "retrying", "queued", "queued", "retrying", "retrying", "retrying", "queued", "queued"];
    assert_eq!(states(&log, "a"), expected);
    for end in 5..8 {
        let projected = fold_log(&log[..end], 1, 9);
        assert_eq!(
            (projected.deferred.len(), projected.task("a").timer().map(|timer| timer.due_ms)),
            (1, Some(900)),
            "{end}"
        );
    }
    assert!(fold_log(&log, 1, 9).deferred.is_empty());
}

/// Workers of older builds count no waits: their failed attempt follows the released wait all the same.
#[test]
fn failure_after_a_released_wait_is_stored_without_its_waits() {
    let log = [submitted("a"), waits(1, 5, 700), released_after(0, 5), retrying("a", 1, 900)];
    let projected = fold_log(&log, 1, 9);
    assert_eq!((projected.task("a").state, projected.deferred.len()), (State::Retrying, 1));
}

/// The position before the release is no longer valid.
#[test]
fn release_without_a_position_clears_the_position() {
    let mut placed = submitted("a");
    placed.task.as_mut().unwrap().position = Some(Position { partition: 0, offset: 7 });
    let retrying = retrying("a", 1, 900);
    let mut again = submitted("a");
    again.task.as_mut().unwrap().position = Some(Position { partition: 0, offset: 70 });
    let of_the_first_record = placed.clone();
    let log = [placed, retrying, released(1), again, of_the_first_record];
    let offset = |n: usize| fold_log(&log[..n], 1, 9).task("a").definition.position.map(|position| position.offset);
    assert_eq!([2, 3, 4, 5].map(offset), [Some(7), None, Some(70), Some(70)]);
    assert_eq!(fold_log(&log, 1, 9).task("a").state, State::Queued);
}

/// The publisher reports the position of a record; that of an earlier run's record is ignored.
#[test]
fn publisher_reports_the_position_of_the_record() {
    let at = |offset| Some(Position { partition: 1, offset });
    let placed = |mut event: Event, offset| {
        event.payload.set_position(Position { partition: 1, offset });
        event
    };
    let mut failed = event(Kind::Failed, "a");
    failed.attempt = 1;
    let mut log = vec![deferred("a", 700), placed(released(0), 8), failed, event(Kind::RetryRequested, "a")];
    let effects = |log: &[Event]| fold_log(log, 1, 9).task("a").effects.iter().map(Effect::id).collect::<Vec<_>>();
    let position = |log: &[Event]| fold_log(log, 1, 9).task("a").definition.position;
    assert_eq!((position(&log), effects(&log).len()), (at(8), 1));
    let done = effect_done("a", &effects(&log)[0]);
    let mut again = log.clone();
    again.push(placed(done.clone(), 9));
    assert_eq!((position(&again), effects(&again).len()), (at(9), 0));
    let mut other = event(Kind::Failed, "a");
    (other.run, other.attempt) = (2, 1);
    log.extend([other, Event { run: 2, ..event(Kind::RetryRequested, "a") }, placed(done, 9)]);
    assert_eq!((position(&log), fold_log(&log, 1, 9).task("a").run), (at(8), 3));
}

#[test]
fn withdrawals_sort_after_all_other_effects() {
    let cancelled = [submitted("a"), event(Kind::CancelRequested, "a"), event(Kind::Cancelled, "a")];
    let with_done = |log: &[Event], effect: &str| [log, &[effect_done("a", effect)]].concat();
    let turn = |log: &[Event]| fold_log(log, 1, 9).task("a").turn();
    let waits = with_done(&cancelled, "cancel-1");
    assert_eq!((turn(&cancelled), turn(&with_done(&waits, "uncancel-2"))), (Some(1), None));
    assert!(turn(&waits) > Some(i64::from(u32::MAX)));
    assert_eq!(turn(&[&waits[..], &[event(Kind::RetryRequested, "a")]].concat()), Some(4));
}

#[test]
fn deferred_record_beyond_the_limit_stays_in_its_event() {
    let full = MAX_DEFERRED_BYTES - 3;
    let mut working_set = WorkingSet::resume(full, Lifetimes::default(), Default::default());
    working_set.load(id("a"), None);
    let mut fold = |event: &Event, offset| {
        working_set.fold(event, LogPosition { offset, log_time_ms: 2 }).unwrap();
        assert!(working_set.take_changes().unwrap().deferred.is_empty(), "nothing is stored");
        assert_eq!(working_set.deferred_bytes(), full);
        working_set.task("a").unwrap().clone()
    };
    let size = record().encode().unwrap().len() as u32;
    for (event, state, due_ms) in
        [(deferred("a", 700), State::Scheduled, 700), (waits(1, 1, 900), State::Retrying, 900)]
    {
        let task = fold(&event, due_ms);
        assert_eq!((task.state, task.deferral.record_bytes, task.deferral.only_in_log), (state, size, true));
        assert_eq!(task.definition.record_event_offset, Some(due_ms), "the record is in this event");
        assert_eq!(task.timer(), Some(Timer { due_ms, kind: TimerKind::Release }));
        assert!(!task.is_held());
        let task = fold(&released_after(task.attempt, task.deferral.waits), due_ms + 1);
        assert_eq!((task.state, task.deferral.is_deferred(), task.deferral.only_in_log), (State::Queued, false, false));
    }
}

#[test]
fn deferred_record_is_replaced_by_one_that_does_not_fit() {
    let mut working_set = WorkingSet::resume(0, Lifetimes::default(), Default::default());
    working_set.load(id("a"), None);
    working_set.fold(&deferred("a", 700), LogPosition { offset: 1, log_time_ms: 2 }).unwrap();
    working_set.take_changes().unwrap();
    working_set.records.deferred_bytes = MAX_DEFERRED_BYTES;
    let mut large = waits(1, 1, 900);
    if let Payload::Retrying { record, .. } = &mut large.payload {
        record.as_mut().unwrap().headers.push(("x".into(), "x".repeat(100)));
    }
    working_set.fold(&large, LogPosition { offset: 2, log_time_ms: 2 }).unwrap();
    let changes = working_set.take_changes().unwrap();
    assert_eq!(changes.deferred, [(id("a"), None)], "the earlier record is removed");
    let size = u64::from(record().encode().unwrap().len() as u32);
    assert_eq!(working_set.deferred_bytes(), MAX_DEFERRED_BYTES - size);
}
