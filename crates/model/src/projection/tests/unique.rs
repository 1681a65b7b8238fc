//! Unique tasks: what the projection decides is what a short oracle decides from the same log, wherever batches begin.

use super::*;
use crate::outbox::TimerKind;
use crate::unique::id::{ask_id, tag};
use crate::unique::{AskVerdict, KeyState, UniqueMode, UniqueRule};

const TYPE: &str = "echo";

fn rule(mode: UniqueMode) -> UniqueRule {
    let rule = UniqueRule::of_key("k").with_mode(mode);
    match mode {
        UniqueMode::Debounce => rule.with_window(Millis(4)).with_max(Millis(9)),
        UniqueMode::Throttle => rule.with_window(Millis(6)),
        UniqueMode::Skip => rule.with_for(Millis(3)),
        UniqueMode::Latest => rule,
    }
}

fn key_tag() -> String {
    tag(TYPE, "k")
}

fn ask_of(number: usize) -> String {
    ask_id(&key_tag(), &format!("a{number}"))
}

fn asked(number: usize, mode: UniqueMode) -> Event {
    asked_with(number, rule(mode))
}

fn asked_with(number: usize, rule: UniqueRule) -> Event {
    let mut event = with_policy(&ask_of(number), Policy { unique: Some(rule), ..Policy::default() });
    if let Some(task) = event.task.as_deref_mut() {
        (task.position, task.hash) = (None, Some(format!("h{number}").into()));
    }
    Event { payload: Payload::Asked { record: Some(record()) }, ..event }
}

/// Release of a task as the tracker publishes it, from the state of the store that it has read.
fn released(store: &ProjectedStore, task: &str) -> Event {
    let stored = store.task(task);
    let ask = stored.definition.record_event_offset;
    let position = Some(Position { partition: 0, offset: 3 });
    let mut event = event(Payload::Released { position, waits: 0, ask }, task);
    event.task = submitted(task).task;
    if let Some(task) = event.task.as_deref_mut() {
        (task.hash, task.policy) = (stored.definition.hash, stored.definition.policy);
    }
    event
}

/// Tasks whose release timers are due at a log time.
fn due(store: &ProjectedStore, now_ms: i64) -> Vec<String> {
    let is_due = |bytes: &Vec<u8>| {
        let timer = TaskRecord::decode(bytes).unwrap().timer();
        timer.is_some_and(|timer| timer.kind == TimerKind::Release && timer.due_ms <= now_ms)
    };
    store.task_records.iter().filter(|(_, bytes)| is_due(bytes)).map(|(id, _)| id.to_string()).collect()
}

/// Step of a scenario.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(UniqueMode),
    /// The tracker releases what was due some events ago.
    Release {
        lag: usize,
    },
    /// The open task succeeds.
    End,
    /// The kept task is cancelled.
    Cancel,
    /// The task that started last is retried by hand.
    Retry,
    /// Time passes.
    Pass,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::sample::select(UniqueMode::ALL.to_vec()).prop_map(Step::Ask),
        4 => (0..4_usize).prop_map(|lag| Step::Release { lag }),
        3 => Just(Step::End),
        1 => Just(Step::Cancel),
        1 => Just(Step::Retry),
        2 => Just(Step::Pass),
    ]
}

/// Log of a scenario: asks, and what tracker and workers do with the tasks.
fn log_of(steps: &[Step], allows_retry: bool) -> Vec<Event> {
    let mut log: Vec<Event> = Vec::new();
    let mut released_tasks = BTreeSet::new();
    for (number, step) in steps.iter().enumerate() {
        let store = fold_log(&log, 1, 100);
        let key = store.key(&key_tag()).unwrap_or_default();
        let now_ms = 1_000 + log.len() as i64;
        let next = match step {
            Step::Ask(mode) => Some(asked(number, *mode)),
            Step::Release { lag } => {
                let seen = fold_log(&log[..log.len().saturating_sub(*lag)], 1, 100);
                let task = due(&seen, now_ms).into_iter().find(|task| released_tasks.insert(task.clone()));
                task.map(|task| released(&seen, &task))
            }
            Step::End => {
                let open = key.open.iter().find(|task| store.task(task).own == State::Queued);
                open.map(|task| event(Kind::Succeeded, task))
            }
            Step::Cancel => key.kept.map(|kept| event(Kind::Cancelled, &kept.id)),
            Step::Retry if allows_retry => {
                let ended = key.last.filter(|last| store.task(last).state.is_terminal());
                ended.map(|task| Event {
                    run: store.task(&task).run,
                    ..event(retry_in_run(store.task(&task).run + 1), &task)
                })
            }
            Step::Retry => None,
            Step::Pass => Some(Event::tick(5)),
        };
        log.extend(next);
    }
    log
}

/// State of the key by an oracle, which knows only the order of events.
#[derive(Debug, Default, PartialEq)]
struct Oracle {
    open: Option<String>,
    /// Kept task, and number of the ask whose params it has.
    kept: Option<(String, i64)>,
    last_start_ms: Option<i64>,
    started: usize,
}

