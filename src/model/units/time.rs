//! Times as text.

use crate::model::task::id::clip;

/// Latest time, as epoch milliseconds: the end of the year 9999. A store's index holds it exactly.
pub const MAX_TIME_MS: i64 = 253_402_207_200_999;
const MIN_TIME_MS: i64 = -MAX_TIME_MS;

/// Parses RFC 3339, or epoch milliseconds.
pub fn parse_time(text: &str) -> Result<i64, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
