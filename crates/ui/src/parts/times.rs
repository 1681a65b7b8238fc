//! Times in the zone of the reader, and durations. All times of the UI are formatted here: `07:37:31 · 2 min ago` today,
//! otherwise `28 Nov 07:37:31`, with the year if it is another one. Histories, attempts and logs have milliseconds.
//!
//! The zone and the time of the rendering are those of [`in_zone`], which surrounds the rendering of a page: times are in
//! most small parts, and would otherwise be a parameter of all of them.

use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, Zoned};
use kafleet_model::schedule::time_zone;
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use maud::{Markup, html};

use super::View;
use crate::zone::ReaderZone;

/// Lengths of the times in texts of the API: `2026-01-31T12:00:00Z`, and with milliseconds.
const TEXT_LENGTHS: [usize; 2] = [24, 20];
/// Length of the date in such a text.
const DATE_LENGTH: usize = 10;

/// Zone of the reader, and the time at which a page is rendered.
#[derive(Clone)]
struct RenderContext {
    zone: ReaderZone,
    now_ms: i64,
}

tokio::task_local! {
    static CONTEXT: RenderContext;
}

/// Renders a page for the reader of a view.
pub(in super::super) async fn in_zone<T>(view: &View, rendering: impl Future<Output = T>) -> T {
    CONTEXT.scope(RenderContext { zone: view.zone.clone(), now_ms: view.now_ms }, rendering).await
}

/// Zone and time of the rendering: UTC at the epoch if there is none.
fn context() -> RenderContext {
    CONTEXT.try_with(RenderContext::clone).unwrap_or_else(|_| RenderContext { zone: ReaderZone::default(), now_ms: 0 })
}

/// Precision of a time that is shown.
#[derive(Clone, Copy)]
enum Precision {
    Second,
    Millisecond,
}

impl Precision {
    const fn format(self) -> &'static str {
        match self {
            Self::Second => "%H:%M:%S",
            Self::Millisecond => "%H:%M:%S%.3f",
        }
    }
}

/// Time for a reader.
struct ReaderTime {
    at: Zoned,
    now: Zoned,
}

impl ReaderTime {
    /// Time of a document (RFC 3339).
    fn parse(text: &str) -> Option<Self> {
        Self::at(millis(text)?)
    }

    fn at(at_ms: i64) -> Option<Self> {
        let RenderContext { zone, now_ms } = context();
        let zoned = |ms: i64| Some(Timestamp::from_millisecond(ms).ok()?.to_zoned(zone.zone.clone()));
        Some(Self { at: zoned(at_ms)?, now: zoned(now_ms)? })
    }

    fn is_today(&self) -> bool {
        self.at.date() == self.now.date()
    }

    /// Date with a space behind it; empty today.
    fn date(&self) -> String {
        date_text(&self.at, &self.now)
    }

    fn clock(&self, precision: Precision) -> String {
        self.at.strftime(precision.format()).to_string()
    }

    fn age(&self) -> String {
        let ms = self.now.timestamp().as_millisecond() - self.at.timestamp().as_millisecond();
        let seconds = (ms as f64 / 1_000.0).round() as i64;
        let span = largest_unit(seconds.abs());
        if seconds < 0 { format!("in {span}") } else { format!("{span} ago") }
    }

    /// RFC 3339 with the offset of the zone.
    fn whole(&self) -> String {
        let format = if self.at.offset().is_zero() { "%Y-%m-%dT%H:%M:%S%.3fZ" } else { "%Y-%m-%dT%H:%M:%S%.3f%:z" };
        self.at.strftime(format).to_string()
    }
}

/// Date, unless it is the same as another one, with the year if that differs.
fn date_text(at: &Zoned, now: &Zoned) -> String {
    let format = match (at.date() == now.date(), at.year() == now.year()) {
        (true, _) => return String::new(),
        (false, true) => "%-d %b ",
        (false, false) => "%-d %b %Y ",
    };
    at.strftime(format).to_string()
}

