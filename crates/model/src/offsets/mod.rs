//! Completed offsets of a partition, and their encoding in the metadata of a commit.
//!
//! Kafka keeps one committed offset per partition, but tasks complete out of order. The committed offset is therefore the
//! watermark below which everything is complete, and [`CompletedOffsets`] also keeps the completed offsets above it. They
//! travel in the commit's metadata ([`Metadata`]), so that the next owner repeats only unfinished tasks.
//!
//! Invariant: an offset is complete only if its task has ended, or if the log has no record there. A map that is too large
//! leaves out completed offsets, never open ones: a task that is repeated runs twice, one below the watermark never.
//!
//! The metadata is text, at most 4096 bytes, with a space between fields. That of a type whose tasks start in the order of the
//! log has five or six:
//!
//! ```text
//! kf1 open 10500 0 r:AwEEAg w:gNCV_7wxAAQA
//! │   │    │     │ │        └ tasks that wait for their next attempt, left out if there are none
//! │   │    │     │ └ completed offsets: `-` none above the watermark; `r:` runs; `b:` bitmap (base64url, no padding)
//! │   │    │     └ unclean takeovers in a row
//! │   │    └ window end: offsets from here on have not been dispatched
//! │   └ `open` while owned, `clean` if released with nothing running, `late` if released with something running
//! └ format
//! ```
//!
//! A type whose workers pass over records has another format, with six or seven fields. It names where reading on continues,
//! and instead of the window's end at most 32 runs of offsets that may have been dispatched ([`Claims`]):
//!
//! ```text
//! kf2 open 0 14000 r:AAGfH5BO r:AQQC
//! │   │    │ │     │           └ completed offsets, as in `kf1`, and a seventh field as the sixth one there
//! │   │    │ │     └ claims: `-` none; `r:` runs
//! │   │    │ └ offset at which reading on continues
//! │   │    └ unclean takeovers in a row
//! │   └ mark
//! └ format
//! ```
//!
//! Runs are LEB128 numbers from the committed offset on: number of open offsets, of completed ones, of open ones, …
//! In claims: number of offsets outside, inside, outside, … In the bitmap, bit 0 of byte 0 is the committed offset. Offsets
//! beyond the end of the map are open. Metadata that cannot be parsed means an empty map and an unclean end.
//!
//! Read next: `crates/worker/src/consumer/partition.rs`, which uses both.

mod claims;
mod metadata;
mod retries;

use std::collections::VecDeque;
use std::ops::Range;

use data_encoding::BASE64URL_NOPAD;

pub use claims::{Claims, MAX_CLAIM_RUNS};
pub use metadata::{FULL_MAP_BYTES, Mark, Metadata, PassOverMetadata};
pub use retries::{PendingRetries, PendingRetry};

/// Maximum size of a commit's metadata, in bytes: Kafka's default for `offset.metadata.max.bytes`.
pub const MAX_METADATA_BYTES: usize = 4096;
/// Size of the metadata, in bytes, above which the worker starts no new tasks of the partition.
pub const FULL_METADATA_BYTES: usize = MAX_METADATA_BYTES * 3 / 4;
/// Bytes reserved for the tasks that wait for their next attempt; they may also use what the map leaves free.
const RETRIES_BYTES: usize = MAX_METADATA_BYTES / 4;
/// Distance from the watermark to the next offset above which the worker starts no new tasks of the partition
/// (8 MiB of bits).
pub const MAX_SPAN: i64 = 1 << 26;

/// Size of a map of completed offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSize {
    /// Changes between open and complete above the watermark.
    pub boundaries: usize,
    /// Bytes of the encoded map.
    pub bytes: usize,
}

/// Completed offsets of one partition. Offsets that Kafka skips (gaps in the log) count as complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedOffsets {
    /// All offsets below this one are complete.
    watermark: i64,
    /// Next offset expected from Kafka: nothing below it will be delivered for the first time.
    next: i64,
    /// Offset of the first bit of `words`.
    base: i64,
    words: VecDeque<u64>,
}

impl CompletedOffsets {
    /// Map without completed offsets at or above `offset`.
    pub fn starting_at(offset: i64) -> Self {
        Self { watermark: offset, next: offset, base: offset, words: VecDeque::new() }
    }

    pub fn watermark(&self) -> i64 {
        self.watermark
    }

