mod clock_changes;

use proptest::prelude::*;

use super::step::{DueFiring, ScheduleOutcome, ScheduleProgress};
use super::*;
use crate::task::action::{Action, Check, ends};
use crate::task::{Policy, Rules, parse_time};

fn ms(text: &str) -> i64 {
    parse_time(text).unwrap()
}

fn text(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).unwrap().to_string()
}

fn spec(cron: &str, zone: &str) -> Spec {
    let task = Template { task_type: "echo".into(), ..Template::default() };
    Spec { cron: Some(cron.into()), timezone: Some(zone.into()), task, ..Spec::default() }
}

fn every(text: &str) -> Spec {
    Spec { cron: None, timezone: None, every: Some(text.parse().unwrap()), ..spec("", "") }
}

fn times(spec: &Spec) -> Times {
    Times::of(spec).unwrap_or_else(|errors| panic!("{spec:?}: {errors:?}"))
}

fn upcoming(spec: &Spec, after: &str, most: usize) -> Vec<String> {
    times(spec).upcoming(ms(after), most).into_iter().map(text).collect()
}

#[test]
fn cron_times_use_the_time_zone() {
    for (cron, zone, after, expected) in [
        ("0 3 * * *", "UTC", "2026-11-20T03:00:00Z", ["2026-11-21T03:00:00Z", "2026-11-22T03:00:00Z"]),
        ("0 3 * * *", "Asia/Kolkata", "2026-11-20T00:00:00Z", ["2026-11-20T21:30:00Z", "2026-11-21T21:30:00Z"]),
        ("*/20 * * * * *", "UTC", "2026-11-20T03:00:50Z", ["2026-11-20T03:01:00Z", "2026-11-20T03:01:20Z"]),
        ("@daily", "UTC", "2026-12-30T12:00:00Z", ["2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"]),
        ("0 9 * * MON-FRI", "UTC", "2026-11-20T10:00:00Z", ["2026-11-23T09:00:00Z", "2026-11-24T09:00:00Z"]),
        ("0 0 L * *", "UTC", "2028-02-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"]),
        ("0 0 * * TUE#2", "UTC", "2026-11-01T00:00:00Z", ["2026-11-10T00:00:00Z", "2026-12-08T00:00:00Z"]),
        ("0 0 29 2 *", "UTC", "2097-01-01T00:00:00Z", ["2104-02-29T00:00:00Z", "2108-02-29T00:00:00Z"]),
        // Day of month or day of week: either suffices.
        ("0 0 13 * FRI", "UTC", "2026-11-08T00:00:00Z", ["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"]),
    ] {
        assert_eq!(upcoming(&spec(cron, zone), after, 2), expected, "{cron} {zone}");
    }
}

#[test]
fn times_are_described_in_words() {
    for (cron, words) in [
        ("0 3 * * *", "at 03:00 every day, Europe/Berlin"),
        ("@daily", "at 00:00 every day, Europe/Berlin"),
        ("@hourly", "at minute 0 past every hour, Europe/Berlin"),
        ("*/15 * * * *", "every 15 minutes, Europe/Berlin"),
        ("* * * * *", "every minute, Europe/Berlin"),
        ("0 9 * * MON-FRI", "at 09:00, on Monday to Friday, Europe/Berlin"),
        ("30 18 L * *", "at 18:30, on the last day of the month, Europe/Berlin"),
        ("0 0 * * TUE#2", "at 00:00, on the 2nd Tuesday of the month, Europe/Berlin"),
        ("0 0 13 * FRI", "at 00:00, on day 13 or Friday, Europe/Berlin"),
        ("0 3 * JAN *", "at 03:00 every day, in January, Europe/Berlin"),
        ("*/20 30 2 * * *", "at 02:30 every day, every 20 seconds, Europe/Berlin"),
        // Steps that do not fill their range are lists.
        ("0-30/10 * * * *", "at minute 0, 10, 20, and 30 past every hour, Europe/Berlin"),
        ("*/45 * * * *", "at minute 0 and 45 past every hour, Europe/Berlin"),
        ("0 3 1 */6 *", "at 03:00, on day 1, in January and July, Europe/Berlin"),
    ] {
        assert_eq!(spec(cron, "Europe/Berlin").words().as_deref(), Some(words), "{cron}");
    }
    assert_eq!(every("10m").words().as_deref(), Some("every 10 minutes"));
    let jittered = Spec { jitter: Some("5m".parse().unwrap()), ..every("1h") };
    assert_eq!(jittered.words().as_deref(), Some("every hour, up to 5 minutes later"));
    assert_eq!(spec("odd", "UTC").words(), None);
    assert!(zone_names().all(|name| time_zone(&name).is_some()));
    assert!(zone_names().any(|name| name == "Europe/Berlin"));
}

