//! Offsets that the owner of a partition holds or may start before its next commit, and their encoding in the metadata.
//!
//! A worker that passes over records has no single end below which tasks may be in flight. A commit therefore names the
//! offsets by runs, before any of them starts. After two crashes in a row the open ones among them are the suspects.

use std::ops::Range;

use data_encoding::BASE64URL_NOPAD;

use super::{MAX_SPAN, leb128, read_leb128};

/// Maximum number of runs: with at most 4 bytes per number they take at most 344 characters of the metadata.
pub const MAX_CLAIM_RUNS: usize = 32;
/// Prefix of the encoded form.
const PREFIX: &str = "r:";

/// Disjoint runs of offsets in ascending order, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(Vec<Range<i64>>);

impl Claims {
    /// Smallest claims of at most [`MAX_CLAIM_RUNS`] runs that contain all given ones, in any order. Where there are
    /// more runs, those with the smallest distances become one.
    pub fn covering(runs: impl IntoIterator<Item = Range<i64>>) -> Self {
        let mut merged = Self::union(runs).0;
        if merged.len() > MAX_CLAIM_RUNS {
            let mut distances: Vec<i64> = merged.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
            distances.sort_unstable_by(|a, b| b.cmp(a));
            let (longest, mut equal) = (distances[MAX_CLAIM_RUNS - 2], 0);
            // Of distances as long as the last one that stays, only as many stay as there is room for.
            let stay = MAX_CLAIM_RUNS - 1 - distances.iter().filter(|distance| **distance > longest).count();
            merged.dedup_by(|run, before| {
                let distance = run.start - before.end;
                equal += usize::from(distance == longest);
                let is_merged = distance < longest || (distance == longest && equal > stay);
                if is_merged {
                    before.end = run.end;
                }
                is_merged
            });
        }
        Self(merged)
    }

    fn union(runs: impl IntoIterator<Item = Range<i64>>) -> Self {
        let mut runs: Vec<Range<i64>> = runs.into_iter().filter(|run| !run.is_empty()).collect();
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|run, before| {
            let is_merged = run.start <= before.end;
            if is_merged {
                before.end = before.end.max(run.end);
            }
            is_merged
        });
        Self(runs)
    }

    /// Returns the offsets that are in both claims.
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(one), Some(another)) = (ours.peek(), theirs.peek()) {
            let run = one.start.max(another.start)..one.end.min(another.end);
            let is_first_done = one.end <= another.end;
            if !run.is_empty() {
                common.push(run);
            }
            if is_first_done {
                ours.next()
            } else {
                theirs.next()
            };
        }
        Self(common)
    }

    /// Returns whether a run contains the offset.
    pub fn contains(&self, offset: i64) -> bool {
        let next = self.0.partition_point(|run| run.end <= offset);
        self.0.get(next).is_some_and(|run| run.start <= offset)
    }

    /// Offset after the last run; `None` without runs.
    pub fn end(&self) -> Option<i64> {
        self.0.last().map(|run| run.end)
    }

    /// Runs in ascending order.
    pub fn runs(&self) -> &[Range<i64>] {
        &self.0
    }

    /// Encodes the claims: `-` without runs, else base64url of LEB128 numbers from the committed offset on: number of
    /// offsets outside, inside, outside, … Runs below the committed offset are complete and left out.
    pub(super) fn encode(&self, committed: i64) -> String {
        let mut bytes = Vec::new();
        let mut at = committed;
        for run in self.0.iter().filter(|run| run.end > committed) {
            let start = run.start.max(committed);
            leb128(&mut bytes, (start - at) as u64);
            leb128(&mut bytes, (run.end - start) as u64);
            at = run.end;
        }
        if bytes.is_empty() { "-".to_owned() } else { format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes)) }
    }

    /// Decodes claims. `None` for text in another form, empty runs, more than [`MAX_CLAIM_RUNS`] of them, or a run that
    /// ends further from the committed offset than any owner reads.
    pub(super) fn decode(committed: i64, text: &str) -> Option<Self> {
        if text == "-" {
            return Some(Self::default());
        }
        let numbers = read_leb128(&BASE64URL_NOPAD.decode(text.strip_prefix(PREFIX)?.as_bytes()).ok()?)?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() || pairs.len() > MAX_CLAIM_RUNS {
            return None;
        }
        let mut at = committed;
        let mut runs: Vec<Range<i64>> = Vec::with_capacity(pairs.len());
        for [outside, inside] in pairs {
            let start = at.checked_add(i64::try_from(*outside).ok()?)?;
            let end = start.checked_add(i64::try_from(*inside).ok()?)?;
            let is_separate = runs.is_empty() || start > at;
            if start == end || !is_separate || end - committed > 2 * MAX_SPAN {
                return None;
            }
            runs.push(start..end);
            at = end;
        }
        Some(Self(runs))
    }
}
