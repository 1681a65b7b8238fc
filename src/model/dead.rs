//! The headers of a dead letter: why it is one, and where it came from. The record's own headers stay before them.

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
}

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
    pub worker: &'a str,
    /// Epoch milliseconds.
    pub at_ms: i64,
}

pub fn headers(letter: &DeadLetter<'_>) -> Vec<(&'static str, String)> {
    let mut headers = vec![(header::CODE, letter.code.to_owned()), (header::ERROR, letter.message.to_owned())];
    headers.extend(letter.pointer.map(|pointer| (header::POINTER, pointer.to_owned())));
    headers.extend([
        (header::TOPIC, letter.topic.to_owned()),
        (header::PARTITION, letter.partition.to_string()),
        (header::OFFSET, letter.offset.to_string()),
        (header::WORKER, letter.worker.to_owned()),
        (header::TIME, letter.at_ms.to_string()),
    ]);
    headers
}
