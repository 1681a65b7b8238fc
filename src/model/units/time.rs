//! Times as text.

use crate::model::task::id::clip;

/// Parses RFC 3339, or epoch milliseconds.
pub fn parse_time(text: &str) -> Result<i64, String> {
    if let Ok(millis) = text.trim().parse::<i64>() {
        return Ok(millis);
    }
    let invalid = |_| {
        format!("`{}` is not a time: write RFC 3339, such as 2026-01-31T12:00:00Z, or epoch milliseconds", clip(text))
    };
    text.trim().parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond).map_err(invalid)
}