/// When the clock is set forward, a fixed time in the gap fires right after it, and a recurring one is skipped. When the
/// clock is set back, a fixed time fires once, and a recurring one both times.
#[test]
fn clock_changes_skip_or_repeat_times_as_documented() {
    for (cron, zone, after, expected) in [
        // 2026-03-29: 02:00 becomes 03:00.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T00:00:00Z",
            vec!["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        ),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", vec!["2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"]),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00:00Z",
            vec!["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"],
        ),
        // 2026-10-25: 03:00 becomes 02:00.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", vec!["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:45:00Z",
            vec!["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"],
        ),
        // 2026-03-08 and 2026-11-01.
        (
            "30 2 * * *",
            "America/New_York",
            "2026-03-08T00:00:00Z",
            vec!["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-11-01T00:00:00Z",
            vec!["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
        ),
        // Half an hour, 2026-10-04: 02:00 becomes 02:30; 2026-04-05: 02:00 becomes 01:30.
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T00:00:00Z",
            vec!["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
        ),
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T00:00:00Z",
            vec!["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
        ),
        // A missing day: Samoa crossed the date line.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", vec!["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"]),
    ] {
        assert_eq!(upcoming(&spec(cron, zone), after, expected.len()), expected, "{cron} {zone}");
    }
}

#[test]
fn interval_counts_from_its_anchor() {
    let hourly = every("1h");
    assert_eq!(upcoming(&hourly, "2026-11-20T03:10:00Z", 1), ["2026-11-20T04:00:00Z"]);
    let from = Spec { start_at: Some("2026-11-20T03:10:00Z".into()), ..every("7m") };
    assert_eq!(upcoming(&from, "2000-01-01T00:00:00Z", 2), ["2026-11-20T03:10:00Z", "2026-11-20T03:17:00Z"]);
    let until = Spec { end_at: Some("2026-11-20T03:17:00Z".into()), ..from };
    assert_eq!(upcoming(&until, "2000-01-01T00:00:00Z", 9), ["2026-11-20T03:10:00Z"]);
}

fn telling(actions: Vec<Action>, checks: Vec<Check>) -> Spec {
    let rules = Rules { actions, checks, ..Rules::default() };
    with_rules(rules)
}

fn with_rules(rules: Rules) -> Spec {
    let policy = Policy { rules, ..Policy::default() };
    Spec { task: Template { task_type: "a".into(), policy, ..Template::default() }, ..every("1h") }
}

fn check(at: Option<&str>) -> Check {
    Check { after: None, at: at.map(str::to_owned), expect: ends(), passed: None, failed: None }
}

