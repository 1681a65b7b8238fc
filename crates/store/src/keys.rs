//! Redis key names. All of them are built in this module.
//!
//! All keys of events partition 12 begin with `kafleet:{p12}:` (`kafleet` is the configurable prefix). The braces are
//! a hash tag: in a cluster all keys of a partition share one slot, so that one MULTI can change them.
//!
//! | key after `kafleet:{p12}:` | type | contents | written by |
//! |---|---|---|---|
//! | `checkpoint` | string | checkpoint: `offset version log_time_ms deferred_bytes rebuild complete_at` | SET in every batch |
//! | `batches` | hash | batches begun and ended (equal unless Redis applied a part of one); expected sizes of indexes and counters; evicted keys per server (`evicted:<run id>`) | HINCRBY, HSET |
//! | `t:<id>` | string | task record ([`TaskRecord::encode`](kafleet_model::record::TaskRecord::encode)) | MSET, DEL |
//! | `roots` | zset | ids of roots; score: log time of the first event, ms | ZADD, ZREM |
//! | `c:<parent>` | zset | ids of the direct children of a task; same score | ZADD, ZREM |
//! | `m:<type>:<state>` | zset | ids of the tasks of a type in an indexed state; same score | ZADD, ZREM |
//! | `due` | zset | ids of tasks with a timer; score: due time, ms | ZADD, ZREM |
//! | `effects` | zset | ids of tasks with pending effects; score: [`TaskRecord::turn`](kafleet_model::record::TaskRecord::turn) | ZADD, ZREM |
//! | `expiry` | zset | ids of open roots and of expected tasks; score: log time at which they expire, ms | ZADD, ZREM |
//! | `done` | zset | times at which finished trees are removed, ms; score: the same | ZADD, ZREM |
//! | `done:<time>` | list | ids of the roots to remove at that time, if their records confirm it | RPUSH, LTRIM |
//! | `lifetimes` | string | retention of trees and records, JSON; present once the log contains it | SET |
//! | `k:<id>` | string | deferred record: the task record to publish when its timer fires | MSET, DEL |
//! | `u:<tag>` | string | state of the key of unique tasks, by the tag of their ids ([`KeyState`](kafleet_model::unique::KeyState)) | MSET, DEL |
//! | `counts` | hash | number of tasks by `type/state`; a zero field is removed by the next batch | HINCRBY, HDEL |
//! | `statistics` | string | overview of the statistics: open minute, begin of the fold, series; JSON ([`Overview`](kafleet_model::statistics::Overview)) | SET |
//! | `statistics:<type>` | hash | aggregates of a type by span (`m29401234`: minutes, `t`: ten minutes, `h`: hours, `d`: days, counted from the epoch); `*`: all types, `~`: types beyond the first 200 | HSET, HDEL |
//! | `errors:<type>` | hash | commonest errors and slowest attempts of a type by hour, counted from the epoch | HSET, HDEL |
//! | `failed:<type>:<error>` | zset | ids of the tasks of a type whose own state is failed or expired, by the fingerprint of their error and by that of its kind; score: log time of the end, ms | ZADD, ZREM |
//! | `fingerprints:<type>` | zset | fingerprints of the errors of a type; score: number of tasks | ZINCRBY, ZREMRANGEBYSCORE |
//! | `kinds:<type>` | zset | fingerprints of the kinds of the errors of a type; score: number of tasks | ZINCRBY, ZREMRANGEBYSCORE |
//! | `audit` | list | requests of users, newest first, JSON ([`AuditEntry`](kafleet_model::projection::audit::AuditEntry)) | LPUSH, LTRIM |
//! | `l:<id>` | list | newest log lines of a task, each with its time ([`log_line`](kafleet_model::record::log_line)), bounded in lines and bytes | RPUSH, LTRIM, DEL |
//! | `a:<id>` | hash | attachments of a task by name | HSET, HDEL, DEL |
//! | `ln:<id>` | string | number of log lines the task ever had, so that lines keep their numbers | SET, DEL |
//! | `r:<run>:<id>` | string | reservation, `stage hash`: position of the event, `@owner` while publishing, `-` in doubt; expires | SET PX, DEL |
//! | `r:probe` | string | empty: a write that tests whether Redis accepts writes; expires | SET PX |
//!
//! The pub/sub channel `kafleet:notices` belongs to no partition and carries one JSON message per batch.

use std::sync::Arc;

