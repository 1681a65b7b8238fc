//! Every Redis key there is, built here and nowhere else.
//!
//! All keys of events partition 12 begin with `kafleet:{p12}:` (`kafleet` is the configurable prefix). The braces are a
//! hash tag: in a cluster everything of a partition lies in one slot, so that one MULTI can change it.
//!
//! | key after `kafleet:{p12}:` | type | holds | written by |
//! |---|---|---|---|
//! | `fence` | string | `offset version log_time_ms kept_bytes`: up to where the partition is folded, and the number of the rebuild if one wrote it | SET in every batch |
//! | `b` | hash | how many batches have begun, and how many have ended: the same, unless Redis has torn one apart; the sizes of indexes and the sum of the counters, to compare with; how many keys each server had evicted (`evicted:<run id>`) | HINCRBY, HSET |
//! | `t:<id>` | string | the record of a task ([`TaskRecord::encode`](crate::model::record::TaskRecord::encode)) | MSET, DEL |
//! | `roots` | zset | ids of roots; score: log time of the first event, ms | ZADD, ZREM |
//! | `c:<parent>` | zset | ids of the direct children of a task; same score | ZADD, ZREM |
//! | `m:<type>:<state>` | zset | ids of the tasks of a type in an indexed state; same score | ZADD, ZREM |
//! | `due` | zset | ids of the tasks with a timer; score: when it is due, ms | ZADD, ZREM |
//! | `todo` | zset | ids of the tasks with effects to be done; score: [`TaskRecord::turn`](crate::model::record::TaskRecord::turn) | ZADD, ZREM |
//! | `old` | zset | ids of the tasks with something to come by log time: open roots, and what is only expected; score: when, ms | ZADD, ZREM |
//! | `done` | zset | the times at which finished trees are removed, ms; score: the same | ZADD, ZREM |
//! | `done:<time>` | list | ids of the roots that are removed then, unless their records say otherwise | RPUSH, LTRIM |
//! | `life` | string | how long trees and records last, JSON; there where the log says so | SET |
//! | `k:<id>` | string | the record of a task that waits for its time | MSET, DEL |
//! | `n` | hash | number of tasks by `type/state`; a field at zero goes with the next batch | HINCRBY, HDEL |
//! | `l:<id>` | list | the newest log lines of a task, bounded in lines and bytes | RPUSH, LTRIM, DEL |
//! | `a:<id>` | hash | what is attached to a task, by name | HSET, HDEL, DEL |
//! | `ln:<id>` | string | how many log lines the task has had ever, so that lines keep their numbers | SET, DEL |
//! | `r:<id>` | string | a reservation, `stage hash`: the position of the event, `@owner` while it is published, `-` in doubt; expires | SET PX, DEL |
//! | `r:probe` | string | nothing: a write to see whether Redis takes any; expires | SET PX |
//!
//! One more lies outside of any partition: the pub/sub channel `kafleet:notices`, with one JSON message per batch.

use std::sync::Arc;

use super::{Index, StoreError};
use crate::model::record::state::State;
use crate::model::task::id::TaskId;

/// The longest prefix, in characters.
const MAX_PREFIX_CHARS: usize = 64;

/// The keys of one events partition.
#[derive(Clone, Debug)]
pub struct Keys {
    /// `kafleet:{p12}:`.
    base: String,
}

impl Keys {
    pub fn new(prefix: &str, partition: u32) -> Self {
        Self { base: format!("{prefix}:{{p{partition}}}:") }
    }

    /// Up to where the partition is folded. Every batch is guarded by a WATCH on it.
    pub fn fence(&self) -> String {
        self.key("fence", "")
    }

    /// How many batches have begun and ended.
    pub fn batches(&self) -> String {
        self.key("b", "")
    }

    /// The record of a task.
    pub fn record(&self, id: &TaskId) -> String {
        self.key("t:", id.as_str())
    }

    /// The sorted set behind an index.
    pub fn index(&self, index: &Index) -> String {
        match index {
            Index::Roots => self.key("roots", ""),
            Index::Timers => self.key("due", ""),
            Index::Effects => self.key("todo", ""),
            Index::Ages => self.key("old", ""),
            Index::Children(parent) => self.key("c:", parent.as_str()),
            Index::Members { task_type, state } => format!("{}m:{task_type}:{state}", self.base),
        }
    }

    /// The times at which finished trees are removed.
    pub fn done_times(&self) -> String {
        self.key("done", "")
    }

    /// The roots whose trees are removed at a time.
    pub fn done(&self, due_ms: i64) -> String {
        format!("{}done:{due_ms}", self.base)
    }

    /// How long trees and records last.
    pub fn lifetimes(&self) -> String {
        self.key("life", "")
    }

    /// The record of a task that waits for its time.
    pub fn kept(&self, id: &TaskId) -> String {
        self.key("k:", id.as_str())
    }

    /// The counters of the partition.
    pub fn counts(&self) -> String {
        self.key("n", "")
    }

    /// The log lines of a task that are kept.
    pub fn log(&self, id: &TaskId) -> String {
        self.key("l:", id.as_str())
    }

