//! Groups and order of a list of failed tasks, with their names in requests.

use std::str::FromStr;

use kafleet_model::task::id::clip;

/// Groups of a list of failed tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailuresBy {
    /// Type, kind and similar message of the error.
    #[default]
    Message,
    /// Type and kind of the error.
    Kind,
    /// Type of the root, with type and kind of the error.
    Root,
}

/// Order of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailuresSort {
    /// Most tasks first.
    #[default]
    Count,
    /// First task the newest first.
    First,
    /// Last task the newest first.
    Last,
}

impl FromStr for FailuresBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = [("message", Self::Message), ("kind", Self::Kind), ("root", Self::Root)];
        named(text, "grouping", names)
    }
}

impl FromStr for FailuresSort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text, "order", [("count", Self::Count), ("first", Self::First), ("last", Self::Last)])
    }
}

/// Finds the value of a name. `noun`: kind of the values, for the error.
fn named<T: Copy>(text: &str, noun: &str, names: [(&str, T); 3]) -> Result<T, String> {
    let [(first, _), (second, _), (third, _)] = names;
    let found = names.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value);
    found.ok_or_else(|| format!("`{}` is no {noun}: use `{first}`, `{second}` or `{third}`", clip(text)))
}
