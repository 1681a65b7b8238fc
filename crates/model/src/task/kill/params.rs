//! Values of params that a kill switch demands.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::{JsonSlice, RawJson, WHOLE_VALUE, check_pointer, mask_below};
use crate::task::id::clip;

/// Maximum number of params of a kill switch.
pub const MAX_KILL_PARAMS: usize = 4;
/// Maximum length of a JSON pointer of a kill switch, in bytes.
const MAX_POINTER_BYTES: usize = 256;
/// Maximum length of a value of a kill switch in its canonical form, in bytes: a record of the control topic stays small.
const MAX_VALUE_BYTES: usize = 1_024;

/// Values of params that a kill switch demands, by JSON pointer (RFC 6901; the empty one is all of the params). A task has to have
/// all of them. Numbers are equal by their exact value, objects without regard to the order of names; what a task lacks is
/// equal to nothing, not even to `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, RawJson>", into = "BTreeMap<String, RawJson>")]
pub struct KillParams(Vec<KillParam>);

/// Value at one JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KillParam {
    pointer: String,
    value: RawJson,
    /// Canonical text of the value, to compare it with many.
    canonical: String,
}

impl KillParam {
    fn new(pointer: String, value: RawJson) -> Result<Self, String> {
        let shown = clip(&pointer);
        if pointer != WHOLE_VALUE {
            check_pointer(&pointer)
                .map_err(|reason| format!("`{shown}` is not a JSON pointer into the params: {reason}"))?;
        }
        if pointer.len() > MAX_POINTER_BYTES {
            return Err(format!("the JSON pointer `{shown}` is longer than {MAX_POINTER_BYTES} bytes"));
        }
        let canonical = value.slice().canonical().map_err(|defect| format!("the value at `{shown}`: {defect}"))?;
        if canonical.len() > MAX_VALUE_BYTES {
            return Err(format!("the value at `{shown}` is longer than {MAX_VALUE_BYTES} bytes: compare a part of it"));
        }
        Ok(Self { pointer, value, canonical })
    }

    fn is_in(&self, params: JsonSlice<'_>) -> bool {
        let has_value = |found: JsonSlice<'_>| {
            // Equal texts are equal values; values of two kinds never are.
            found.text() == self.value.text()
                || found.kind() == self.value.slice().kind()
                    && found.canonical().is_ok_and(|canonical| canonical == self.canonical)
        };
        params.at(&self.pointer).is_some_and(has_value)
    }
}

impl KillParams {
    /// Returns whether there are none: the switch concerns tasks by its name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses params as people write them: `/customer/id=42`, or `=42` for all of the params. A value that is not JSON is a text.
    ///
    /// # Errors
    /// A text without `=`, a pointer that is invalid or occurs twice, or too many of them.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for text in texts {
            let parts = text.split_once('=');
            let (pointer, value) = parts.ok_or_else(|| {
                format!("`{}` is no param: write a JSON pointer and a value, such as `/customer/id=42`", clip(text))
            })?;
            let value =
                RawJson::parse(value.as_bytes()).map_or_else(|_| Value::from(value).into(), RawJson::into_compact);
            if values.insert(pointer.to_owned(), value).is_some() {
                return Err(format!("the JSON pointer `{}` occurs twice", clip(pointer)));
            }
        }
        Self::try_from(values)
    }

    /// Params as people write them, such as `/customer/id=42` and `/kind="import"`.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.iter().map(|(pointer, value)| format!("{pointer}={value}"))
    }

    /// JSON pointers with their values, sorted by pointer.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawJson)> {
        self.0.iter().map(|param| (param.pointer.as_str(), &param.value))
    }

    /// Returns whether params have all of the values. Without any value nothing has.
    pub fn are_in(&self, params: &RawJson) -> bool {
        !self.is_empty() && self.0.iter().all(|param| param.is_in(params.slice()))
    }

    /// JSON pointers for people, such as ``at `/customer/id` and `/kind` ``.
    pub fn pointers_text(&self) -> String {
        let name = |param: &KillParam| match param.pointer.as_str() {
            WHOLE_VALUE => "as a whole".to_owned(),
            pointer => format!("at `{pointer}`"),
        };
        self.0.iter().map(name).collect::<Vec<_>>().join(" and ")
    }

    /// First JSON pointer whose value shows something of a masked value: the masked one, a part of it, or a value around it.
    pub fn masked_pointer(&self, mask: &[String]) -> Option<&str> {
        let shows = |param: &&KillParam| !mask_below(mask, &param.pointer).is_empty();
        self.0.iter().find(shows).map(|param| param.pointer.as_str())
    }

    /// First JSON pointer at which, or below which, a value is the text in the place of a masked one.
    pub fn masked_value(&self, mask: &[String]) -> Option<&str> {
        let is_hidden = |param: &&KillParam| {
            let hidden = mask_below(mask, &param.pointer);
            !hidden.is_empty() && param.value.masked_at(&hidden).is_some()
        };
        self.0.iter().find(is_hidden).map(|param| param.pointer.as_str())
    }

    /// Returns the params for people, with [`MASKED`](crate::json::MASKED) in the place of masked values.
    #[must_use]
    pub fn masked(&self, mask: &[String]) -> Self {
        let hide = |param: &KillParam| {
            let value = param.value.masked(&mask_below(mask, &param.pointer));
            let canonical = value.slice().canonical().unwrap_or_default();
            KillParam { pointer: param.pointer.clone(), value, canonical }
        };
        Self(self.0.iter().map(hide).collect())
    }
}

impl TryFrom<BTreeMap<String, RawJson>> for KillParams {
    type Error = String;

    fn try_from(values: BTreeMap<String, RawJson>) -> Result<Self, String> {
        if values.len() > MAX_KILL_PARAMS {
            return Err(format!("a kill switch has at most {MAX_KILL_PARAMS} params, not {}", values.len()));
        }
        let params = values.into_iter().map(|(pointer, value)| KillParam::new(pointer, value));
        params.collect::<Result<_, _>>().map(Self)
    }
}

impl From<KillParams> for BTreeMap<String, RawJson> {
    fn from(params: KillParams) -> Self {
        params.0.into_iter().map(|param| (param.pointer, param.value)).collect()
    }
}

impl JsonSchema for KillParams {
    fn schema_name() -> Cow<'static, str> {
        "KillParams".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Values of params by JSON pointer (RFC 6901; `\"\"`: all of the params). A task must have all of them.",
            "type": "object",
            "maxProperties": MAX_KILL_PARAMS,
            "propertyNames": {"pattern": "^(/([^~]|~[01])*)?$", "maxLength": MAX_POINTER_BYTES},
            "additionalProperties": true,
        })
    }
}
