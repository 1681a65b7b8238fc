//! Reading of dead letters: contents of the dead-letter topics, newest first, and their resolutions.
//!
//! Records cannot be removed from a topic, so a dropped or redriven dead letter stays, and a *marker* after it in the
//! same partition records the resolution. A [`DeadLetterIndex`] holds the resolutions. Every record except kafleet's
//! markers is listed, including records written by other programs.
//!
//! Invariant: the first marker of a dead letter counts, and only if it has the digest of that dead letter. A redrive is
//! one transaction of task record and marker, so a dead letter runs again once; without the digest, a marker would
//! resolve an unrelated record at the same offset after the topic was recreated.
//!
//! Read next: `headers.rs` (what a dead letter adds to the record), `index.rs`, then `crates/worker/src/dead_letter.rs`
//! (writing).

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet_broker::offset_range;
use kafleet_broker::offset_range::OffsetRange;
use kafleet_broker::{Broker, BrokerError, Partition};
use kafleet_config::Names;

pub mod headers;
mod index;
mod record;

pub use index::{DeadLetterIndex, MAX_FACTS, ResolvedBy, UnresolvedLetters};
use record::ResolutionMarker;
pub use record::{DeadLetterRecord, LetterFacts, Original, UNREADABLE};

/// Maximum number of records scanned for one page.
pub const MAX_SCANNED: usize = 5_000;
/// Number of offsets read at a time.
const READ_OFFSETS: i64 = 100;
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Position of a dead letter: `<type>:<partition>:<offset>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterId {
    pub task_type: String,
    pub partition: i32,
    pub offset: i64,
}

impl std::fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.task_type, self.partition, self.offset)
    }
}

/// The id of a dead letter has another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a dead letter is named `<type>:<partition>:<offset>`, as shown by lists")]
pub struct InvalidDeadLetterId;

impl std::str::FromStr for DeadLetterId {
    type Err = InvalidDeadLetterId;

    fn from_str(text: &str) -> Result<Self, InvalidDeadLetterId> {
        let read = || {
            let mut parts = text.split(':');
            let task_type = parts.next()?;
            let partition = parts.next()?.parse().ok()?;
            let offset = parts.next()?.parse().ok()?;
            let is_valid = parts.next().is_none() && !task_type.is_empty() && partition >= 0 && offset >= 0;
            is_valid.then(|| Self { task_type: task_type.to_owned(), partition, offset })
        };
        read().ok_or(InvalidDeadLetterId)
    }
}

/// Filter of a list of dead letters.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None`: all types.
    pub task_type: Option<String>,
    pub code: Option<String>,
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    /// Number of the request whose resolved letters are listed too, unless 1,000 later ones of their partition have been
    /// resolved.
    pub resolved_by: Option<u128>,
}

impl Filter {
    fn matches(&self, letter: &DeadLetterRecord) -> bool {
        self.code.as_ref().is_none_or(|code| *code == letter.code)
            && self.from_ms.is_none_or(|from| letter.at_ms >= from)
            && self.to_ms.is_none_or(|to| letter.at_ms < to)
    }

    /// Whether a letter with this resolution is listed.
    fn is_listed(&self, resolved: Option<ResolvedBy>) -> bool {
        resolved.is_none_or(|resolved| self.resolved_by.is_some() && resolved.request == self.resolved_by)
    }
}

/// Page of dead letters, newest first.
#[derive(Debug, Default)]
pub struct Page {
    pub letters: Vec<DeadLetterRecord>,
    /// Offset in each partition below which the next page continues; `None` on the last page.
    pub next: Option<Bounds>,
    pub scanned: usize,
}

/// Offsets by partition from which on dead letters have been listed.
pub type Bounds = BTreeMap<Partition, i64>;

/// Resolution of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    Dropped,
    Redriven,
}

impl Resolution {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Redriven => "redriven",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Dropped, Self::Redriven].into_iter().find(|resolution| resolution.name() == name)
    }
}

