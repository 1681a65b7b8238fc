//! Masks: values at JSON pointers that people do not see, and texts that contain them.

use std::borrow::Cow;
use std::ops::Range;

use super::{JsonKind, JsonSlice, RawJson, plain_text};

/// Text that people see in the place of a masked value.
pub const MASKED: &str = "•••";
/// JSON pointer to all of a value.
pub const WHOLE_VALUE: &str = "";
/// Minimum length of a masked value that is also hidden in texts, in characters: a shorter one is a part of ordinary words.
const MIN_TEXT_CHARS: usize = 4;
/// Maximum number of texts of a value that are hidden in other texts.
const MAX_TEXTS: usize = 1_000;

impl RawJson {
    /// Returns the value with [`MASKED`] in the place of the values at these pointers.
    #[must_use]
    pub fn masked(&self, pointers: &[String]) -> Self {
        let marker = plain_text(MASKED);
        let ranges = ranges(self.slice(), pointers).map(|(_, range)| (range, marker.as_str()));
        self.with(ranges.collect())
    }

    /// Returns the value with the values of another one in the place of [`MASKED`] at these pointers; the other one, if all of it
    /// is [`MASKED`]. Without a value in the other one the text stays.
    #[must_use]
    pub fn unmasked(&self, pointers: &[String], original: &Self) -> Self {
        if self.is_masked_whole() {
            return original.clone();
        }
        let whole = original.slice();
        let ranges = ranges(self.slice(), pointers).filter(|(_, range)| is_masked(self.slice(), range));
        let ranges = ranges.filter_map(|(pointer, range)| Some((range, whole.at(pointer)?.text())));
        self.with(ranges.collect())
    }

    /// Returns the first of these pointers at which the value is [`MASKED`]; [`WHOLE_VALUE`] if all of it is.
    pub fn masked_at<'p>(&self, pointers: &'p [String]) -> Option<&'p str> {
        if self.is_masked_whole() {
            return Some(WHOLE_VALUE);
        }
        let mut ranges = ranges(self.slice(), pointers).filter(|(_, range)| is_masked(self.slice(), range));
        ranges.next().map(|(pointer, _)| pointer)
    }

    fn is_masked_whole(&self) -> bool {
        self.slice().string().is_some_and(|text| text == MASKED)
    }

    /// Replaces parts of the text. Of a part inside of another one the outer counts.
    fn with(&self, mut ranges: Vec<(Range<usize>, &str)>) -> Self {
        if ranges.is_empty() {
            return self.clone();
        }
        ranges.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
        let text = self.slice().text();
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, value) in ranges {
            if range.start >= at {
                out.push_str(&text[at..range.start]);
                out.push_str(value);
                at = range.end;
            }
        }
        out.push_str(&text[at..]);
        Self::of_valid(&out)
    }
}

/// Finds the values at pointers, with their ranges in the text.
fn ranges<'p>(whole: JsonSlice<'_>, pointers: &'p [String]) -> impl Iterator<Item = (&'p str, Range<usize>)> {
    pointers.iter().filter_map(move |pointer| {
        let part = whole.at(pointer)?.text();
        // A part is a piece of the same text.
        let start = part.as_ptr().addr() - whole.text().as_ptr().addr();
        Some((pointer.as_str(), start..start + part.len()))
    })
}

fn is_masked(whole: JsonSlice<'_>, range: &Range<usize>) -> bool {
    JsonSlice::of(&whole.text()[range.clone()]).string().is_some_and(|text| text == MASKED)
}

/// Returns the pointers of a mask from the value at a JSON pointer on: [`WHOLE_VALUE`] if that is a masked value or a part of one.
/// Empty if the value shows nothing of a masked one.
pub fn mask_below(mask: &[String], pointer: &str) -> Vec<String> {
    let below = |masked: &String| match (masked.strip_prefix(pointer), pointer.strip_prefix(masked.as_str())) {
        (Some(rest), _) if rest.is_empty() || rest.starts_with('/') => Some(rest.to_owned()),
        (_, Some(rest)) if rest.starts_with('/') => Some(WHOLE_VALUE.to_owned()),
        _ => None,
    };
    mask.iter().filter_map(below).collect()
}