/// Seconds in their largest unit, as the script shows them.
fn largest_unit(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Time of a document, to the second.
pub(in super::super) fn time(text: &str) -> Markup {
    time_to(text, Precision::Second)
}

/// Time of a document, to the millisecond, for events that follow each other closely.
pub(in super::super) fn exact_time(text: &str) -> Markup {
    time_to(text, Precision::Millisecond)
}

fn time_to(text: &str, precision: Precision) -> Markup {
    let Some(moment) = ReaderTime::parse(text) else { return html! { (text) } };
    html! {
        time datetime=(text) title=(moment.whole()) {
            (moment.date()) (moment.clock(precision))
            @if moment.is_today() { span.quiet { " · " span data-clock="age" { (moment.age()) } } }
        }
    }
}

/// Age of a time of a document.
pub(in super::super) fn age(text: &str) -> Markup {
    let Some(moment) = ReaderTime::parse(text) else { return html! { (text) } };
    html! { time.age datetime=(text) title=(moment.whole()) { span data-clock="age" { (moment.age()) } } }
}

/// Time of day of a document's time, to the millisecond.
pub(in super::super) fn exact_clock(text: &str) -> String {
    ReaderTime::parse(text).map_or_else(|| text.to_owned(), |moment| moment.clock(Precision::Millisecond))
}

/// Time of a document with its offset, for tooltips.
pub(in super::super) fn whole_time(text: &str) -> String {
    ReaderTime::parse(text).map_or_else(|| text.to_owned(), |moment| moment.whole())
}

/// Time within a sentence, without its age.
pub(in super::super) fn time_in_words(at_ms: i64) -> String {
    let words = |moment: ReaderTime| format!("{}{}", moment.date(), moment.clock(Precision::Second));
    ReaderTime::at(at_ms).map_or_else(|| at_ms.to_string(), words)
}

/// Time of day, to the second.
pub(in super::super) fn clock_text(at_ms: i64) -> String {
    formatted(at_ms, Precision::Second.format())
}

/// Time in a format of `strftime`, for axes.
pub(super) fn formatted(at_ms: i64, format: &str) -> String {
    let text = |time: ReaderTime| time.at.strftime(format).to_string();
    ReaderTime::at(at_ms).map_or_else(|| at_ms.to_string(), text)
}

/// Milliseconds by which the zone of the reader is ahead of UTC at a time.
pub(super) fn offset_ms(at_ms: i64) -> i64 {
    ReaderTime::at(at_ms).map_or(0, |moment| i64::from(moment.at.offset().seconds()) * 1_000)
}

/// Text with its times, which are those of the API, as times of the page.
pub(super) fn with_times(text: &str) -> Markup {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((start, length)) = first_time(rest) {
        parts.push(html! { (rest[..start]) (time(&rest[start..start + length])) });
        rest = &rest[start + length..];
    }
    html! { @for part in &parts { (part) } (rest) }
}

/// Start and length of the first time in a text. Those within words, such as in ids, do not count.
fn first_time(text: &str) -> Option<(usize, usize)> {
    text.match_indices('T').find_map(|(at, _)| {
        let start = at.checked_sub(DATE_LENGTH)?;
        let is_word = text.get(..start)?.ends_with(|c: char| !c.is_whitespace() && c != '(');
        let is_time = |length: &usize| {
            let time = text.get(start..start + length).filter(|time| time.ends_with('Z'));
            time.is_some_and(|time| millis(time).is_some())
        };
        TEXT_LENGTHS.into_iter().find(is_time).filter(|_| !is_word).map(|length| (start, length))
    })
}

pub(in super::super) fn optional_time(text: Option<&str>) -> Markup {
    match text {
        Some(text) => time(text),
        None => html! { span.quiet { "–" } },
    }
}

/// Time of a document in another zone than that of the reader, if both are known.
pub(in super::super) fn zoned(text: &str, zone: &str) -> Option<String> {
    if context().zone.name == zone {
        return None;
    }
    let zone = time_zone(zone)?;
    let ReaderTime { at, now } = ReaderTime::parse(text)?;
    let (at, now) = (at.with_time_zone(zone.clone()), now.with_time_zone(zone));
    Some(format!("{} {}{}", at.strftime("%a"), date_text(&at, &now), at.strftime("%H:%M:%S %Z")))
}

/// Epoch milliseconds of an entered time: an age such as `2h`, a time with its offset, or a date, a time of today or both
/// in the zone of the reader.
pub(in super::super) fn entered_time(text: &str) -> Result<i64, String> {
    let RenderContext { zone, now_ms } = context();
    if let Some(age) = Millis::parse_age(text) {
        return Ok(now_ms.saturating_sub(age.as_i64()));
    }
    let today = || Some(Timestamp::from_millisecond(now_ms).ok()?.to_zoned(zone.zone.clone()).date());
    let written = text.trim();
    let civil = || match written.parse::<Time>() {
        Ok(time) if written.contains(':') && !written.contains(['-', 'T', ' ']) => Some(today()?.to_datetime(time)),
        _ => written.parse::<DateTime>().ok(),
    };
    let in_zone = || Some(civil()?.to_zoned(zone.zone.clone()).ok()?.timestamp().as_millisecond());
    match parse_time(text) {
        Ok(at_ms) => Ok(at_ms),
        Err(_) => in_zone().ok_or_else(|| {
            format!(
                "`{}` is not a time: write 2026-01-31 12:00 (in {}), 12:00, or an age such as 2h",
                written, zone.name
            )
        }),
    }
}

/// Hint of a field with a time of the past.
pub(in super::super) fn time_hint(view: &View) -> String {
    format!("{}, or an age: 2h", moment_hint(view))
}

/// Hint of a field with a time, which may be in the future.
pub(in super::super) fn moment_hint(view: &View) -> String {
    format!("2026-01-31 07:00 or 07:00 ({})", view.zone.name)
}

/// Entered time as the API takes it: in UTC, if it is one in the zone of the reader. Other texts stay as they are.
pub(in super::super) fn entered_moment(text: &str) -> String {
    let is_given = Millis::parse_age(text).is_some() || parse_time(text).is_ok();
    let in_zone = if is_given { None } else { entered_time(text).ok() };
    in_zone.map_or_else(|| text.to_owned(), time_text)
}

/// Epoch milliseconds of a time of a document.
pub(in super::super) fn millis(text: &str) -> Option<i64> {
    parse_time(text).ok()
}

/// Time between two times of documents, in milliseconds.
pub(in super::super) fn between(from: Option<&str>, to: Option<&str>) -> Option<i64> {
    Some(millis(to?)?.saturating_sub(millis(from?)?).max(0))
}

/// Duration in the two largest units that matter.
pub(in super::super) fn duration(ms: i64) -> String {
    let s = ms / 1_000;
    match ms {
        ..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", s, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", s / 60, s % 60),
        3_600_000..86_400_000 => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::{Role, UiConfig};

    /// 2026-11-28T12:00:00Z.
    const NOW_MS: i64 = 1_795_867_200_000;

    /// Result in a zone at noon of 28 November 2026 in UTC.
    fn at_noon<T>(zone: &str, run: impl FnOnce() -> T) -> T {
        let zone = ReaderZone::of_choice(zone, &UiConfig::default()).unwrap();
        CONTEXT.sync_scope(RenderContext { zone, now_ms: NOW_MS }, run)
    }

    fn shown(zone: &str, text: &str) -> String {
        let markup = at_noon(zone, || time(text).into_string());
        markup.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
    }

    #[test]
    fn times_have_one_format_in_the_zone_of_the_reader() {
        for (zone, text, expected) in [
            ("UTC", "2026-11-28T11:57:59.480Z", "11:57:59 · 2 min ago"),
            ("UTC", "2026-11-28T12:07:10.000Z", "12:07:10 · in 7 min"),
            ("UTC", "2026-11-27T23:59:59.000Z", "27 Nov 23:59:59"),
            ("UTC", "2025-11-28T07:37:31Z", "28 Nov 2025 07:37:31"),
            ("Europe/Berlin", "2026-11-28T11:57:59.480Z", "12:57:59 · 2 min ago"),
            ("Europe/Berlin", "2026-11-27T23:30:00.000Z", "00:30:00 · 12 h ago"),
            ("Asia/Tokyo", "2026-11-28T15:00:00.000Z", "29 Nov 00:00:00"),
            ("UTC", "odd", "odd"),
        ] {
            assert_eq!(shown(zone, text), expected, "{text} in {zone}");
        }
    }

    #[test]
    fn element_of_a_time_has_all_of_it() {
        let text = "2026-11-28T11:57:59.480Z";
        assert_eq!(
            at_noon("Europe/Berlin", || exact_time(text).into_string()),
            "<time datetime=\"2026-11-28T11:57:59.480Z\" title=\"2026-11-28T12:57:59.480+01:00\">12:57:59.480\
             <span class=\"quiet\"> · <span data-clock=\"age\">2 min ago</span></span></time>"
        );
        assert_eq!(whole_time("2026-11-28T11:57:59Z"), "2026-11-28T11:57:59.000Z");
        assert_eq!(at_noon("Asia/Kolkata", || exact_clock(text)), "17:27:59.480");
        assert_eq!(at_noon("Asia/Kolkata", || formatted(NOW_MS, "%-d %b %H:%M")), "28 Nov 17:30");
        assert_eq!(at_noon("Asia/Kolkata", || offset_ms(NOW_MS)), 19_800_000);
        assert_eq!(between(Some(text), Some("2026-11-28T11:58:00Z")), Some(520));
    }

    #[test]
    fn times_in_sentences_of_the_api_are_formatted() {
        let sentence = |text: &str| at_noon("UTC", || with_times(text).into_string());
        let text = sentence("paused since 2026-11-28T11:00:00.000Z (until 2026-11-28T13:00:00Z), <b>");
        assert!(text.starts_with("paused since <time datetime=\"2026-11-28T11:00:00.000Z\""), "{text}");
        assert!(text.contains("(until <time") && text.ends_with("</time>), &lt;b&gt;"), "{text}");
        for text in ["nightly@2026-11-28T11:00:00Z runs", "The End", "2026-13-28T11:00:00Z", "äT11:00:00Z", "T"] {
            assert_eq!(sentence(text), text);
        }
    }

    #[test]
    fn entered_times_are_in_the_zone_of_the_reader() {
        let entered = |text: &str| at_noon("Europe/Berlin", || entered_time(text).map(|at| at - NOW_MS));
        for (text, expected) in [
            ("2h", -7_200_000),
            ("2026-11-28 07:00", -21_600_000),
            ("2026-11-28T07:00:30", -21_570_000),
            ("13:00", 0),
            ("2026-11-28T12:00:00Z", 0),
            ("2026-11-28", -46_800_000),
        ] {
            assert_eq!(entered(text), Ok(expected), "{text}");
        }
        let moment = |text: &str| at_noon("Europe/Berlin", || entered_moment(text));
        assert_eq!(moment("2026-11-29 07:00"), "2026-11-29T06:00:00.000Z");
        for other in ["2026-11-29T07:00:00+01:00", "2h", "soon"] {
            assert_eq!(moment(other), other);
        }
        let error = entered("soon").unwrap_err();
        assert!(error.contains("`soon` is not a time") && error.contains("in Europe/Berlin"), "{error}");
        let hint = time_hint(&View::for_tests(Role::Read));
        assert!(hint.contains("(UTC)"), "{hint}");
    }

    #[test]
    fn time_in_another_zone_names_its_day_and_offset() {
        assert_eq!(zoned("2026-11-01T02:00:00Z", "Europe/Berlin").as_deref(), Some("Sun 1 Nov 2026 03:00:00 CET"));
        assert_eq!(zoned("2026-07-01T01:00:00Z", "Europe/Berlin").as_deref(), Some("Wed 1 Jul 2026 03:00:00 CEST"));
        assert_eq!((zoned("odd", "UTC"), zoned("2026-07-01T01:00:00Z", "Mars/Base")), (None, None));
    }

    #[test]
    fn durations_have_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (30_040, "30.0 s"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
