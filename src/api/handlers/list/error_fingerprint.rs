//! Error fingerprints: messages that differ only in numbers, ids and quoted values are equal.

use crate::model::event::ErrorInfo;

/// Placeholder for a variable part.
const ANY: char = '#';

/// Filter for similar errors, given as a kind, a message, or both in the displayed form (`kind: message`).
pub(super) struct ErrorFingerprint {
    text: String,
    class: String,
}

impl ErrorFingerprint {
    pub(super) fn new(text: &str) -> Self {
        let class = class_of(text);
        // Suffix of errors in CLI tables.
        let class = class.strip_suffix(" (attempt #)").map_or(class.clone(), str::to_owned);
        Self { text: text.trim().to_owned(), class }
    }

    pub(super) fn matches(&self, error: &ErrorInfo) -> bool {
        if error.kind == self.text {
            return true;
        }
        let class = class_of(&error.message);
        let message = self.class.strip_prefix(&error.kind).and_then(|rest| rest.strip_prefix(": "));
        class == self.class || message == Some(class.as_str())
    }
}

/// Replaces numbers, ids and quoted values of a text with placeholders.
fn class_of(text: &str) -> String {
    let mut class = String::with_capacity(text.len());
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let width = match first {
            '"' | '`' => quoted(rest, first),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, behind) = rest.split_at(width);
        if is_word(first) && !part.contains(|c: char| c.is_ascii_digit()) {
            class.push_str(part);
        } else if width > first.len_utf8() || first.is_ascii_digit() {
            class.push(ANY);
        } else if !(first.is_whitespace() && class.ends_with(' ')) {
            class.push(if first.is_whitespace() { ' ' } else { first });
        }
        rest = behind;
    }
    class
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// Returns the width of a quoted part including its quotes; 1 if the quote is not closed.
fn quoted(text: &str, quote: char) -> usize {
    text[1..].find(quote).map_or(1, |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_parts_are_replaced() {
        for (text, class) in [
            ("no such host", "no such host"),
            ("no answer from 10.0.0.7:8080 in 30s", "no answer from #.#.#.#:# in #"),
            ("task 550e8400-e29b-41d4-a716-446655440000 is   gone\n", "task # is gone"),
            ("unknown column `price` in \"orders\"", "unknown column # in #"),
            ("can't read `x", "can't read `x"),
            ("größer als 7 – zu groß", "größer als # – zu groß"),
            ("", ""),
        ] {
            assert_eq!(class_of(text), class);
        }
    }

    #[test]
    fn fingerprint_matches_kind_or_similar_message() {
        let error = ErrorInfo::new("timeout", "no answer from shard-7 after 30 s", 2);
        for text in [
            "timeout",
            "no answer from shard-12 after 5 s",
            "timeout: no answer from shard-1 after 1 s",
            " timeout: no answer from shard-1 after 1 s (attempt 3)",
        ] {
            assert!(ErrorFingerprint::new(text).matches(&error), "{text}");
        }
        for other in ["time", "no answer", "error: no answer from shard-7 after 30 s", "timeout: "] {
            assert!(!ErrorFingerprint::new(other).matches(&error), "{other}");
        }
    }
}
