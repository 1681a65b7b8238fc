//! Merge patches (RFC 7386) of texts: the values that a patch does not name keep their digits and their order, which a patch
//! of decoded values would lose.

use std::borrow::Cow;

use super::{JsonKind, JsonSlice, RawJson, plain_text};

impl RawJson {
    /// Value with a merge patch applied: members of objects are replaced, those with `null` removed. A patch that is no
    /// object replaces the value.
    #[must_use]
    pub fn merged(&self, patch: &Self) -> Self {
        let mut text = String::with_capacity(self.text().len() + patch.text().len());
        push_merged(&mut text, Some(self.slice()), patch.slice());
        Self::of_valid(&text)
    }
}

/// Name and value of a member of an object.
type Member<'a> = (Cow<'a, str>, JsonSlice<'a>);

/// Appends a value with a patch applied. Its depth is that of the patch.
fn push_merged(out: &mut String, value: Option<JsonSlice<'_>>, patch: JsonSlice<'_>) {
    if patch.kind() != JsonKind::Object {
        out.push_str(patch.text());
        return;
    }
    let old: Vec<Member<'_>> = value.into_iter().flat_map(JsonSlice::members).collect();
    let changes: Vec<Member<'_>> = patch.members().collect();
    out.push('{');
    let start = out.len();
    for (name, value) in &old {
        match find(&changes, name) {
            Some(change) if change.kind() == JsonKind::Null => {}
            Some(change) => push_member(out, start, name, |out| push_merged(out, Some(*value), change)),
            None => push_member(out, start, name, |out| out.push_str(value.text())),
        }
    }
    for (name, change) in &changes {
        if change.kind() != JsonKind::Null && find(&old, name).is_none() {
            push_member(out, start, name, |out| push_merged(out, None, *change));
        }
    }
    out.push('}');
}

fn find<'a>(members: &[Member<'a>], name: &str) -> Option<JsonSlice<'a>> {
    members.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

/// Appends a member of the object whose members begin at `start`.
fn push_member(out: &mut String, start: usize, name: &str, push_value: impl FnOnce(&mut String)) {
    if out.len() > start {
        out.push(',');
    }
    out.push_str(&plain_text(name));
    out.push(':');
    push_value(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(value: &str, patch: &str) -> String {
        let parsed = |text: &str| RawJson::parse(text.as_bytes()).unwrap();
        parsed(value).merged(&parsed(patch)).text().to_owned()
    }

    /// Examples of RFC 7386, appendix A.
    #[test]
    fn patch_is_merged_as_the_standard_says() {
        for (value, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(merged(value, patch), expected, "{value} {patch}");
        }
    }

    #[test]
    fn values_that_a_patch_does_not_name_stay_as_they_are() {
        let value = r#"{"z": 12345678901234567890.10, "a": {"\u00e4": 1e2, "b": 1}}"#;
        assert_eq!(merged(value, r#"{"a":{"b":2.0}}"#), r#"{"z":12345678901234567890.10,"a":{"ä":1e2,"b":2.0}}"#);
    }
}
