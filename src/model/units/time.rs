//! Times as text.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use crate::model::task::id::clip;

/// Latest time, as epoch milliseconds: the end of the year 9999. A store's index holds it exactly.
pub const MAX_TIME_MS: i64 = 253_402_207_200_999;
const MIN_TIME_MS: i64 = -MAX_TIME_MS;

/// Parses RFC 3339, or epoch milliseconds.
pub fn parse_time(text: &str) -> Result<i64, String> {
    if let Some(millis) = parse_canonical(text) {
        return Ok(millis);
    }
    if let Ok(millis) = text.trim().parse::<i64>() {
        return match millis {
            MIN_TIME_MS..=MAX_TIME_MS => Ok(millis),
            _ => Err(format!("`{}` is no time before the year 10000: write epoch milliseconds", clip(text))),
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
    fn time_is_rfc_3339_or_milliseconds_of_a_year_with_four_digits() {
        for (text, expected) in [
            ("1970-01-01T00:00:01Z", Some(1_000)),
            (" 1000 ", Some(1_000)),
            ("-1", Some(-1)),
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
