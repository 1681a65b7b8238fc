//! Times as text.

use std::borrow::Cow;
use std::fmt;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::duration::Millis;
use crate::task::id::clip;

/// Latest time, as epoch milliseconds: the end of the year 9999. A store's index holds it exactly.
pub const MAX_TIME_MS: i64 = 253_402_207_200_999;
/// Earliest time that a bare number gives, as epoch milliseconds: the year 2000. An earlier one is in other units, such as
/// seconds.
const MIN_BARE_TIME_MS: i64 = 946_684_800_000;
/// Bare durations from here on, 18 days in milliseconds, may be epoch seconds: the year 2020.
pub(super) const MIN_SECONDS: u64 = 1_577_836_800;

/// Formats a time as RFC 3339 in UTC with milliseconds.
pub fn time_text(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => at_ms.to_string(),
    }
}

/// Parses RFC 3339, or epoch milliseconds from the year 2000 on.
pub fn parse_time(text: &str) -> Result<i64, String> {
    if let Some(millis) = parse_canonical(text) {
        return Ok(millis);
    }
    if let Ok(millis) = text.trim().parse::<i64>() {
        return match millis {
            MIN_BARE_TIME_MS..=MAX_TIME_MS => Ok(millis),
            i64::MIN..MIN_BARE_TIME_MS => {
                Err(format!("`{millis}` is a time before the year 2000: write epoch milliseconds, or RFC 3339"))
            }
            _ => Err(format!("`{millis}` is no time before the year 10000: write epoch milliseconds")),
        };
    }
    let invalid = |_| {
        format!("`{}` is not a time: write RFC 3339, such as 2026-01-31T12:00:00Z, or epoch milliseconds", clip(text))
    };
    text.trim().parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond).map_err(invalid)
}

/// Parses the form in which kafleet writes times, `2026-01-31T12:00:00.123Z`; `None` for any other text. Workers read one
/// per task, and the general parser takes several times as long.
fn parse_canonical(text: &str) -> Option<i64> {
    let text: &[u8; 24] = text.as_bytes().try_into().ok()?;
    let is_separated = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.'), (23, b'Z')]
        .iter()
        .all(|(at, separator)| text[*at] == *separator);
    let number = |digits: std::ops::Range<usize>| {
        text[digits]
            .iter()
            .try_fold(0_i16, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i16::from(digit - b'0')))
    };
    let two = |at: usize| number(at..at + 2).map(|number| number as i8);
    if !is_separated {
        return None;
    }
    let nanos = i32::from(number(20..23)?) * 1_000_000;
    let time = DateTime::new(number(0..4)?, two(5)?, two(8)?, two(11)?, two(14)?, two(17)?, nanos).ok()?;
    Offset::UTC.to_timestamp(time).ok().map(jiff::Timestamp::as_millisecond)
}

/// Latest start of a task: a time, or a duration from its creation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// Time after the creation.
    After(Millis),
    /// Epoch milliseconds.
    At(i64),
}

impl Expires {
    /// Parses a duration, RFC 3339, or a bare number: milliseconds if it is short, and epoch milliseconds from the year 2000
    /// on. Between the two it may be in epoch seconds, and is refused.
    ///
    /// # Errors
    /// A message for people with the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.trim().parse::<u64>() {
            return Self::of_number(number);
        }
        Millis::parse(text).map(Self::After).or_else(|_| parse_time(text).map(Self::At)).map_err(|_| {
            let text = clip(text);
            format!("`{text}` is neither a duration, such as 10m, nor a time in RFC 3339 or epoch milliseconds")
        })
    }

    fn of_number(number: u64) -> Result<Self, String> {
        match i64::try_from(number) {
            _ if number < MIN_SECONDS => Ok(Self::After(Millis(number))),
            Ok(at @ MIN_BARE_TIME_MS..=MAX_TIME_MS) => Ok(Self::At(at)),
            _ => Err(format!(
                "`{number}` may be epoch seconds or a duration: write epoch milliseconds, or a duration with its unit, such as \
                 20d"
            )),
        }
    }

    /// Time for a task that was created at `created_at_ms`, epoch milliseconds.
    pub fn time_ms(self, created_at_ms: i64) -> i64 {
        match self {
            Self::After(span) => created_at_ms.saturating_add(span.as_i64()),
            Self::At(at_ms) => at_ms,
        }
    }
}

