//! Part of an unfinished query that suggestions complete.

use std::ops::Range;

use super::Qualifier;
use crate::task::param_tags::PREFIX;

/// Value, word or qualifier that ends at the position of the text cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Part of the text that a suggestion replaces, in characters.
    pub chars: Range<usize>,
    /// Qualifier of the value; `None` for a word, which may become a qualifier.
    pub qualifier: Option<Qualifier>,
    /// Name of the declared param of the value, with the qualifier of tags.
    pub param: Option<String>,
    /// Text entered so far, without quotes.
    pub prefix: String,
}

impl Completion {
    /// Finds the part of a text that ends after `at` characters.
    pub fn of(text: &str, at: usize) -> Self {
        let typed: Vec<char> = text.chars().take(at).collect();
        let (mut is_quoted, mut start, mut qualifier, mut param) = (false, 0, None, None);
        for (n, c) in typed.iter().enumerate() {
            let is_escaped = n > 0 && typed[n - 1] == '\\';
            match c {
                '"' if !(is_quoted && is_escaped) => is_quoted = !is_quoted,
                _ if is_quoted => {}
                ',' if qualifier.is_some() => start = n + 1,
                '-' if start == n && qualifier.is_none() => start = n + 1,
                ':' if qualifier.is_none() => {
                    let name: String = typed[start..n].iter().collect();
                    param = name.strip_prefix(PREFIX).map(str::to_owned);
                    qualifier = if param.is_some() { Some(Qualifier::Tag) } else { Qualifier::from_name(&name) };
                    start = if qualifier.is_some() { n + 1 } else { start };
                }
                _ if c.is_whitespace() => (start, qualifier, param) = (n + 1, None, None),
                _ => {}
            }
        }
        let prefix = typed[start..].iter().collect::<String>();
        let prefix = prefix.strip_prefix('"').map_or(prefix.as_str(), |quoted| quoted.trim_end_matches('"'));
        Self { chars: start..typed.len(), qualifier, param, prefix: prefix.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_before_the_text_cursor_is_completed() {
        for (text, at, chars, qualifier, prefix) in [
            ("", 0, 0..0, None, ""),
            ("sta", 3, 0..3, None, "sta"),
            ("type:echo sta", 13, 10..13, None, "sta"),
            ("type:echo sta", 7, 5..7, Some(Qualifier::Type), "ec"),
            ("-tag:a,b", 8, 7..8, Some(Qualifier::Tag), "b"),
            ("-ta", 3, 1..3, None, "ta"),
            ("größe tag:\"a b", 14, 10..14, Some(Qualifier::Tag), "a b"),
            ("tag:\"a, b\",c", 12, 11..12, Some(Qualifier::Tag), "c"),
            ("order-42:fe", 11, 0..11, None, "order-42:fe"),
            ("type:x ", 99, 7..7, None, ""),
        ] {
            let expected = Completion { chars, qualifier, param: None, prefix: prefix.into() };
            assert_eq!(Completion::of(text, at), expected, "{text} at {at}");
        }
        for (text, param, prefix) in [("params.order.id:4", Some("order.id"), "4"), ("params.a:b tag:c", None, "c")] {
            let completion = Completion::of(text, 99);
            assert_eq!((completion.param.as_deref(), completion.prefix.as_str()), (param, prefix), "{text}");
            assert_eq!(completion.qualifier, Some(Qualifier::Tag));
        }
    }
}
