//! Form for JSON params that a JSON Schema describes: schema to fields, value to texts of inputs, and texts to a value.
//!
//! In: a schema, and a value or entered texts. Out: markup, and a value or the errors by field.
//!
//! Invariant: texts that [`SchemaForm::fill`] makes of a value are read as the same value, with exact numbers. What an input
//! cannot hold, such as `null` or a text with an escape code, is entered as JSON in its place.

mod fields;
mod fill;
mod markup;
mod outline;
mod read;

use kafleet_documents::given_params;
use serde_json::Value;

pub(in super::super) use outline::schema_outline;

/// Fields for the members of an object.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct SchemaForm {
    pub fields: Vec<SchemaField>,
    /// Members without a field are allowed.
    pub is_open: bool,
}

/// Field for one member.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct SchemaField {
    /// JSON pointer to the member.
    pub pointer: String,
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub example: Option<String>,
    pub default: Option<Value>,
    pub required: bool,
    /// All objects around it are required: it is missing whenever it is not given.
    pub is_certain: bool,
    pub kind: FieldKind,
}

/// Input of a field.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum FieldKind {
    Text(TextKind),
    Number(NumberRange),
    Choice(Vec<ChoiceOption>),
    Flag,
    Object(Vec<SchemaField>),
    /// List with a value on each line.
    List(ItemKind),
    /// Anything else, as JSON.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TextKind {
    Line,
    Lines,
    Date,
    /// Time in UTC.
    DateTime,
    Email,
    Uri,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct NumberRange {
    pub is_integer: bool,
    pub min: Option<String>,
    pub max: Option<String>,
    pub step: Option<String>,
}

/// Value to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ChoiceOption {
    /// The value as JSON.
    pub json: String,
    pub label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ItemKind {
    Text,
    Number,
    Flag,
}

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct FieldError {
    pub pointer: String,
    pub message: String,
    /// The field is required and empty.
    pub is_missing: bool,
}

impl SchemaForm {
    /// Form for the params that a request gives, by the schema of their type.
    pub(in super::super) fn of_params(schema: &Value) -> Option<Self> {
        Self::new(schema, given_params(schema))
    }
}

/// Text of an input by its name; `None` if it is empty.
pub(in super::super) type InputTexts<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

impl SchemaField {
    /// Returns whether every valid value has the member.
    fn is_always_present(&self) -> bool {
        self.required && self.is_certain
    }

    /// Returns whether the input is a box that is ticked or not, instead of a choice with a third state.
    fn is_checkbox(&self) -> bool {
        self.kind == FieldKind::Flag && self.is_always_present()
    }
}

/// Name of a field's input.
fn input_name(pointer: &str) -> String {
    format!("p{pointer}")
}

/// Name of the input for a member as JSON; for the whole object, of the members without a field.
fn json_name(pointer: &str) -> String {
    format!("j{pointer}")
}

/// Whether an input with this name belongs to the fields of a schema.
pub(in super::super) fn is_input(name: &str) -> bool {
    name.starts_with("p/") || name.starts_with("j/") || name == "j"
}

#[cfg(test)]
mod tests;