impl Oracle {
    fn of(log: &[Event]) -> Self {
        let mut oracle = Self::default();
        for (offset, event) in (0_i64..).zip(log) {
            let (now_ms, id) = (1_000 + offset, event.id.to_string());
            match &event.payload {
                Payload::Asked { .. } => oracle.ask(event, id, offset, now_ms),
                Payload::Released { ask: Some(ask), .. } => match oracle.kept.take() {
                    Some((kept, newest)) if kept == id => {
                        oracle.start(id, now_ms);
                        oracle.kept = (newest > *ask).then(|| (log[newest as usize].id.to_string(), newest));
                    }
                    kept => oracle.kept = kept,
                },
                Payload::Succeeded { .. } => drop(oracle.open.take_if(|open| *open == id)),
                Payload::Cancelled(_) => drop(oracle.kept.take_if(|(kept, _)| *kept == id)),
                _ => {}
            }
        }
        oracle
    }

    fn ask(&mut self, event: &Event, id: String, offset: i64, now_ms: i64) {
        let policy = event.task.as_ref().unwrap().policy.as_ref().unwrap();
        let rule = policy.unique.as_ref().unwrap();
        let since_start = self.last_start_ms.map_or(i64::MAX, |at| now_ms - at);
        let may_start = self.open.is_none() && self.kept.is_none();
        match rule.mode() {
            UniqueMode::Skip if may_start && since_start >= rule.for_ms() => self.start(id, now_ms),
            UniqueMode::Skip => {}
            UniqueMode::Latest if may_start => self.start(id, now_ms),
            UniqueMode::Throttle if may_start && since_start >= rule.window_ms() => self.start(id, now_ms),
            _ => self.kept = Some((self.kept.take().map_or(id, |(kept, _)| kept), offset)),
        }
    }