    /// Next offset expected from Kafka.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Records that `offset` was delivered and that the offsets skipped before it do not exist. Returns false if it
    /// was delivered or completed before.
    pub fn deliver(&mut self, offset: i64) -> bool {
        if offset < self.next {
            return false;
        }
        self.skip_to(offset);
        self.next = offset + 1;
        self.advance();
        !self.is_done(offset)
    }

    /// Returns the completed offsets of a commit. If its metadata is invalid, only those below the committed offset.
    pub fn of_commit(offset: i64, metadata: &str) -> Self {
        Metadata::decode(offset, metadata).map_or_else(|| Self::starting_at(offset), |metadata| metadata.completed)
    }

    /// Records that nothing below `offset` will be delivered any more: undelivered offsets below it do not exist.
    pub fn skip_to(&mut self, offset: i64) {
        if offset < self.next {
            return;
        }
        if self.watermark >= self.next && self.end() <= offset {
            // No offset is open: a gap of any width needs no bits.
            *self = Self::starting_at(offset);
        } else if offset > self.next.max(self.watermark) {
            self.set_range(self.next.max(self.watermark), offset);
        }
        self.next = offset;
        self.advance();
    }

    pub fn complete(&mut self, offset: i64) {
        if offset >= self.watermark {
            self.set_range(offset, offset + 1);
            self.advance();
        }
    }

    pub fn is_done(&self, offset: i64) -> bool {
        if offset < self.watermark {
            return true;
        }
        let bit = (offset - self.base) as usize;
        self.words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Number of completed offsets above the watermark.
    pub fn done_above(&self) -> u64 {
        let below = (self.watermark - self.base) as u64;
        let all: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        all - below.min(all)
    }

    /// Number of open offsets from the watermark to below `offset`.
    pub fn open_below(&self, offset: i64) -> u64 {
        if offset <= self.watermark {
            return 0;
        }
        let bits = (offset - self.base) as usize;
        let in_full_words: u64 = self.words.iter().take(bits / 64).map(|word| u64::from(word.count_ones())).sum();
        let rest =
            self.words.get(bits / 64).map_or(0, |word| u64::from((word & ((1 << (bits % 64)) - 1)).count_ones()));
        bits as u64 - in_full_words - rest
    }

    /// Completes the offsets from `from` to below `to`, in any order of calls. Returns the number of those that were open.
    pub fn complete_range(&mut self, from: i64, to: i64) -> u64 {
        let from = from.max(self.watermark);
        if from >= to {
            return 0;
        }
        let open =
            self.runs(from, to).filter(|(_, is_done)| !is_done).map(|(run, _)| (run.end - run.start) as u64).sum();
        self.set_range(from, to);
        self.advance();
        open
    }

    /// Runs of equal offsets from `from`, at least the watermark, to below `to`, each with whether it is complete.
    pub fn runs(&self, from: i64, to: i64) -> impl Iterator<Item = (Range<i64>, bool)> {
        let mut at = from.max(self.watermark);
        std::iter::from_fn(move || {
            let done = self.is_done(at);
            // Beyond the last word everything is open.
            let known = to.min(self.base + 64 * self.words.len() as i64);
            let mut end = if at < known { self.run_end(at, done, known) } else { to };
            if !done && end == known {
                end = to;
            }
            let run = at..end;
            at = end.max(at);
            (!run.is_empty()).then_some((run, done))
        })
    }

    /// Size of the map in the metadata of a commit, if there is room for all of it.
    pub fn map_size(&self) -> MapSize {
        let (mut done_runs, mut bytes) = (0, 0);
        for (run, is_done) in self.runs(self.watermark, self.end()) {
            done_runs += usize::from(is_done);
            bytes += leb128_bytes((run.end - run.start) as u64);
        }
        let bits = ((self.end() - self.watermark) as usize).div_ceil(8);
        let bytes = if done_runs == 0 { 1 } else { 2 + (bytes.min(bits) * 4).div_ceil(3) };
        MapSize { boundaries: 2 * done_runs, bytes }
    }

    fn set_range(&mut self, from: i64, to: i64) {
        let mut bit = (from - self.base) as usize;
        let end = (to - self.base) as usize;
        if end.div_ceil(64) > self.words.len() {
            self.words.resize(end.div_ceil(64), 0);
        }
        while bit < end {
            let word = bit / 64;
            let shift = bit % 64;
            let count = (64 - shift).min(end - bit);
            let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << shift };
            self.words[word] |= mask;
            bit += count;
        }
    }

