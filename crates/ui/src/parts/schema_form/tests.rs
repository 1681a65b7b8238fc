use kafleet_model::json::{RawJson, plain_text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn form(schema: &Value) -> SchemaForm {
    SchemaForm::new(schema, schema).unwrap()
}

fn raw(text: &str) -> RawJson {
    RawJson::parse(text.as_bytes()).unwrap()
}

/// Reads the inputs as a browser sends them: lines end with CR LF, and blank texts count as absent.
fn submitted(form: &SchemaForm, inputs: &[(String, String)]) -> Result<RawJson, Vec<FieldError>> {
    let sent: Vec<(&str, String)> =
        inputs.iter().map(|(name, text)| (name.as_str(), text.replace('\n', "\r\n"))).collect();
    let text = |name: &str| {
        let text = sent.iter().find(|(input, _)| *input == name).map(|(_, text)| text.as_str());
        text.filter(|text| !text.trim().is_empty())
    };
    form.parse(&text)
}

fn entered(form: &SchemaForm, inputs: &[(&str, &str)]) -> Result<String, Vec<(String, String)>> {
    let inputs: Vec<(String, String)> = inputs.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
    let read = submitted(form, &inputs).map(|value| value.text().to_owned());
    read.map_err(|errors| errors.into_iter().map(|error| (error.pointer, error.message)).collect())
}

fn order_form() -> SchemaForm {
    form(&json!({
        "type": "object",
        "required": ["customer", "count", "express", "address"],
        "properties": {
            "customer": {"type": "string", "title": "Customer", "description": "Name of the customer."},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "express": {"type": "boolean"},
            "gift": {"type": ["boolean", "null"]},
            "size": {"enum": ["small", "large"], "default": "small"},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "address": {"$ref": "#/$defs/Address"},
            "billing": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]},
            "extra": {"type": "object", "additionalProperties": {"type": "string"}}
        },
        "additionalProperties": false,
        "$defs": {"Address": {
            "type": "object",
            "required": ["city", "is_home"],
            "properties": {"city": {"type": "string"}, "is_home": {"type": "boolean"}}
        }}
    }))
}

#[test]
fn fields_follow_the_schema() {
    let form = order_form();
    let kinds: Vec<(&str, bool)> = form.fields.iter().map(|field| (field.name.as_str(), field.required)).collect();
    assert_eq!(kinds[..4], [("address", true), ("count", true), ("customer", true), ("express", true)]);
    let field = |name: &str| form.fields.iter().find(|field| field.name == name).unwrap();
    assert!(matches!(&field("address").kind, FieldKind::Object(fields) if fields.len() == 2));
    assert!(matches!(&field("billing").kind, FieldKind::Object(fields) if !fields[1].is_checkbox()));
    assert!(field("express").is_checkbox() && !field("gift").is_checkbox());
    assert_eq!(field("at").kind, FieldKind::Text(TextKind::DateTime));
    assert_eq!(field("tags").kind, FieldKind::List(ItemKind::Text));
    assert_eq!(field("extra").kind, FieldKind::Json);
    assert!(!form.is_open);
}

