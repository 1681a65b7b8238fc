//! How many attempts may begin in a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::units::duration::Millis;

/// A rate limit: `rate = { count = 100, per = "1s" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// So many attempts may begin in each `per`.
    #[schemars(range(min = 1))]
    pub count: u32,
    /// Default 1s, at most 1d.
    #[serde(default = "second")]
    pub per: Millis,
    /// How many may begin at once after a rest. Default: one, and with it an even flow.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub burst: u32,
    /// Over all tasks of the type, or over those with the same key. Default `type`.
    #[serde(default)]
    pub by: RateBy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateBy {
    /// All tasks of the type, in the whole fleet.
    #[default]
    Type,
    /// Tasks with the same ordering key: they lie in one partition, and so with one worker.
    Key,
}

fn second() -> Millis {
    Millis::secs(1)
}

fn one() -> u32 {
    1
}

impl Rate {
    /// What is wrong with it, if anything.
    pub fn check(&self) -> Result<(), String> {
        const LONGEST: Millis = Millis::secs(86_400);
        if self.count == 0 || self.burst == 0 {
            return Err("a rate needs a `count` and a `burst` of 1 at least; to stop a type, pause it".into());
        }
        if self.per.0 == 0 || self.per > LONGEST {
            return Err(format!("`per` of a rate is longer than zero and at most {LONGEST}"));
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