    /// Moves the watermark over completed offsets and drops full words.
    fn advance(&mut self) {
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.base += 64;
        }
        self.watermark = self.watermark.max(self.base);
        let first = self.words.front().map_or(0, |word| i64::from(word.trailing_ones()));
        self.watermark = self.watermark.max(self.base + first);
    }

    /// Offset after the last completed one; the watermark if none above it is complete.
    pub fn end(&self) -> i64 {
        let Some(last) = self.words.iter().rposition(|&word| word != 0) else { return self.watermark };
        let high = 64 - i64::from(self.words[last].leading_zeros());
        self.watermark.max(self.base + 64 * last as i64 + high)
    }

    /// Encodes the map in at most `room` bytes, as runs or as a bitmap, whichever is shorter; as runs if the bitmap
    /// does not fit. Completed offsets that do not fit are left out; the next owner repeats their tasks.
    fn encode_map(&self, room: usize) -> String {
        if self.end() == self.watermark {
            return "-".into();
        }
        let bytes = room.saturating_sub(2) / 4 * 3;
        let runs = self.encode_runs(bytes);
        let bits = self.encode_bits(bytes);
        match (runs.len() <= bits.len() || bits.len() >= bytes, &runs, &bits) {
            (true, runs, _) => format!("r:{}", BASE64URL_NOPAD.encode(runs)),
            (false, _, bits) => format!("b:{}", BASE64URL_NOPAD.encode(bits)),
        }
    }

    fn encode_runs(&self, room: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = self.watermark;
        let end = self.end();
        let mut done = false;
        while at < end && out.len() + 20 <= room {
            let run_end = self.run_end(at, done, end);
            leb128(&mut out, (run_end - at) as u64);
            (at, done) = (run_end, !done);
        }
        out
    }

    /// End of the run of equal bits that begins at `at`.
    fn run_end(&self, at: i64, done: bool, end: i64) -> i64 {
        let mut bit = (at - self.base) as usize;
        let last = (end - self.base) as usize;
        while bit < last {
            let word = self.words[bit / 64];
            let same = if done { word } else { !word } >> (bit % 64);
            let count = (same.trailing_ones() as usize).min(64 - bit % 64);
            bit += count;
            if !bit.is_multiple_of(64) || count == 0 {
                break;
            }
        }
        self.base + bit.min(last) as i64
    }

    fn encode_bits(&self, room: usize) -> Vec<u8> {
        let count = ((self.end() - self.watermark) as usize).div_ceil(8).min(room);
        let bit = |n: usize| u8::from(self.is_done(self.watermark + n as i64));
        (0..count).map(|byte| (0..8).fold(0, |bits, n| bits | bit(8 * byte + n) << n)).collect()
    }

    fn decode_map(watermark: i64, text: &str) -> Option<Self> {
        if !(0..i64::MAX - 4 * MAX_SPAN).contains(&watermark) {
            return None;
        }
        let mut map = Self::starting_at(watermark);
        match text.split_once(':') {
            None if text == "-" => {}
            Some(("r", runs)) => {
                let mut at = watermark;
                let mut done = false;
                for run in read_leb128(&BASE64URL_NOPAD.decode(runs.as_bytes()).ok()?)? {
                    let end = at.checked_add(i64::try_from(run).ok()?).filter(|end| end - watermark <= 2 * MAX_SPAN)?;
                    if done {
                        map.set_range(at, end);
                    }
                    (at, done) = (end, !done);
                }
            }
            Some(("b", bits)) => {
                for (n, byte) in BASE64URL_NOPAD.decode(bits.as_bytes()).ok()?.into_iter().enumerate() {
                    let first = watermark + 8 * n as i64;
                    (0..8)
                        .filter(|bit| byte >> bit & 1 == 1)
                        .for_each(|bit| map.set_range(first + bit, first + bit + 1));
                }
            }
            _ => return None,
        }
        map.advance();
        Some(map)
    }
}

fn leb128(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Number of bytes that [`leb128`] writes.
pub(crate) fn leb128_bytes(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

fn read_leb128(bytes: &[u8]) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut number = 0u64;
    let mut shift = 0;
    for &byte in bytes {
        if shift > 56 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    (shift == 0).then_some(numbers)
}

#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod tests;
