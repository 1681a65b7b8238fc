//! Rate limit of a type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Millis;

/// A rate limit: `rate = { count = 100, per = "1s" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Number of attempts that may start per `per`.
    #[schemars(range(min = 1))]
    pub count: u32,
    /// Default 1s, at most 1d.
    #[serde(default = "second")]
    pub per: Millis,
    /// Number of attempts that may start at once after an idle time. Default: 1, for an even flow.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub burst: u32,
    /// Scope of the limit: all tasks of the type, or tasks with the same key. Default `type`.
    #[serde(default)]
    pub by: RateBy,
}

/// Scope of a rate limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateBy {
    /// All tasks of the type, in the whole fleet.
    #[default]
    Type,
    /// Tasks with the same ordering key, which are in one partition and so on one worker.
    Key,
}

fn second() -> Millis {
    Millis::secs(1)
}

fn one() -> u32 {
    1
}

impl Rate {
    /// Validates the limit.
    pub fn check(&self) -> Result<(), String> {
        const MAX_PER: Millis = Millis::secs(86_400);
        const MAX_REFILL: Millis = Millis::secs(365 * 86_400);
        if self.count == 0 || self.burst == 0 {
            return Err("a rate needs a `count` and a `burst` of at least 1; to stop a type, pause it".into());
        }
        if self.per.0 == 0 || self.per > MAX_PER {
            return Err(format!("`per` of a rate must be longer than zero and at most {MAX_PER}"));
        }
        if self.per.0 / u64::from(self.count) * u64::from(self.burst) > MAX_REFILL.0 {
            return Err(format!("a `burst` of {} takes longer than {MAX_REFILL} to refill: lower it", self.burst));
        }
        Ok(())
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.count, self.per)?;
        if self.by == RateBy::Key {
            f.write_str(" per key")?;
        }
        if self.burst > 1 { write!(f, ", burst {}", self.burst) } else { Ok(()) }
    }
}
