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
        match text {
            "message" => Ok(Self::Message),
            "kind" => Ok(Self::Kind),
            "root" => Ok(Self::Root),
            other => Err(format!("`{}` is no grouping: use `message`, `kind` or `root`", clip(other))),
        }
    }
}

impl FromStr for FailuresSort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "count" => Ok(Self::Count),
            "first" => Ok(Self::First),
            "last" => Ok(Self::Last),
            other => Err(format!("`{}` is no order: use `count`, `first` or `last`", clip(other))),
        }
    }
}
