//! Lines of a task's log: their limits, and the streams of processes from which they come.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of one line, in bytes.
pub const MAX_LINE_BYTES: usize = 16 << 10;
/// Maximum total length of the lines in one event, in bytes.
pub const MAX_EVENT_BYTES: usize = 64 << 10;
/// Maximum number of lines in one event.
pub const MAX_EVENT_LINES: usize = 1_000;

/// Output stream of the process of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    Stdout,
    Stderr,
}

impl LogStream {
    /// Name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Splits texts into lines. Fails if the lines do not fit into one event; the error carries the index of the
/// offending text, or `None` if all texts together are too large.
pub fn lines_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, (Option<usize>, String)> {
    let mut lines = Vec::new();
    for (n, text) in texts.into_iter().enumerate() {
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.len() > MAX_LINE_BYTES {
                return Err((
                    Some(n),
                    format!("the line has {} bytes: at most {MAX_LINE_BYTES} are allowed", line.len()),
                ));
            }
            lines.push(line.to_owned());
        }
    }
    check_size(&lines).map_err(|error| (None, error))?;
    Ok(lines)
}

fn check_size(lines: &[String]) -> Result<(), String> {
    let bytes: usize = lines.iter().map(String::len).sum();
    if lines.len() > MAX_EVENT_LINES || bytes > MAX_EVENT_BYTES {
        return Err(format!(
            "{} lines of {bytes} bytes: at most {MAX_EVENT_LINES} lines and {MAX_EVENT_BYTES} bytes are allowed at once",
            lines.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_line_ends() {
        assert_eq!(lines_of(["a", "b\nc\r\n", "", "d\n\ne"]).unwrap(), ["a", "b", "c", "", "d", "", "e"]);
    }

    #[test]
    fn lines_that_do_not_fit_into_one_event_are_refused_with_their_index() {
        let long = "x".repeat(MAX_LINE_BYTES + 1);
        let (index, error) = lines_of(["a", &long]).unwrap_err();
        assert_eq!((index, error.as_str()), (Some(1), "the line has 16385 bytes: at most 16384 are allowed"));
        assert!(lines_of([&long[1..]]).is_ok());
        let much = vec![&long[1..]; 5];
        assert!(lines_of(much).unwrap_err().1.starts_with("5 lines of 81920 bytes"));
        assert!(lines_of(vec!["x"; MAX_EVENT_LINES]).is_ok());
        assert_eq!(lines_of(vec!["x"; MAX_EVENT_LINES + 1]).unwrap_err().0, None);
    }
}