/// Checks that each spec is refused with the given reason.
fn assert_refused(specs: impl IntoIterator<Item = (Spec, &'static str)>) {
    for (spec, reason) in specs {
        let errors = spec.errors();
        let messages: Vec<_> =
            errors.iter().map(|error| format!("{}: {} {:?}", error.at, error.message, error.hint)).collect();
        let message = messages.join("; ");
        assert!(message.contains(reason), "{spec:?} gave {message}");
    }
}

#[test]
fn invalid_times_are_refused_with_the_reason() {
    assert_refused([
        (spec("61 * * * *", "UTC"), "cron: `61 * * * *` is not a cron expression"),
        (spec("* * * *", "UTC"), "five fields"),
        (spec("0 0 1 1 * * 2030", "UTC"), "is not a cron expression"),
        (spec("", "UTC"), "is not a cron expression"),
        (spec("0 0 30 2 *", "UTC"), "it never fires"),
        (spec("0 3 * * *", "Europe/Berlim"), "timezone: `Europe/Berlim` is not a time zone"),
        (Spec { every: Some("1h".parse().unwrap()), ..spec("0 3 * * *", "UTC") }, "not both"),
        (Spec { cron: None, ..spec("", "UTC") }, "neither `cron` nor `every`"),
        (every("1500ms"), "every: `1500ms` is not a number of whole seconds"),
        (every("0s"), "whole seconds"),
        (every("99999999d"), "whole seconds"),
        (Spec { timezone: Some("UTC".into()), ..every("1h") }, "timezone: it is for `cron`"),
        (Spec { start_at: Some("soon".into()), ..every("1h") }, "start_at: `soon` is not a time"),
        (
            Spec {
                start_at: Some("2026-01-02T00:00:00Z".into()),
                end_at: Some("2026-01-01T00:00:00Z".into()),
                ..every("1h")
            },
            "end_at",
        ),
    ]);
}

#[test]
fn invalid_tasks_of_schedules_are_refused_with_the_reason() {
    assert_refused([
        (Spec { jitter: Some("2d".parse().unwrap()), ..every("1h") }, "jitter"),
        (Spec { task: Template::default(), ..every("1h") }, "task/type"),
        (with_rules(Rules { options: Some(serde_json::json!(3).into()), ..Rules::default() }), "task/options"),
        (telling(vec![Action { on: ends(), callback: None, email: None }], Vec::new()), "task/actions: `actions/0`: give exactly one of"),
        (telling(Vec::new(), vec![check(None)]), "task/checks: `checks/0`: give `after` or `at`"),
        (telling(Vec::new(), vec![check(Some("2030-01-01T00:00:00Z"))]), "task/checks: `at` is a single time"),
        (
            with_rules(Rules {
                then: serde_json::from_str(
                    r#"[{"type":"b","checks":[{"at":"2030-01-01T00:00:00Z","expect":["succeeded"],"failed":{"callback":{"url":"https://a/b"}}}]}]"#,
                )
                .unwrap(),
                ..Rules::default()
            }),
            "task/then: `at` is a single time",
        ),
        (
            Spec {
                task: Template { params: serde_json::json!("x".repeat(MAX_SPEC_BYTES)).into(), task_type: "a".into(), ..Template::default() },
                ..every("1h")
            },
            "task: the schedule has",
        ),
    ]);
}

#[test]
fn schedule_names_are_checked() {
    for bad in ["", ".", "..", "a:b", "a/b", "a b", &"x".repeat(MAX_NAME_CHARS + 1)] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
    assert_eq!(
        (check_name("Nightly.report_2~@-"), task_of("n", ms("2026-11-21T03:00:00Z"))),
        (Ok(()), "n.20261121T030000Z".into())
    );
    assert_eq!(stamp(ms("2026-11-21T03:00:00.042Z")), "20261121T030000.042Z");
}

fn schedule(spec: Spec, from: &str) -> Schedule {
    Schedule { v: 1, at_ms: 0, from_ms: ms(from), paused: None, owner: None, spec }
}

struct Play {
    schedule: Schedule,
    state: ScheduleProgress,
}

impl Play {
    fn new(overlap: Overlap, from: &str) -> Self {
        Self { schedule: schedule(Spec { overlap, ..every("1m") }, from), state: ScheduleProgress::default() }
    }

    fn at(&mut self, now: &str, runs: bool) -> Vec<DueFiring> {
        let times = times(&self.schedule.spec);
        self.state.step("s", &self.schedule, &times, runs, ms(now))
    }

    fn tasks(&mut self, now: &str, runs: bool) -> Vec<String> {
        self.at(now, runs).into_iter().map(|fire| fire.task).collect()
    }

    fn recent(&self) -> Vec<(ScheduleOutcome, u64)> {
        self.state.recent.iter().map(|note| (note.outcome, note.count)).collect()
    }
}

#[test]
fn each_time_is_decided_once() {
    let mut play = Play::new(Overlap::Skip, "2026-11-20T03:00:30Z");
    assert_eq!(play.tasks("2026-11-20T03:00:59Z", false), [""; 0]);
    assert_eq!(play.tasks("2026-11-20T03:01:00Z", false), ["s.20261120T030100Z"]);
    assert_eq!(play.tasks("2026-11-20T03:01:00Z", false), [""; 0]);
    assert_eq!(play.tasks("2026-11-20T03:02:01Z", true), [""; 0]);
    assert_eq!(play.tasks("2026-11-20T03:03:01Z", false), ["s.20261120T030300Z"]);
    assert_eq!((play.state.fired, play.state.skipped, play.state.missed), (2, 1, 0));
    assert_eq!(
        play.recent(),
        [(ScheduleOutcome::Fired, 1), (ScheduleOutcome::Skipped, 1), (ScheduleOutcome::Fired, 1)]
    );
}

#[test]
fn overlap_modes_behave_as_documented() {
    let three = "2026-11-20T03:03:00Z";
    let mut allow = Play::new(Overlap::Allow, "2026-11-20T03:00:00Z");
    assert_eq!(allow.tasks(three, true).len(), 3);
    let mut skip = Play::new(Overlap::Skip, "2026-11-20T03:00:00Z");
    assert_eq!((skip.tasks(three, false).len(), skip.state.skipped), (1, 2));
    let mut buffer = Play::new(Overlap::BufferOne, "2026-11-20T03:00:00Z");
    assert_eq!(buffer.tasks(three, false), ["s.20261120T030100Z"]);
    assert_eq!((buffer.state.waiting_ms, buffer.state.skipped), (Some(ms("2026-11-20T03:02:00Z")), 1));
    assert_eq!(buffer.tasks("2026-11-20T03:03:10Z", true), [""; 0]);
    assert_eq!(buffer.tasks("2026-11-20T03:03:20Z", false), ["s.20261120T030200Z"]);
    buffer.at("2026-11-20T03:04:00Z", true);
    buffer.schedule.paused = Some(SchedulePause { at_ms: 0, reason: None, by: None });
    assert_eq!(buffer.tasks("2026-11-20T03:05:00Z", false), [""; 0]);
    assert_eq!((buffer.state.waiting_ms, buffer.state.skipped), (None, 2), "a pause skips the buffered firing");
    let mut replace = Play::new(Overlap::Replace, "2026-11-20T03:00:00Z");
    assert_eq!(replace.at(three, false)[0].replaces, None);
    let fires = replace.at("2026-11-20T03:05:00Z", true);
    assert_eq!((fires.len(), fires[0].task.as_str()), (1, "s.20261120T030500Z"));
    assert_eq!(fires[0].replaces.as_deref(), Some("s.20261120T030300Z"));
}

#[test]
fn times_older_than_catch_up_are_missed() {
    let mut play = Play::new(Overlap::Allow, "2026-11-20T00:00:00Z");
    play.schedule.spec.catch_up = Some("2m".parse().unwrap());
    assert_eq!(play.tasks("2026-11-20T01:00:10Z", false), ["s.20261120T005900Z", "s.20261120T010000Z"]);
    assert_eq!((play.state.missed, play.recent().last()), (58, Some(&(ScheduleOutcome::Missed, 58))));
    // Missed times are counted only up to the limit, and none of them fires.
    let mut long = Play::new(Overlap::Allow, "2020-01-01T00:00:00Z");
    long.schedule.spec.catch_up = Some("2m".parse().unwrap());
    assert_eq!(long.tasks("2026-11-20T01:00:10Z", false).len(), 2);
    assert_eq!(long.state.missed, step::MAX_MISSED);
}

#[test]
fn next_times_have_not_been_decided_even_after_a_jump_of_the_clock() {
    let mut play = Play::new(Overlap::Allow, "2026-11-20T03:00:00Z");
    // Each step decides at most 100 times.
    (0..2).for_each(|_| drop(play.at("2026-11-20T05:30:00Z", false)));
    let Play { schedule, state } = &play;
    let times = times(&schedule.spec);
    for now in ["2026-11-20T03:00:00Z", "2026-11-20T04:30:00Z", "2026-11-20T05:30:00Z"] {
        let next: Vec<String> = state.upcoming(schedule, &times, ms(now), 2).into_iter().map(text).collect();
        let first = state.next(schedule, &times).map(text);
        assert_eq!(next.first(), first.as_ref(), "{now}");
    }
    let later = state.upcoming(schedule, &times, ms("2026-11-20T09:15:00Z"), 1);
    assert!(later[0] > ms("2026-11-20T09:15:00Z"));
}

#[test]
fn changed_or_resumed_schedule_starts_afresh() {
    let mut play = Play::new(Overlap::Allow, "2026-11-20T00:00:00Z");
    play.at("2026-11-20T00:01:00Z", false);
    play.schedule.from_ms = ms("2026-11-20T05:00:00Z");
    assert_eq!(play.tasks("2026-11-20T05:01:00Z", false), ["s.20261120T050100Z"]);
    assert_eq!((play.state.missed, play.state.skipped), (0, 0));
}

fn zones() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])
}

