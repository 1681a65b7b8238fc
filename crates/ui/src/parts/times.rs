//! Times in UTC, and durations.

use kafleet_model::schedule::time_zone;
use kafleet_model::task::parse_time;
use maud::{Markup, html};

/// End of the milliseconds in a time of a document, such as `2026-01-31T12:00:00.123Z`.
const EXACT_END: usize = 23;

/// Time of a document (RFC 3339), to the second and in UTC like all times of the UI. The script hides recent dates.
pub(in super::super) fn time(text: &str) -> Markup {
    time_to(text, 19)
}

/// The same to the millisecond, for events that follow each other closely.
pub(in super::super) fn exact_time(text: &str) -> Markup {
    time_to(text, EXACT_END)
}

/// Time of day of a document's time, to the millisecond.
pub(in super::super) fn exact_clock(text: &str) -> &str {
    text.get(11..EXACT_END).unwrap_or(text)
}

/// Time with the characters of its text up to `end`.
fn time_to(text: &str, end: usize) -> Markup {
    html! {
        time datetime=(text) title=(text) {
            @match (text.get(..10), text.get(11..end)) {
                (Some(date), Some(time)) => { span.date { (date) " " } (time) } _ => { (text) }
            }
        }
    }
}

pub(in super::super) fn optional_time(text: Option<&str>) -> Markup {
    match text {
        Some(text) => time(text),
        None => html! { span.quiet { "–" } },
    }
}

/// Time of a document in a time zone, if both are known.
pub(in super::super) fn zoned(text: &str, zone: &str) -> Option<String> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(time.to_zoned(time_zone(zone)?).strftime("%a %Y-%m-%d %H:%M:%S %Z").to_string())
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

    #[test]
    fn times_are_rendered_in_utc_without_an_age() {
        let rendered = time("2026-11-01T13:02:11.480Z").into_string();
        assert_eq!(
            rendered,
            "<time datetime=\"2026-11-01T13:02:11.480Z\" title=\"2026-11-01T13:02:11.480Z\">\
             <span class=\"date\">2026-11-01 </span>13:02:11</time>"
        );
        assert!(exact_time("2026-11-01T13:02:11.480Z").into_string().contains("</span>13:02:11.480</time>"));
        assert_eq!(exact_clock("2026-11-01T13:02:11.480Z"), "13:02:11.480");
        assert_eq!(between(Some("2026-11-01T13:02:11.480Z"), Some("2026-11-01T13:02:12Z")), Some(520));
    }

    #[test]
    fn time_in_a_zone_names_its_day_and_offset() {
        assert_eq!(zoned("2026-11-01T02:00:00Z", "Europe/Berlin").as_deref(), Some("Sun 2026-11-01 03:00:00 CET"));
        assert_eq!(zoned("2026-07-01T01:00:00Z", "Europe/Berlin").as_deref(), Some("Wed 2026-07-01 03:00:00 CEST"));
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
