//! Errors that say the same of different things: texts that differ only in numbers, ids and quoted values are of one class.

use crate::model::event::ErrorInfo;

/// Stands for whatever differs.
const ANY: char = '#';

/// An error that others are like: its kind, its message, or both as they are shown (`kind: message`).
pub struct ErrorFingerprint {
    text: String,
    class: String,
}

impl ErrorFingerprint {
    pub fn new(text: &str) -> Self {
        let class = class_of(text);
        // As tables show an error.
        let class = class.strip_suffix(" (attempt #)").map_or(class.clone(), str::to_owned);
        Self { text: text.trim().to_owned(), class }
    }

    pub fn fits(&self, error: &ErrorInfo) -> bool {
        if error.kind == self.text {
            return true;
        }
        let class = class_of(&error.message);
        let message = self.class.strip_prefix(&error.kind).and_then(|rest| rest.strip_prefix(": "));
        class == self.class || message == Some(class.as_str())
    }
}

/// What is left of a text without numbers, ids and quoted values.
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

/// The width of what stands in quotes, the quotes included; of a quote alone where it is not closed.
fn quoted(text: &str, quote: char) -> usize {
    text[1..].find(quote).map_or(1, |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_left_out() {
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
    fn an_error_is_found_by_its_kind_or_by_one_like_it() {
        let error = ErrorInfo::new("timeout", "no answer from shard-7 after 30 s", 2);
        for alike in [
            "timeout",
            "no answer from shard-12 after 5 s",
            "timeout: no answer from shard-1 after 1 s",
            " timeout: no answer from shard-1 after 1 s (attempt 3)",
        ] {
            assert!(ErrorFingerprint::new(alike).fits(&error), "{alike}");
        }
        for other in ["time", "no answer", "error: no answer from shard-7 after 30 s", "timeout: "] {
            assert!(!ErrorFingerprint::new(other).fits(&error), "{other}");
        }
    }
}
