//! Headers of a dead letter: reason and origin. They follow the record's own headers.

use data_encoding::BASE64;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::id::{TaskId, clip_to};
use sha2::{Digest, Sha256};

/// Maximum length of the reason, in characters.
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
    /// Id of the record's task, if it could be parsed.
    pub const TASK: &str = "kafleet_task";
    /// Run of the record.
    pub const RUN: &str = "kafleet_run";
    /// Set if the dead letter does not contain the record, which was too large and remains in its topic.
    pub const REFERENCE: &str = "kafleet_reference";
}

/// Header names of a resolution marker, which records that a dead letter was resolved.
pub mod mark {
    /// Offset of the dead letter in the same partition.
    pub const OF: &str = "kafleet_marks";
    /// Digest of the dead letter, which ties the marker to it.
    pub const LETTER: &str = "kafleet_letter";
    /// `dropped` or `redriven`.
    pub const RESOLUTION: &str = "kafleet_resolution";
    /// Epoch milliseconds.
    pub const TIME: &str = super::header::TIME;
    /// Id of the request that wrote the marker, a UUID: a request with an unknown outcome searches for its own
    /// markers.
    pub const REQUEST: &str = "kafleet_request";
}

/// Prefix of all these headers.
pub const PREFIX: &str = "kafleet_";

/// Reason and origin of a dead letter.
pub struct DeadLetterHeaders<'a> {
    /// Stable code: `bad_json`, `schema`, `exhausted`, …
    pub code: &'a str,
    pub message: &'a str,
    /// Location in the params (JSON pointer).
    pub pointer: Option<&'a str>,
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// The record's own key, if the dead letter has another one: a redrive needs it for ordering.
    pub key: Option<&'a [u8]>,
    /// Task and run of the record, if they could be parsed.
    pub task: Option<(&'a TaskId, u32)>,
    pub worker: &'a str,
    /// Epoch milliseconds.
    pub at_ms: i64,
    /// Whether the dead letter only refers to the record's position.
    pub reference: bool,
}

/// Headers to append to the record's own.
pub fn headers(letter: &DeadLetterHeaders<'_>) -> Vec<(&'static str, String)> {
    let mut headers =
        vec![(header::CODE, letter.code.to_owned()), (header::ERROR, clip_to(letter.message, MAX_REASON_CHARS))];
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

/// Digest of a record of a dead-letter topic. A marker contains the digest of its dead letter, so that neither
/// another record at that offset nor a foreign record with the headers of a marker is mistaken for it.
pub fn digest<'a>(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> u64 {
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

/// Returns true if a dead letter of this run no longer represents the task's outcome: a later run has begun, or the
/// run ended differently, for example because another worker ran the task too.
pub fn has_moved_on(task: &TaskRecord, run: u32) -> bool {
    let ended_otherwise = matches!(task.own, State::Succeeded | State::Cancelled | State::Expired);
    task.run > run || (task.run == run && ended_otherwise)
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
    fn headers_contain_reason_and_origin() {
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
    fn pointer_and_key_are_included_if_given() {
        let letter = DeadLetterHeaders { pointer: Some("/a/0"), key: Some(b"\xffkey"), ..LETTER };
        let headers = headers(&letter);
        let get = |header_name| headers.iter().find(|(name, _)| *name == header_name).map(|(_, value)| value.as_str());
        assert_eq!((get(header::POINTER), get(header::KEY)), (Some("/a/0"), Some("/2tleQ==")));
    }

    #[test]
    fn long_reason_is_cut() {
        let long = "ä".repeat(MAX_REASON_CHARS + 1);
        let headers = headers(&DeadLetterHeaders { message: &long, ..LETTER });
        assert_eq!(headers[1].1.chars().count(), MAX_REASON_CHARS + 1, "the cut is marked by an ellipsis");
        assert!(headers[1].1.ends_with('…'));
    }

    #[test]
    fn task_and_run_are_included_if_known() {
        let id = TaskId::parse("a:b").unwrap();
        let headers = headers(&DeadLetterHeaders { task: Some((&id, 3)), ..LETTER });
        let get = |header_name| headers.iter().find(|(name, _)| *name == header_name).map(|(_, value)| value.as_str());
        assert_eq!((get(header::TASK), get(header::RUN)), (Some("a:b"), Some("3")));
    }

    #[test]
    fn digest_differs_between_different_records() {
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
        let mut task = TaskRecord::expected(2, 0);
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
            task.own = own;
            assert_eq!(has_moved_on(&task, run), expected, "{own:?}, letter of run {run}");
        }
    }
}
