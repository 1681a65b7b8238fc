//! Decoding of records of dead-letter topics: dead letters and resolution markers.

use data_encoding::BASE64;
use kafleet_broker::{Broker, BrokerError, Partition, Record, RecordRef, header_value};
use kafleet_config::Names;
use kafleet_model::task::header as task_header;
use kafleet_model::task::id::TaskId;

use super::{CALL_DEADLINE, DeadLetterId, Resolution};
use crate::dead_letters::headers::{digest, header, mark};

/// Code of records not written by kafleet.
pub const UNREADABLE: &str = "unreadable";
const FOREIGN_RECORD: &str = "the record has no header `kafleet_code`: it was not written by kafleet";

/// Decoded dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterRecord {
    pub id: DeadLetterId,
    /// Time of dead-lettering, epoch milliseconds.
    pub at_ms: i64,
    pub code: String,
    pub error: String,
    pub pointer: Option<String>,
    /// Task and run, if the record named them.
    pub task: Option<(TaskId, u32)>,
    /// Id in the header of a record that is not a task, because of another header.
    pub header_id: Option<TaskId>,
    pub worker: Option<String>,
    /// Topic, partition and offset of the original record.
    pub source: Option<(String, i32, i64)>,
    /// The dead letter does not contain the record, which was too large. It remains at its origin until retention.
    pub by_reference: bool,
    /// Written by kafleet. Records of other programs can only be dropped.
    pub readable: bool,
    /// Digest of the whole record ([`digest`]).
    pub digest: u64,
    /// Original key, value and headers. Loaded from the origin only when a single dead letter is read.
    pub original: Original,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl DeadLetterRecord {
    /// Decodes any record. kafleet's headers begin with the last `kafleet_code`; headers before it belong to the
    /// original, whatever their names.
    pub(super) fn read(task_type: &str, record: Record) -> Self {
        let digest = digest_of(&record);
        let Record { partition, offset, timestamp_ms, key, value, mut headers, .. } = record;
        let begin = headers.iter().rposition(|(name, _)| name == header::CODE);
        let ours = begin.map_or_else(Vec::new, |begin| headers.split_off(begin));
        let text = |expected: &str| {
            let value = ours.iter().rev().find(|(name, _)| name == expected)?.1.as_deref()?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let own_key = text(header::KEY).and_then(|key| BASE64.decode(key.as_bytes()).ok());
        let origin = || {
            Some((text(header::TOPIC)?, text(header::PARTITION)?.parse().ok()?, text(header::OFFSET)?.parse().ok()?))
        };
        let task = text(header::TASK).and_then(|id| TaskId::parse(&id).ok());
        let header_id = task.is_none().then(|| header_id(&headers)).flatten();
        let run = text(header::RUN).and_then(|run| run.parse().ok()).unwrap_or(1);
        let (code, error) = match begin {
            Some(_) => (text(header::CODE), text(header::ERROR)),
            None => (None, Some(FOREIGN_RECORD.to_owned())),
        };
        Self {
            id: DeadLetterId { task_type: task_type.to_owned(), partition, offset },
            at_ms: text(header::TIME).and_then(|at| at.parse().ok()).unwrap_or(timestamp_ms),
            code: code.unwrap_or_else(|| UNREADABLE.to_owned()),
            error: error.unwrap_or_default(),
            pointer: text(header::POINTER),
            task: task.map(|task| (task, run)),
            header_id,
            worker: text(header::WORKER),
            source: origin(),
            by_reference: text(header::REFERENCE).is_some(),
            readable: begin.is_some(),
            digest,
            original: Original { key: own_key.or(key), value, headers },
        }
    }

    /// Loads the original record from its origin; its value is `None` if retention has removed it.
    pub(super) fn fetch_original(&mut self, broker: &dyn Broker, names: &Names) -> Result<(), BrokerError> {
        self.original = Original::default();
        let topic = names.tasks(&self.id.task_type);
        // Headers can be forged: only records of the type's own topic are read.
        let Some((_, partition, offset)) = self.source.as_ref().filter(|(named, ..)| *named == topic) else {
            return Ok(());
        };
        let original = match broker.read_at(&Partition::new(topic, *partition), *offset, CALL_DEADLINE) {
            Err(BrokerError::Unknown(_)) => None,
            original => original?,
        };
        if let Some(Record { key, value, headers, .. }) = original {
            self.original = Original { key, value, headers };
        }
        Ok(())
    }
}

/// Facts of a dead letter that counts and look-ups need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterFacts {
    /// Time of dead-lettering, epoch milliseconds.
    pub at_ms: i64,
    /// Task and run, if the record named them.
    pub task: Option<(TaskId, u32)>,
}