use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;

use super::{ErrorLevel, Index, StoreError};

/// Name of the overview of the statistics.
pub const OVERVIEW: &str = "statistics";
/// Maximum length of a prefix, in characters.
const MAX_PREFIX_CHARS: usize = 64;

/// The keys of one events partition.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Common prefix: `kafleet:{p12}:`.
    pub(super) base: String,
}

impl Keys {
    pub fn new(prefix: &str, partition: u32) -> Self {
        Self { base: format!("{prefix}:{{p{partition}}}:") }
    }

    /// The checkpoint. Every batch is guarded by a WATCH on it.
    pub fn checkpoint(&self) -> String {
        self.key("checkpoint", "")
    }

    /// Counts of batches begun and ended, and expected sizes.
    pub fn batches(&self) -> String {
        self.key("batches", "")
    }

    /// The record of a task.
    pub fn record(&self, id: &TaskId) -> String {
        self.key("t:", id.as_str())
    }

    /// The sorted set of an index.
    pub fn index(&self, index: &Index) -> String {
        match index {
            Index::Roots => self.key("roots", ""),
            Index::Timers => self.key("due", ""),
            Index::Effects => self.key("effects", ""),
            Index::Ages => self.key("expiry", ""),
            Index::Children(parent) => self.key("c:", parent.as_str()),
            Index::Members { task_type, state } => format!("{}m:{task_type}:{state}", self.base),
            Index::Failed { task_type, error } => format!("{}failed:{task_type}:{error}", self.base),
        }
    }

    /// Overview of the statistics.
    pub fn statistics(&self) -> String {
        self.key(OVERVIEW, "")
    }

    /// Aggregates of a series of the statistics.
    pub fn aggregates(&self, series: &str) -> String {
        self.key("statistics:", series)
    }

    /// Commonest errors and slowest attempts of a type by hour.
    pub fn error_summaries(&self, task_type: &str) -> String {
        self.key("errors:", task_type)
    }

    /// Sizes of the indexes of failed tasks of a type.
    pub fn fingerprints(&self, task_type: &str, level: ErrorLevel) -> String {
        match level {
            ErrorLevel::Kind => self.key("kinds:", task_type),
            ErrorLevel::Message => self.key("fingerprints:", task_type),
        }
    }

    /// Audit log: requests of users.
    pub fn audit(&self) -> String {
        self.key("audit", "")
    }

    /// Times at which finished trees are removed.
    pub fn done_times(&self) -> String {
        self.key("done", "")
    }

    /// Roots whose trees are removed at `due_ms`.
    pub fn done(&self, due_ms: i64) -> String {
        format!("{}done:{due_ms}", self.base)
    }

    /// Retention of trees and records.
    pub fn lifetimes(&self) -> String {
        self.key("lifetimes", "")
    }

    /// Deferred record of a task, to publish when its timer fires.
    pub fn deferred(&self, id: &TaskId) -> String {
        self.key("k:", id.as_str())
    }

    /// State of the key of unique tasks.
    pub fn unique(&self, tag: &str) -> String {
        self.key("u:", tag)
    }

    /// The counters of the partition.
    pub fn counts(&self) -> String {
        self.key("counts", "")
    }

    /// Retained log lines of a task.
    pub fn log(&self, id: &TaskId) -> String {
        self.key("l:", id.as_str())
    }

    /// Attachments of a task by name.
    pub fn attachments(&self, id: &TaskId) -> String {
        self.key("a:", id.as_str())
    }

    /// Number of log lines the task ever had.
    pub fn log_total(&self, id: &TaskId) -> String {
        self.key("ln:", id.as_str())
    }

    /// Reservation of an id for one run of its task.
    pub fn reservation(&self, id: &TaskId, run: u32) -> String {
        format!("{}r:{run}:{id}", self.base)
    }

    /// Key of the write probe.
    pub fn probe(&self) -> String {
        self.key("r:", "probe")
    }

    /// Returns true for keys that expire by design and are not part of the projection.
    pub fn is_reservation(&self, key: &str) -> bool {
        key.strip_prefix(&self.base).is_some_and(|name| name.starts_with("r:"))
    }

    /// SCAN pattern for all keys of the partition. A valid prefix contains no pattern characters.
    pub fn all(&self) -> String {
        self.key("*", "")
    }

