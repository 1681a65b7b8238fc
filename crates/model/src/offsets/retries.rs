//! Tasks of a partition that wait for their next attempt, and their encoding in the metadata of a commit.
//!
//! The next owner of the partition continues with the attempts and waits that they have used, at the time that was due.

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;

use super::{leb128, read_leb128};
use crate::retry::{RunProgress, Waits};

/// Prefix of the encoded form.
const PREFIX: &str = "w:";
/// Flags in the number that also holds the attempts.
const HAS_WAITS: u64 = 1;
const HAS_BACKOFF_FROM: u64 = 2;
const FLAG_BITS: u32 = 2;

/// Attempts and waits that a task has used, and the time of its next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingRetry {
    pub progress: RunProgress,
    /// Start of the next attempt, epoch milliseconds.
    pub due_ms: i64,
}

/// Tasks that wait for their next attempt, or whose attempt is not the first one, by offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingRetries(BTreeMap<i64, PendingRetry>);

impl PendingRetries {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, offset: i64) -> Option<&PendingRetry> {
        self.0.get(&offset)
    }

    pub fn insert(&mut self, offset: i64, retry: PendingRetry) {
        self.0.insert(offset, retry);
    }

    pub fn remove(&mut self, offset: i64) {
        self.0.remove(&offset);
    }

    /// Removes the tasks below an offset.
    pub fn remove_below(&mut self, offset: i64) {
        self.0 = self.0.split_off(&offset);
    }

    /// Encodes the tasks at and above `watermark` in at most `room` bytes. Those with the highest offsets are left out if
    /// they do not fit: their attempts are counted from the record again.
    ///
    /// Base64url of LEB128 numbers: the earliest time that is due, and for each task the distance from the offset before
    /// (of the first one from the watermark), its attempts with two flags, and its distance from the earliest time. The
    /// flags announce `backoff_from`, and the number of waits with the time from the first one to the due time.
    pub(super) fn encode(&self, watermark: i64, room: usize) -> String {
        let capacity = room.saturating_sub(PREFIX.len()) / 4 * 3;
        let first_due = self.0.values().map(|retry| retry.due_ms.max(0)).min().unwrap_or_default();
        let mut bytes = Vec::new();
        leb128(&mut bytes, number(first_due));
        let header = bytes.len();
        let mut at = watermark;
        for (&offset, retry) in self.0.range(watermark..) {
            let end = bytes.len();
            retry.encode(offset - at, first_due, &mut bytes);
            if bytes.len() > capacity {
                bytes.truncate(end);
                break;
            }
            at = offset;
        }
        if bytes.len() == header { String::new() } else { format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes)) }
    }

    pub(super) fn decode(watermark: i64, text: &str) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.strip_prefix(PREFIX)?.as_bytes()).ok()?;
        let mut numbers = read_leb128(&bytes)?.into_iter().peekable();
        let first_due = i64::try_from(numbers.next()?).ok()?;
        let mut retries = Self::default();
        let mut at = watermark;
        while numbers.peek().is_some() {
            at = at.checked_add(i64::try_from(numbers.next()?).ok()?)?;
            retries.0.insert(at, PendingRetry::decode(first_due, &mut numbers)?);
        }
        Some(retries)
    }
}

impl PendingRetry {
    fn encode(&self, distance: i64, first_due: i64, out: &mut Vec<u8>) {
        let due_ms = self.due_ms.max(0);
        let RunProgress { attempts, waits, backoff_from } = self.progress;
        let has_waits = waits != Waits::default();
        let flags = if has_waits { HAS_WAITS } else { 0 } | if backoff_from > 0 { HAS_BACKOFF_FROM } else { 0 };
        leb128(out, number(distance));
        leb128(out, u64::from(attempts) << FLAG_BITS | flags);
        leb128(out, number(due_ms - first_due));
        if backoff_from > 0 {
            leb128(out, u64::from(backoff_from));
        }
        if has_waits {
            leb128(out, u64::from(waits.number));
            leb128(out, number(due_ms - waits.since_ms));
        }
    }

    fn decode(first_due: i64, numbers: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let packed = numbers.next()?;
        let attempts = u32::try_from(packed >> FLAG_BITS).ok()?;
        let due_ms = first_due.checked_add(i64::try_from(numbers.next()?).ok()?)?;
        let backoff_from = if packed & HAS_BACKOFF_FROM == 0 { 0 } else { u32::try_from(numbers.next()?).ok()? };
        let mut waits = Waits::default();
        if packed & HAS_WAITS != 0 {
            let number = u32::try_from(numbers.next()?).ok()?;
            waits = Waits { number, since_ms: due_ms.checked_sub(i64::try_from(numbers.next()?).ok()?)? };
        }
        Some(Self { progress: RunProgress { attempts, waits, backoff_from }, due_ms })
    }
}

/// Number as LEB128 encodes it: never negative.
fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
