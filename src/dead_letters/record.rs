//! One record of a dead-letter topic, as a letter or as a mark.

use data_encoding::BASE64;

use super::{CALL_DEADLINE, Fate, LetterId};
use crate::broker::{Broker, BrokerError, Partition, Record, RecordRef};
use crate::config::Names;
use crate::dead_letters::headers::{digest, header, mark};
use crate::model::task::id::TaskId;

/// The code of a record that no worker of kafleet has written.
pub const UNREADABLE: &str = "unreadable";
const FOREIGN: &str = "the record has no header `kafleet_code`: kafleet did not write it, and does not know what it is";

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterRecord {
    pub id: LetterId,
    /// When it was given up, epoch milliseconds.
    pub at_ms: i64,
    pub code: String,
    pub error: String,
    pub pointer: Option<String>,
    /// The task that it was, and its run, where the record named one.
    pub task: Option<(TaskId, u32)>,
    pub worker: Option<String>,
    /// Where the original came from.
    pub source: Option<(String, i32, i64)>,
    /// The letter holds no record: it was too large for the topic, and lies where it came from for as long as that is kept.
    pub by_reference: bool,
    /// A worker of kafleet wrote it. Other records can be dropped, and nothing else.
    pub readable: bool,
    /// Of the whole record ([`digest`]).
    pub digest: u64,
    /// The original: its own key, value and headers. One that lies elsewhere is only there where the letter is asked for alone.
    pub original: Original,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl DeadLetterRecord {
    /// Reads any record as a letter. Headers of kafleet's are those from the last `kafleet_code` on: what stands before
    /// belongs to the original, whatever it is called.
    pub(super) fn read(task_type: &str, record: Record) -> Self {
        let digest = digest_of(&record);
        let Record { partition, offset, timestamp_ms, key, value, mut headers, .. } = record;
        let begin = headers.iter().rposition(|(name, _)| name == header::CODE);
        let ours = begin.map_or_else(Vec::new, |begin| headers.split_off(begin));
        let text = |wanted: &str| {
            let value = ours.iter().rev().find(|(name, _)| name == wanted)?.1.as_deref()?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let own_key = text(header::KEY).and_then(|key| BASE64.decode(key.as_bytes()).ok());
        let place = || Some((text(header::TOPIC)?, text(header::PARTITION)?.parse().ok()?, text(header::OFFSET)?.parse().ok()?));
        let task = text(header::TASK).and_then(|id| TaskId::parse(&id).ok());
        let run = text(header::RUN).and_then(|run| run.parse().ok()).unwrap_or(1);
        let (code, error) = match begin {
            Some(_) => (text(header::CODE), text(header::ERROR)),
            None => (None, Some(FOREIGN.to_owned())),
        };
        Self {
            id: LetterId { task_type: task_type.to_owned(), partition, offset },
            at_ms: text(header::TIME).and_then(|at| at.parse().ok()).unwrap_or(timestamp_ms),
            code: code.unwrap_or_else(|| UNREADABLE.to_owned()),
            error: error.unwrap_or_default(),
            pointer: text(header::POINTER),
            task: task.map(|task| (task, run)),
            worker: text(header::WORKER),
            source: place(),
            by_reference: text(header::REFERENCE).is_some(),
            readable: begin.is_some(),
            digest,
            original: Original { key: own_key.or(key), value, headers },
        }
    }

    /// Reads the record that the letter speaks of; where it is gone there is no value.
    pub(super) fn fetch_original(&mut self, broker: &dyn Broker, names: &Names) -> Result<(), BrokerError> {
        self.original = Original::default();
        let topic = names.tasks(&self.id.task_type);
        // A letter may say anything; what lies elsewhere is none of its business.
        let Some((_, partition, offset)) = self.source.as_ref().filter(|(named, ..)| *named == topic) else { return Ok(()) };
        let found = match broker.read_at(&Partition::new(topic, *partition), *offset, CALL_DEADLINE) {
            Err(BrokerError::Unknown(_)) => None,
            found => found?,
        };
        if let Some(Record { key, value, headers, .. }) = found {
            self.original = Original { key, value, headers };
        }
        Ok(())
    }
}

fn digest_of(record: &Record) -> u64 {
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    digest(record.key.as_deref(), record.value.as_deref(), headers)
}

/// A record that has the form of a mark. Whether it is one depends on the letter that it names.
pub(super) struct Mark {
    pub of: i64,
    /// The digest of the letter.
    pub letter: u64,
    pub fate: Fate,
    /// The request that wrote it.
    pub request: u128,
}

impl Mark {
    pub fn read(record: &RecordRef<'_>) -> Option<Self> {
        let mut headers = record.headers();
        let mut next = |wanted: &str| {
            let (name, value) = headers.next()?;
            std::str::from_utf8(value?).ok().filter(|_| name == wanted)
        };
        let of = next(mark::OF)?.parse().ok()?;
        let letter = u64::from_str_radix(next(mark::LETTER)?, 16).ok()?;
        let fate = Fate::named(next(mark::FATE)?)?;
        next(mark::TIME)?;
        let request = uuid::Uuid::parse_str(next(mark::REQUEST)?).ok()?.as_u128();
        let whole = headers.next().is_none() && record.key.is_none() && record.value.is_none();
        whole.then_some(Self { of, letter, fate, request })
    }

    /// The headers of the mark that a letter is settled.
    pub fn headers(letter: &DeadLetterRecord, fate: Fate, request: u128, at_ms: i64) -> [(&'static str, String); 5] {
        [
            (mark::OF, letter.id.offset.to_string()),
            (mark::LETTER, format!("{:016x}", letter.digest)),
            (mark::FATE, fate.name().to_owned()),
            (mark::TIME, at_ms.to_string()),
            (mark::REQUEST, uuid::Uuid::from_u128(request).to_string()),
        ]
    }
}
