//! Example params that a schema accepts.

use kafleet_handlers::TypeRegistration;
use kafleet_model::json::RawJson;
use serde_json::{Map, Value, json};

/// Maximum depth of nested schemas, which bounds recursive ones.
const MAX_DEPTH: usize = 8;
/// Maximum number of items that a minimum length adds.
const MAX_ITEMS: u64 = 16;

/// Returns params that the type accepts, with as few fields as possible; `None` if none are found, for example because a
/// string must match a pattern.
pub(super) fn params_of(registered: &TypeRegistration) -> Option<String> {
    let schema = registered.schema.json();
    let built = Builder { root: schema }.value(schema, 0);
    let candidates = [Some(json!({})), built];
    candidates.into_iter().flatten().map(|value| value.to_string()).find(|text| is_accepted(registered, text))
}

fn is_accepted(registered: &TypeRegistration, text: &str) -> bool {
    serde_json::from_str::<RawJson>(text).is_ok_and(|params| registered.validate(&params).is_none())
}

struct Builder<'a> {
    root: &'a Value,
}

impl Builder<'_> {
    fn value(&self, schema: &Value, depth: usize) -> Option<Value> {
        let deeper = |schema: &Value| self.value(schema, depth + 1);
        if depth > MAX_DEPTH || *schema == json!(false) {
            return None;
        }
        if let Some(given) = given(schema) {
            return Some(given.clone());
        }
        if let Some(path) = schema["$ref"].as_str() {
            return deeper(self.root.pointer(path.strip_prefix('#')?)?);
        }
        if let Some(otherwise) = schema.get("else") {
            return deeper(otherwise);
        }
        for choice in ["anyOf", "oneOf", "allOf"] {
            if let Some(nested) = schema[choice].as_array().and_then(|schemas| schemas.iter().find_map(deeper)) {
                return Some(nested);
            }
        }
        self.of_type(schema, depth)
    }

    fn of_type(&self, schema: &Value, depth: usize) -> Option<Value> {
        let name = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
        match name {
            Some("string") => Some(string(schema)),
            Some("integer") => Some(integer(schema)),
            Some("number") => Some(schema.get("minimum").cloned().unwrap_or_else(|| json!(1))),
            Some("boolean") => Some(json!(true)),
            Some("null") => Some(Value::Null),
            Some("array") => self.array(schema, depth),
            Some("object") => self.object(schema, depth),
            _ if schema.get("properties").is_some() => self.object(schema, depth),
            _ => Some(json!({})),
        }
    }

    fn array(&self, schema: &Value, depth: usize) -> Option<Value> {
        let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
        let mut items: Vec<Value> = first.iter().map(|item| self.value(item, depth + 1)).collect::<Option<_>>()?;
        let least = schema["minItems"].as_u64().unwrap_or_default().min(MAX_ITEMS) as usize;
        while items.len() < least {
            items.push(self.value(schema.get("items").unwrap_or(&Value::Bool(true)), depth + 1)?);
        }
        Some(items.into())
    }

    fn object(&self, schema: &Value, depth: usize) -> Option<Value> {
        let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        let field = |name: &Value| {
            let name = name.as_str()?;
            let schema = schema["properties"].get(name).unwrap_or(&Value::Bool(true));
            Some((name.to_owned(), self.value(schema, depth + 1)?))
        };
        Some(Value::Object(required.iter().map(field).collect::<Option<Map<_, _>>>()?))
    }
}

/// Value that the schema itself contains.
fn given(schema: &Value) -> Option<&Value> {
    let lists = schema["examples"].get(0).or_else(|| schema.get("default"));
    lists.or_else(|| schema.get("const")).or_else(|| schema["enum"].get(0))
}

fn integer(schema: &Value) -> Value {
    let above = schema["exclusiveMinimum"].as_i64().map(|bound| bound.saturating_add(1));
    let least = schema["minimum"].as_i64().or(above).unwrap_or(1);
    let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
    json!(least.max(1).min(most))
}

fn string(schema: &Value) -> Value {
    let text = match schema["format"].as_str() {
        Some("uri" | "url") => "https://example.com/",
        Some("date-time") => "2030-01-01T00:00:00Z",
        Some("date") => "2030-01-01",
        Some("time") => "12:00:00",
        Some("uuid") => "00000000-0000-0000-0000-000000000000",
        Some("email") => "ada@example.com",
        Some("duration") => "PT1S",
        _ => "text",
    };
    let least = schema["minLength"].as_u64().unwrap_or_default().min(1_000) as usize;
    let most = schema["maxLength"].as_u64().map_or(usize::MAX, |most| most as usize);
    Value::String(format!("{text:x<least$}").chars().take(most).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_handlers::Schema;
    use kafleet_handlers::builtin::echo::Echo;

    fn example(schema: Value) -> Option<String> {
        params_of(&TypeRegistration { schema: Schema::compile(schema).unwrap(), ..TypeRegistration::new(Echo) })
    }

    #[test]
    fn example_has_the_required_fields() {
        let schema = json!({
            "type": "object",
            "required": ["url", "width", "mode", "sizes", "owner"],
            "properties": {
                "url": {"type": "string", "format": "uri"},
                "width": {"type": "integer", "minimum": 16},
                "mode": {"enum": ["fit", "crop"]},
                "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 2},
                "owner": {"$ref": "#/$defs/Owner"},
                "quality": {"type": "integer"},
            },
            "$defs": {"Owner": {"type": "object", "required": ["name"], "properties": {"name": {"type": ["string", "null"]}}}},
        });
        let expected = json!({
            "url": "https://example.com/", "width": 16, "mode": "fit", "sizes": [1, 1], "owner": {"name": "text"},
        });
        assert_eq!(example(schema).map(|text| serde_json::from_str::<Value>(&text).unwrap()), Some(expected));
    }

    #[test]
    fn params_without_required_fields_are_empty() {
        assert_eq!(example(json!(true)).as_deref(), Some("{}"));
        assert_eq!(example(json!({"type": "object", "properties": {"a": {"type": "string"}}})).as_deref(), Some("{}"));
        assert_eq!(example(json!({"type": "string", "minLength": 6})).as_deref(), Some(r#""textxx""#));
    }

    #[test]
    fn schema_without_an_example_has_none() {
        assert_eq!(example(json!({"type": "string", "pattern": "^[0-9]{4}$"})), None);
        let endless = json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/A"}}}}});
        assert_eq!(example(endless), None);
    }
}
