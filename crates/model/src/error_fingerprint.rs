//! Error fingerprints: messages that differ only in numbers, ids and quoted values are equal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::event::ErrorInfo;
use crate::task::id::clip;

/// Placeholder for a variable part.
const PLACEHOLDER: char = '#';
/// Maximum length of the part of a message that distinguishes errors, and of the text of a group, in characters.
pub const MAX_CHARS: usize = 160;

/// Name of a group of similar errors. The upper half is a hash of the kind, the lower half one of the first line of the
/// message without its variable parts; 0 there names all errors of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// Fingerprint of an error; tasks that ended without one form a group of their own.
    pub fn of(error: Option<&ErrorInfo>) -> Self {
        match error {
            Some(error) => Self::of_kind(&error.kind).with_message(&error.message),
            // Differs from every kind without control characters.
            None => Self::of_kind("\0").with_message(""),
        }
    }

    /// Fingerprint of all errors of a kind.
    pub fn of_kind(kind: &str) -> Self {
        Self(u64::from(hash(kind)) << 32)
    }

    /// Fingerprint of the errors of the same kind with a message like this one.
    #[must_use]
    pub fn with_message(self, message: &str) -> Self {
        let class = class_of(first_line(message), MAX_CHARS);
        Self(self.kind().0 | u64::from(hash(&class).max(1)))
    }

    /// Fingerprint of all errors of the same kind.
    #[must_use]
    pub const fn kind(self) -> Self {
        Self(self.0 & KIND_BITS)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Fingerprint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("`{}` is not the name of an error: 16 digits 0-9 a-f", clip(text)))
    }
}

/// Text of a group of errors, taken from one of them: kind and first line.
pub fn group_text(error: Option<&ErrorInfo>) -> String {
    let Some(error) = error else { return "no error was reported".to_owned() };
    let first = ErrorInfo::new(&error.kind, first_line(&error.message), error.attempt);
    let text = first.text();
    text.char_indices().nth(MAX_CHARS).map_or(text.to_string(), |(end, _)| text[..end].to_owned() + "…")
}

fn first_line(message: &str) -> &str {
    message.trim_start().lines().next().unwrap_or_default()
}

/// Part of a fingerprint that belongs to the kind.
const KIND_BITS: u64 = 0xffff_ffff_0000_0000;

/// 64-bit FNV-1a hash of a text, folded to 32 bits.
fn hash(text: &str) -> u32 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    (hash >> 32) as u32 ^ hash as u32
}

/// Filter for similar errors, given as a name, a kind, a message, or kind and message as displayed (`kind: message`).
#[derive(Clone, Debug)]
pub struct ErrorFilter {
    text: String,
    class: String,
}

impl ErrorFilter {
    /// Parses the text of a filter.
    pub fn new(text: &str) -> Self {
        let class = class_of(text, usize::MAX);
        // Suffix of errors in CLI tables.
        let class = class.strip_suffix(" (attempt #)").map_or(class.clone(), str::to_owned);
        Self { text: text.trim().to_owned(), class }
    }

    /// Returns the error or the kind whose name was given.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.text.parse().ok()
    }

    /// Lists the groups that contain all errors of these kinds that match. `None`: errors of other groups may match too.
    pub fn fingerprints(&self, kinds: &[Fingerprint]) -> Option<Vec<Fingerprint>> {
        // Only the first line of a message is part of a fingerprint, and a message of one word has only one.
        let is_word = !self.text.is_empty() && !self.text.contains(char::is_whitespace);
        is_word.then(|| {
            let kind = Fingerprint::of_kind(&self.text);
            let other_kinds = kinds.iter().filter(|other| **other != kind);
            let messages = other_kinds.map(|other| other.with_message(&self.text));
            self.fingerprint().into_iter().chain([kind]).chain(messages).collect()
        })
    }

    /// Returns true if the error has this name or kind, or this message up to variable parts.
    pub fn matches(&self, error: Option<&ErrorInfo>) -> bool {
        let found = Fingerprint::of(error);
        if self.fingerprint().is_some_and(|filter| filter == found || filter == found.kind()) {
            return true;
        }
        let Some(error) = error else { return false };
        if error.kind == self.text {
            return true;
        }
        let class = class_of(&error.message, usize::MAX);
        let message = self.class.strip_prefix(&error.kind).and_then(|rest| rest.strip_prefix(": "));
        class == self.class || message == Some(class.as_str())
    }
}

