//! Values of `[types.<name>]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum of `concurrency`.
pub const MAX_SLOTS: u32 = 100_000;

/// Built-in handler of a type without Rust code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandlerKind {
    Echo,
    Foreach,
    Exec,
    Http,
}

impl HandlerKind {
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Foreach => "foreach",
            Self::Exec => "exec",
            Self::Http => "http",
        }
    }
}

/// Order in which the tasks of a type run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No order; the fastest.
    #[default]
    None,
    /// Sequential per key; keys run in parallel.
    Key,
    /// Sequential per partition.
    Partition,
}

/// Isolation of the attempts of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In the worker's own process; the fastest.
    #[default]
    None,
    /// In child processes, each of which runs one attempt at a time, so that a crash affects no other attempt.
    Process,
}

/// Consequence of a failed attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Another attempt, until `retries` are used up.
    #[default]
    Retry,
    /// The task fails.
    Fail,
    /// The task is skipped: it succeeds with a warning and the result `null`.
    Skip,
}
