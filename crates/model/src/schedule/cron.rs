//! Times of a cron expression in a time zone, also where its clock is set forward or back. As in Vixie cron, times with
//! numbers in minute and hour (one, a list or a range) are points of the calendar, each of which fires once; with a `*` in
//! one of them they recur with the clock. Seconds are always within the minute, and make no difference.

use std::ops::Range;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Maximum number of clock changes that one search looks past.
const MAX_CHANGES: usize = 64;
/// Longest gap after which the times in it fire. A longer one is a correction of the calendar, such as the day that
/// Samoa skipped to cross the date line.
const MAX_GAP: SignedDuration = SignedDuration::from_hours(3);
/// More than the difference of any two offsets.
const TWO_DAYS: SignedDuration = SignedDuration::from_hours(48);

/// Description of the working days by the library.
const WEEKDAYS: &str = "Monday, Tuesday, Wednesday, Thursday, and Friday";

/// Times of a cron expression.
#[derive(Clone, Debug)]
pub(super) struct CronTimes {
    cron: Cron,
    zone: TimeZone,
    is_recurring: bool,
}

/// Instant of a time of the calendar.
enum Instant {
    At(Timestamp),
    /// The calendar has no such time, and continues with this one.
    Missing(DateTime),
}

fn parse(text: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(text).map_err(|error| error.to_string())
}

