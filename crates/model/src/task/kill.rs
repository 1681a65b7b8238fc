//! Tasks that a kill switch concerns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::TaskId;

/// Meaning of a kill switch's name. Without one, the name is both a tag and a prefix of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KillMatch {
    /// Tasks with this tag.
    Tag,
    /// Tasks whose id begins with it.
    IdPrefix,
}

impl KillMatch {
    /// All meanings.
    pub const ALL: [Self; 2] = [Self::Tag, Self::IdPrefix];

    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::IdPrefix => "id_prefix",
        }
    }
}

/// Whether a kill switch of this name and meaning concerns a task.
pub fn is_killed(name: &str, matches: Option<KillMatch>, id: &TaskId, tags: &[String]) -> bool {
    let by_tag = matches != Some(KillMatch::IdPrefix) && tags.iter().any(|tag| tag == name);
    by_tag || (matches != Some(KillMatch::Tag) && id.as_str().starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_matches_tags_ids_or_both() {
        let id = TaskId::parse("batch-7").unwrap();
        let tags = ["a".to_owned()];
        for (name, matches, expected) in [
            ("a", None, true),
            ("batch", None, true),
            ("a", Some(KillMatch::Tag), true),
            ("batch", Some(KillMatch::Tag), false),
            ("a", Some(KillMatch::IdPrefix), false),
            ("batch", Some(KillMatch::IdPrefix), true),
        ] {
            assert_eq!(is_killed(name, matches, &id, &tags), expected, "{name} {matches:?}");
        }
        for matches in KillMatch::ALL {
            assert_eq!(serde_json::to_string(&matches).unwrap(), format!("\"{}\"", matches.name()));
        }
    }
}
