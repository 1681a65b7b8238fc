use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::json::MASKED;

fn params(value: Value) -> KillParams {
    serde_json::from_value(value).unwrap()
}

fn raw(text: &str) -> RawJson {
    RawJson::parse(text.as_bytes()).unwrap()
}

#[test]
fn name_matches_tags_ids_or_both() {
    let id = TaskId::parse("batch-7").unwrap();
    let tags = ["a".to_owned()];
    let none = KillParams::default();
    for (name, matches, expected) in [
        ("a", None, true),
        ("batch", None, true),
        ("a", Some(KillMatch::Tag), true),
        ("batch", Some(KillMatch::Tag), false),
        ("a", Some(KillMatch::IdPrefix), false),
        ("batch", Some(KillMatch::IdPrefix), true),
    ] {
        let subject = KillSubject { id: &id, task_type: "work", tags: &tags, params: None };
        for (task_type, is_type) in [(None, true), (Some("work"), true), (Some("other"), false)] {
            let rule = KillRule { name, matches, task_type, params: &none };
            assert_eq!(rule.concerns(&subject), expected && is_type, "{name} {matches:?} {task_type:?}");
        }
    }
    for matches in KillMatch::ALL {
        assert_eq!(serde_json::to_string(&matches).unwrap(), format!("\"{}\"", matches.name()));
    }
}

