use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Values without fractions, whose texts differ between writers.
pub(super) fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[a-c\"\\\\é\u{1f600}\n\0]{0,4}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 40, 6, |inner| {
        let object = prop::collection::btree_map("[a-c/~\"\\\\!\n]{0,3}", inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Value::from),
            object.prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

#[test]
fn text_is_kept_and_shown_digit_by_digit() {
    let text = "{\"b\": 618970019642690137449562111, \"a\": [0.1234567890123456789, 0.10, 1e2, -0, 1e400]}";
    let json = RawJson::parse(text.as_bytes()).unwrap();
    let compact = text.replace(": ", ":").replace(", ", ",");
    assert_eq!((json.text(), json.to_string()), (text, compact));
    let binary = postcard::to_allocvec(&json).unwrap();
    assert_eq!(postcard::from_bytes::<RawJson>(&binary).unwrap(), json);
}

#[test]
fn text_that_readers_understand_differently_is_refused() {
    for (text, reason, pointer) in [
        ("{\"a\":[{\"b\":1,\"b\":1}]}", "the name `b` occurs twice", Some("/a/0/b")),
        ("{\"a\":\"\\ud800\"}", "half a surrogate pair", Some("/a")),
        ("[1e9999999999]", "out of range", Some("/0")),
        ("\u{feff}1", "byte order mark", None),
        ("{", "EOF", None),
    ] {
        let refused = [RawJson::parse(text.as_bytes()).unwrap_err(), check_document(text.as_bytes()).unwrap_err()];
        for error in refused {
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.pointer(), pointer, "{text}");
        }
        assert!(serde_json::from_str::<RawJson>(text).is_err(), "{text}");
    }
}

#[test]
fn member_is_set_without_a_change_of_the_others() {
    let mut object = RawJson::parse(br#"{ "b": 1.10, "a": 1e400 }"#).unwrap();
    assert!(object.set("c", serde_json::json!("x")) && object.set("b", RawJson::null()));
    assert_eq!(object.text(), r#"{"b":null,"a":1e400,"c":"x"}"#);
    assert!(!RawJson::null().set("a", RawJson::null()));
    assert_eq!(RawJson::parse(b"[ 1.10 ]").unwrap().into_compact().text(), "[1.10]");
}

#[test]
fn equal_values_are_the_same_value() {
    let of = |text: &str| RawJson::parse(text.as_bytes()).unwrap();
    assert!(of("{\"a\":1,\"b\":1e2}").is_same_value(&of("{\"b\":100,\"a\":1.0}")));
    assert!(!of("618970019642690137449562111").is_same_value(&of("618970019642690137449562112")));
    assert!(!of("\"1\"").is_same_value(&of("1")));
}