/// Checks that a text is a JSON pointer (RFC 6901) to a part of a value.
///
/// # Errors
/// The reason.
pub fn check_pointer(text: &str) -> Result<(), &'static str> {
    let Some(segments) = text.strip_prefix('/') else { return Err("it must begin with `/`, such as `/card/number`") };
    let is_broken = segments.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1']));
    if is_broken { Err("a `~` must be written `~0`, and a `/` in a name `~1`") } else { Ok(()) }
}

/// Texts of masked values, which are hidden in messages and lines of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenTexts(Vec<String>);

impl HiddenTexts {
    /// Collects the strings and numbers at these pointers and below, as far as they have at least 4 characters.
    pub fn of(params: &RawJson, pointers: &[String]) -> Self {
        let mut texts = Vec::new();
        for value in pointers.iter().filter_map(|pointer| params.slice().at(pointer)) {
            collect(value, &mut texts);
        }
        // A text that contains another one is replaced first.
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        Self(texts)
    }

    /// Returns whether there is nothing to hide.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a text with [`MASKED`] in the place of each hidden one.
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let replace = |shown: Cow<'a, str>, hidden: &String| {
            if shown.contains(hidden) { Cow::Owned(shown.replace(hidden, MASKED)) } else { shown }
        };
        self.0.iter().fold(Cow::Borrowed(text), replace)
    }

    /// Returns a value without the hidden texts: in its strings, and as numbers.
    pub fn hide_in(&self, value: &RawJson) -> RawJson {
        if self.is_empty() {
            return value.clone();
        }
        // A value that is too deep to be decoded could contain any of them.
        let Ok(decoded) = value.value() else { return serde_json::Value::from(MASKED).into() };
        let mut hidden = decoded.clone();
        self.hide_parts(&mut hidden);
        if hidden == decoded { value.clone() } else { hidden.into() }
    }

    fn hide_parts(&self, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = self.hide(text).into_owned(),
            serde_json::Value::Number(number) if self.0.contains(&number.to_string()) => *value = MASKED.into(),
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| self.hide_parts(item)),
            serde_json::Value::Object(members) => members.values_mut().for_each(|member| self.hide_parts(member)),
            _ => {}
        }
    }
}

/// Adds the texts of a value and of its parts.
fn collect(value: JsonSlice<'_>, texts: &mut Vec<String>) {
    if texts.len() >= MAX_TEXTS {
        return;
    }
    match value.kind() {
        JsonKind::Object => value.members().for_each(|(_, member)| collect(member, texts)),
        JsonKind::Array => value.elements().for_each(|element| collect(element, texts)),
        JsonKind::String => {
            let text = value.string().unwrap_or_default();
            // Errors about JSON quote it with its escapes.
            let quoted = plain_text(&*text);
            let escaped = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
            if escaped != text {
                add(escaped, texts);
            }
            add(&text, texts);
        }
        JsonKind::Number => add(value.text(), texts),
        JsonKind::Bool | JsonKind::Null => {}
    }
}

