//! JSON Schema validation of a type's params.

use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use kafleet_model::json::{RawJson, short_reason};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CheckParams;

/// Maximum length of an error message, in characters: validators quote the rejected value.
const MAX_MESSAGE_CHARS: usize = 300;

/// Maximum length of a value in the message about its pattern, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// Maximum length of a pattern in a message, in characters: those that libraries make fill several lines.
const MAX_PATTERN_CHARS: usize = 60;

/// Keywords without effect on validation.
const ANNOTATIONS: [&str; 8] =
    ["$schema", "$id", "$comment", "title", "description", "default", "deprecated", "examples"];

/// A compiled schema. Cheap to clone.
#[derive(Clone)]
pub struct Schema {
    text: Arc<Value>,
    /// `None`: any JSON is valid.
    check: Option<Arc<jsonschema::Validator>>,
}

/// A validation error of params.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamsError {
    /// JSON pointer to the invalid part; empty for the whole.
    pub pointer: String,
    /// Reason for people.
    pub message: String,
}

impl std::fmt::Display for ParamsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pointer.as_str() {
            "" => write!(f, "params: {}", self.message),
            pointer => write!(f, "params at `{pointer}`: {}", self.message),
        }
    }
}

impl Schema {
    /// Schema that accepts any JSON.
    pub fn any() -> Self {
        Self { text: Arc::new(Value::Bool(true)), check: None }
    }

    /// Compiles a JSON Schema.
    pub fn compile(schema: Value) -> Result<Self, String> {
        if is_unconstrained(&schema) {
            return Ok(Self { text: Arc::new(schema), check: None });
        }
        let check = jsonschema::validator_for(&schema).map_err(|error| excerpt(&error.to_string()))?;
        Ok(Self { text: Arc::new(schema), check: Some(Arc::new(check)) })
    }

    /// Derives the schema of a Rust type.
    pub fn of<T: schemars::JsonSchema>() -> Self {
        let described = Self::described::<T>();
        // A derived schema that cannot be compiled rejects nothing; parsing into the type still validates.
        Self::compile(described.json().clone()).unwrap_or(described)
    }

    /// Derives the schema of a Rust type for its readers. Its handler checks the params: they may contain values that a
    /// validator cannot hold, such as `1e400`.
    pub fn described<T: schemars::JsonSchema>() -> Self {
        Self { text: Arc::new(schemars::schema_for!(T).to_value()), check: None }
    }

    /// Schema as JSON.
    pub fn json(&self) -> &Value {
        &self.text
    }

    /// Returns whether any JSON is valid.
    pub fn accepts_anything(&self) -> bool {
        self.check.is_none()
    }

    /// Returns the first validation error. The params are parsed only if the schema has constraints.
    pub fn validate(&self, params: &RawJson) -> Option<ParamsError> {
        self.check.as_ref()?;
        match read::<Value>(params.text()) {
            Ok(params) => self.validate_value(&params),
            Err(error) => Some(error),
        }
    }

    /// Returns the validation errors, at most this many.
    pub fn errors(&self, params: &RawJson, most: usize) -> Vec<ParamsError> {
        let Some(check) = &self.check else { return Vec::new() };
        match read::<Value>(params.text()) {
            Ok(params) => check.iter_errors(&params).take(most).map(|error| self.params_error(&error)).collect(),
            Err(error) => vec![error],
        }
    }

    /// Returns the first validation error.
    pub fn validate_value(&self, params: &Value) -> Option<ParamsError> {
        let error = self.check.as_ref()?.validate(params).err()?;
        Some(self.params_error(&error))
    }

    fn params_error(&self, error: &jsonschema::ValidationError<'_>) -> ParamsError {
        let message = match error.kind() {
            ValidationErrorKind::Pattern { pattern } => self.mismatch(error.instance(), pattern),
            _ => error.to_string(),
        };
        ParamsError { pointer: error.instance_path().to_string(), message: excerpt(&message) }
    }

    /// Describes a value that does not match a pattern. Libraries write a `format` beside the patterns that they make of it: its
    /// name says more.
    fn mismatch(&self, value: &Value, pattern: &str) -> String {
        let value = clip(&value.to_string(), MAX_VALUE_CHARS);
        match format_beside(&self.text, pattern) {
            Some(format) => format!("{value} is not {}", format_text(format)),
            None => format!("{value} does not match the pattern `{}`", clip(pattern, MAX_PATTERN_CHARS)),
        }
    }
}

/// Returns the `format` of the schema that has a pattern, if it has one.
fn format_beside<'a>(schema: &'a Value, pattern: &str) -> Option<&'a str> {
    match schema {
        Value::Object(keywords) => {
            let has_pattern = keywords.get("pattern").and_then(Value::as_str) == Some(pattern);
            let own = keywords.get("format").and_then(Value::as_str).filter(|_| has_pattern);
            own.or_else(|| keywords.values().find_map(|inner| format_beside(inner, pattern)))
        }
        Value::Array(schemas) => schemas.iter().find_map(|inner| format_beside(inner, pattern)),
        _ => None,
    }
}

/// Name of a format for people.
fn format_text(format: &str) -> String {
    let known = match format {
        "email" | "idn-email" => "an email address",
        "date-time" => "a time in RFC 3339, such as 2026-01-31T12:00:00Z",
        "date" => "a date, such as 2026-01-31",
        "time" => "a time of day, such as 12:00:00",
        "duration" => "a duration in ISO 8601, such as PT1H30M",
        "uri" | "url" => "a URL",
        "uuid" => "a UUID",
        "ipv4" => "an IPv4 address",
        "ipv6" => "an IPv6 address",
        other => return format!("of the format `{}`", clip(other, MAX_VALUE_CHARS)),
    };
    known.to_owned()
}