    fn start(&mut self, id: String, now_ms: i64) {
        (self.open, self.last_start_ms) = (Some(id), Some(now_ms));
        self.started += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn key_is_what_the_oracle_says(steps in prop::collection::vec(any_step(), 1..40)) {
        let log = log_of(&steps, false);
        let store = fold_log(&log, 1, 100);
        let key = store.key(&key_tag()).unwrap_or_default();
        let oracle = Oracle::of(&log);
        prop_assert_eq!(key.open.first().map(ToString::to_string), oracle.open);
        prop_assert!(key.open.len() <= 1);
        let kept = key.kept.map(|kept| (kept.id.to_string(), kept.ask_offset));
        prop_assert_eq!(kept, oracle.kept);
    }

    #[test]
    fn batches_and_caches_make_no_difference(
        steps in prop::collection::vec(any_step(), 1..40), batch in 1..9_usize, cache in 0..4_usize,
    ) {
        let log = log_of(&steps, true);
        prop_assert_eq!(fold_log(&log, batch, cache), fold_log(&log, 1, 100));
    }

    #[test]
    fn kept_task_waits_exactly_while_another_one_is_open(steps in prop::collection::vec(any_step(), 1..40)) {
        let store = fold_log(&log_of(&steps, true), 1, 100);
        let Some(key) = store.key(&key_tag()) else { return Ok(()) };
        for open in &key.open {
            prop_assert!(!store.task(open).state.is_terminal(), "`{}` is open in the key alone", open);
        }
        let Some(kept) = &key.kept else { return Ok(()) };
        let task = store.task(&kept.id);
        prop_assert_eq!(task.own, State::Scheduled);
        prop_assert_eq!(task.deferral.waits_for_key, !key.open.is_empty());
        prop_assert_eq!(task.definition.record_event_offset, Some(kept.ask_offset));
        let ask = &log_ask(&kept.ask);
        prop_assert_eq!(task.definition.hash.as_deref(), Some(&**ask));
    }

    #[test]
    fn cut_log_starts_nothing_that_the_whole_log_does_not(
        steps in prop::collection::vec(any_step(), 1..40), first in 1..30_usize,
    ) {
        let log = log_of(&steps, true);
        let first = first.min(log.len());
        let (whole, cut) = (fold_log(&log, 1, 100), fold_cut(&log, first, 3, 2, 1));
        for id in cut.task_records.keys() {
            prop_assert!(whole.task_records.contains_key(id), "`{}` is new", id);
        }
        let open = |store: &ProjectedStore| store.key(&key_tag()).map(|key| key.open).unwrap_or_default();
        for task in open(&cut) {
            prop_assert!(open(&whole).contains(&task), "`{}` has ended", task);
        }
    }
}

/// Hash of the task of an ask.
fn log_ask(id: &str) -> String {
    format!("h{}", id.rsplit_once("~~a").unwrap().1)
}

fn key_after(log: &[Event]) -> KeyState {
    fold_log(log, 1, 100).key(&key_tag()).unwrap()
}

#[test]
fn ask_of_a_free_key_starts_at_once() {
    let log = [asked(0, UniqueMode::Skip), asked(1, UniqueMode::Skip)];
    let store = fold_log(&log, 1, 100);
    assert_eq!(due(&store, 1_000), [ask_of(0)]);
    assert!(!store.task_records.contains_key(&id(&ask_of(1))), "the second one has joined");
    let answer = key_after(&log).answer(&ask_of(1)).unwrap().clone();
    assert_eq!((answer.verdict, &*answer.task), (AskVerdict::Joined, &*ask_of(0)));
}

#[test]
fn kept_task_has_no_timer_until_the_open_one_has_ended() {
    let mut log = vec![asked(0, UniqueMode::Latest), asked(1, UniqueMode::Latest), asked(2, UniqueMode::Latest)];
    let store = fold_log(&log, 1, 100);
    assert_eq!(due(&store, i64::MAX), [ask_of(0)]);
    log.push(released(&store, &ask_of(0)));
    log.push(event(Kind::Succeeded, &ask_of(0)));
    let store = fold_log(&log, 1, 100);
    assert_eq!(due(&store, 1_004), [ask_of(1)]);
    assert_eq!(store.task(&ask_of(1)).definition.hash.as_deref(), Some("h2"), "the newest ask has replaced it");
    let released = released(&store, &ask_of(1));
    assert_eq!(released.payload.ask(), Some(2));
    log.push(asked(5, UniqueMode::Latest));
    log.push(released);
    let store = fold_log(&log, 1, 100);
    let key = store.key(&key_tag()).unwrap();
    assert_eq!((&*key.open, &*key.kept.unwrap().id), (&[ask_of(1).into()][..], &*ask_of(5)));
    assert_eq!(store.task(&ask_of(1)).definition.hash.as_deref(), Some("h2"), "it runs with what was released");
    let newer = store.task(&ask_of(5));
    assert_eq!((newer.definition.hash.as_deref(), newer.deferral.only_in_log), (Some("h5"), true));
}

#[test]
fn tree_of_the_open_task_holds_the_key() {
    let (root, child) = (ask_of(0), format!("{}:child", ask_of(0)));
    let mut log = vec![asked(0, UniqueMode::Latest), asked(1, UniqueMode::Latest)];
    log.push(released(&fold_log(&log, 1, 100), &root));
    log.extend([submitted(&child), event(Kind::Succeeded, &root)]);
    assert!(key_after(&log).kept_waits(), "the child is open");
    log.push(event(Kind::Succeeded, &child));
    assert_eq!((key_after(&log).open.len(), key_after(&log).kept_waits()), (0, false));
}

#[test]
fn cleared_key_lets_the_kept_task_start() {
    let mut log = vec![asked(0, UniqueMode::Latest), asked(1, UniqueMode::Latest)];
    log.push(Event::operation(CLEAR_ACTION, &key_tag(), 5));
    let store = fold_log(&log, 2, 0);
    assert_eq!((store.key(&key_tag()), store.requests.len()), (None, 1));
    assert_eq!(due(&store, 1_002), [ask_of(0), ask_of(1)]);
}

#[test]
fn key_is_forgotten_with_its_last_tree() {
    let mut log = vec![asked(0, UniqueMode::Skip)];
    log.push(released(&fold_log(&log, 1, 100), &ask_of(0)));
    log.push(event(Kind::Succeeded, &ask_of(0)));
    let store = fold_log(&log, 1, 100);
    for (log_time_ms, expected) in [(1_002, false), (1_003, true)] {
        let mut working_set = WorkingSet::default();
        working_set.keys().load(&key_tag(), store.key(&key_tag()));
        let removed = vec![(id(&ask_of(0)), store.task(&ask_of(0)))];
        let changes = working_set.remove(removed, log_time_ms).unwrap();
        assert_eq!(changes.unique == [(key_tag(), None)], expected, "{log_time_ms}");
    }
}

#[test]
fn ended_task_is_retained_as_any_other_or_until_its_key_is_over() {
    const DAY: i64 = 86_400_000;
    const STEP_MS: i64 = 600_000;
    for (remember_ms, expected_ms) in [(3, 7 * DAY + STEP_MS), (8 * DAY, 8 * DAY + STEP_MS)] {
        let mut log = vec![asked_with(0, UniqueRule::of_key("k").with_for(Millis(remember_ms as u64)))];
        log.push(released(&fold_log(&log, 1, 100), &ask_of(0)));
        log.push(event(Kind::Succeeded, &ask_of(0)));
        let task = fold_log(&log, 1, 100).task(&ask_of(0));
        assert_eq!(task.times.expiry.map(|expiry| expiry.due_ms), Some(expected_ms), "{remember_ms}");
    }
}

#[test]
fn plain_task_with_a_tag_in_its_id_makes_no_key() {
    let log = [submitted("echo~k~~x"), event(Kind::Started, "echo~k~~x")];
    assert_eq!(fold_log(&log, 1, 100).keys.len(), 0);
}
