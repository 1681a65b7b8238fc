//! Tasks that a kill switch concerns.
//!
//! A switch without params concerns tasks by its name, which is a tag or a prefix of ids. A switch with params concerns tasks of one
//! type whose params have given values at JSON pointers, all of them; its name is only a name. Pure: the task's params are
//! an argument, and are looked at only for a switch that has some for the type of the task.

mod params;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use params::{KillParams, MAX_KILL_PARAMS};

use super::id::TaskId;
use crate::json::RawJson;

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

/// Conditions of a kill switch, all of which a task has to fulfil.
#[derive(Clone, Copy, Debug)]
pub struct KillRule<'a> {
    /// Tag or prefix of ids; without meaning for a switch with params.
    pub name: &'a str,
    /// Meaning of the name; without one both.
    pub matches: Option<KillMatch>,
    /// Type of the tasks; without one all types, but nothing for a switch with params.
    pub task_type: Option<&'a str>,
    /// Values of params; none for a switch that concerns tasks by its name.
    pub params: &'a KillParams,
}

/// Properties of a task that kill switches compare.
#[derive(Clone, Copy, Debug)]
pub struct KillSubject<'a> {
    /// Id.
    pub id: &'a TaskId,
    /// Type.
    pub task_type: &'a str,
    /// Tags.
    pub tags: &'a [String],
    /// Params, if they are known. Those that are not have no values.
    pub params: Option<&'a RawJson>,
}

impl KillRule<'_> {
    /// Returns whether the kill switch concerns a task.
    pub fn concerns(&self, task: &KillSubject<'_>) -> bool {
        if self.task_type.is_some_and(|only| only != task.task_type) {
            return false;
        }
        if !self.params.is_empty() {
            return self.task_type.is_some() && task.params.is_some_and(|params| self.params.are_in(params));
        }
        let by_tag = self.matches != Some(KillMatch::IdPrefix) && task.tags.iter().any(|tag| tag == self.name);
        by_tag || (self.matches != Some(KillMatch::Tag) && task.id.as_str().starts_with(self.name))
    }
}

/// Checks conditions of a kill switch that depend on one another. `Err`: the name of the field, and the reason.
///
/// # Errors
/// Params without a type, or with a meaning of the name.
pub fn check_conditions(
    task_type: Option<&str>,
    matches: Option<KillMatch>,
    params: &KillParams,
) -> Result<(), (&'static str, &'static str)> {
    if params.is_empty() {
        return Ok(());
    }
    if task_type.is_none() {
        return Err((
            "type",
            "`params` need the type of the tasks: name it, so that workers read the params of no other one",
        ));
    }
    if matches.is_some() {
        return Err((
            "matches",
            "a kill switch with `params` has a name that is no tag and no prefix of ids: leave out `matches`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
