//! Setting `batch` of a type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forming::GroupLimits;
use crate::json::{RawJson, check_pointer};
use crate::task::id::clip;
use crate::units::bytes::Bytes;
use crate::units::duration::Millis;

/// Largest batch.
const MAX_ITEMS: u32 = 10_000;
/// Longest wait for further tasks.
const MAX_WAIT: Millis = Millis::secs(600);
/// Largest size of a batch.
const MAX_BYTES: Bytes = Bytes(1 << 30);

/// Batches of a type: `batch = { max = 100, wait = "20ms", by = "/tenant" }`. Unset members are those of the code of the type, or
/// defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSetting {
    /// Maximum number of tasks in a call of the handler, 2 to 10,000. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 10_000))]
    pub max: Option<u32>,
    /// Time for which the first task of a batch waits for others, at most 10 minutes. Default: `20ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Millis>,
    /// Maximum size of the params of a batch, up to 1 GiB; a larger task runs alone. Default: `4MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<Bytes>,
    /// JSON pointer into the params, such as `/tenant`: only tasks with equal values there are in a batch. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Run the halves of a batch that fails as a whole on their own, down to one task; `false`: the failure counts for each
    /// task. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<bool>,
}

/// Batches of a type, with all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Maximum number of tasks in a call of the handler.
    pub max: u32,
    /// Time for which the first task of a batch waits for others.
    pub wait: Millis,
    /// Maximum size of the params of a batch. A larger task runs alone.
    pub max_bytes: Bytes,
    /// JSON pointer into the params: only tasks with equal values there are in a batch.
    pub by: Option<String>,
    /// Run the halves of a batch that fails as a whole on their own.
    pub split: bool,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self { max: 100, wait: Millis(20), max_bytes: Bytes(4 << 20), by: None, split: true }
    }
}

impl BatchPolicy {
    /// Returns the policy with the members of a setting that are set.
    pub fn with(self, setting: &BatchSetting) -> Self {
        let BatchSetting { max, wait, max_bytes, by, split } = setting.clone();
        Self {
            max: max.unwrap_or(self.max),
            wait: wait.unwrap_or(self.wait),
            max_bytes: max_bytes.unwrap_or(self.max_bytes),
            by: by.or(self.by),
            split: split.unwrap_or(self.split),
        }
    }

    /// Validates the members.
    ///
    /// # Errors
    /// The reason why a member is invalid, with its value.
    pub fn check(&self) -> Result<(), String> {
        if !(2..=MAX_ITEMS).contains(&self.max) {
            return Err(format!("`max` is {}; allowed is 2 to {MAX_ITEMS}", self.max));
        }
        if self.wait > MAX_WAIT {
            return Err(format!("`wait` is {}; allowed is up to {MAX_WAIT}", self.wait));
        }
        if !(1..=MAX_BYTES.0).contains(&self.max_bytes.0) {
            return Err(format!("`max_bytes` is {}; allowed is 1 to {MAX_BYTES}", self.max_bytes));
        }
        match self.by.as_deref().map(|by| (by, check_pointer(by))) {
            Some((by, Err(reason))) => {
                Err(format!("`by` is `{}`: {reason}; write a JSON pointer into the params such as `/tenant`", clip(by)))
            }
            _ => Ok(()),
        }
    }

    /// Limits of the groups.
    pub fn limits(&self) -> GroupLimits {
        GroupLimits { max: self.max as usize, wait_ms: self.wait.0, max_bytes: self.max_bytes.0 }
    }

    /// Key of a task with these params: equal for tasks that may be in one batch. Params without a value at the pointer are equal.
    pub fn key_of(&self, params: &RawJson) -> String {
        let value = self.by.as_deref().and_then(|by| params.slice().at(by));
        // A value without a canonical text is compared by its text.
        value.map_or_else(String::new, |value| value.canonical().unwrap_or_else(|_| value.text().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> BatchPolicy {
        BatchPolicy::default().with(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn unset_members_are_those_of_the_code() {
        assert_eq!(read("{}"), BatchPolicy::default());
        let code = read(r#"{"max": 10, "wait": "1s", "max_bytes": "1MiB", "by": "/tenant", "split": false}"#);
        assert_eq!(code.limits(), GroupLimits { max: 10, wait_ms: 1_000, max_bytes: 1 << 20 });
        let set = code.clone().with(&BatchSetting { max: Some(20), ..BatchSetting::default() });
        assert_eq!(set, BatchPolicy { max: 20, ..code });
    }

    #[test]
    fn member_outside_of_its_range_is_refused() {
        assert_eq!(BatchPolicy::default().check(), Ok(()));
        for refused in
            [r#"{"max": 1}"#, r#"{"max": 10001}"#, r#"{"wait": "11m"}"#, r#"{"max_bytes": 0}"#, r#"{"by": "tenant"}"#]
        {
            assert!(read(refused).check().is_err(), "{refused}");
        }
    }

    #[test]
    fn tasks_of_equal_values_have_one_key() {
        let by = read(r#"{"by": "/tenant"}"#);
        let key = |params: &str| by.key_of(&RawJson::parse(params.as_bytes()).unwrap());
        assert_eq!(key(r#"{"tenant": 1.0, "a": 1}"#), key(r#"{"tenant": 1}"#));
        assert_ne!(key(r#"{"tenant": "1"}"#), key(r#"{"tenant": 1}"#));
        assert_ne!(key(r#"{"tenant": ""}"#), key("{}"));
        assert_eq!(key("7"), key("{}"));
        assert_eq!(BatchPolicy::default().key_of(&RawJson::null()), "");
    }
}