#[test]
fn params_are_compared_by_value() {
    let task = raw(
        r#"{"customer":{"id":42,"name":"Ada"},"kind":"import","a/b":{"~":[1,null]},"n":1.0,"big":618970019642690137449562111,"none":null,"":{"":7}}"#,
    );
    for (switch, expected) in [
        (json!({"/customer/id": 42}), true),
        (json!({"/customer/id": 42, "/kind": "import"}), true),
        (json!({"/customer/id": 42, "/kind": "export"}), false),
        (json!({"/customer/id": 43, "/kind": "import"}), false),
        // Numbers are equal by their exact value.
        (json!({"/customer/id": 42.0}), true),
        (json!({"/n": 1}), true),
        (json!({"/n": 1.5}), false),
        // Values of two types are never equal.
        (json!({"/customer/id": "42"}), false),
        (json!({"/customer/id": true}), false),
        (json!({"/customer/id": null}), false),
        (json!({"/customer": {"name": "Ada", "id": 42}}), true),
        (json!({"/customer": {"id": 42}}), false),
        (json!({"/customer": ["id", 42]}), false),
        // What is missing is equal to nothing.
        (json!({"/none": null}), true),
        (json!({"/missing": null}), false),
        (json!({"/customer/id/x": null}), false),
        (json!({"/kind": "import", "/missing": 1}), false),
        // Escaped names, arrays, and empty names.
        (json!({"/a~1b/~0": [1, null]}), true),
        (json!({"/a~1b/~0/0": 1}), true),
        (json!({"/a~1b/~0/1": null}), true),
        (json!({"/a~1b/~0/2": null}), false),
        (json!({"/a~1b/~0/-": 1}), false),
        (json!({"/a~1b/~0/00": 1}), false),
        (json!({"/a/b": 1}), false),
        (json!({"/": {"": 7}}), true),
        (json!({"//": 7}), true),
        (json!({"": {}}), false),
        (json!({}), false),
    ] {
        assert_eq!(params(switch.clone()).are_in(&task), expected, "{switch}");
    }
    let switch = |text: &str| serde_json::from_str::<KillParams>(text).unwrap();
    assert!(switch(r#"{"/big":618970019642690137449562111}"#).are_in(&task));
    assert!(!switch(r#"{"/big":618970019642690137449562112}"#).are_in(&task), "its float is the same");
    assert!(switch(r#"{"/n":10e-1}"#).are_in(&task));
    assert!(switch(r#"{"/kind":"\u0069mport"}"#).are_in(&task), "however it is written");
}

#[test]
fn empty_pointer_is_all_of_the_params() {
    for (task, switch, expected) in [
        ("5", json!({"": 5}), true),
        ("\"x\"", json!({"": 5}), false),
        (r#" {"a" : 1, "b": [ ]} "#, json!({"": {"b": [], "a": 1}}), true),
        (r#"{"a":1,"b":[1]}"#, json!({"": {"b": [], "a": 1}}), false),
        ("null", json!({"": null}), true),
        ("[7]", json!({"/0": 7}), true),
    ] {
        assert_eq!(params(switch.clone()).are_in(&raw(task)), expected, "{task} {switch}");
    }
}

#[test]
fn switch_with_params_ignores_its_name() {
    let id = TaskId::parse("bad-import").unwrap();
    let tags = ["bad-import".to_owned()];
    let (hit, miss) = (raw(r#"{"n":1}"#), raw(r#"{"n":2}"#));
    let of = params(json!({"/n": 1}));
    for (task_type, task_params, expected) in [
        (Some("work"), Some(&hit), true),
        (Some("work"), Some(&miss), false),
        (Some("other"), Some(&hit), false),
        (None, Some(&hit), false),
        (Some("work"), None, false),
    ] {
        let rule = KillRule { name: "bad-import", matches: Some(KillMatch::Tag), task_type, params: &of };
        let subject = KillSubject { id: &id, task_type: "work", tags: &tags, params: task_params };
        assert_eq!(rule.concerns(&subject), expected, "{task_type:?} {task_params:?}");
    }
}

#[test]
fn invalid_params_are_refused_with_the_reason() {
    let long = format!("/{}", "x".repeat(256));
    for (switch, reason) in [
        (json!({"/a": 1, "/b": 1, "/c": 1, "/d": 1, "/e": 1}), "a kill switch has at most 4 params, not 5"),
        (json!({"customer": 1}), "`customer` is not a JSON pointer into the params: it must begin with `/`"),
        (json!({"/a~2": 1}), "a `~` must be written `~0`"),
        (json!({"/a~": 1}), "a `~` must be written `~0`"),
        (json!({long: 1}), "is longer than 256 bytes"),
        (json!({"/a": "x".repeat(1_023)}), "the value at `/a` is longer than 1024 bytes"),
        (json!([1]), "expected a map"),
    ] {
        let error = serde_json::from_value::<KillParams>(switch.clone()).unwrap_err().to_string();
        assert!(error.contains(reason), "{switch}: {error}");
    }
    let none = KillParams::default();
    let some = params(json!({"/a": 1}));
    let field = |task_type, matches, params| check_conditions(task_type, matches, params).map_err(|(field, _)| field);
    assert_eq!(field(None, None, &some), Err("type"));
    assert_eq!(field(Some("work"), Some(KillMatch::Tag), &some), Err("matches"));
    assert_eq!(field(Some("work"), None, &some), Ok(()));
    assert_eq!(field(None, Some(KillMatch::Tag), &none), Ok(()));
}

#[test]
fn masked_values_are_found_and_hidden() {
    let mask = ["/card/number".to_owned()];
    for (switch, masked, shown) in [
        (json!({"/kind": 1, "/card/number": 4_111}), Some("/card/number"), json!({"/kind": 1, "/card/number": MASKED})),
        (json!({"/card": {"number": 4_111, "cvc": 1}}), Some("/card"), json!({"/card": {"number": MASKED, "cvc": 1}})),
        (json!({"": {"card": {"number": 4_111}}}), Some(""), json!({"": {"card": {"number": MASKED}}})),
        (json!({"/card/number/0": 4}), Some("/card/number/0"), json!({"/card/number/0": MASKED})),
        (json!({"/card/cvc": 7, "/cards": 1}), None, json!({"/card/cvc": 7, "/cards": 1})),
        // A value around the mask shows something without it, too.
        (json!({"/card": null}), Some("/card"), json!({"/card": null})),
    ] {
        let of = params(switch.clone());
        assert_eq!(of.masked_pointer(&mask), masked, "{switch}");
        assert_eq!(serde_json::to_value(of.masked(&mask)).unwrap(), shown, "{switch}");
        assert_eq!(of.masked_value(&mask), None, "{switch}");
    }
    assert_eq!(params(json!({"/card/number": MASKED})).masked_value(&mask), Some("/card/number"));
    assert_eq!(params(json!({"/card": {"number": MASKED}})).masked_value(&mask), Some("/card"));
    assert_eq!(params(json!({"/note": MASKED})).masked_value(&mask), None, "it is a value there");
    let unknown = [crate::json::WHOLE_VALUE.to_owned()];
    assert_eq!(params(json!({"/kind": 1})).masked(&unknown), params(json!({"/kind": MASKED})));
}

#[test]
fn params_keep_their_text_and_name_their_pointers() {
    let text = r#"{"":[1.10],"/kind":"import"}"#;
    let of: KillParams = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&of).unwrap(), text);
    assert_eq!(of.pointers_text(), "as a whole and at `/kind`");
}

#[test]
fn params_are_read_as_people_write_them() {
    for (texts, expected) in [
        (&["/customer/id=42", "/kind=import"][..], Ok(json!({"/customer/id": 42, "/kind": "import"}))),
        (&["/id=\"42\"", "/a~1b=[1, null]"], Ok(json!({"/id": "42", "/a~1b": [1, null]}))),
        (&["/token=a=b", "/empty="], Ok(json!({"/token": "a=b", "/empty": ""}))),
        (&["={\"a\": 1}"], Ok(json!({"": {"a": 1}}))),
        (&["/kind"], Err("`/kind` is no param")),
        (&["kind=import"], Err("it must begin with `/`")),
        (&["/a=1", "/a=2"], Err("the JSON pointer `/a` occurs twice")),
        (&["/a=1", "/b=1", "/c=1", "/d=1", "/e=1"], Err("at most 4 params")),
    ] {
        let parsed = KillParams::parse(texts.iter().copied());
        match expected {
            Ok(expected) => {
                let parsed = parsed.unwrap();
                assert_eq!(parsed, params(expected), "{texts:?}");
                let written: Vec<String> = parsed.texts().collect();
                assert_eq!(KillParams::parse(written.iter().map(String::as_str)).unwrap(), parsed, "{written:?}");
            }
            Err(reason) => assert!(parsed.unwrap_err().contains(reason), "{texts:?}"),
        }
    }
}

/// Exact number: digits without zeros at their ends, and a power of ten.
fn exact(number: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (unsigned, negative) = mantissa.strip_prefix('-').map_or((mantissa, false), |rest| (rest, true));
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits = format!("{whole}{fraction}");
    let power = exponent.parse::<i64>().unwrap() - fraction.len() as i64;
    let kept = digits.trim_start_matches('0').trim_end_matches('0').to_owned();
    let zeros = digits.trim_start_matches('0').len() - kept.len();
    if kept.is_empty() { (false, kept, 0) } else { (negative, kept, power + zeros as i64) }
}

/// Value at a pointer as RFC 6901 says, of a decoded value whose numbers are text.
fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(value, |value, segment| {
        let name = segment.replace("~1", "/").replace("~0", "~");
        match value {
            Value::Object(members) => members.get(&name),
            Value::Array(items) => {
                let index = name.parse::<usize>().ok().filter(|index| index.to_string() == name)?;
                items.get(index)
            }
            _ => None,
        }
    })
}

/// Whether two values are equal: numbers, which are strings that begin with `#`, by their exact value.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) if a.starts_with('#') && b.starts_with('#') => {
            exact(&a[1..]) == exact(&b[1..])
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Text of such a value, with its numbers as they are written.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) if text.starts_with('#') => text[1..].to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(text_of).collect::<Vec<_>>().join(" ,")),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{}: {}", json!(name), text_of(value));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Small values, so that equal ones are frequent.
fn any_value() -> impl Strategy<Value = Value> {
    let number =
        prop::sample::select(vec!["#0", "#-0", "#1", "#1.0", "#10e-1", "#1e0", "#-1", "#12", "#1.2e1", "#0.5"]);
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        prop::sample::select(vec!["", "1", "a", "null"]).prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(any_name(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "b", "~", "/", "a/b", "0", "1"]).prop_map(str::to_owned)
}

fn any_pointer() -> impl Strategy<Value = String> {
    let segment = any_name().prop_map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")));
    prop::collection::vec(segment, 0..3).prop_map(|segments| segments.concat())
}

proptest! {
    /// The oracle decodes both sides, and compares part by part.
    #[test]
    fn switch_concerns_params_with_all_of_its_values(
        task in any_value(),
        pointers in prop::collection::vec((any_pointer(), any::<bool>(), any_value()), 1..=MAX_KILL_PARAMS),
    ) {
        let choose = |(pointer, taken, other): &(String, bool, Value)| {
            let found = at(&task, pointer).filter(|_| *taken).cloned();
            (pointer.clone(), found.unwrap_or_else(|| other.clone()))
        };
        let wanted: BTreeMap<String, Value> = pointers.iter().map(choose).collect();
        let expected = wanted.iter().all(|(pointer, value)| at(&task, pointer).is_some_and(|found| same(found, value)));
        let members = wanted.iter().map(|(pointer, value)| format!("{}:{}", json!(pointer), text_of(value)));
        let switch: KillParams = serde_json::from_str(&format!("{{{}}}", members.collect::<Vec<_>>().join(","))).unwrap();
        prop_assert_eq!(switch.are_in(&raw(&text_of(&task))), expected);
        let written = serde_json::to_string(&switch).unwrap();
        prop_assert_eq!(serde_json::from_str::<KillParams>(&written).unwrap(), switch);
    }
}
