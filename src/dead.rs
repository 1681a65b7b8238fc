//! Dead letters, read back: what lies in the dead-letter topics, newest first, and what has become of each.
//!
//! A topic cannot forget: a letter that is dropped or redriven stays, and a *mark* behind it in the same partition says
//! so. A [`Ledger`] keeps which letters are marked; it reads each topic once and then only what is new.

use std::collections::BTreeMap;
use std::time::Duration;

use data_encoding::BASE64;
use parking_lot::Mutex;
use roaring::RoaringTreemap;

use crate::broker::range::{self, Stretch};
use crate::broker::{Broker, BrokerError, Partition, Record, RecordRef};
use crate::config::Names;
use crate::model::dead::{PREFIX, header, mark};
use crate::model::id::TaskId;

/// Letters looked at for one page.
pub const MAX_SCANNED: usize = 5_000;
/// Records of a partition read at a time.
const CHUNK: i64 = 100;
/// Records of a partition that the ledger reads at a time.
const LEDGER_CHUNK: i64 = 20_000;
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Where a letter lies: `<type>:<partition>:<offset>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterId {
    pub task_type: String,
    pub partition: i32,
    pub offset: i64,
}

impl std::fmt::Display for LetterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.task_type, self.partition, self.offset)
    }
}

impl std::str::FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut parts = text.split(':');
            let (task_type, partition, offset) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let whole = parts.next().is_none() && !task_type.is_empty() && partition >= 0 && offset >= 0;
            whole.then(|| Self { task_type: task_type.to_owned(), partition, offset })
        };
        read().ok_or_else(|| "a dead letter is named `<type>:<partition>:<offset>`, as lists show it".to_owned())
    }
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub id: LetterId,
    /// When it was given up, epoch milliseconds.
    pub at_ms: i64,
    pub code: String,
    pub error: String,
    pub pointer: Option<String>,
    /// The task that it was, as the letter's key names it.
    pub task: Option<TaskId>,
    pub worker: Option<String>,
    /// Where the original came from.
    pub source: Option<(String, i32, i64)>,
    /// The letter holds no record: it was too large for the topic, and lies where it came from for as long as that is kept.
    pub by_reference: bool,
    /// The original: its own key, value and headers. One that lies elsewhere is only there where the letter is asked for alone.
    pub original: Original,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// None: all types.
    pub task_type: Option<String>,
    pub code: Option<String>,
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
}

impl Filter {
    fn takes(&self, letter: &Letter) -> bool {
        self.code.as_ref().is_none_or(|code| *code == letter.code)
            && self.from_ms.is_none_or(|from| letter.at_ms >= from)
            && self.to_ms.is_none_or(|to| letter.at_ms < to)
    }
}

/// Letters, newest first.
#[derive(Debug, Default)]
pub struct Page {
    pub letters: Vec<Letter>,
    /// Below which letter of each partition the next page goes on; none: this is the last page.
    pub next: Option<Bounds>,
    pub scanned: usize,
}

/// By topic and partition: letters from this offset on have been seen.
pub type Bounds = BTreeMap<Partition, i64>;

/// What became of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Dropped,
    Redriven,
}

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Redriven => "redriven",
        }
    }
}

/// Which letters are marked. Shared by all calls of a process; begins with nothing and reads what it needs.
#[derive(Default)]
pub struct Ledger(Mutex<BTreeMap<Partition, Marked>>);

#[derive(Default)]
struct Marked {
    /// Read up to here.
    next: i64,
    offsets: RoaringTreemap,
}

impl Ledger {
    /// A page of letters that are neither dropped nor redriven, below these bounds.
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
            let ends = broker.ends(&partition, CALL_DEADLINE)?;
            self.read_marks(broker, &partition, ends.first, ends.end)?;
            let below = match bounds {
                Some(bounds) => bounds.get(&partition).copied().unwrap_or(ends.first),
                None => ends.end,
            };
            tails.push(Tail {
                partition,
                first: ends.first,
                below: below.min(ends.end),
                read_to: below.min(ends.end),
                ahead: Vec::new(),
            });
        }
        let mut page = Page::default();
        while page.letters.len() < limit && page.scanned < MAX_SCANNED {
            refill(broker, names, &mut tails)?;
            // The newest of all; every tail that has more has its newest at hand.
            let Some(tail) = tails.iter_mut().filter(|tail| !tail.ahead.is_empty()).max_by_key(|tail| tail.newest_ms()) else {
                break;
            };
            let Some(letter) = tail.ahead.pop() else { break };
            tail.below = letter.id.offset;
            page.scanned += 1;
            if filter.takes(&letter) && !self.is_marked(&tail.partition, letter.id.offset) {
                page.letters.push(letter);
            }
        }
        let more = tails.iter().any(|tail| !tail.ahead.is_empty() || tail.read_to > tail.first);
        page.next =
            more.then(|| tails.into_iter().filter(|tail| tail.below > tail.first).map(|t| (t.partition, t.below)).collect());
        Ok(page)
    }

    /// One letter, and what has become of it. None: there is no letter at that place, or retention has removed it.
    pub fn letter(&self, broker: &dyn Broker, names: &Names, id: &LetterId) -> Result<Option<(Letter, bool)>, BrokerError> {
        let partition = Partition::new(names.dead(&id.task_type), id.partition);
        let ends = match broker.ends(&partition, CALL_DEADLINE) {
            Err(BrokerError::Unknown(_)) => return Ok(None),
            ends => ends?,
        };
        self.read_marks(broker, &partition, ends.first, ends.end)?;
        let record = broker.read_at(&partition, id.offset, CALL_DEADLINE)?;
        let Some(mut letter) = record.and_then(|record| Letter::read(&id.task_type, record)) else { return Ok(None) };
        if letter.by_reference {
            letter.fetch_original(broker, names)?;
        }
        Ok(Some((letter, self.is_marked(&partition, id.offset))))
    }

    fn is_marked(&self, partition: &Partition, offset: i64) -> bool {
        self.0.lock().get(partition).is_some_and(|marked| marked.offsets.contains(offset as u64))
    }

    /// Reads the marks that are new since the last time.
    fn read_marks(&self, broker: &dyn Broker, partition: &Partition, first: i64, end: i64) -> Result<(), BrokerError> {
        loop {
            let from = self.0.lock().get(partition).map_or(0, |marked| marked.next).max(first);
            if from >= end {
                return Ok(());
            }
            let to = end.min(from + LEDGER_CHUNK);
            let mut found = Vec::new();
            let stretch = Stretch { partition: partition.clone(), from, to };
            range::read(broker, &[stretch], CALL_DEADLINE, &mut |record| found.extend(mark_of(record)))?;
            let mut ledger = self.0.lock();
            let marked = ledger.entry(partition.clone()).or_default();
            marked.offsets.extend(found.into_iter().map(|offset| offset as u64));
            marked.offsets.remove_range(..first.max(0) as u64);
            marked.next = marked.next.max(to);
        }
    }
}

/// The records of one partition from its end backwards.
struct Tail {
    partition: Partition,
    first: i64,
    /// What comes next lies below this offset.
    below: i64,
    /// Records from here on have been read.
    read_to: i64,
    /// Letters read and not given, the newest last.
    ahead: Vec<Letter>,
}

impl Tail {
    fn newest_ms(&self) -> i64 {
        self.ahead.last().map_or(i64::MIN, |letter| letter.at_ms)
    }

    fn is_dry(&self) -> bool {
        self.ahead.is_empty() && self.read_to > self.first
    }
}

/// Reads on where nothing is at hand; marks are no letters, so that more than one try may be needed.
fn refill(broker: &dyn Broker, names: &Names, tails: &mut [Tail]) -> Result<(), BrokerError> {
    while tails.iter().any(Tail::is_dry) {
        let mut stretches = Vec::new();
        for tail in tails.iter_mut().filter(|tail| tail.is_dry()) {
            let (from, to) = ((tail.read_to - CHUNK).max(tail.first), tail.read_to);
            stretches.push(Stretch { partition: tail.partition.clone(), from, to });
            tail.read_to = from;
        }
        range::read(broker, &stretches, CALL_DEADLINE, &mut |record| {
            let of = |tail: &&mut Tail| tail.partition.index == record.partition && *tail.partition.topic == *record.topic;
            let letter = names.type_of_dead(record.topic).and_then(|name| Letter::read(name, record.to_owned()));
            if let (Some(tail), Some(letter)) = (tails.iter_mut().find(of), letter) {
                // What may be large is read again by whoever wants it.
                tail.ahead.push(Letter { original: Original::default(), ..letter });
            }
        })?;
    }
    Ok(())
}

/// The partitions of the dead-letter topics.
fn partitions(broker: &dyn Broker, names: &Names, task_type: Option<&str>) -> Result<Vec<Partition>, BrokerError> {
    let prefix = names.dead(task_type.unwrap_or_default());
    let mut topics = broker.topics(&prefix, CALL_DEADLINE)?;
    topics.retain(|topic| names.type_of_dead(&topic.name).is_some_and(|name| task_type.is_none_or(|wanted| wanted == name)));
    let of = |topic: &crate::broker::TopicInfo| {
        let name = topic.name.clone();
        (0..topic.partitions as i32).map(move |index| Partition::new(name.as_str(), index)).collect::<Vec<_>>()
    };
    Ok(topics.iter().flat_map(of).collect())
}

/// The letter that a mark is about.
fn mark_of(record: &RecordRef<'_>) -> Option<i64> {
    let marks = record.headers().find(|(name, _)| *name == mark::OF)?.1?;
    std::str::from_utf8(marks).ok()?.parse().ok()
}

/// The headers of the mark that a letter is done with.
pub fn mark_headers(offset: i64, fate: Fate, at_ms: i64) -> Vec<(&'static str, String)> {
    vec![(mark::OF, offset.to_string()), (mark::FATE, fate.name().to_owned()), (mark::TIME, at_ms.to_string())]
}

impl Letter {
    /// None: a mark, or a record that is no dead letter of ours.
    fn read(task_type: &str, record: Record) -> Option<Self> {
        let Record { partition, offset, timestamp_ms, key, value, headers, .. } = record;
        let (ours, own): (Vec<_>, Vec<_>) = headers.into_iter().partition(|(name, _)| name.starts_with(PREFIX));
        let text = |wanted: &str| {
            let value = ours.iter().rev().find(|(name, _)| name == wanted)?.1.as_deref()?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let code = text(header::CODE).filter(|_| text(mark::OF).is_none())?;
        let own_key = text(header::KEY).and_then(|key| BASE64.decode(key.as_bytes()).ok());
        let task = key.as_deref().and_then(|key| TaskId::parse(std::str::from_utf8(key).ok()?).ok());
        let place = || Some((text(header::TOPIC)?, text(header::PARTITION)?.parse().ok()?, text(header::OFFSET)?.parse().ok()?));
        Some(Self {
            id: LetterId { task_type: task_type.to_owned(), partition, offset },
            at_ms: text(header::TIME).and_then(|at| at.parse().ok()).unwrap_or(timestamp_ms),
            code,
            error: text(header::ERROR).unwrap_or_default(),
            pointer: text(header::POINTER),
            task,
            worker: text(header::WORKER),
            source: place(),
            by_reference: text(header::REFERENCE).is_some(),
            original: Original { key: own_key.or(key), value, headers: own },
        })
    }

    /// Reads the record that the letter speaks of; where it is gone there is no value.
    fn fetch_original(&mut self, broker: &dyn Broker, names: &Names) -> Result<(), BrokerError> {
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
