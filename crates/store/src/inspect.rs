//! Raw access to the keys of a partition, for comparing two stores that were built from the same log.

use std::fmt::Write;

use async_trait::async_trait;
use serde_json::Value;

use super::{Aggregate, Checkpoint, ErrorSummary, StoreError, TaskRecord};

/// Maximum length of a value in a report, in characters.
const MAX_VALUE_CHARS: usize = 400;

/// A store whose keys can be listed and read.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    async fn inspect(&self, partition: u32) -> Result<Box<dyn Inspector>, StoreError>;
}

/// A scan of one partition. Closed after any error.
#[async_trait]
pub trait Inspector: Send {
    /// Returns more key names, unordered, or `None` at the end. Keys that exist during the whole scan appear at least
    /// once; keys that are not part of the projection (checkpoints, reservations) are skipped.
    async fn names(&mut self) -> Result<Option<Vec<String>>, StoreError>;

    /// Reads a prefix of the given keys (at least one, as many as fit into one answer) and the checkpoint they belong
    /// to. With `values` set to false only the existence of each key is reported.
    async fn read(
        &mut self,
        requests: &[KeyRequest],
        values: bool,
    ) -> Result<(Option<Checkpoint>, Vec<Piece>), StoreError>;
}

/// Element of a value: member and score of a sorted set, or field and value of a hash.
pub type KeyPart = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    pub key: String,
    /// Entry of a sorted set after which to continue.
    pub after: Option<KeyPart>,
}

/// Contents of a key. Large sorted sets are split into several pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Redis type of the value; `none` if the key does not exist or holds only zero counters.
    pub kind: String,
    pub parts: Vec<KeyPart>,
    /// Further entries follow.
    pub more: bool,
}

/// Human-readable differences between two pieces: the parts found only in each of them.
pub fn differences(key: &str, piece: &Piece, other: &Piece) -> (String, String) {
    if let (Some(left), Some(right)) = (record(key, piece), record(key, other)) {
        return changed_fields(&left, &right);
    }
    (describe(key, piece, other), describe(key, other, piece))
}

/// Decodes the record of a task to JSON.
fn record(key: &str, piece: &Piece) -> Option<Value> {
    key.contains("}:t:").then_some(())?;
    let (_, bytes) = piece.parts.first()?;
    serde_json::to_value(TaskRecord::decode(bytes)?).ok()
}

fn changed_fields(record: &Value, other: &Value) -> (String, String) {
    let (mut left, mut right) = (String::new(), String::new());
    for (field, value) in record.as_object().into_iter().flatten() {
        let across = other.get(field).unwrap_or(&Value::Null);
        if value != across {
            let _ = write!(left, "{field}={} ", short(&value.to_string()));
            let _ = write!(right, "{field}={} ", short(&across.to_string()));
        }
    }
    (left.trim_end().to_owned(), right.trim_end().to_owned())
}

/// Describes the parts that are missing in the other piece.
fn describe(key: &str, piece: &Piece, other: &Piece) -> String {
    if piece.kind == "none" {
        return "nothing".to_owned();
    }
    let unshared = piece.parts.iter().filter(|part| !other.parts.contains(part));
    let texts: Vec<String> = unshared.take(3).map(|(name, value)| part_text(key, name, value)).collect();
    let content = if texts.is_empty() { format!("{} parts", piece.parts.len()) } else { texts.join(", ") };
    format!("{} of {}", piece.kind, short(&content))
}

fn part_text(key: &str, name: &[u8], value: &[u8]) -> String {
    let decoded = match key {
        key if key.contains("}:statistics:") => Aggregate::decode(value).map(|aggregate| format!("{aggregate:?}")),
        key if key.contains("}:errors:") => ErrorSummary::decode(value).map(|errors| format!("{errors:?}")),
        _ => None,
    };
    let name = String::from_utf8_lossy(name);
    let value = decoded.map_or_else(|| String::from_utf8_lossy(value), Into::into);
    if name.is_empty() { value.into_owned() } else { format!("{name} ({value})") }
}

fn short(text: &str) -> String {
    let clean: String = text.chars().take(MAX_VALUE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_VALUE_CHARS).is_some() { clean + "…" } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Vec<u8>) -> Piece {
        Piece { kind: "string".into(), parts: vec![(Vec::new(), value)], more: false }
    }

    #[test]
    fn record_difference_lists_changed_fields() {
        let task = TaskRecord::expected(1, 7);
        let other = TaskRecord { attempt: 3, ..task.clone() };
        let describe = differences("k:{p0}:t:a", &text(task.encode().unwrap()), &text(other.encode().unwrap()));
        assert_eq!(describe, ("attempt=0".to_owned(), "attempt=3".to_owned()));
    }

    #[test]
    fn value_difference_lists_parts_found_on_one_side() {
        let entry = |name: &str| (name.as_bytes().to_vec(), b"7".to_vec());
        let set = |parts: Vec<KeyPart>| Piece { kind: "zset".into(), parts, more: false };
        let (left, right) = differences("k:{p0}:due", &set(vec![entry("a"), entry("b")]), &set(vec![entry("b")]));
        assert_eq!((left.as_str(), right.as_str()), ("zset of a (7)", "zset of 1 parts"));
        let aggregate = Aggregate { opened: 7, ..Aggregate::default() }.encode().unwrap();
        let hash =
            |value: &[u8]| Piece { kind: "hash".into(), parts: vec![(b"m1".to_vec(), value.to_vec())], more: false };
        let (left, _) = differences("k:{p0}:statistics:echo", &hash(&aggregate), &hash(b"x"));
        assert!(left.starts_with("hash of m1 (Aggregate { opened: 7, "), "{left}");
        let none = Piece { kind: "none".into(), parts: Vec::new(), more: false };
        assert_eq!(differences("k", &none, &text(b"x\ny".to_vec())).1, "string of x y");
        assert_eq!(differences("k", &none, &text(b"x".to_vec())).0, "nothing");
    }
}
