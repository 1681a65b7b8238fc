//! The headers of a dead letter: why it is one, and where it came from. The record's own headers stay before them.

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::id::{TaskId, clip_to};

/// The longest reason, in characters.
pub const MAX_REASON_CHARS: usize = 2_000;

/// Header names.
pub mod header {
    pub const CODE: &str = "kafleet_code";
    pub const ERROR: &str = "kafleet_error";
    pub const POINTER: &str = "kafleet_pointer";
    pub const TOPIC: &str = "kafleet_topic";
    pub const PARTITION: &str = "kafleet_partition";
    pub const OFFSET: &str = "kafleet_offset";
    pub const WORKER: &str = "kafleet_worker";
    pub const TIME: &str = "kafleet_time";
    pub const KEY: &str = "kafleet_key";
    /// The id of the record's task, where it could be read.
    pub const TASK: &str = "kafleet_task";
    /// The run that the record was of.
    pub const RUN: &str = "kafleet_run";
    /// The letter holds no record: it was too large, and lies where it came from.
    pub const REFERENCE: &str = "kafleet_reference";
}

/// Header names of a mark: that a letter is done with.
pub mod mark {
    /// The letter's offset, in the same partition.
    pub const OF: &str = "kafleet_marks";
    /// The digest of the letter, which ties the mark to it.
    pub const LETTER: &str = "kafleet_letter";
    /// `dropped` or `redriven`.
    pub const FATE: &str = "kafleet_fate";
    /// Epoch milliseconds.
    pub const TIME: &str = super::header::TIME;
    /// The request that wrote it, a UUID: one that does not know what became of it finds its own marks.
    pub const REQUEST: &str = "kafleet_request";
}

/// What the names of all these headers begin with.
pub const PREFIX: &str = "kafleet_";

/// Why and from where.
pub struct DeadLetterHeaders<'a> {
    /// Stable: `bad_json`, `schema`, `exhausted`, …
    pub code: &'a str,
    pub message: &'a str,
    /// Where in the params (JSON pointer).
    pub pointer: Option<&'a str>,
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// The record's own key, where the dead letter has another one: a redrive needs it for the order.
    pub key: Option<&'a [u8]>,
    /// The record's task and run, where they could be read.
    pub task: Option<(&'a TaskId, u32)>,
    pub worker: &'a str,
    /// Epoch milliseconds.
    pub at_ms: i64,
    /// The letter holds no record, only where it lies.
    pub reference: bool,
}

pub fn headers(letter: &DeadLetterHeaders<'_>) -> Vec<(&'static str, String)> {
    let mut headers = vec![(header::CODE, letter.code.to_owned()), (header::ERROR, clip_to(letter.message, MAX_REASON_CHARS))];
    headers.extend(letter.pointer.map(|pointer| (header::POINTER, pointer.to_owned())));
    headers.extend([
        (header::TOPIC, letter.topic.to_owned()),
        (header::PARTITION, letter.partition.to_string()),
        (header::OFFSET, letter.offset.to_string()),
        (header::WORKER, letter.worker.to_owned()),
        (header::TIME, letter.at_ms.to_string()),
    ]);
    if let Some((id, run)) = letter.task {
        headers.extend([(header::TASK, id.to_string()), (header::RUN, run.to_string())]);
    }
    headers.extend(letter.key.map(|key| (header::KEY, BASE64.encode(key))));
    headers.extend(letter.reference.then(|| (header::REFERENCE, "too_large".to_owned())));
    headers
}

/// A digest of a record of a dead-letter topic. A mark names that of its letter, so that no other record at the letter's
/// offset, and no record that happens to have the headers of a mark, is taken for one.
pub fn digest<'a>(key: Option<&[u8]>, value: Option<&[u8]>, headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> u64 {
    let mut hash = Sha256::new();
    let mut part = |bytes: Option<&[u8]>| {
        hash.update([u8::from(bytes.is_some())]);
        hash.update((bytes.map_or(0, <[u8]>::len) as u64).to_le_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    part(key);
    part(value);
    for (name, value) in headers {
        part(Some(name.as_bytes()));
        part(value);
    }
    let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Returns whether a letter of this run no longer stands for how its task ended: a later run has begun, or the run ended
/// otherwise after all, such as when another worker had the task as well.
pub fn has_moved_on(node: &TaskRecord, run: u32) -> bool {
    let ended_otherwise = matches!(node.own, State::Succeeded | State::Cancelled | State::Expired);
    node.run > run || (node.run == run && ended_otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTER: DeadLetterHeaders<'_> = DeadLetterHeaders {
        code: "schema",
        message: "`x` is not a number",
        pointer: None,
        topic: "kafleet.tasks.echo",
        partition: 3,
        offset: 41,
        key: None,
        task: None,
        worker: "w-1",
        at_ms: 1_700_000_000_000,
        reference: false,
    };

    #[test]
    fn a_letter_says_why_and_from_where() {
        let text: Vec<_> = headers(&LETTER).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "kafleet_code=schema",
            "kafleet_error=`x` is not a number",
            "kafleet_topic=kafleet.tasks.echo",
            "kafleet_partition=3",
            "kafleet_offset=41",
            "kafleet_worker=w-1",
            "kafleet_time=1700000000000",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn the_pointer_and_the_own_key_are_there_when_they_say_something() {
        let letter = DeadLetterHeaders { pointer: Some("/a/0"), key: Some(b"\xffkey"), ..LETTER };
        let headers = headers(&letter);
        let get = |wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
        assert_eq!((get(header::POINTER), get(header::KEY)), (Some("/a/0"), Some("/2tleQ==")));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let long = "ä".repeat(MAX_REASON_CHARS + 1);
        let headers = headers(&DeadLetterHeaders { message: &long, ..LETTER });
        assert_eq!(headers[1].1.chars().count(), MAX_REASON_CHARS + 1, "the last one is the mark of the cut");
        assert!(headers[1].1.ends_with('…'));
    }

    #[test]
    fn task_and_run_are_named_where_they_are_known() {
        let id = TaskId::parse("a:b").unwrap();
        let headers = headers(&DeadLetterHeaders { task: Some((&id, 3)), ..LETTER });
        let get = |wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
        assert_eq!((get(header::TASK), get(header::RUN)), (Some("a:b"), Some("3")));
    }

    #[test]
    fn digest_differs_between_records_that_differ() {
        let of = |key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]| {
            digest(key, value, headers.iter().copied())
        };
        let all = [
            of(None, None, &[]),
            of(Some(b""), None, &[]),
            of(None, Some(b""), &[]),
            of(Some(b"a"), Some(b"b"), &[]),
            of(Some(b"ab"), Some(b""), &[]),
            of(None, None, &[("a", None)]),
            of(None, None, &[("a", Some(b""))]),
            of(None, None, &[("a", None), ("b", None)]),
            of(None, None, &[("b", None), ("a", None)]),
        ];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(of(Some(b"k"), None, &[]), of(Some(b"k"), None, &[]));
    }

    #[test]
    fn letter_is_stale_after_a_later_run_or_another_end() {
        let mut node = TaskRecord::expected(2, 0);
        for (own, run, expected) in [
            (State::Failed, 2, false),
            (State::Running, 2, false),
            (State::Succeeded, 2, true),
            (State::Cancelled, 2, true),
            (State::Expired, 2, true),
            (State::Failed, 1, true),
            (State::Queued, 1, true),
            (State::Succeeded, 3, false),
        ] {
            node.own = own;
            assert_eq!(has_moved_on(&node, run), expected, "{own:?}, letter of run {run}");
        }
    }
}
