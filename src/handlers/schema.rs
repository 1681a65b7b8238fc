//! The JSON Schema of a type's params, and what does not fit it.

use std::sync::Arc;

use serde_json::Value;

/// A compiled schema. Cheap to clone.
#[derive(Clone)]
pub struct Schema {
    text: Arc<Value>,
    /// None: anything fits.
    check: Option<Arc<jsonschema::Validator>>,
}

/// Where params do not fit, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// JSON pointer into the params; empty for the whole.
    pub pointer: String,
    pub message: String,
}

impl Schema {
    /// Any JSON.
    pub fn any() -> Self {
        Self { text: Arc::new(Value::Bool(true)), check: None }
    }

    pub fn compile(schema: Value) -> Result<Self, String> {
        if schema == Value::Bool(true) {
            return Ok(Self::any());
        }
        let check = jsonschema::validator_for(&schema).map_err(|why| why.to_string())?;
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

    /// The first thing that does not fit, if any.
    pub fn misfit(&self, params: &Value) -> Option<Misfit> {
        let error = self.check.as_ref()?.iter_errors(params).next()?;
        Some(Misfit { pointer: error.instance_path().to_string(), message: error.to_string() })
    }
}