#[test]
fn empty_optional_fields_are_left_out() {
    let form = order_form();
    let least = [("p/customer", "Ada"), ("p/count", "3"), ("p/address/city", "Köln")];
    let expected = r#"{"address":{"city":"Köln","is_home":false},"count":3,"customer":"Ada","express":false}"#;
    assert_eq!(entered(&form, &least).as_deref(), Ok(expected));
    let more = [("p/gift", "true"), ("p/at", "2026-11-30T04:00"), ("p/tags", "a\n\nb"), ("p/express", "true")];
    let all = entered(&form, &[&least[..], &more[..]].concat()).unwrap();
    assert!(all.contains(r#""express":true,"at":"2026-11-30T04:00:00Z","gift":true,"tags":["a","b"]"#), "{all}");
}

#[test]
fn errors_name_their_fields() {
    let form = order_form();
    let errors =
        entered(&form, &[("p/count", "many"), ("p/size", "\"huge\""), ("p/billing/city", "Bonn"), ("p/extra", "{")]);
    let pointers: Vec<String> = errors.unwrap_err().into_iter().map(|(pointer, _)| pointer).collect();
    assert_eq!(pointers, ["/address/city", "/count", "/customer", "/billing/is_home", "/extra", "/size"]);
}

#[test]
fn numbers_keep_all_digits() {
    let form = form(&json!({"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}));
    for (text, number) in [
        ("12345678901234567890123", "12345678901234567890123"),
        ("0.1000000000000000000001", "0.1000000000000000000001"),
        ("+7", "7"),
        ("007", "7"),
        (".5", "0.5"),
        ("-0", "-0"),
        ("1e400", "1e400"),
    ] {
        assert_eq!(entered(&form, &[("p/x", text)]), Ok(format!("{{\"x\":{number}}}")), "{text}");
    }
    for text in ["e5", ".", "-", "+-5", "1 000", "0x10", "NaN"] {
        assert!(entered(&form, &[("p/n", text)]).is_err(), "{text}");
    }
}

#[test]
fn value_that_does_not_fit_its_field_is_json() {
    let form = order_form();
    let value =
        raw(r#"{"customer": "\u0000", "count": 3, "gift": null, "address": {"city": "x", "no": 1}, "odd": [1]}"#);
    let inputs = form.fill(&value).unwrap();
    let names: Vec<&str> = inputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["j/customer", "p/count", "j/gift", "j/address", "j"]);
    assert_eq!(form.fill(&raw("[1]")), None);
}

#[test]
fn inputs_have_the_types_of_their_fields() {
    let form = order_form();
    let inputs =
        form.fill(&raw(r#"{"count": 12345678901234567890, "customer": "<b>", "at": "2026-11-30T04:00:00+01:00"}"#));
    let inputs = inputs.unwrap();
    let text = |name: &str| inputs.iter().find(|(input, _)| input == name).map(|(_, text)| text.as_str());
    let wrong = FieldError { pointer: "/customer".into(), message: "it is `odd`".into(), is_missing: false };
    let markup = form.inputs(&text, &[wrong]).into_string();
    for part in [
        "name=\"p/customer\" type=\"text\" value=\"&lt;b&gt;\"",
        "aria-invalid=\"true\"",
        "it is <code>odd</code>",
        "name=\"p/count\" type=\"text\" value=\"12345678901234567890\"",
        "name=\"p/at\" type=\"text\" value=\"2026-11-30T04:00:00+01:00\"",
        "<fieldset><legend>address",
        "type=\"checkbox\" name=\"p/express\"",
        "<option value=\"&quot;small&quot;\">small</option>",
        "Name of the customer",
    ] {
        assert!(markup.contains(part), "`{part}` is missing in {markup}");
    }
    let empty = form.inputs(&|_| None, &[]).into_string();
    assert!(empty.contains("type=\"number\"") && empty.contains("type=\"datetime-local\""), "{empty}");
    let outline = form.outline().into_string();
    assert!(outline.contains("<code>address.city</code>") && outline.contains("whole number, 1 to 9"), "{outline}");
}

#[test]
fn defaults_of_required_fields_are_filled_in() {
    let form = form(&json!({
        "required": ["unit"],
        "properties": {"unit": {"type": "string", "default": "cm"}, "other": {"type": "string", "default": "x"}}
    }));
    assert_eq!(form.defaults(), [("p/unit".to_owned(), "cm".to_owned())]);
}

#[test]
fn schemas_without_known_members_have_no_fields() {
    let recursive =
        json!({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/none"}, "c": {"$ref": "#/properties/c"}}});
    assert_eq!(form(&recursive).fields.len(), 3);
    let many: serde_json::Map<String, Value> = (0..300).map(|n| (n.to_string(), json!({"type": "string"}))).collect();
    for schema in
        [json!(true), json!({}), json!({"type": "string"}), json!({"type": "object"}), json!({"properties": many})]
    {
        assert_eq!(SchemaForm::new(&schema, &schema), None);
    }
}

/// Schema, and a valid value as JSON.
type Sample = (Value, String);

fn scalar() -> impl Strategy<Value = Sample> {
    let number = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?";
    prop_oneof![
        any::<String>().prop_map(|text| (json!({"type": "string"}), plain_text(&text))),
        "[ a-z\n]{0,9}".prop_map(|text| (json!({"type": "string", "maxLength": 900}), plain_text(&text))),
        "2026-11-30(T04:00(:00(\\.5)?)?(Z|\\+01:00)?)?"
            .prop_map(|text| { (json!({"type": "string", "format": "date-time"}), plain_text(&text)) }),
        "-?(0|[1-9][0-9]{0,30})".prop_map(|number| (json!({"type": "integer"}), number)),
        number.prop_map(|number| (json!({"type": "number"}), number)),
        any::<bool>().prop_map(|flag| (json!({"type": "boolean"}), flag.to_string())),
        any::<bool>().prop_map(|is_null| {
            (json!({"type": ["string", "null"]}), if is_null { "null".into() } else { "\"x\"".to_owned() })
        }),
        (proptest::collection::vec(any::<String>(), 1..4), any::<prop::sample::Index>()).prop_map(
            |(values, chosen)| {
                let value = plain_text(&values[chosen.index(values.len())]);
                (json!({"enum": values}), value)
            }
        ),
    ]
}

fn array() -> impl Strategy<Value = Sample> {
    let strings = proptest::collection::vec(any::<String>(), 0..4);
    let numbers = proptest::collection::vec("-?[1-9][0-9]{0,25}", 0..4);
    prop_oneof![
        strings.prop_map(|items| (json!({"type": "array", "items": {"type": "string"}}), plain_text(&items))),
        numbers.prop_map(|items| {
            (json!({"type": "array", "items": {"type": "integer"}}), format!("[{}]", items.join(",")))
        }),
        scalar().prop_map(|(_, value)| (json!({}), format!("{{\"any\": [{value}]}}"))),
    ]
}

fn object(member: impl Strategy<Value = Sample> + Clone + 'static) -> impl Strategy<Value = Sample> {
    let members = proptest::collection::btree_map(".{0,6}", (member, any::<bool>(), any::<bool>()), 1..5);
    members.prop_map(|members| {
        let properties: serde_json::Map<String, Value> =
            members.iter().map(|(name, ((schema, _), ..))| (name.clone(), schema.clone())).collect();
        let required: Vec<&String> =
            members.iter().filter(|(_, (_, required, _))| *required).map(|(name, _)| name).collect();
        let present = members.iter().filter(|(_, (_, required, present))| *required || *present);
        let values = present.map(|(name, ((_, value), ..))| format!("{}:{value}", plain_text(name)));
        let value = format!("{{{}}}", values.collect::<Vec<_>>().join(","));
        (json!({"type": "object", "properties": properties, "required": required}), value)
    })
}

fn sample() -> impl Strategy<Value = Sample> {
    let leaf = prop_oneof![scalar(), array()].boxed();
    object(leaf.prop_recursive(4, 24, 4, |inner| object(inner).boxed()))
}

proptest! {
    /// Value to inputs to value is the identity, with exact numbers.
    #[test]
    fn value_survives_its_form((schema, value) in sample()) {
        let form = SchemaForm::new(&schema, &schema);
        prop_assume!(form.is_some());
        let (form, value) = (form.unwrap(), raw(&value));
        let inputs = form.fill(&value).unwrap();
        let read = submitted(&form, &inputs);
        prop_assert!(read.as_ref().is_ok_and(|read| read.is_same_value(&value)), "{value} became {read:?}: {inputs:?}");
    }
}