    /// Returns true for keys whose contents depend only on the log. Excluded are the checkpoint, reservations, batch
    /// counts and the lists of finished roots, whose order depends on batch boundaries (records hold the same
    /// information).
    pub fn is_folded(&self, key: &str) -> bool {
        let of_finished = |name: &str| name == "done" || name.starts_with("done:");
        let beside =
            |name: &str| matches!(name, "checkpoint" | "batches") || name.starts_with("r:") || of_finished(name);
        key.strip_prefix(&self.base).is_some_and(|name| !beside(name))
    }

    fn key(&self, kind: &str, id: &str) -> String {
        [&self.base, kind, id].concat()
    }
}

/// Name of a key without the prefix of its partition, if its contents depend on the offset at which the fold began:
/// statistics and requests count from there on. Returns the prefix too.
pub fn counted_from_begin(key: &str) -> Option<(&str, &str)> {
    let at = key.find("}:")? + 2;
    let (base, name) = key.split_at(at);
    let counts = name == "audit" || name == OVERVIEW || name.starts_with("statistics:") || name.starts_with("errors:");
    counts.then_some((base, name))
}

/// The field of a counter in [`Keys::counts`].
pub fn counter(task_type: &str, state: State) -> String {
    format!("{task_type}/{state}")
}

/// Parses a field of [`Keys::counts`].
pub fn parse_counter(field: &str) -> Option<(Arc<str>, State)> {
    let (task_type, state) = field.rsplit_once('/')?;
    Some((task_type.into(), State::from_name(state)?))
}

/// Pub/sub channel of change notices, shared by all partitions.
pub fn notices(prefix: &str) -> String {
    format!("{prefix}:notices")
}

/// Validates a key prefix. Braces are not allowed because the hash tag must be the partition's.
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
    use kafleet_model::error_fingerprint::Fingerprint;

    #[test]
    fn keys_of_a_partition_share_its_hash_tag() {
        let keys = Keys::new("fleet", 12);
        let id = TaskId::parse("r:a").unwrap();
        let members = Index::Members { task_type: "echo".into(), state: State::Failed };
        let failed = Index::Failed { task_type: "echo".into(), error: Fingerprint(10) };
        for (key, expect) in [
            (keys.checkpoint(), "fleet:{p12}:checkpoint"),
            (keys.batches(), "fleet:{p12}:batches"),
            (keys.record(&id), "fleet:{p12}:t:r:a"),
            (keys.index(&Index::Roots), "fleet:{p12}:roots"),
            (keys.index(&Index::Children(id.clone())), "fleet:{p12}:c:r:a"),
            (keys.index(&members), "fleet:{p12}:m:echo:failed"),
            (keys.index(&Index::Timers), "fleet:{p12}:due"),
            (keys.index(&Index::Effects), "fleet:{p12}:effects"),
            (keys.index(&Index::Ages), "fleet:{p12}:expiry"),
            (keys.lifetimes(), "fleet:{p12}:lifetimes"),
            (keys.statistics(), "fleet:{p12}:statistics"),
            (keys.aggregates("*"), "fleet:{p12}:statistics:*"),
            (keys.error_summaries("echo"), "fleet:{p12}:errors:echo"),
            (keys.fingerprints("echo", ErrorLevel::Message), "fleet:{p12}:fingerprints:echo"),
            (keys.fingerprints("echo", ErrorLevel::Kind), "fleet:{p12}:kinds:echo"),
            (keys.index(&failed), "fleet:{p12}:failed:echo:000000000000000a"),
            (keys.audit(), "fleet:{p12}:audit"),
            (keys.deferred(&id), "fleet:{p12}:k:r:a"),
            (keys.unique("echo~k"), "fleet:{p12}:u:echo~k"),
            (keys.counts(), "fleet:{p12}:counts"),
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
    fn counter_names_round_trip() {
        for state in State::ALL {
            assert_eq!(parse_counter(&counter("a-b", state)), Some(("a-b".into(), state)));
        }
        assert_eq!(parse_counter("a-b"), None);
        assert_eq!(parse_counter("a/nonsense"), None);
    }

    #[test]
    fn invalid_prefixes_are_rejected() {
        assert_eq!(check_prefix("kafleet.test:1_a-b"), Ok(()));
        for bad in ["", "a{b}", "a b", &"x".repeat(65)] {
            assert!(matches!(check_prefix(bad), Err(StoreError::Misconfigured(_))), "{bad:?}");
        }
    }
}