/// Replaces numbers, ids and quoted values of a text with placeholders, and ends the result after `max_chars`.
fn class_of(text: &str, max_chars: usize) -> String {
    let mut class = String::with_capacity(text.len().min(max_chars));
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next().filter(|_| class.len() < max_chars) {
        let width = match first {
            '"' | '`' => quoted(rest, first),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, behind) = rest.split_at(width);
        if is_word(first) && !part.contains(|c: char| c.is_ascii_digit()) {
            class.push_str(part);
        } else if width > first.len_utf8() || first.is_ascii_digit() {
            class.push(PLACEHOLDER);
        } else if !(first.is_whitespace() && class.ends_with(' ')) {
            class.push(if first.is_whitespace() { ' ' } else { first });
        }
        rest = behind;
    }
    if let Some((end, _)) = class.char_indices().nth(max_chars) {
        class.truncate(end);
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
            assert_eq!(class_of(text, usize::MAX), class);
        }
    }

    #[test]
    fn similar_errors_share_a_fingerprint() {
        let of = |kind: &str, message: &str| Fingerprint::of(Some(&ErrorInfo::new(kind, message, 1)));
        let expected = of("timeout", "no answer from shard-7 after 30 s\nat line 4");
        assert_eq!(of("timeout", "  no answer from shard-12 after 5 s\nat line 90"), expected);
        for (kind, message) in
            [("error", "no answer from shard-7 after 30 s"), ("timeout", "no answer"), ("timeout", "")]
        {
            assert_ne!(of(kind, message), expected, "{kind}: {message}");
        }
        assert_ne!(Fingerprint::of(None), of("", ""));
        assert_eq!(expected.to_string().parse(), Ok(expected));
        assert_eq!(Fingerprint(10).to_string(), "000000000000000a");
        assert!("a".parse::<Fingerprint>().is_err() && "zzzzzzzzzzzzzzzz".parse::<Fingerprint>().is_err());
        let long = |end: &str| of("error", &("größer ".repeat(40) + end));
        assert_eq!(long("a"), long("b"), "only the beginning of a long message counts");
    }

    #[test]
    fn fingerprint_contains_its_kind() {
        let of = |kind: &str, message: &str| Fingerprint::of(Some(&ErrorInfo::new(kind, message, 1)));
        let (ada, ken) = (of("declined", "card of Ada"), of("declined", "card of Ken"));
        assert_ne!(ada, ken);
        assert_eq!((ada.kind(), ken.kind()), (Fingerprint::of_kind("declined"), Fingerprint::of_kind("declined")));
        assert_ne!(of("timeout", "card of Ada").kind(), ada.kind());
        assert_ne!(of("declined", ""), ada.kind(), "an empty message is not all messages");
        assert_eq!(ada.kind().kind(), ada.kind());
        let filter = ErrorFilter::new(&ada.kind().to_string());
        assert!(filter.matches(Some(&ErrorInfo::new("declined", "card of Alan", 1))));
    }

    #[test]
    fn filter_by_one_word_names_the_groups_that_can_match() {
        let kinds = [Fingerprint::of_kind("error"), Fingerprint::of_kind("timeout")];
        let groups = ErrorFilter::new("timeout").fingerprints(&kinds).unwrap();
        assert_eq!(groups, [kinds[1], Fingerprint::of(Some(&ErrorInfo::new("error", "timeout", 1)))]);
        assert_eq!(ErrorFilter::new("no answer").fingerprints(&kinds), None);
        let name = Fingerprint::of(Some(&ErrorInfo::new("error", "no answer", 1)));
        assert!(ErrorFilter::new(&name.to_string()).fingerprints(&kinds).unwrap().contains(&name));
    }

    #[test]
    fn text_of_a_group_is_one_short_line() {
        let text = |kind: &str, message: &str| group_text(Some(&ErrorInfo::new(kind, message, 1)));
        assert_eq!(text("timeout", "no answer from 10.0.0.7\nat line 4"), "timeout: no answer from 10.0.0.7");
        assert_eq!(text("error", &"ä".repeat(200)), "ä".repeat(160) + "…");
        assert_eq!(group_text(None), "no error was reported");
    }

    #[test]
    fn filter_matches_kind_or_similar_message() {
        let error = ErrorInfo::new("timeout", "no answer from shard-7 after 30 s", 2);
        for text in [
            "timeout",
            "no answer from shard-12 after 5 s",
            "timeout: no answer from shard-1 after 1 s",
            " timeout: no answer from shard-1 after 1 s (attempt 3)",
        ] {
            assert!(ErrorFilter::new(text).matches(Some(&error)), "{text}");
        }
        for other in ["time", "no answer", "error: no answer from shard-7 after 30 s", "timeout: "] {
            assert!(!ErrorFilter::new(other).matches(Some(&error)), "{other}");
        }
    }
}
