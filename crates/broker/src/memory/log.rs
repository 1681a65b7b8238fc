//! Log of a partition of the in-memory broker: records ordered by offset (with gaps), open transactions, and size.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Condvar;

use crate::{CommittedProbe, HeaderList, ProducerRecord, RecordRef};

/// Approximate memory of a record in addition to its own bytes: the log entry and the allocations.
const RECORD_OVERHEAD: u64 = 96;

/// The bytes of a record in one allocation (key, value, then each header's name and value), shared by the log and its
/// readers.
#[derive(Debug)]
pub(super) struct RecordContents {
    bytes: Box<[u8]>,
    /// Length of the key.
    key: Option<usize>,
    /// Length of the value.
    value: Option<usize>,
    headers: Box<[HeaderSpan]>,
    pub created_ms: i64,
}

/// Location of a header in [`RecordContents::bytes`]: its start, and the lengths of name and value.
#[derive(Debug)]
struct HeaderSpan {
    start: usize,
    name: usize,
    value: usize,
}

impl RecordContents {
    pub(super) fn new(record: &ProducerRecord<'_>, created_ms: i64) -> Self {
        let mut bytes = Vec::with_capacity(record_size(record));
        bytes.extend_from_slice(record.key.unwrap_or_default());
        bytes.extend_from_slice(record.value.unwrap_or_default());
        let headers = record.headers.iter().map(|(name, value)| {
            let start = bytes.len();
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(value);
            HeaderSpan { start, name: name.len(), value: value.len() }
        });
        let headers = headers.collect();
        let (key, value) = (record.key.map(<[u8]>::len), record.value.map(<[u8]>::len));
        Self { bytes: bytes.into(), key, value, headers, created_ms }
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        self.key.map(|len| &self.bytes[..len])
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        let start = self.key.unwrap_or(0);
        self.value.map(|len| &self.bytes[start..start + len])
    }

    /// Number of bytes that count against `max.message.bytes`: the record's own, without batch framing.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn record<'a>(&'a self, topic: &'a str, partition: i32, entry: RecordPosition) -> RecordRef<'a> {
        RecordRef {
            topic,
            partition,
            offset: entry.offset,
            timestamp_ms: entry.timestamp_ms,
            log_append_time: entry.log_append_time,
            key: self.key(),
            value: self.value(),
            headers: self,
        }
    }
}

impl HeaderList for RecordContents {
    fn len(&self) -> usize {
        self.headers.len()
    }

    fn get(&self, n: usize) -> Option<(&str, Option<&[u8]>)> {
        let span = self.headers.get(n)?;
        let (name, value) = self.bytes[span.start..span.start + span.name + span.value].split_at(span.name);
        Some((std::str::from_utf8(name).ok()?, Some(value)))
    }
}

pub(super) fn record_size(record: &ProducerRecord<'_>) -> usize {
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + headers
}

/// Offset and timestamp of a record in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPosition {
    pub offset: i64,
    pub timestamp_ms: i64,
    pub log_append_time: bool,
}

#[derive(Clone, Debug)]
pub(super) struct LogEntry {
    pub at: RecordPosition,
    pub payload: Arc<RecordContents>,
    /// Transaction that wrote the record; 0: none.
    transaction: u64,
    aborted: bool,
}

impl LogEntry {
    fn cost(&self) -> u64 {
        cost_of(&self.payload)
    }
}

pub(super) fn cost_of(payload: &RecordContents) -> u64 {
    payload.len() as u64 + RECORD_OVERHEAD
}

#[derive(Debug, Default)]
pub(super) struct PartitionLog {
    entries: VecDeque<LogEntry>,
    /// Offset at which the log starts (low watermark).
    pub first: i64,
    /// Offset of the next record (high watermark).
    pub end: i64,
    pub bytes: u64,
    /// Size after the last compaction.
    compacted_bytes: u64,
    /// Open transactions with their first offset.
    open: Vec<(u64, i64)>,
    /// Consumers waiting for a record in this log.
    waiters: Vec<Weak<Condvar>>,
}

impl PartitionLog {
    pub(super) fn append(
        &mut self,
        payload: Arc<RecordContents>,
        append_time_ms: Option<i64>,
        transaction: u64,
    ) -> i64 {
        let timestamp_ms = append_time_ms.unwrap_or(payload.created_ms);
        let at = RecordPosition { offset: self.end, timestamp_ms, log_append_time: append_time_ms.is_some() };
        if transaction != 0 && !self.open.iter().any(|(open, _)| *open == transaction) {
            self.open.push((transaction, self.end));
        }
        let entry = LogEntry { at, payload, transaction, aborted: false };
        self.bytes += entry.cost();
        self.entries.push_back(entry);
        self.end += 1;
        self.wake();
        at.offset
    }