/// Field of an expression with its steps as a list of values, unless they divide the range into equal parts.
fn listed(field: &str, range: Range<u32>, is_in: impl Fn(u32) -> bool) -> String {
    let step = field.strip_prefix("*/").and_then(|step| step.parse::<u32>().ok());
    let is_even = range.start == 0 && step.is_some_and(|step| step > 0 && range.end.is_multiple_of(step));
    if !field.contains('/') || is_even {
        return field.to_owned();
    }
    range.filter(|value| is_in(*value)).map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

impl CronTimes {
    /// Parses an expression of five fields, of six with seconds in front, or a nickname such as `@daily`.
    pub(super) fn parse(text: &str, zone: TimeZone) -> Result<Self, String> {
        let cron = parse(text)?;
        let fields: Vec<&str> = cron.pattern.as_str().split_whitespace().collect();
        let minute = usize::from(fields.len() > 5);
        let is_recurring = fields.iter().skip(minute).take(2).any(|field| field.contains('*'));
        Ok(Self { cron, zone, is_recurring })
    }

    /// Expression in words, without its zone: `at 03:00 every day`.
    pub(super) fn words(&self) -> String {
        let expanded = parse(&self.expanded()).map_or_else(|_| self.cron.describe(), |cron| cron.describe());
        let text = expanded.trim_end_matches('.').replace(WEEKDAYS, "Monday to Friday").replace(", of ", " of ");
        let text = match text.strip_prefix("At every") {
            Some(rest) => format!("every{rest}"),
            None => text.chars().take(1).flat_map(char::to_lowercase).chain(text.chars().skip(1)).collect(),
        };
        let is_time_of_day =
            text.strip_prefix("at ").is_some_and(|time| time.starts_with(|c: char| c.is_ascii_digit()));
        let pattern = &self.cron.pattern;
        if !is_time_of_day || !pattern.is_dom_wildcard() || !pattern.is_dow_wildcard() {
            return text;
        }
        let (time, rest) =
            text.split_once(',').map_or((text.as_str(), String::new()), |(time, rest)| (time, format!(",{rest}")));
        format!("{time} every day{rest}")
    }

    /// Expression with its steps as lists, except for those that are the same in each minute, hour or day: the library
    /// describes each step as one over the whole range.
    fn expanded(&self) -> String {
        let pattern = &self.cron.pattern;
        let fields: Vec<&str> = pattern.as_str().split_whitespace().collect();
        let skipped = 6 - fields.len().min(6);
        let field = |(n, field): (usize, &&str)| match n + skipped {
            0 => listed(field, 0..60, |second| pattern.second_match(second).unwrap_or_default()),
            1 => listed(field, 0..60, |minute| pattern.minute_match(minute).unwrap_or_default()),
            2 => listed(field, 0..24, |hour| pattern.hour_match(hour).unwrap_or_default()),
            4 => listed(field, 1..13, |month| pattern.month_match(month).unwrap_or_default()),
            _ => (*field).to_owned(),
        };
        fields.iter().enumerate().map(field).collect::<Vec<_>>().join(" ")
    }

    /// First time after an instant; `None` if there is none.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.is_recurring { self.next_recurring(after) } else { self.next_fixed(after) }
    }

    /// First instant after `after` at which the clock shows a matching time.
    fn next_recurring(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut is_inclusive) = (after, false);
        for _ in 0..MAX_CHANGES {
            let offset = self.zone.to_offset(from);
            let candidate = offset.to_timestamp(self.matching(offset.to_datetime(from), is_inclusive)?).ok()?;
            let change = self.change(from, |next| next != offset).filter(|change| *change <= candidate);
            let Some(change) = change else { return Some(candidate) };
            // From two days after `from` to two days before `candidate`, the clock shows only times between theirs, none of
            // which matches. A change before that may set the clock back to a matching time.
            let is_later = from.checked_add(TWO_DAYS).is_ok_and(|later| change >= later);
            let skipped_to = if is_later { candidate.checked_sub(TWO_DAYS).unwrap_or(change) } else { change };
            from = change.max(skipped_to);
            is_inclusive = true;
        }
        None
    }

    /// First instant after `after` of a matching time of the calendar.
    fn next_fixed(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut is_inclusive) = match self.end_of_repetition(after) {
            Some(end) => (end, true),
            None => (self.zone.to_datetime(after), false),
        };
        for _ in 0..MAX_CHANGES {
            let time = self.matching(from, is_inclusive)?;
            (from, is_inclusive) = match self.instant(time)? {
                Instant::At(at) if at > after => return Some(at),
                Instant::At(_) => (time, false),
                Instant::Missing(next) => (next, true),
            };
        }
        None
    }

    /// First matching time of the calendar, on a clock without changes.
    fn matching(&self, from: DateTime, is_inclusive: bool) -> Option<DateTime> {
        self.cron.find_next_occurrence(&from, is_inclusive).ok()
    }

    /// Instant of a time of the calendar: of two equal ones the first, and of one in a gap its end.
    fn instant(&self, time: DateTime) -> Option<Instant> {
        let (before, after) = match self.zone.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                return offset.to_timestamp(time).ok().map(Instant::At);
            }
            AmbiguousOffset::Gap { before, after } => (before, after),
        };
        let change = self.change(after.to_timestamp(time).ok()?, |offset| offset == after)?;
        Some(if before.duration_until(after) > MAX_GAP {
            Instant::Missing(after.to_datetime(change))
        } else {
            Instant::At(change)
        })
    }

    /// End of a range of times that the clock shows for the second time at this instant.
    fn end_of_repetition(&self, at: Timestamp) -> Option<DateTime> {
        let offset = self.zone.to_offset(at);
        match self.zone.to_ambiguous_timestamp(self.zone.to_datetime(at)).offset() {
            AmbiguousOffset::Fold { before, after } if offset == after => {
                let next = at.checked_add(SignedDuration::from_nanos(1)).ok()?;
                let mut earlier = self.zone.preceding(next).take(MAX_CHANGES);
                let change = earlier.find(|change| change.offset() == after)?;
                Some(before.to_datetime(change.timestamp()))
            }
            _ => None,
        }
    }

    /// First clock change after an instant to an offset of this kind.
    fn change(&self, after: Timestamp, is_wanted: impl Fn(Offset) -> bool) -> Option<Timestamp> {
        let mut changes = self.zone.following(after).take(MAX_CHANGES);
        changes.find(|change| is_wanted(change.offset())).map(|change| change.timestamp())
    }
}