    /// What is attached to a task.
    pub fn attachments(&self, id: &TaskId) -> String {
        self.key("a:", id.as_str())
    }

    /// How many log lines a task has had ever.
    pub fn log_total(&self, id: &TaskId) -> String {
        self.key("ln:", id.as_str())
    }

    /// The reservation of an id for a run.
    pub fn reservation(&self, id: &TaskId, run: u32) -> String {
        format!("{}r:{run}:{id}", self.base)
    }

    /// The key of a write probe.
    pub fn probe(&self) -> String {
        self.key("r:", "probe")
    }

    /// It expires by design, and is no part of what is folded.
    pub fn is_reservation(&self, key: &str) -> bool {
        key.strip_prefix(&self.base).is_some_and(|name| name.starts_with("r:"))
    }

    /// What all keys of the partition begin with.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The key of an index without what all keys begin with.
    pub fn name_of(&self, index: &Index) -> String {
        self.index(index).split_off(self.base.len())
    }

    /// A pattern over everything of the partition: a prefix has no characters that mean something else in one.
    pub fn all(&self) -> String {
        self.key("*", "")
    }

    /// The fold has written it, the same whenever it folds: it is no fence, no reservation, no count of batches, and no list
    /// of finished roots, which has them in the order in which batches brought them, and of which the records say the same.
    pub fn is_folded(&self, key: &str) -> bool {
        let of_finished = |name: &str| name == "done" || name.starts_with("done:");
        let beside = |name: &str| matches!(name, "fence" | "b") || name.starts_with("r:") || of_finished(name);
        key.strip_prefix(&self.base).is_some_and(|name| !beside(name))
    }

    fn key(&self, kind: &str, id: &str) -> String {
        [&self.base, kind, id].concat()
    }
}

/// The field of a counter in [`Keys::counts`].
pub fn counter(task_type: &str, state: State) -> String {
    format!("{task_type}/{state}")
}

/// What a field of [`Keys::counts`] counts.
pub fn parse_counter(field: &str) -> Option<(Arc<str>, State)> {
    let (task_type, state) = field.rsplit_once('/')?;
    Some((task_type.into(), State::from_name(state)?))
}

/// The channel of change notices: one for all partitions.
pub fn notices(prefix: &str) -> String {
    format!("{prefix}:notices")
}

/// Checks a prefix: no braces, because the hash tag must be the partition's.
pub fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':');
    if prefix.is_empty() || prefix.len() > MAX_PREFIX_CHARS || !prefix.bytes().all(allowed) {
        return Err(StoreError::Misconfigured(format!(
            "`{}` is not a prefix for redis keys: 1 to {MAX_PREFIX_CHARS} characters of A-Z a-z 0-9 . _ - :",
            prefix.chars().take(80).collect::<String>()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_a_partition_has_its_hash_tag() {
        let keys = Keys::new("fleet", 12);
        let id = TaskId::parse("r:a").unwrap();
        let members = Index::Members { task_type: "echo".into(), state: State::Failed };
        for (key, expect) in [
            (keys.fence(), "fleet:{p12}:fence"),
            (keys.batches(), "fleet:{p12}:b"),
            (keys.record(&id), "fleet:{p12}:t:r:a"),
            (keys.index(&Index::Roots), "fleet:{p12}:roots"),
            (keys.index(&Index::Children(id.clone())), "fleet:{p12}:c:r:a"),
            (keys.index(&members), "fleet:{p12}:m:echo:failed"),
            (keys.index(&Index::Timers), "fleet:{p12}:due"),
            (keys.index(&Index::Effects), "fleet:{p12}:todo"),
            (keys.index(&Index::Ages), "fleet:{p12}:old"),
            (keys.lifetimes(), "fleet:{p12}:life"),
            (keys.kept(&id), "fleet:{p12}:k:r:a"),
            (keys.counts(), "fleet:{p12}:n"),
            (keys.log(&id), "fleet:{p12}:l:r:a"),
            (keys.log_total(&id), "fleet:{p12}:ln:r:a"),
            (keys.attachments(&id), "fleet:{p12}:a:r:a"),
            (keys.reservation(&id, 2), "fleet:{p12}:r:2:r:a"),
            (keys.all(), "fleet:{p12}:*"),
        ] {
            assert_eq!(key, expect);
        }
    }

    #[test]
    fn counters_read_back_what_they_count() {
        for state in State::ALL {
            assert_eq!(parse_counter(&counter("a-b", state)), Some(("a-b".into(), state)));
        }
        assert_eq!(parse_counter("a-b"), None);
        assert_eq!(parse_counter("a/nonsense"), None);
    }

    #[test]
    fn a_prefix_with_a_hash_tag_of_its_own_is_refused() {
        assert_eq!(check_prefix("kafleet.test:1_a-b"), Ok(()));
        for bad in ["", "a{b}", "a b", &"x".repeat(65)] {
            assert!(matches!(check_prefix(bad), Err(StoreError::Misconfigured(_))), "{bad:?}");
        }
    }
}
