//! Schemas of types that this process does not have, from their declarations on the control topic.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_fleet::control::ControlWatch;
use kafleet_fleet::control::types::TypeRecord;
use kafleet_handlers::Schema;
use parking_lot::Mutex;

/// Declarations of types by `kafleet topics apply`, with their compiled schemas.
pub struct DeclaredTypes {
    control: Arc<ControlWatch>,
    compiled: Mutex<BTreeMap<String, CompiledSchema>>,
}

/// Compiled schema of a declaration.
struct CompiledSchema {
    declared: Arc<TypeRecord>,
    /// `None`: the schema cannot be compiled, or the declaration has none.
    schema: Option<Schema>,
}

impl DeclaredTypes {
    pub(crate) fn new(control: Arc<ControlWatch>) -> Self {
        Self { control, compiled: Mutex::default() }
    }

    /// Returns whether the declarations have been read once: later the last known ones hold, also while Kafka is away.
    pub(crate) fn is_read(&self) -> bool {
        self.control.is_fully_read()
    }

    /// Returns the declaration of a type.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<TypeRecord>> {
        self.control.state().types.get(name).cloned()
    }

    /// Names of the declared types.
    pub fn names(&self) -> Vec<String> {
        self.control.state().types.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the schema of a type's params, compiled once per declaration.
    pub(crate) fn schema(&self, name: &str) -> Option<Schema> {
        let declared = self.get(name);
        let mut compiled = self.compiled.lock();
        let Some(declared) = declared else {
            compiled.remove(name);
            return None;
        };
        if let Some(cached) = compiled.get(name)
            && Arc::ptr_eq(&cached.declared, &declared)
        {
            return cached.schema.clone();
        }
        let schema = declared.params.clone().and_then(|schema| compile(name, schema));
        compiled.insert(name.to_owned(), CompiledSchema { declared, schema: schema.clone() });
        schema
    }
}

fn compile(name: &str, schema: serde_json::Value) -> Option<Schema> {
    let compiled = Schema::compile(schema);
    if let Err(error) = &compiled {
        tracing::warn!(task_type = name, %error, "the declared params of a type are not a JSON Schema; they are not checked");
    }
    compiled.ok()
}
