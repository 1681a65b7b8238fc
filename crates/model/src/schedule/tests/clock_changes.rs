//! Schedules over clock changes, compared with a search of every moment that asks a time zone only for its offset.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::*;

/// Searched time on each side of a clock change, in seconds.
const SEARCHED_SECS: i64 = 30 * 3_600;
/// Gap after which skipped times do not fire, in seconds.
const LONG_GAP: i64 = 3 * 3_600;

/// Expressions, and whether they recur with the clock.
const EXPRESSIONS: [(&str, bool); 20] = [
    ("30 2 * * *", false),
    ("5 2,3 * * *", false),
    ("5 1-4 * * *", false),
    ("0,15,45 1,2,3 * * *", false),
    ("0-59 2 * * *", false),
    ("0 0-23 * * *", false),
    ("0 0-23/2 * * *", false),
    ("*/20 30 2 * * *", false),
    ("* 59 1,2 * * *", false),
    ("10 0 * * *", false),
    ("59 23 * * *", false),
    ("30 2 * * SUN", false),
    ("0 * * * *", true),
    ("30 */2 * * *", true),
    ("*/15 * * * *", true),
    ("*/20 2 * * *", true),
    ("*/7 1-3 * * *", true),
    ("30 30 * * * *", true),
    ("5,*/40 2 * * *", true),
    ("* 2,3 * * SUN", true),
];

/// Values of a field: `*`, numbers, ranges, with steps, separated by commas.
fn values(field: &str, most: i8) -> BTreeSet<i8> {
    let number = |text: &str| text.parse::<i8>().unwrap();
    let part = |part: &str| {
        let (range, step) = part.split_once('/').map_or((part, 1), |(range, step)| (range, number(step)));
        let (low, high) = match range.split_once('-') {
            Some((low, high)) => (number(low), number(high)),
            None if range == "*" => (0, most),
            None => (number(range), number(range)),
        };
        (low..=high).step_by(step as usize).collect::<Vec<_>>()
    };
    field.split(',').flat_map(part).collect()
}

/// Independent reading of an expression whose day is any, or any Sunday.
struct Pattern {
    seconds: BTreeSet<i8>,
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    is_sunday: bool,
}

impl Pattern {
    fn of(expression: &str) -> Self {
        let mut fields: Vec<&str> = expression.split(' ').collect();
        let second = if fields.len() == 6 { fields.remove(0) } else { "0" };
        Self {
            seconds: values(second, 59),
            minutes: values(fields[0], 59),
            hours: values(fields[1], 23),
            is_sunday: fields[4] == "SUN",
        }
    }

    /// Matching seconds of the minute that begins with this time.
    fn in_minute(&self, time: DateTime) -> impl Iterator<Item = i64> {
        let is_day = !self.is_sunday || time.weekday() == jiff::civil::Weekday::Sunday;
        let fits = is_day && self.minutes.contains(&time.minute()) && self.hours.contains(&time.hour());
        self.seconds.iter().filter(move |_| fits).map(|second| i64::from(*second))
    }
}

/// Seconds of the clock of a zone at an instant, as if it were that of UTC.
fn clock(zone: &TimeZone, at: i64) -> i64 {
    at + i64::from(zone.to_offset(Timestamp::from_second(at).unwrap()).seconds())
}

fn civil(clock: i64) -> DateTime {
    TimeZone::UTC.to_datetime(Timestamp::from_second(clock).unwrap())
}

/// All times from `begin` to `end`, epoch seconds.
fn expected(pattern: &Pattern, is_recurring: bool, zone: &TimeZone, begin: i64, end: i64) -> BTreeSet<i64> {
    let mut times = BTreeSet::new();
    let instants: Vec<i64> = (begin..end).step_by(60).collect();
    if is_recurring {
        for at in instants {
            times.extend(pattern.in_minute(civil(clock(zone, at))).map(|second| at + second));
        }
        return times;
    }
    // Each minute of the calendar: its first instant or, if it has none, the end of the gap.
    let margin = 26 * 3_600;
    let shown: Vec<(i64, i64)> = (begin - margin..end + margin).step_by(60).map(|at| (clock(zone, at), at)).collect();
    let mut first = BTreeMap::new();
    for (clock, at) in &shown {
        first.entry(*clock).or_insert(*at);
    }
    for minute in (shown[0].0..shown[shown.len() - 1].0).step_by(60) {
        let matches = pattern.in_minute(civil(minute));
        match first.get(&minute) {
            Some(at) => times.extend(matches.map(|second| at + second)),
            None => {
                let gap = shown.windows(2).find(|pair| pair[0].0 < minute && minute < pair[1].0).unwrap();
                let is_long = gap[1].0 - gap[0].0 - 60 > LONG_GAP;
                times.extend(matches.filter(|_| !is_long).map(|_| gap[1].1));
            }
        }
    }
    times.retain(|at| (begin..end).contains(at));
    times
}