fn clip(text: &str, max_chars: usize) -> String {
    super::failure::excerpt(text.as_bytes(), max_chars)
}

fn is_unconstrained(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts_all) => *accepts_all,
        Value::Object(keywords) => keywords.keys().all(|keyword| ANNOTATIONS.contains(&keyword.as_str())),
        _ => false,
    }
}

/// Parses params into a Rust type. On an error they are parsed again to find its location.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ParamsError> {
    serde_json::from_str(text).map_err(|error| {
        locate::<T>(text).unwrap_or(ParamsError { pointer: String::new(), message: excerpt(&short_reason(&error)) })
    })
}

/// Check of params that a Rust type describes.
pub(super) fn check_as<T: DeserializeOwned>() -> Option<CheckParams> {
    Some(Arc::new(|params| read::<T>(params.text()).err()))
}

fn locate<T: DeserializeOwned>(text: &str) -> Option<ParamsError> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text)).err()?;
    Some(ParamsError { pointer: pointer(error.path()), message: excerpt(&short_reason(error.inner())) })
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                format!("/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            Segment::Unknown => String::new(),
        })
        .collect()
}

fn excerpt(message: &str) -> String {
    super::failure::excerpt(message.as_bytes(), MAX_MESSAGE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
    struct Resize {
        sizes: Vec<Size>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
    struct Size {
        #[schemars(range(min = 1))]
        width: u32,
    }

    fn raw(value: Value) -> RawJson {
        RawJson::of(&value).unwrap()
    }

    #[test]
    fn params_error_has_pointer_from_schema_and_from_type() {
        let schema = Schema::of::<Resize>();
        let schema_error = schema.validate(&raw(json!({"sizes": [{"width": 3}, {"width": 0}]}))).unwrap();
        assert_eq!(schema_error.pointer, "/sizes/1/width");
        assert!(schema_error.message.contains("0 is less than the minimum of 1"), "{schema_error}");
        let type_error = read::<Resize>(r#"{"sizes": [{"width": 3}, {"width": -1}]}"#).unwrap_err();
        assert_eq!(type_error.pointer, "/sizes/1/width");
        assert_eq!(type_error.message, "expected a whole number from 0 to 4294967295, found integer `-1`");
        assert_eq!(schema.validate(&raw(json!({"sizes": [{"width": 3}]}))), None);
        assert_eq!(read(r#"{"sizes": [{"width": 3}]}"#), Ok(Resize { sizes: vec![Size { width: 3 }] }));
    }

    #[test]
    fn all_errors_are_listed_up_to_a_maximum() {
        let schema = Schema::of::<Resize>();
        let params = raw(json!({"sizes": [{"width": 0}, {}, {"width": "x"}]}));
        let pointers: Vec<String> = schema.errors(&params, 9).into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/sizes/0/width", "/sizes/1", "/sizes/2/width"]);
        assert_eq!(schema.errors(&params, 2).len(), 2);
        assert_eq!(Schema::any().errors(&params, 9), []);
    }

    #[test]
    fn mismatch_names_the_format_beside_the_pattern() {
        let long = format!("^(?:{})$", "[A-Za-z0-9]+|".repeat(40));
        let definition = json!({"type": "string", "format": "date-time", "pattern": long});
        let schema = Schema::compile(json!({
            "$defs": {"time": definition},
            "properties": {
                "mail": {"type": "string", "format": "email", "pattern": "^[^@]+@[^@]+$"},
                "uuid": {"format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
                "slug": {"format": "slug", "pattern": "^[a-z]+$"},
                "at": {"$ref": "#/$defs/time"},
                "code": {"type": "string", "pattern": format!("^[0-9]{{5}}{}$", "x?".repeat(100))},
            },
        }))
        .unwrap();
        let message = |params: Value| schema.validate(&raw(params)).unwrap().message;
        assert_eq!(message(json!({"mail": "x"})), r#""x" is not an email address"#);
        assert_eq!(message(json!({"uuid": "x"})), r#""x" is not a UUID"#);
        assert_eq!(message(json!({"slug": "X"})), r#""X" is not of the format `slug`"#);
        assert_eq!(message(json!({"at": "-"})), r#""-" is not a time in RFC 3339, such as 2026-01-31T12:00:00Z"#);
        let code = message(json!({"code": "y".repeat(500)}));
        assert!(code.contains(" does not match the pattern `^[0-9]{5}x?"), "{code}");
        assert!(code.chars().count() < 180, "{code}");
    }

    #[test]
    fn schema_without_constraints_is_not_compiled() {
        assert!(Schema::of::<Value>().accepts_anything());
        assert!(Schema::compile(json!({"title": "anything", "description": "at all"})).unwrap().accepts_anything());
        assert!(!Schema::compile(json!({"type": "object"})).unwrap().accepts_anything());
        assert!(!Schema::compile(json!(false)).unwrap().accepts_anything());
    }

    #[test]
    fn deeply_nested_params_are_rejected() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let error = Schema::compile(json!({"type": ["null", "array"]}))
            .unwrap()
            .validate(&RawJson::parse(deep.as_bytes()).unwrap());
        assert!(error.unwrap().message.contains("recursion limit"));
    }

    #[test]
    fn error_messages_are_bounded() {
        let error =
            Schema::compile(json!({"type": "object"})).unwrap().validate_value(&json!("x".repeat(1 << 20))).unwrap();
        assert!(error.message.chars().count() <= MAX_MESSAGE_CHARS + 1);
    }
}
