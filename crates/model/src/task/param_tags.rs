//! Tags of declared params (`index` of a type), by which tasks are found: `params.customer=Ada` for `/customer`.

use super::TaskSpec;
use crate::json::{JsonKind, JsonSlice, RawJson};

/// Beginning of the tags, and of their terms in the search language.
pub const PREFIX: &str = "params.";
/// Maximum number of declared params of a type.
pub const MAX_INDEXED: usize = 5;
/// Maximum length of the name of a declared param, in characters.
const MAX_NAME_CHARS: usize = 48;
/// Maximum length of a value, in characters; a longer one is not indexed.
pub const MAX_VALUE_CHARS: usize = 64;
/// Maximum length of a tag, in characters.
const MAX_TAG_CHARS: usize = 128;

/// Returns whether a tag is that of a declared param.
pub fn is_param_tag(tag: &str) -> bool {
    tag.starts_with(PREFIX)
}

/// Returns the name of a declared param: `order.id` for `/order/id`.
///
/// # Errors
/// The pointer has no name in the search language.
pub fn name_of(pointer: &str) -> Result<String, String> {
    let name = pointer.strip_prefix('/').map(|rest| rest.replace('/', "."));
    let name = name.ok_or_else(|| "it must begin with `/`, such as `/customer`".to_owned())?;
    let is_segment = |segment: &str| !segment.is_empty() && segment.chars().all(is_name_char);
    if !name.split('.').all(is_segment) || pointer.contains('.') {
        return Err("its names must consist of A-Z a-z 0-9 _ -, such as `/order/id`".to_owned());
    }
    if name.len() > MAX_NAME_CHARS {
        return Err(format!("it is longer than {MAX_NAME_CHARS} characters"));
    }
    Ok(name)
}

/// Returns whether a character may be in a segment of a name.
pub(crate) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Returns the tag of a value; `None` for a value that is not indexed.
pub fn tag(name: &str, value: &str) -> Option<String> {
    let value = value.trim();
    if value.is_empty() || value.chars().count() > MAX_VALUE_CHARS || value.contains(char::is_control) {
        return None;
    }
    // Tags are separated by commas.
    let tag = format!("{PREFIX}{name}={}", value.replace('%', "%25").replace(',', "%2C"));
    (tag.chars().count() <= MAX_TAG_CHARS).then_some(tag)
}

/// Splits a tag into the name and the value of its param.
pub fn parts(tag: &str) -> Option<(&str, String)> {
    let (name, value) = tag.strip_prefix(PREFIX)?.split_once('=')?;
    let is_name = name.split('.').all(|segment| !segment.is_empty() && segment.chars().all(is_name_char));
    is_name.then(|| (name, value.replace("%2C", ",").replace("%25", "%")))
}

/// Returns the tags of the declared params that are texts, numbers or booleans.
pub fn tags_of(params: &RawJson, index: &[String]) -> Vec<String> {
    let tag_of = |pointer: &String| tag(&name_of(pointer).ok()?, &text_of(params.slice().at(pointer)?)?);
    index.iter().take(MAX_INDEXED).filter_map(tag_of).collect()
}

fn text_of(value: JsonSlice<'_>) -> Option<String> {
    match value.kind() {
        JsonKind::String => value.string().map(|text| text.into_owned()),
        JsonKind::Number | JsonKind::Bool => Some(value.text().to_owned()),
        JsonKind::Null | JsonKind::Array | JsonKind::Object => None,
    }
}

impl TaskSpec {
    /// Sets the tags of the declared params of its type.
    pub fn index_params(&mut self, index: &[String]) {
        let has_old = self.policy.as_ref().is_some_and(|policy| policy.tags.iter().any(|tag| is_param_tag(tag)));
        let new = tags_of(&self.params, index);
        if new.is_empty() && !has_old {
            return;
        }
        let policy = self.policy.get_or_insert_default();
        policy.tags.retain(|tag| !is_param_tag(tag));
        policy.tags.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::id::TaskId;

    fn json(text: &str) -> RawJson {
        RawJson::parse(text.as_bytes()).unwrap()
    }

    fn index(pointers: &[&str]) -> Vec<String> {
        pointers.iter().map(|pointer| (*pointer).to_owned()).collect()
    }

    #[test]
    fn declared_params_become_tags() {
        let long = "x".repeat(MAX_VALUE_CHARS + 1);
        let params = json(&format!(
            r#"{{"customer":" Ada, 100% ","order":{{"id":12.50}},"ok":true,"none":null,"list":[],"long":"{long}","line":"a\nb"}}"#
        ));
        let tags = |pointers: &[&str]| tags_of(&params, &index(pointers));
        assert_eq!(
            tags(&["/customer", "/order/id", "/ok"]),
            ["params.customer=Ada%2C 100%25", "params.order.id=12.50", "params.ok=true"]
        );
        assert_eq!(tags(&["/none", "/list", "/long", "/line", "/missing"]), [""; 0], "other values are not indexed");
        assert_eq!(parts("params.customer=Ada%2C 100%25"), Some(("customer", "Ada, 100%".to_owned())));
        for tag in ["customer=Ada", "params.a", "params.=x", "params.a b=x"] {
            assert_eq!(parts(tag), None, "{tag}");
        }
    }

    #[test]
    fn names_follow_from_pointers() {
        assert_eq!((name_of("/customer"), name_of("/order/id")), (Ok("customer".into()), Ok("order.id".into())));
        for pointer in ["", "customer", "/", "/a b", "/a.b", "/a~1b", "/größe", &format!("/{}", "x".repeat(49))] {
            assert!(name_of(pointer).is_err(), "{pointer}");
        }
    }

    #[test]
    fn tags_follow_the_params_of_a_task() {
        let mut task = TaskSpec::new(TaskId::parse("a").unwrap(), "t", json(r#"{"n":1}"#));
        task.index_params(&index(&["/m"]));
        assert!(task.policy.is_none());
        task.policy.get_or_insert_default().tags = vec!["ci".into(), "params.n=7".into()];
        task.index_params(&index(&["/n"]));
        assert_eq!(task.policy.as_ref().unwrap().tags, ["ci", "params.n=1"]);
        task.index_params(&[]);
        assert_eq!(task.policy.unwrap().tags, ["ci"], "of another version of the type");
    }
}
