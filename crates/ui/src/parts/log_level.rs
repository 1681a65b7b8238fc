//! Levels of log lines, as their texts show them: a line has no level of its own.

/// Words of a level near the beginning of a line.
const ERRORS: [&str; 5] = ["ERROR", "FATAL", "CRITICAL", "PANIC", "SEVERE"];
const WARNINGS: [&str; 2] = ["WARN", "WARNING"];
/// Words of a line among which its level is.
const FIRST_WORDS: usize = 6;

/// Levels of consecutive lines.
#[derive(Default)]
pub(in super::super) struct LineLevels {
    /// The line before belongs to the trace of an error.
    in_trace: bool,
}

impl LineLevels {
    /// Class of a line: `bad` for an error and its trace, `attention` for a warning.
    pub(in super::super) fn of(&mut self, text: &str) -> Option<&'static str> {
        let is_indented = text.starts_with([' ', '\t']);
        let (was_in_trace, is_python) = (self.in_trace, text.starts_with("Traceback (most recent call last)"));
        if is_python || is_panic(text) || is_error(text) {
            self.in_trace = true;
            return Some("bad");
        }
        // The frames of a trace are indented; in Python the error itself follows them.
        self.in_trace = was_in_trace && is_indented;
        if self.in_trace {
            return Some("bad");
        }
        has_word(text, &WARNINGS).then_some("attention")
    }
}

fn is_panic(text: &str) -> bool {
    text.starts_with("thread '") && text.contains("panicked at")
}

/// Whether a line states an error, such as `KeyError: 'weight'` or `2026-01-31 ERROR no answer`.
fn is_error(text: &str) -> bool {
    let name = text.split_once(':').map_or("", |(name, _)| name);
    let is_name = !name.contains(char::is_whitespace) && (name.ends_with("Error") || name.ends_with("Exception"));
    is_name || has_word(text, &ERRORS)
}

fn has_word(text: &str, words: &[&str]) -> bool {
    let is_part = |c: char| !c.is_ascii_alphanumeric();
    text.split_whitespace().take(FIRST_WORDS).any(|word| words.contains(&word.trim_matches(is_part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_with_their_traces_and_warnings_are_marked() {
        let mut levels = LineLevels::default();
        for (text, level) in [
            ("connecting", None),
            ("Traceback (most recent call last):", Some("bad")),
            ("  File \"a.py\", line 1", Some("bad")),
            ("KeyError: 'weight'", Some("bad")),
            ("    at pack (pack.ts:7)", Some("bad")),
            ("next", None),
            ("  indented", None),
            ("2026-01-31T12:00:00Z [WARN] slow", Some("attention")),
            ("12:00:00 ERROR no answer", Some("bad")),
            ("thread 'main' panicked at src/main.rs:1", Some("bad")),
            ("no error here: fine", None),
        ] {
            assert_eq!(levels.of(text), level, "{text}");
        }
    }
}
