//! Access to parts of a JSON text, without decoding them.

use std::borrow::Cow;

use super::defect::push_segment;
use super::scan::{TokenKind, Tokens, decoded};
use super::{JsonDefect, RawJson, canonical, layout};

/// Part of a valid JSON text: one value, without white space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonSlice<'a>(&'a str);

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// Number of any size and precision.
    Number,
    /// String in quotes.
    String,
    /// List of values.
    Array,
    /// List of names and values.
    Object,
}

impl<'a> JsonSlice<'a> {
    /// Views valid text.
    pub(super) fn of(text: &'a str) -> Self {
        Self(text.trim_matches([' ', '\n', '\r', '\t']))
    }

    /// Returns the text as it was given.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// Returns the kind of the value.
    pub fn kind(self) -> JsonKind {
        match self.0.as_bytes().first() {
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b'"') => JsonKind::String,
            Some(b't' | b'f') => JsonKind::Bool,
            Some(b'-' | b'0'..=b'9') => JsonKind::Number,
            _ => JsonKind::Null,
        }
    }

    /// Content of a string; `None` for other values.
    pub fn string(self) -> Option<Cow<'a, str>> {
        if self.kind() == JsonKind::String { decoded(self.0).ok() } else { None }
    }

    /// Members of an object, in their order; none for other values.
    pub fn members(self) -> impl Iterator<Item = (Cow<'a, str>, Self)> {
        let mut tokens = self.inner(JsonKind::Object);
        std::iter::from_fn(move || {
            let mut name = tokens.next()?;
            while name.kind == TokenKind::Comma {
                name = tokens.next()?;
            }
            let name = if name.kind == TokenKind::Text { decoded(name.text).ok()? } else { return None };
            tokens.next()?;
            Some((name, Self(tokens.value()?)))
        })
    }

    /// Elements of an array, in their order; none for other values.
    pub fn elements(self) -> impl Iterator<Item = Self> {
        let mut tokens = self.inner(JsonKind::Array);
        let mut is_first = true;
        std::iter::from_fn(move || {
            if !std::mem::take(&mut is_first) {
                tokens.next()?;
            }
            tokens.value().map(Self)
        })
    }

    /// Tokens behind the first bracket of a container; none for other values.
    fn inner(self, kind: JsonKind) -> Tokens<'a> {
        Tokens::of(if self.kind() == kind { self.0.get(1..).unwrap_or_default() } else { "" })
    }

    /// Member with this name.
    pub fn member(self, name: &str) -> Option<Self> {
        self.members().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// Value at a JSON pointer (RFC 6901).
    pub fn at(self, pointer: &str) -> Option<Self> {
        if pointer.is_empty() {
            return Some(self);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self, |value, segment| match value.kind() {
            JsonKind::Object => value.member(&segment.replace("~1", "/").replace("~0", "~")),
            JsonKind::Array if segment == "0" || !segment.starts_with(['0', '+']) => {
                value.elements().nth(segment.parse().ok()?)
            }
            _ => None,
        })
    }

    /// Number of containers around the innermost value.
    pub fn depth(self) -> usize {
        let levels = Tokens::of(self.0).scan(0_usize, |open, token| {
            match token.kind {
                TokenKind::Open => *open += 1,
                TokenKind::Close => *open = open.saturating_sub(1),
                _ => {}
            }
            Some(*open)
        });
        levels.max().unwrap_or_default()
    }

    /// Text without white space between its tokens. Digits, escapes and the order of names stay.
    pub fn compact(self) -> String {
        layout::compact(self.0)
    }

    /// Text with one line per member and element, indented by 2. Digits, escapes and the order of names stay.
    pub fn pretty(self) -> String {
        layout::pretty(self.0)
    }

    /// Canonical text, which is the same for equal values: `1`, `1.0` and `1e0` are equal, and so are objects with
    /// another order of names. The rule is in `docs/wire.md`.
    ///
    /// # Errors
    /// The exponent of a number has more than 9 digits, or a string has half a surrogate pair. A [`RawJson`] has
    /// neither, unless it was read from a binary format.
    pub fn canonical(self) -> Result<String, JsonDefect> {
        canonical::canonical(self.0)
    }
}

/// Copies the value.
impl From<JsonSlice<'_>> for RawJson {
    fn from(slice: JsonSlice<'_>) -> Self {
        Self::of_valid(slice.0)
    }
}

/// JSON pointer to a member or an element of the value at another pointer.
pub fn pointer_to(container: &str, segment: &str) -> String {
    let mut pointer = container.to_owned();
    push_segment(&mut pointer, segment);
    pointer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::json::tests::any_json;

    const TEXT: &str = r#" {"a/b" : [ 1.10, {"~":"x\n"}, [ ] ] , "\u0065":{},"n":1e400} "#;

    #[test]
    fn parts_are_found_by_pointer() {
        let slice = JsonSlice::of(TEXT);
        for (pointer, text) in
            [("/a~1b/0", "1.10"), ("/a~1b/1/~0", r#""x\n""#), ("/a~1b/2", "[ ]"), ("/e", "{}"), ("/n", "1e400")]
        {
            assert_eq!(slice.at(pointer).map(JsonSlice::text), Some(text), "{pointer}");
        }
        for pointer in ["a", "/a", "/a~1b/3", "/a~1b/01", "/a~1b/-", "/n/0", "/e/"] {
            assert_eq!(slice.at(pointer), None, "{pointer}");
        }
        assert_eq!(slice.at("/a~1b/1/~0").and_then(JsonSlice::string).as_deref(), Some("x\n"));
        assert_eq!((slice.depth(), JsonSlice::of("1").depth(), slice.at("").map(JsonSlice::depth)), (3, 0, Some(3)));
        assert_eq!(pointer_to("/x", "a/b~"), "/x/a~1b~0");
    }

    /// Finds every part of a value with its pointer.
    fn parts(pointer: &str, value: &Value, collected: &mut Vec<(String, Value)>) {
        collected.push((pointer.to_owned(), value.clone()));
        match value {
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(n, item)| parts(&pointer_to(pointer, &n.to_string()), item, collected));
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(name, field)| parts(&pointer_to(pointer, name), field, collected));
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn parts_are_those_of_the_decoded_value(value in any_json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            let mut all = Vec::new();
            parts("", &value, &mut all);
            for (pointer, part) in all {
                let slice = JsonSlice::of(&text).at(&pointer).unwrap();
                prop_assert_eq!(slice.compact(), part.to_string());
                prop_assert_eq!(slice.members().count(), part.as_object().map_or(0, |fields| fields.len()));
                prop_assert_eq!(slice.elements().count(), part.as_array().map_or(0, Vec::len));
            }
        }
    }
}