impl LetterFacts {
    /// Reads the facts as [`DeadLetterRecord::read`] does, without a copy of the record.
    pub(super) fn read(record: &RecordRef<'_>) -> Self {
        let (mut is_ours, mut at_ms, mut task, mut run) = (false, None, None, None);
        for (name, value) in record.headers() {
            let text = value.and_then(|value| std::str::from_utf8(value).ok());
            match name {
                // Headers before the last one of these belong to the original record.
                header::CODE => (is_ours, at_ms, task, run) = (true, None, None, None),
                header::TIME if is_ours => at_ms = text.and_then(|at| at.parse().ok()),
                header::TASK if is_ours => task = text.and_then(|id| TaskId::parse(id).ok()),
                header::RUN if is_ours => run = text.and_then(|run| run.parse().ok()),
                _ => {}
            }
        }
        Self { at_ms: at_ms.unwrap_or(record.timestamp_ms), task: task.map(|id| (id, run.unwrap_or(1))) }
    }
}

fn header_id(headers: &[(String, Option<Vec<u8>>)]) -> Option<TaskId> {
    TaskId::parse(std::str::from_utf8(header_value(headers, task_header::ID)?).ok()?).ok()
}

fn digest_of(record: &Record) -> u64 {
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    digest(record.key.as_deref(), record.value.as_deref(), headers)
}

/// Record with the form of a resolution marker. It is valid only if its digest matches the dead letter.
pub(super) struct ResolutionMarker {
    pub of: i64,
    /// Digest of the dead letter.
    pub letter: u64,
    pub resolution: Resolution,
    /// Request that wrote the marker.
    pub request: u128,
}

impl ResolutionMarker {
    pub(super) fn read(record: &RecordRef<'_>) -> Option<Self> {
        let mut headers = record.headers();
        let mut next = |expected: &str| {
            let (name, value) = headers.next()?;
            std::str::from_utf8(value?).ok().filter(|_| name == expected)
        };
        let of = next(mark::OF)?.parse().ok()?;
        let letter = u64::from_str_radix(next(mark::LETTER)?, 16).ok()?;
        let resolution = Resolution::named(next(mark::RESOLUTION)?)?;
        next(mark::TIME)?;
        let request = uuid::Uuid::parse_str(next(mark::REQUEST)?).ok()?.as_u128();
        let is_complete = headers.next().is_none() && record.key.is_none() && record.value.is_none();
        is_complete.then_some(Self { of, letter, resolution, request })
    }

    /// Headers of the marker that resolves a dead letter.
    pub(super) fn headers(
        letter: &DeadLetterRecord,
        resolution: Resolution,
        request: u128,
        at_ms: i64,
    ) -> [(&'static str, String); 5] {
        [
            (mark::OF, letter.id.offset.to_string()),
            (mark::LETTER, format!("{:016x}", letter.digest)),
            (mark::RESOLUTION, resolution.name().to_owned()),
            (mark::TIME, at_ms.to_string()),
            (mark::REQUEST, uuid::Uuid::from_u128(request).to_string()),
        ]
    }
}
