//! Reasons why JSON of another program or of a person is refused, in words for people.

use crate::task::id::clip_to;

/// Maximum characters of a reason: serde quotes a string of the wrong type whole, up to the size of a record.
const MAX_REASON_CHARS: usize = 300;

/// Types as serde names them, and what they permit in JSON.
const PERMITTED: [(&str, &str); 9] = [
    ("a sequence", "an array"),
    ("a map", "an object"),
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number of at least 0"),
    ("usize", "a whole number of at least 0"),
    ("i64", "a whole number"),
    ("f64", "a number"),
];

/// Reason of an error, of at most 300 characters. That of an error about a value names neither its position, which is that of the
/// compact text, nor a Rust type; an error of the syntax keeps its line and column.
pub fn short_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    clip_to(&if error.is_data() { reason_of_value(&text) } else { text }, MAX_REASON_CHARS)
}

fn reason_of_value(text: &str) -> String {
    let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
    let found = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => {
            let words = PERMITTED.iter().find(|(name, _)| *name == expected).map(|(_, words)| *words);
            let words = words.or_else(|| expected.starts_with("struct ").then_some("an object"));
            let expected = words.unwrap_or(expected);
            format!("expected {expected}, found {found}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::task::Position;

    fn reason<T: DeserializeOwned + Debug>(text: &str) -> String {
        short_reason(&serde_json::from_str::<T>(text).unwrap_err())
    }

    #[test]
    fn reason_about_a_value_names_no_type_and_no_position() {
        assert_eq!(reason::<u32>("-1"), "expected a whole number from 0 to 4294967295, found integer `-1`");
        assert_eq!(reason::<Vec<u8>>("{}"), "expected an array, found map");
        assert_eq!(reason::<Vec<u8>>(r#""a at line 1""#), "expected an array, found string \"a at line 1\"");
        assert_eq!(reason::<String>("[1]"), "expected a string, found sequence");
        assert_eq!(reason::<Position>("3"), "expected an object, found integer `3`");
    }

    #[test]
    fn reason_about_the_syntax_keeps_its_position() {
        assert_eq!(reason::<u32>("[1"), "expected a whole number from 0 to 4294967295, found sequence");
        assert_eq!(reason::<Vec<u32>>("[1"), "EOF while parsing a list at line 1 column 2");
    }

    #[test]
    fn reason_is_cut() {
        let long = serde_json::to_string(&"x".repeat(10_000)).unwrap();
        assert!(reason::<u32>(&long).chars().count() <= MAX_REASON_CHARS + 1);
    }
}