    /// Ends a transaction. Its marker occupies an offset that is never delivered to consumers.
    pub(super) fn end_transaction(&mut self, transaction: u64, committed: bool) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == transaction) else { return };
        let (_, first) = self.open.remove(at);
        let begin = self.index_of(first);
        for entry in self.entries.range_mut(begin..).filter(|entry| entry.transaction == transaction) {
            entry.aborted = !committed;
        }
        self.end += 1;
        self.wake();
    }

    /// Offset up to which a consumer may read: the last stable offset, or the end for a read-uncommitted one.
    pub(super) fn read_limit(&self, read_uncommitted: bool) -> i64 {
        let open_offset = self.open.iter().map(|(_, first)| *first).min().filter(|_| !read_uncommitted);
        open_offset.unwrap_or(self.end)
    }

    /// Passes at most `max` records from `position` on to the sink and returns their number. Advances the position
    /// past invisible records too.
    pub(super) fn take_records(
        &self,
        position: &mut i64,
        max: usize,
        read_uncommitted: bool,
        mut sink: impl FnMut(&LogEntry),
    ) -> usize {
        let read_limit = self.read_limit(read_uncommitted);
        let mut taken = 0;
        for entry in self.entries.range(self.index_of(*position)..) {
            if taken == max || entry.at.offset >= read_limit {
                break;
            }
            *position = entry.at.offset + 1;
            if read_uncommitted || !entry.aborted {
                sink(entry);
                taken += 1;
            }
        }
        if taken < max {
            *position = read_limit.max(*position);
        }
        taken
    }

    /// Returns the first record that a read-committed consumer sees at or after an offset.
    pub(super) fn first_visible(&self, topic: &str, partition: i32, offset: i64) -> CommittedProbe {
        let read_limit = self.read_limit(false);
        let rest = self.entries.range(self.index_of(offset)..).take_while(|entry| entry.at.offset < read_limit);
        let visible = rest.into_iter().find(|entry| !entry.aborted);
        let record = visible.map(|entry| entry.payload.record(topic, partition, entry.at).to_owned());
        CommittedProbe { offset: visible.map_or(read_limit, |entry| entry.at.offset), record }
    }

    /// Removes the records before an offset.
    pub(super) fn truncate_before(&mut self, offset: i64) {
        let keep = self.index_of(offset);
        self.bytes -= self.entries.drain(..keep).map(|entry| entry.cost()).sum::<u64>();
        self.first = offset;
        self.wake();
    }

    /// Removes the records older than a timestamp from the start of the log, up to the first open transaction.
    pub(super) fn expire(&mut self, before_ms: i64) {
        let read_limit = self.read_limit(false);
        let is_expired = |entry: &&LogEntry| entry.at.timestamp_ms < before_ms && entry.at.offset < read_limit;
        if let Some(last) = self.entries.iter().take_while(is_expired).last() {
            self.truncate_before(last.at.offset + 1);
        }
    }

    /// Compacts the records before the first open transaction: keeps the latest record of each key, and tombstones only
    /// if they are newer than `tombstones_after_ms`. Removes aborted records.
    pub(super) fn compact(&mut self, tombstones_after_ms: i64) {
        let read_limit = self.read_limit(false);
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        let mut kept = VecDeque::new();
        for entry in self.entries.drain(..).rev() {
            let stays = entry.at.offset >= read_limit
                || (!entry.aborted
                    && entry.payload.key().is_none_or(|key| seen.insert(key.to_vec()))
                    && (entry.payload.value().is_some() || entry.at.timestamp_ms > tombstones_after_ms));
            if stays {
                kept.push_front(entry);
            }
        }
        self.bytes = kept.iter().map(LogEntry::cost).sum();
        self.compacted_bytes = self.bytes;
        self.entries = kept;
    }

    /// Returns the bytes appended since the last compaction.
    pub(super) fn uncompacted_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.compacted_bytes)
    }

    pub(super) fn wait_with(&mut self, waiter: &Arc<Condvar>) {
        let waiter = Arc::downgrade(waiter);
        self.waiters.retain(|existing| existing.strong_count() > 0 && !existing.ptr_eq(&waiter));
        self.waiters.push(waiter);
    }

    fn wake(&mut self) {
        for waiter in self.waiters.drain(..).filter_map(|waiter| waiter.upgrade()) {
            waiter.notify_all();
        }
    }

    /// Returns the index of the first record at or after an offset: computed if the log has no gaps before it,
    /// otherwise found by binary search.
    fn index_of(&self, offset: i64) -> usize {
        let Some(first) = self.entries.front() else { return 0 };
        let guess = usize::try_from(offset.saturating_sub(first.at.offset)).unwrap_or(0);
        match self.entries.get(guess) {
            Some(entry) if entry.at.offset == offset => guess,
            _ => self.entries.partition_point(|entry| entry.at.offset < offset),
        }
    }
}
