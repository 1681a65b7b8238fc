//! Consumer groups that contain the commits of types, as recorded on the control topic.

use std::collections::BTreeMap;

use super::Group;

/// Records of groups by type. Without a record the commits are in the type's own group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRecords(pub(super) BTreeMap<String, Group>);

/// Reason why a type must not be consumed in its configured group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MisplacedCommits {
    #[error(
        "the commits of the type `{task_type}` are in the consumer group `{recorded}`, and its configured group is \
         `{configured}`; hint: stop all workers of both groups and run `kafleet offsets move {task_type} --to {configured}`, \
         or set `group = \"{recorded}\"` in `[types.{task_type}]`"
    )]
    OtherGroup { task_type: String, recorded: String, configured: String },
    #[error(
        "the commits of the type `{task_type}` are being moved from the consumer group `{from}` to `{to}`; hint: wait for \
         `kafleet offsets move`, and if it was interrupted, run `kafleet offsets move {task_type} --to {to}` again"
    )]
    Moving { task_type: String, from: String, to: String },
}

impl GroupRecords {
    /// Returns the name of the consumer group that contains a type's commits: the type's own name, unless it shares one.
    pub fn group_of<'a>(&'a self, task_type: &'a str) -> &'a str {
        self.0.get(task_type).map_or(task_type, |group| &group.group)
    }

    /// Returns the group to which a type's commits are being moved.
    pub fn moving_to(&self, task_type: &str) -> Option<&str> {
        self.0.get(task_type)?.moving_to.as_deref()
    }

    /// Checks that a type may be consumed in its configured group.
    pub fn check(&self, task_type: &str, configured: &str) -> Result<(), MisplacedCommits> {
        let recorded = self.group_of(task_type);
        let task_type = || task_type.to_owned();
        if let Some(to) = self.moving_to(&task_type()) {
            return Err(MisplacedCommits::Moving { task_type: task_type(), from: recorded.into(), to: to.into() });
        }
        if recorded == configured {
            return Ok(());
        }
        Err(MisplacedCommits::OtherGroup {
            task_type: task_type(),
            recorded: recorded.into(),
            configured: configured.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_consumed_only_in_its_recorded_group() {
        let mut records = GroupRecords::default();
        assert_eq!(records.check("a", "a"), Ok(()));
        assert!(matches!(records.check("a", "small"), Err(MisplacedCommits::OtherGroup { .. })));
        let group = |moving_to: Option<&str>| Group {
            v: 1,
            at_ms: 0,
            group: "small".into(),
            moving_to: moving_to.map(str::to_owned),
        };
        records.0.insert("a".into(), group(None));
        assert_eq!(records.check("a", "small"), Ok(()));
        records.0.insert("a".into(), group(Some("a")));
        for configured in ["a", "small"] {
            assert!(matches!(records.check("a", configured), Err(MisplacedCommits::Moving { .. })));
        }
    }
}
