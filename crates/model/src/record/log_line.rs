//! Stored form of a log line: the time of its event in epoch milliseconds, a space, and the text.

/// Encodes a line of an event at this time.
pub fn encode(at_ms: i64, text: &str) -> String {
    format!("{at_ms} {text}")
}

/// Returns the time and the text of a stored line; `None` for another format.
pub fn decode(line: &str) -> Option<(i64, &str)> {
    let (at_ms, text) = line.split_once(' ')?;
    Some((at_ms.parse().ok()?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_line_keeps_time_and_text() {
        for (at_ms, text) in [(0, ""), (1_769_860_800_000, " two  words "), (-1, "größe")] {
            assert_eq!(decode(&encode(at_ms, text)), Some((at_ms, text)));
        }
        assert_eq!((decode("text"), decode("some text")), (None, None));
    }
}
