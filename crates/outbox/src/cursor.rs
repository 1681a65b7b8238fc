//! Position of the relay in the table: where the next scan begins, and the numbers that may still be committed behind it.
//!
//! Postgres gives numbers at the insert, and rows appear at the commit: behind the highest number that a scan has
//! seen, others may appear later. A scan from the first number would find them, but beside a transaction that is open
//! for minutes it would also pass all rows that were deleted meanwhile, which vacuum cannot remove. So the cursor
//! remembers the missing numbers as gaps until every transaction that may fill them has ended.

/// Number of gaps above which neighbouring gaps are joined.
const MAX_GAPS: usize = 1_000;
/// Age of a gap at which the transactions are noted that may fill it. A process may stand still between getting a number and
/// getting its transaction id; and only a transaction that has ended later shows in a snapshot that theirs have begun: by
/// then the relay has deleted the rows behind the gap.
const MIN_GAP_AGE_MS: i64 = 60_000;

/// Numbers to scan: gaps first, then those behind `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// First and last number of each gap, ascending.
    pub gaps: Vec<(i64, i64)>,
    pub after: i64,
    /// Maximum number of rows.
    pub limit: usize,
}

/// Transactions of the snapshot of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// Oldest transaction that was in progress: all older ones have ended.
    pub oldest: u64,
    /// Number above that of the newest transaction that had ended. This and newer ones may be in progress.
    pub next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    first: i64,
    last: i64,
    since_ms: i64,
    /// All transactions that may fill the gap are older than this one. `None`: not known yet.
    before: Option<u64>,
}

/// Position of the relay.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    after: i64,
    /// Ascending and disjoint, below `after`.
    gaps: Vec<Gap>,
}

impl Cursor {
    /// Returns what to scan next.
    pub fn scan(&self, limit: usize) -> Scan {
        Scan { gaps: self.gaps.iter().map(|gap| (gap.first, gap.last)).collect(), after: self.after, limit }
    }

    /// Returns true if scans include this number.
    pub fn includes(&self, seq: i64) -> bool {
        seq > self.after || self.gaps.iter().any(|gap| (gap.first..=gap.last).contains(&seq))
    }

    /// Passes rows of a scan, in ascending order, that are published or dead. `now_ms` only needs to be monotonic.
    pub fn pass(&mut self, rows: &[i64], horizon: Horizon, now_ms: i64) {
        for &seq in rows {
            if seq > self.after {
                if seq > self.after + 1 {
                    let (first, last) = (self.after + 1, seq - 1);
                    self.gaps.push(Gap { first, last, since_ms: now_ms, before: None });
                }
                self.after = seq;
            } else {
                self.fill(seq);
            }
        }
        self.expire(horizon, now_ms);
        while self.gaps.len() > MAX_GAPS {
            self.join_nearest();
        }
    }

    /// Gives up gaps that no transaction can fill any more.
    pub fn expire(&mut self, horizon: Horizon, now_ms: i64) {
        self.gaps.retain_mut(|gap| match gap.before {
            Some(before) => horizon.oldest < before,
            None => {
                gap.before = (now_ms >= gap.since_ms + MIN_GAP_AGE_MS).then_some(horizon.next);
                true
            }
        });
    }

    /// Removes a number from its gap.
    fn fill(&mut self, seq: i64) {
        let Some(at) = self.gaps.iter().position(|gap| (gap.first..=gap.last).contains(&seq)) else { return };
        let gap = self.gaps.remove(at);
        let parts = [(gap.first, seq - 1), (seq + 1, gap.last)];
        let parts = parts.into_iter().filter(|(first, last)| first <= last);
        let parts: Vec<Gap> = parts.map(|(first, last)| Gap { first, last, ..gap }).collect();
        self.gaps.splice(at..at, parts);
    }

    /// Joins the two gaps that are closest to each other. Rows between them are published: scans find them only while they are
    /// not deleted, and the marker knows them.
    fn join_nearest(&mut self) {
        let distance = |n: usize| self.gaps[n + 1].first - self.gaps[n].last;
        let Some(at) = (0..self.gaps.len().saturating_sub(1)).min_by_key(|n| distance(*n)) else { return };
        let next = self.gaps.remove(at + 1);
        let gap = &mut self.gaps[at];
        gap.last = next.last;
        gap.before = gap.before.zip(next.before).map(|(one, other)| one.max(other));
        gap.since_ms = gap.since_ms.max(next.since_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LATER: i64 = 1_000_000;

    #[test]
    fn late_commit_behind_the_cursor_is_scanned() {
        let mut cursor = Cursor::default();
        cursor.pass(&[1, 2, 5], Horizon { oldest: 7, next: 9 }, 0);
        assert_eq!(cursor.scan(10), Scan { gaps: vec![(3, 4)], after: 5, limit: 10 });
        cursor.pass(&[4, 6], Horizon { oldest: 7, next: 10 }, 0);
        assert_eq!(cursor.scan(10), Scan { gaps: vec![(3, 3)], after: 6, limit: 10 });
    }

    #[test]
    fn gap_is_given_up_after_its_transactions_and_a_minute() {
        let mut cursor = Cursor::default();
        cursor.pass(&[2], Horizon { oldest: 7, next: 8 }, 0);
        for (oldest, next, now_ms, is_kept) in [
            (9, 9, MIN_GAP_AGE_MS - 1, true),
            (10, 12, MIN_GAP_AGE_MS, true),
            (11, 15, LATER, true),
            (12, 15, LATER, false),
        ] {
            cursor.expire(Horizon { oldest, next }, now_ms);
            assert_eq!(cursor.includes(1), is_kept, "{oldest} {next} {now_ms}");
        }
    }

    #[test]
    fn many_gaps_are_joined() {
        let mut cursor = Cursor::default();
        let rows: Vec<i64> = (1..3_000).map(|n| n * 2).collect();
        cursor.pass(&rows, Horizon { oldest: 1, next: 2 }, 0);
        assert_eq!(cursor.scan(1).gaps.len(), MAX_GAPS);
        assert!((1..3_000).all(|n| cursor.includes(n * 2 - 1)));
    }

    proptest! {
        /// Rows that are committed in any order are each in exactly one scan, unless gaps were joined.
        #[test]
        fn every_row_is_scanned_once(order in Just((1_i64..200).collect::<Vec<_>>()).prop_shuffle(), step in 1_usize..40) {
            let (mut cursor, mut seen, mut visible) = (Cursor::default(), BTreeSet::new(), BTreeSet::new());
            for committed in order.chunks(step) {
                visible.extend(committed.iter().copied());
                let scan = cursor.scan(1_000);
                let found: Vec<i64> = visible.iter().copied().filter(|seq| cursor.includes(*seq)).collect();
                let in_scan = |seq: i64| seq > scan.after || scan.gaps.iter().any(|(a, b)| (*a..=*b).contains(&seq));
                prop_assert!(found.iter().all(|seq| in_scan(*seq)));
                prop_assert!(found.iter().all(|seq| seen.insert(*seq)), "a row was scanned twice");
                // Older transactions than those of the missing rows are still in progress.
                cursor.pass(&found, Horizon { oldest: 1, next: 100 }, LATER);
            }
            prop_assert_eq!(seen, (1_i64..200).collect::<BTreeSet<_>>());
        }
    }
}