/// Clock changes of a zone within ten years, epoch seconds; those of whole minutes.
fn changes(zone: &TimeZone) -> Vec<i64> {
    let (from, to) = (ms("2026-01-01T00:00:00Z") / 1_000, ms("2036-01-01T00:00:00Z") / 1_000);
    let times = zone.following(Timestamp::from_second(from).unwrap()).map(|change| change.timestamp().as_second());
    times.take_while(|at| *at < to).filter(|at| clock(zone, *at) - clock(zone, at - 1) != 1).collect()
}

fn assert_times(name: &str, change: i64, (expression, is_recurring): (&str, bool)) {
    let zone = time_zone(name).unwrap();
    let (begin, end) = (change - SEARCHED_SECS, change + SEARCHED_SECS);
    let times = times(&spec(expression, name));
    let mut reported = BTreeSet::new();
    let mut last = begin * 1_000 - 1;
    while let Some(next) = times.after(last).filter(|next| *next < end * 1_000) {
        assert!(next > last, "`{expression}` in {name}: {} after {}", text(next), text(last));
        reported.insert(next / 1_000);
        last = next;
    }
    let expected = expected(&Pattern::of(expression), is_recurring, &zone, begin, end);
    let show = |times: Vec<&i64>| times.into_iter().map(|at| text(at * 1_000)).collect::<Vec<_>>();
    let missing = show(expected.difference(&reported).collect());
    let extra = show(reported.difference(&expected).collect());
    assert!(missing.is_empty() && extra.is_empty(), "`{expression}` in {name}: lacks {missing:?}, has {extra:?}");
}

/// Changes that differ in the time of the week that the clock shows, or in how far it is set; of equal ones the first.
fn distinct_changes() -> Vec<(String, i64)> {
    let names: Vec<String> = TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect();
    let mut distinct = BTreeMap::new();
    for name in names {
        let zone = time_zone(&name).unwrap();
        for change in changes(&zone) {
            let (before, after) = (clock(&zone, change - 1) + 1, clock(&zone, change));
            distinct.entry((before.rem_euclid(7 * 86_400), after - before)).or_insert((name.clone(), change));
        }
    }
    distinct.into_values().collect()
}

/// Every kind of clock change with every expression.
#[test]
fn times_over_clock_changes_agree_with_a_search_of_every_moment() {
    let changes = distinct_changes();
    assert!(changes.len() > 20, "{}", changes.len());
    for (name, change) in changes {
        EXPRESSIONS.iter().for_each(|expression| assert_times(&name, change, *expression));
    }
}

/// Changes that no zone makes in those years: of half an hour, of a day, back across midnight.
#[test]
fn times_over_rare_clock_changes_agree_with_a_search_of_every_moment() {
    for (name, change) in [
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("Asia/Pyongyang", "2015-08-14T15:00:00Z"),
        ("America/Caracas", "2016-05-01T07:00:00Z"),
        ("Asia/Nicosia", "2026-10-25T01:00:00Z"),
        ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
        ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
        ("Africa/Cairo", "2026-10-29T21:00:00Z"),
        ("Africa/Cairo", "2026-04-23T22:00:00Z"),
    ] {
        EXPRESSIONS.iter().for_each(|expression| assert_times(name, ms(change) / 1_000, *expression));
    }
}

#[test]
fn lists_ranges_and_seconds_fire_once_like_single_times() {
    for (cron, after, expected) in [
        // 2026-03-29: 02:00 becomes 03:00.
        ("5 2,3 * * *", "2026-03-28T12:00:00Z", vec!["2026-03-29T01:00:00Z", "2026-03-29T01:05:00Z"]),
        ("*/20 30 2 * * *", "2026-03-29T00:00:00Z", vec!["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        // 2026-10-25: 03:00 becomes 02:00.
        (
            "5 2,3 * * *",
            "2026-10-24T12:00:00Z",
            vec!["2026-10-25T00:05:00Z", "2026-10-25T02:05:00Z", "2026-10-26T01:05:00Z"],
        ),
        (
            "*/20 30 2 * * *",
            "2026-10-24T12:00:00Z",
            vec!["2026-10-25T00:30:00Z", "2026-10-25T00:30:20Z", "2026-10-25T00:30:40Z", "2026-10-26T01:30:00Z"],
        ),
    ] {
        assert_eq!(upcoming(&spec(cron, "Europe/Berlin"), after, expected.len()), expected, "{cron}");
    }
}
