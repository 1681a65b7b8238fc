//! What a store keeps, key by key and whatever it means: for comparing two stores that were folded from one log.

use std::fmt::Write;

use async_trait::async_trait;
use serde_json::Value;

use super::{Checkpoint, StoreError, TaskRecord};

/// The longest text of a value that is told, in characters.
const MAX_TOLD_CHARS: usize = 400;

/// A store that can be looked through.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    async fn inspect(&self, partition: u32) -> Result<Box<dyn Inspector>, StoreError>;
}

/// A look through what was folded into a partition. After any error it is of no use any more.
#[async_trait]
pub trait Inspector: Send {
    /// More names of keys, in no order; what is there all the while comes at least once. None at the end. What the fold
    /// has not written (fences, reservations) is left out.
    async fn names(&mut self) -> Result<Option<Vec<String>>, StoreError>;

    /// What lies under the first of these keys, at least one and as many as one answer may hold, and the fence it belongs
    /// to. Without `values` only whether there is something.
    async fn read(&mut self, wanted: &[Wanted], values: bool) -> Result<(Option<Checkpoint>, Vec<Piece>), StoreError>;
}

/// A part of what lies under a key, with what goes by it: member and score, field and value.
pub type Part = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub key: String,
    /// In a sorted set, the entry to go on after.
    pub after: Option<Part>,
}

/// What lies under a key. Large sorted sets come in several pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Redis' word; `none` where there is nothing, which includes counters that all stand at zero.
    pub kind: String,
    pub parts: Vec<Part>,
    /// Entries follow.
    pub more: bool,
}

/// What is different between two pieces, for people.
pub fn differences(key: &str, one: &Piece, other: &Piece) -> (String, String) {
    if let (Some(one), Some(other)) = (record(key, one), record(key, other)) {
        return changed_fields(&one, &other);
    }
    (told(one, other), told(other, one))
}

/// The record of a task as a document.
fn record(key: &str, piece: &Piece) -> Option<Value> {
    key.contains("}:t:").then_some(())?;
    let (_, bytes) = piece.parts.first()?;
    serde_json::to_value(TaskRecord::decode(bytes)?).ok()
}

fn changed_fields(one: &Value, other: &Value) -> (String, String) {
    let (mut left, mut right) = (String::new(), String::new());
    for (field, value) in one.as_object().into_iter().flatten() {
        let across = other.get(field).unwrap_or(&Value::Null);
        if value != across {
            let _ = write!(left, "{field}={} ", short(&value.to_string()));
            let _ = write!(right, "{field}={} ", short(&across.to_string()));
        }
    }
    (left.trim_end().to_owned(), right.trim_end().to_owned())
}

/// The parts that the other has not.
fn told(piece: &Piece, other: &Piece) -> String {
    if piece.kind == "none" {
        return "nothing".to_owned();
    }
    let own = piece.parts.iter().filter(|part| !other.parts.contains(part));
    let texts: Vec<String> = own.take(3).map(|(name, value)| part_text(name, value)).collect();
    let what = if texts.is_empty() { format!("{} parts", piece.parts.len()) } else { texts.join(", ") };
    format!("{} of {}", piece.kind, short(&what))
}

fn part_text(name: &[u8], value: &[u8]) -> String {
    let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
    if name.is_empty() { value.into_owned() } else { format!("{name} ({value})") }
}

fn short(text: &str) -> String {
    let clean: String = text.chars().take(MAX_TOLD_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_TOLD_CHARS).is_some() { clean + "…" } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Vec<u8>) -> Piece {
        Piece { kind: "string".into(), parts: vec![(Vec::new(), value)], more: false }
    }

    #[test]
    fn records_are_told_by_the_fields_that_differ() {
        let one = TaskRecord::expected(1, 7);
        let other = TaskRecord { attempt: 3, ..one.clone() };
        let told = differences("k:{p0}:t:a", &text(one.encode()), &text(other.encode()));
        assert_eq!(told, ("attempt=0".to_owned(), "attempt=3".to_owned()));
    }

    #[test]
    fn other_values_are_told_by_what_only_one_has() {
        let entry = |name: &str| (name.as_bytes().to_vec(), b"7".to_vec());
        let set = |parts: Vec<Part>| Piece { kind: "zset".into(), parts, more: false };
        let (left, right) = differences("k:{p0}:due", &set(vec![entry("a"), entry("b")]), &set(vec![entry("b")]));
        assert_eq!((left.as_str(), right.as_str()), ("zset of a (7)", "zset of 1 parts"));
        let none = Piece { kind: "none".into(), parts: Vec::new(), more: false };
        assert_eq!(differences("k", &none, &text(b"x\ny".to_vec())).1, "string of x y");
        assert_eq!(differences("k", &none, &text(b"x".to_vec())).0, "nothing");
    }
}