fn add(text: &str, texts: &mut Vec<String>) {
    if text.chars().count() >= MIN_TEXT_CHARS {
        texts.push(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> RawJson {
        RawJson::parse(text.as_bytes()).unwrap()
    }

    fn pointers(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn values_at_pointers_are_replaced_and_the_rest_stays() {
        let value = json(r#" {"card" : {"number":"4111", "cvc": 1.10}, "list":[1,{"pin":null}], "n":1e400} "#);
        for (mask, expected) in [
            (
                pointers(&["/card/number"]),
                r#"{"card" : {"number":"•••", "cvc": 1.10}, "list":[1,{"pin":null}], "n":1e400}"#,
            ),
            (
                pointers(&["/list/1/pin", "/card/cvc", "/none", "/list/9"]),
                r#"{"card" : {"number":"4111", "cvc": "•••"}, "list":[1,{"pin":"•••"}], "n":1e400}"#,
            ),
            (
                pointers(&["/card/number", "/card", "/card/cvc"]),
                r#"{"card" : "•••", "list":[1,{"pin":null}], "n":1e400}"#,
            ),
        ] {
            assert_eq!(value.masked(&mask).text(), expected, "{mask:?}");
        }
        assert_eq!(value.masked(&pointers(&["/none"])).text(), value.text());
    }

    #[test]
    fn hidden_values_are_restored_where_they_are_masked() {
        let original = json(r#"{"card":{"number":"4111","cvc":7},"b":1}"#);
        let mask = pointers(&["/card/number", "/card/cvc", "/c"]);
        let shown = original.masked(&mask);
        assert_eq!(shown.unmasked(&mask, &original), original);
        let edited = json(r#"{"card":{"number":"•••","cvc":8},"b":"•••","c":"•••"}"#);
        let restored = edited.unmasked(&mask, &original);
        assert_eq!(restored.text(), r#"{"card":{"number":"4111","cvc":8},"b":"•••","c":"•••"}"#);
        assert_eq!(restored.masked_at(&mask), Some("/c"), "there is nothing to restore");
        assert_eq!(original.masked_at(&mask), None);
        let whole = json(r#""\u2022••""#);
        assert_eq!(whole.masked_at(&mask), Some(WHOLE_VALUE), "however it is written");
        assert_eq!(whole.unmasked(&mask, &original), original, "it was hidden before the mask was known");
        assert_eq!(original.masked(&pointers(&[WHOLE_VALUE])), json(r#""•••""#));
    }

    #[test]
    fn masked_values_are_hidden_in_texts() {
        let params = json(r#"{"card":{"number":"4111-22","pin":12,"code":123456,"name":"a\"b\"c"},"ok":true}"#);
        let hidden = HiddenTexts::of(&params, &pointers(&["/card", "/ok"]));
        for (text, expected) in [
            ("card 4111-22 was refused: 4111-22", "card ••• was refused: •••"),
            ("code 123456, pin 12, true", "code •••, pin 12, true"),
            (r#"bad name a"b"c"#, "bad name •••"),
            (r#"bad name "a\"b\"c""#, r#"bad name "•••""#),
            ("nothing", "nothing"),
        ] {
            assert_eq!(hidden.hide(text), expected);
        }
        let progress = json(r#"{"done":1,"of":123456,"message":"card 4111-22","x":[1.0]}"#);
        assert_eq!(
            hidden.hide_in(&progress),
            serde_json::json!({"done": 1, "of": "•••", "message": "card •••", "x": [1.0]})
        );
        assert_eq!(hidden.hide_in(&json(r#"{"a" : 1.0}"#)).text(), r#"{"a" : 1.0}"#);
        assert!(HiddenTexts::of(&params, &pointers(&["/card/pin", "/none"])).is_empty());
    }

    #[test]
    fn mask_is_moved_to_a_part_of_the_value() {
        for (mask, pointer, expected) in [
            ("/card/number", "/card/number", Some("")),
            ("/card/number", "/card", Some("/number")),
            ("/card/number", "", Some("/card/number")),
            ("/card/number", "/card/number/0", Some("")),
            ("/card", "/card/number", Some("")),
            (WHOLE_VALUE, "/card", Some("")),
            (WHOLE_VALUE, "", Some("")),
            ("/card", "/cardinal", None),
            ("/cardinal", "/card", None),
            ("/a~1b", "/a", None),
            ("/a/0", "/a/1", None),
        ] {
            assert_eq!(mask_below(&pointers(&[mask]), pointer), pointers(expected.as_slice()), "{mask} from {pointer}");
        }
    }

    #[test]
    fn pointers_are_checked() {
        for text in ["/a", "/a/0", "/a~1b/~0", "/"] {
            assert_eq!(check_pointer(text), Ok(()), "{text}");
        }
        for text in ["", "a", "a/b", "/a~", "/a~2"] {
            assert!(check_pointer(text).is_err(), "{text}");
        }
    }
}
