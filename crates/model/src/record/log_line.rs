//! Stored form of a log line: `at_ms run.attempt text`, with `o` or `e` after the attempt for stdout or stderr of its process.

use crate::event::Event;
use crate::event::log_line::LogStream;

/// Line of a task's log, as the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLine<'a> {
    /// Time of the event that brought the line, epoch milliseconds.
    pub at_ms: i64,
    pub run: u32,
    /// Number of the attempt that wrote the line; 0 for lines from outside of an attempt.
    pub attempt: u32,
    /// Stream on which the process of the attempt wrote the line; `None`: the handler or a client logged it.
    pub stream: Option<LogStream>,
    pub text: &'a str,
}

/// Streams with their letters in stored lines.
const STREAMS: [(LogStream, char); 2] = [(LogStream::Stdout, 'o'), (LogStream::Stderr, 'e')];

impl<'a> StoredLine<'a> {
    /// Line that an event brings.
    pub fn of(event: &Event, stream: Option<LogStream>, text: &'a str) -> Self {
        Self { at_ms: event.at_ms, run: event.run, attempt: event.attempt, stream, text }
    }

    pub fn encode(self) -> String {
        let Self { at_ms, run, attempt, stream, text } = self;
        let letter = STREAMS.iter().find(|(known, _)| Some(*known) == stream).map(|(_, letter)| letter.to_string());
        format!("{at_ms} {run}.{attempt}{} {text}", letter.unwrap_or_default())
    }

    /// Decodes a stored line; `None` for another format.
    pub fn decode(stored: &'a str) -> Option<Self> {
        let mut parts = stored.splitn(3, ' ');
        let (at_ms, source, text) = (parts.next()?, parts.next()?, parts.next()?);
        let (run, attempt) = source.split_once('.')?;
        let of_stream = |(stream, letter): (LogStream, char)| Some((attempt.strip_suffix(letter)?, Some(stream)));
        let (attempt, stream) = STREAMS.into_iter().find_map(of_stream).unwrap_or((attempt, None));
        let (at_ms, run, attempt) = (at_ms.parse().ok()?, run.parse().ok()?, attempt.parse().ok()?);
        Some(Self { at_ms, run, attempt, stream, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_line_keeps_time_attempt_and_text() {
        for (at_ms, stream, text) in [
            (0, None, ""),
            (1_769_860_800_000, Some(LogStream::Stderr), " two  words "),
            (-1, Some(LogStream::Stdout), "größe"),
        ] {
            let line = StoredLine { at_ms, run: 2, attempt: 3, stream, text };
            assert_eq!(StoredLine::decode(&line.encode()), Some(line));
        }
        for other in ["text", "some text", "1 2 text", "1 1.x text", "1 1.2ee text", "1 1.e text"] {
            assert_eq!(StoredLine::decode(other), None, "{other}");
        }
    }
}
