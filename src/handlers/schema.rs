//! The JSON Schema of a type's params, and what does not fit it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::json::RawJson;

/// The longest message of a misfit, in characters: a validator likes to quote what it refuses.
const MAX_MESSAGE_CHARS: usize = 300;

/// Keywords that say something about a schema but nothing about what fits it.
const ANNOTATIONS: [&str; 8] = ["$schema", "$id", "$comment", "title", "description", "default", "deprecated", "examples"];

/// A compiled schema. Cheap to clone.
#[derive(Clone)]
pub struct Schema {
    text: Arc<Value>,
    /// None: anything fits.
    check: Option<Arc<jsonschema::Validator>>,
}

/// Where params do not fit, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamsError {
    /// JSON pointer into the params; empty for the whole.
    pub pointer: String,
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
    /// Any JSON.
    pub fn any() -> Self {
        Self { text: Arc::new(Value::Bool(true)), check: None }
    }

    pub fn compile(schema: Value) -> Result<Self, String> {
        if is_unconstrained(&schema) {
            return Ok(Self { text: Arc::new(schema), check: None });
        }
        let check = jsonschema::validator_for(&schema).map_err(|why| excerpt(&why.to_string()))?;
        Ok(Self { text: Arc::new(schema), check: Some(Arc::new(check)) })
    }

    /// The schema of a Rust type, derived.
    pub fn of<T: schemars::JsonSchema>() -> Self {
        let schema = schemars::schema_for!(T).to_value();
        // A derived schema that jsonschema cannot compile cannot refuse anything; the typed parse still does.
        Self::compile(schema.clone()).unwrap_or(Self { text: Arc::new(schema), check: None })
    }

    pub fn json(&self) -> &Value {
        &self.text
    }

    pub fn takes_anything(&self) -> bool {
        self.check.is_none()
    }

    /// The first thing that does not fit, if any. Params are parsed only where there is something to check.
    pub fn refuses(&self, params: &RawJson) -> Option<ParamsError> {
        self.check.as_ref()?;
        match read::<Value>(params.text()) {
            Ok(params) => self.misfit(&params),
            Err(misfit) => Some(misfit),
        }
    }

    /// The first thing that does not fit, if any.
    pub fn misfit(&self, params: &Value) -> Option<ParamsError> {
        let error = self.check.as_ref()?.validate(params).err()?;
        Some(ParamsError { pointer: error.instance_path().to_string(), message: excerpt(&error.to_string()) })
    }
}

fn is_unconstrained(schema: &Value) -> bool {
    match schema {
        Value::Bool(takes_all) => *takes_all,
        Value::Object(keywords) => keywords.keys().all(|keyword| ANNOTATIONS.contains(&keyword.as_str())),
        _ => false,
    }
}

/// Reads params as a Rust type. Only where they do not fit are they read again, to find the place.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ParamsError> {
    serde_json::from_str(text)
        .map_err(|why| locate::<T>(text).unwrap_or(ParamsError { pointer: String::new(), message: plain(&why) }))
}

fn locate<T: DeserializeOwned>(text: &str) -> Option<ParamsError> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text)).err()?;
    Some(ParamsError { pointer: pointer(error.path()), message: plain(error.inner()) })
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            Segment::Unknown => String::new(),
        })
        .collect()
}

/// The message without line and column: params are one line, and the pointer says where.
fn plain(why: &serde_json::Error) -> String {
    let text = why.to_string();
    excerpt(text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message))
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
    fn a_misfit_names_the_place_whoever_finds_it() {
        let schema = Schema::of::<Resize>();
        let by_schema = schema.refuses(&raw(json!({"sizes": [{"width": 3}, {"width": 0}]}))).unwrap();
        assert_eq!(by_schema.pointer, "/sizes/1/width");
        assert!(by_schema.message.contains("0 is less than the minimum of 1"), "{by_schema}");
        let by_type = read::<Resize>(r#"{"sizes": [{"width": 3}, {"width": -1}]}"#).unwrap_err();
        assert_eq!(by_type.pointer, "/sizes/1/width");
        assert_eq!(by_type.message, "invalid value: integer `-1`, expected u32");
        assert_eq!(schema.refuses(&raw(json!({"sizes": [{"width": 3}]}))), None);
        assert_eq!(read(r#"{"sizes": [{"width": 3}]}"#), Ok(Resize { sizes: vec![Size { width: 3 }] }));
    }

    #[test]
    fn a_schema_without_constraints_costs_nothing() {
        assert!(Schema::of::<Value>().takes_anything());
        assert!(Schema::compile(json!({"title": "anything", "description": "at all"})).unwrap().takes_anything());
        assert!(!Schema::compile(json!({"type": "object"})).unwrap().takes_anything());
        assert!(!Schema::compile(json!(false)).unwrap().takes_anything());
    }

    #[test]
    fn params_nested_too_deeply_are_refused_rather_than_taken_for_null() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let misfit =
            Schema::compile(json!({"type": ["null", "array"]})).unwrap().refuses(&RawJson::parse(deep.as_bytes()).unwrap());
        assert!(misfit.unwrap().message.contains("recursion limit"));
    }

    #[test]
    fn messages_are_bounded_whatever_they_quote() {
        let misfit = Schema::compile(json!({"type": "object"})).unwrap().misfit(&json!("x".repeat(1 << 20))).unwrap();
        assert!(misfit.message.chars().count() <= MAX_MESSAGE_CHARS + 1);
    }
}
