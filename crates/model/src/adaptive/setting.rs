//! Settings of an adaptive limit: of a type, and those that an operator sets at run time.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::duration::Millis;

/// Largest smallest limit.
const MAX_MIN: u32 = 100_000;
/// Maximum number and length of the kinds of errors that count as refusals.
const MAX_KINDS: usize = 20;
const MAX_KIND_BYTES: usize = 128;

/// Adaptive concurrency of a type: `adaptive = { min = 2, target = "400ms" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Adaptive {
    /// Smallest limit of concurrent attempts in the whole fleet, 1 to 100,000. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min: u32,
    /// Mean time of an attempt above which the limit is cut. Default: none, only refusals cut it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Millis>,
    /// Error kinds that mean that the service refuses an attempt, at most 20. Default: `rate_limited`, `overloaded`,
    /// `unreachable`.
    #[serde(default = "refusals")]
    pub on: Vec<String>,
}

fn one() -> u32 {
    1
}

fn refusals() -> Vec<String> {
    ["rate_limited", "overloaded", "unreachable"].map(str::to_owned).to_vec()
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { min: one(), target: None, on: refusals() }
    }
}

impl Adaptive {
    /// Validates the setting.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_MIN).contains(&self.min) {
            return Err(format!("`min` is {}; allowed is 1 to {MAX_MIN}", self.min));
        }
        if self.target.is_some_and(|target| target.0 == 0) {
            return Err("`target` must be longer than zero; leave it out to adapt to refusals alone".into());
        }
        if self.on.len() > MAX_KINDS || self.on.iter().any(|kind| kind.is_empty() || kind.len() > MAX_KIND_BYTES) {
            return Err(format!("`on` lists at most {MAX_KINDS} error kinds of 1 to {MAX_KIND_BYTES} bytes"));
        }
        if self.on.is_empty() && self.target.is_none() {
            return Err("with an empty `on` and no `target` nothing ever cuts the limit: set one of them".into());
        }
        Ok(())
    }

    /// Returns whether errors of a kind are refusals.
    pub fn is_refusal(&self, kind: &str) -> bool {
        self.on.iter().any(|listed| listed == kind)
    }
}

/// Adaptive limit that an operator sets at run time: `"off"`, or a number of concurrent attempts in the whole fleet, which no
/// learner changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AdaptiveOverride {
    /// `"off"`: only the other limits apply.
    Off(OffWord),
    /// Fixed limit of the whole fleet.
    Limit(#[schemars(range(min = 1, max = 1_000_000))] u32),
}

/// The word `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffWord {
    /// Switched off.
    Off,
}

impl AdaptiveOverride {
    /// Largest fixed limit.
    pub const MAX: u32 = 1_000_000;
    /// Value that switches the limit off.
    pub const OFF: Self = Self::Off(OffWord::Off);

    /// Validates a fixed limit.
    pub fn check(self) -> Result<(), String> {
        match self {
            Self::Limit(limit) if !(1..=Self::MAX).contains(&limit) => {
                Err(format!("an adaptive limit of {limit} is not allowed: 1 to {}, or `off`", Self::MAX))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for AdaptiveOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off(_) => f.write_str("off"),
            Self::Limit(limit) => write!(f, "{limit}"),
        }
    }
}

impl FromStr for AdaptiveOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let set = match text {
            "off" => Self::OFF,
            number => Self::Limit(
                number
                    .parse()
                    .map_err(|_| format!("`{text}` is no adaptive limit: write `off` or a number, such as 50"))?,
            ),
        };
        set.check().map(|()| set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_setting_has_the_defaults() {
        let read = |text: &str| serde_json::from_str::<Adaptive>(text).unwrap();
        assert_eq!(read("{}"), Adaptive::default());
        let set = read(r#"{"min": 2, "target": "400ms", "on": ["busy"]}"#);
        assert_eq!((set.min, set.target, set.is_refusal("busy")), (2, Some(Millis(400)), true));
        assert_eq!(set.check(), Ok(()));
        for refused in [r#"{"min": 0}"#, r#"{"target": "0s"}"#, r#"{"on": []}"#, r#"{"on": [""]}"#] {
            assert!(read(refused).check().is_err(), "{refused}");
        }
    }

    #[test]
    fn override_is_off_or_a_number() {
        for (text, json) in [("off", r#""off""#), ("50", "50")] {
            let set: AdaptiveOverride = text.parse().unwrap();
            assert_eq!((set.to_string(), serde_json::to_string(&set).unwrap()), (text.to_owned(), json.to_owned()));
            assert_eq!(serde_json::from_str::<AdaptiveOverride>(json).unwrap(), set);
        }
        assert!("0".parse::<AdaptiveOverride>().is_err() && "on".parse::<AdaptiveOverride>().is_err());
    }
}
