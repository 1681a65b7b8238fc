//! The headers of a dead letter: why it is one, and where it came from. The record's own headers stay before them.

use data_encoding::BASE64;

use super::id::clip_to;

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
    /// The letter holds no record: it was too large, and lies where it came from.
    pub const REFERENCE: &str = "kafleet_reference";
}

/// Header names of a mark: that a letter is done with.
pub mod mark {
    /// The letter's offset, in the same partition.
    pub const OF: &str = "kafleet_marks";
    /// `dropped` or `redriven`.
    pub const FATE: &str = "kafleet_fate";
    /// Epoch milliseconds.
    pub const TIME: &str = super::header::TIME;
}

/// What the names of all these headers begin with.
pub const PREFIX: &str = "kafleet_";

/// Why and from where.
pub struct DeadLetter<'a> {
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
    pub worker: &'a str,
    /// Epoch milliseconds.
    pub at_ms: i64,
    /// The letter holds no record, only where it lies.
    pub reference: bool,
}

pub fn headers(letter: &DeadLetter<'_>) -> Vec<(&'static str, String)> {
    let mut headers = vec![(header::CODE, letter.code.to_owned()), (header::ERROR, clip_to(letter.message, MAX_REASON_CHARS))];
    headers.extend(letter.pointer.map(|pointer| (header::POINTER, pointer.to_owned())));
    headers.extend([
        (header::TOPIC, letter.topic.to_owned()),
        (header::PARTITION, letter.partition.to_string()),
        (header::OFFSET, letter.offset.to_string()),
        (header::WORKER, letter.worker.to_owned()),
        (header::TIME, letter.at_ms.to_string()),
    ]);
    headers.extend(letter.key.map(|key| (header::KEY, BASE64.encode(key))));
    headers.extend(letter.reference.then(|| (header::REFERENCE, "too_large".to_owned())));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTER: DeadLetter<'_> = DeadLetter {
        code: "schema",
        message: "`x` is not a number",
        pointer: None,
        topic: "kafleet.tasks.echo",
        partition: 3,
        offset: 41,
        key: None,
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
        let letter = DeadLetter { pointer: Some("/a/0"), key: Some(b"\xffkey"), ..LETTER };
        let headers = headers(&letter);
        let get = |wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
        assert_eq!((get(header::POINTER), get(header::KEY)), (Some("/a/0"), Some("/2tleQ==")));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let long = "ä".repeat(MAX_REASON_CHARS + 1);
        let headers = headers(&DeadLetter { message: &long, ..LETTER });
        assert_eq!(headers[1].1.chars().count(), MAX_REASON_CHARS + 1, "the last one is the mark of the cut");
        assert!(headers[1].1.ends_with('…'));
    }
}