/// Headers of the marker that resolves a dead letter on behalf of a request.
pub fn resolution_headers(
    letter: &DeadLetterRecord,
    resolution: Resolution,
    request: u128,
    at_ms: i64,
) -> [(&'static str, String); 5] {
    ResolutionMarker::headers(letter, resolution, request, at_ms)
}

impl DeadLetterIndex {
    /// Lists unresolved dead letters below these bounds. Scans at most [`MAX_SCANNED`] records.
    pub fn page(
        &self,
        broker: &dyn Broker,
        names: &Names,
        filter: &Filter,
        bounds: Option<&Bounds>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let mut tails = Vec::new();
        for partition in partitions(broker, names, filter.task_type.as_deref())? {
            let ends = self.read_committed(broker, &partition)?;
            let below = match bounds {
                Some(bounds) => bounds.get(&partition).copied().unwrap_or(ends.low),
                None => ends.high,
            };
            tails.push(Tail {
                partition,
                first: ends.low,
                below: below.min(ends.high),
                read_to: below.min(ends.high),
                ahead: Vec::new(),
            });
        }
        let mut page = Page::default();
        while page.letters.len() < limit && page.scanned < MAX_SCANNED {
            refill(broker, names, &mut tails)?;
            // Every tail with unread records has its newest record loaded, so this is the newest of all.
            let Some(tail) = tails.iter_mut().filter(|tail| !tail.ahead.is_empty()).max_by_key(|tail| tail.newest_ms())
            else {
                break;
            };
            let Some(letter) = tail.ahead.pop() else { break };
            tail.below = letter.id.offset;
            page.scanned += 1;
            let is_mark = self.is_mark(&tail.partition, &letter)?;
            let resolved = self.resolved(&tail.partition, letter.id.offset);
            if !is_mark && filter.matches(&letter) && filter.is_listed(resolved) {
                page.letters.push(letter);
            }
        }
        let more = tails.iter().any(|tail| !tail.ahead.is_empty() || tail.read_to > tail.first);
        page.next = more.then(|| {
            tails.into_iter().filter(|tail| tail.below > tail.first).map(|t| (t.partition, t.below)).collect()
        });
        Ok(page)
    }
}

/// Backward reader of one partition.
struct Tail {
    partition: Partition,
    first: i64,
    /// Offset below which the page continues.
    below: i64,
    /// Offset from which on records have been read.
    read_to: i64,
    /// Records read but not listed yet, newest last.
    ahead: Vec<DeadLetterRecord>,
}

impl Tail {
    fn newest_ms(&self) -> i64 {
        self.ahead.last().map_or(i64::MIN, |letter| letter.at_ms)
    }

    /// Returns true if further records must be read before the next one is listed.
    fn is_dry(&self) -> bool {
        self.ahead.is_empty() && self.read_to > self.first
    }
}

/// Reads further records where needed. A range may contain only transaction markers, so several reads may be
/// necessary.
fn refill(broker: &dyn Broker, names: &Names, tails: &mut [Tail]) -> Result<(), BrokerError> {
    while tails.iter().any(Tail::is_dry) {
        let mut ranges = Vec::new();
        for tail in tails.iter_mut().filter(|tail| tail.is_dry()) {
            let from = (tail.read_to - READ_OFFSETS).max(tail.first);
            let to = tail.read_to;
            ranges.push(OffsetRange { partition: tail.partition.clone(), from, to });
            tail.read_to = from;
        }
        offset_range::read(broker, &ranges, CALL_DEADLINE, &mut |record| {
            let of =
                |tail: &&mut Tail| tail.partition.index == record.partition && *tail.partition.topic == *record.topic;
            let letter = names.type_of_dead(record.topic).map(|name| DeadLetterRecord::read(name, record.to_owned()));
            if let (Some(tail), Some(letter)) = (tails.iter_mut().find(of), letter) {
                // Originals may be large and are read again on request.
                tail.ahead.push(DeadLetterRecord { original: Original::default(), ..letter });
            }
        })?;
    }
    Ok(())
}

/// Partitions of the dead-letter topics.
fn partitions(broker: &dyn Broker, names: &Names, task_type: Option<&str>) -> Result<Vec<Partition>, BrokerError> {
    let prefix = names.dead(task_type.unwrap_or_default());
    let mut topics = broker.topics(&prefix, CALL_DEADLINE)?;
    topics.retain(|topic| {
        names.type_of_dead(&topic.name).is_some_and(|name| task_type.is_none_or(|filter_type| filter_type == name))
    });
    let of = |topic: &kafleet_broker::TopicInfo| {
        let name = topic.name.clone();
        (0..topic.partitions as i32).map(move |index| Partition::new(name.as_str(), index)).collect::<Vec<_>>()
    };
    Ok(topics.iter().flat_map(of).collect())
}