impl fmt::Display for Expires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(span) => span.fmt(f),
            Self::At(at_ms) => at_ms.fmt(f),
        }
    }
}

impl Serialize for Expires {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Expires {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a duration such as 10m, or a time in RFC 3339 or epoch milliseconds")]
        enum WrittenTime {
            Number(u64),
            Text(String),
        }
        let read = match WrittenTime::deserialize(deserializer)? {
            WrittenTime::Number(number) => Self::of_number(number),
            WrittenTime::Text(text) => Self::parse(&text),
        };
        read.map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for Expires {
    fn schema_name() -> Cow<'static, str> {
        "Expires".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A duration from the creation on (`10m`), or a time: RFC 3339, or epoch milliseconds from the year \
                2000 on. A number below 1577836800 is a duration in milliseconds.",
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn canonical_form_is_read_as_by_the_general_parser(
            millis in jiff::Timestamp::MIN.as_millisecond()..=MAX_TIME_MS,
            at in 0_usize..24,
            byte in b' '..=b'~',
        ) {
            let text = format!("{:.3}", jiff::Timestamp::from_millisecond(millis).unwrap());
            prop_assert_eq!(parse_time(&text), Ok(millis));
            if text.len() == 24 {
                prop_assert_eq!(parse_canonical(&text), Some(millis));
                let mut changed = text.into_bytes();
                changed[at] = byte;
                let changed = String::from_utf8(changed).unwrap();
                if let Some(millis) = parse_canonical(&changed) {
                    let general = changed.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond);
                    prop_assert_eq!(general.ok(), Some(millis), "{}", changed);
                }
            }
        }
    }

    #[test]
    fn expiry_is_a_duration_or_a_time_and_never_the_other_one() {
        let at = Some(Expires::At(1_795_853_855_000));
        let after = |ms| Some(Expires::After(Millis(ms)));
        for (text, expected) in [
            ("5000", after(5_000)),
            (" 5s ", after(5_000)),
            ("1577836799", after(1_577_836_799)),
            ("20d", after(1_728_000_000)),
            // Epoch seconds, and numbers that are neither.
            ("1577836800", None),
            ("1795853855", None),
            ("946684799999", None),
            ("1795853855000", at),
            ("2026-11-28T09:37:35+01:00", Some(Expires::At(1_795_855_055_000))),
            ("1795853855000000", None),
            ("99999999999999999999", None),
            ("-5", None),
            ("soon", None),
        ] {
            assert_eq!(Expires::parse(text).ok(), expected, "{text}");
            let number = text.trim().parse::<u64>().is_ok();
            let json = if number { text.to_owned() } else { format!("{text:?}") };
            assert_eq!(serde_json::from_str::<Expires>(&json).ok(), expected, "{json}");
            if let Some(expiry) = expected {
                assert_eq!(Expires::parse(&expiry.to_string()), Ok(expiry));
            }
        }
    }

    #[test]
    fn time_is_rfc_3339_or_milliseconds_of_a_year_with_four_digits() {
        for (text, expected) in [
            ("1970-01-01T00:00:01Z", Some(1_000)),
            (" 946684800000 ", Some(946_684_800_000)),
            ("946684799999", None),
            ("1795853855", None),
            ("0", None),
            ("-1", None),
            ("1770000000000000000", None),
            ("9223372036854775807", None),
            ("-9223372036854775808", None),
            ("tomorrow", None),
        ] {
            assert_eq!(parse_time(text).ok(), expected, "{text}");
        }
        assert_eq!(MAX_TIME_MS, jiff::Timestamp::MAX.as_millisecond());
    }
}
