//! Stored form of a log line: `at_ms run.attempt text`.

use crate::event::Event;

/// Line of a task's log, as the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLine<'a> {
    /// Time of the event that brought the line, epoch milliseconds.
    pub at_ms: i64,
    pub run: u32,
    /// Number of the attempt that wrote the line; 0 for lines from outside of an attempt.
    pub attempt: u32,
    pub text: &'a str,
}

impl<'a> StoredLine<'a> {
    /// Line that an event brings.
    pub fn of(event: &Event, text: &'a str) -> Self {
        Self { at_ms: event.at_ms, run: event.run, attempt: event.attempt, text }
    }

    pub fn encode(self) -> String {
        let Self { at_ms, run, attempt, text } = self;
        format!("{at_ms} {run}.{attempt} {text}")
    }

    /// Decodes a stored line; `None` for another format.
    pub fn decode(stored: &'a str) -> Option<Self> {
        let mut parts = stored.splitn(3, ' ');
        let (at_ms, source, text) = (parts.next()?, parts.next()?, parts.next()?);
        let (run, attempt) = source.split_once('.')?;
        Some(Self { at_ms: at_ms.parse().ok()?, run: run.parse().ok()?, attempt: attempt.parse().ok()?, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_line_keeps_time_attempt_and_text() {
        for (at_ms, text) in [(0, ""), (1_769_860_800_000, " two  words "), (-1, "größe")] {
            let line = StoredLine { at_ms, run: 2, attempt: 3, text };
            assert_eq!(StoredLine::decode(&line.encode()), Some(line));
        }
        for other in ["text", "some text", "1 2 text", "1 1.x text"] {
            assert_eq!(StoredLine::decode(other), None, "{other}");
        }
    }
}