/// A field: `*`, `*/n`, `n` or `n-m`.
fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("*".to_owned()),
        1 => (2..=high).prop_map(|step| format!("*/{step}")),
        2 => (low..=high).prop_map(|value| value.to_string()),
        1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
    ]
}

fn fits(field: &str, value: i8, low: i8) -> bool {
    let number = |text: &str| text.parse::<i8>().unwrap();
    match (field.split_once('/'), field.split_once('-')) {
        _ if field == "*" => true,
        (Some((_, step)), _) => (value - low) % number(step) == 0,
        (_, Some((from, to))) => (number(from)..=number(to)).contains(&value),
        _ => value == number(field),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares with a search of every minute.
    #[test]
    fn next_time_is_the_first_match(
        minute in field(0, 59), hour in field(0, 23), weekday in field(0, 6), begin in 1_600_000_000i64..2_000_000_000,
    ) {
        let spec = spec(&format!("{minute} {hour} * * {weekday}"), "UTC");
        let begin = begin * 1_000;
        let first = begin.div_euclid(60_000) * 60_000 + 60_000;
        let fits = |at: i64| {
            let civil = jiff::Timestamp::from_millisecond(at).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
            let day = civil.weekday().to_sunday_zero_offset();
            fits(&minute, civil.minute(), 0) && fits(&hour, civil.hour(), 0) && fits(&weekday, day, 0)
        };
        let expected = (0..8 * 1_440).map(|n| first + n * 60_000).find(|at| fits(*at));
        prop_assert_eq!(times(&spec).after(begin), expected);
    }

    /// Times increase, and a search from any moment between two of them finds the later one.
    #[test]
    fn times_increase_without_gaps(minute in field(0, 59), hour in field(0, 23), zone in zones(), begin in 1_600_000_000i64..2_000_000_000) {
        let times = times(&spec(&format!("{minute} {hour} * * *"), zone));
        let mut last = begin * 1_000;
        for next in times.upcoming(last, 60) {
            prop_assert!(next > last && next - last <= 49 * 3_600_000, "{} after {}", text(next), text(last));
            prop_assert_eq!(times.after(last + (next - last) / 2), Some(next));
            prop_assert_eq!(times.after(next - 1), Some(next));
            last = next;
        }
    }

    /// Each time is decided once, whenever the state is resumed.
    #[test]
    fn no_time_is_decided_twice(
        moments in prop::collection::vec((0i64..7_200_000, any::<bool>()), 1..40), overlap in 0usize..4, catch_up in 0u64..100,
    ) {
        let overlap = [Overlap::Skip, Overlap::Allow, Overlap::BufferOne, Overlap::Replace][overlap];
        let mut play = Play::new(overlap, "2026-11-20T00:00:00Z");
        play.schedule.spec.catch_up = Some(Millis::secs(catch_up * 60));
        let mut moments = moments;
        moments.sort_unstable();
        let mut tasks = Vec::new();
        let mut last = 0;
        for (after, runs) in moments {
            last = ms("2026-11-20T00:00:00Z") + after;
            tasks.extend(play.tasks(&last.to_string(), runs));
        }
        while !play.tasks(&last.to_string(), true).is_empty() {}
        let mut unique = tasks.clone();
        unique.sort();
        unique.dedup();
        prop_assert_eq!(unique.len(), tasks.len());
        let due = (last - ms("2026-11-20T00:00:00Z")) / 60_000;
        let ScheduleProgress { fired, skipped, missed, waiting_ms, .. } = play.state;
        prop_assert_eq!(fired + skipped + missed + u64::from(waiting_ms.is_some()), due as u64);
    }
}
