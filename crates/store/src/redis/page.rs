//! Pagination over a sorted set that stays exact under concurrent writes, however many entries share a score.
//!
//! Ranks shift under writes, so they are only an estimate: a window of neighbouring entries is fetched in one command
//! and accepted if it contains the position to continue from. Otherwise the next window is wider.

use ::redis::{Cmd, Value, cmd, pipe};

use super::reader::Reader;
use super::values::{read, read_entries};
use crate::{Entry, Index, StoreError};

/// Extra entries on either side of the page, per attempt.
const EXTRA_ENTRIES: [usize; 5] = [4, 32, 256, 1_024, 4_096];

pub(super) struct Pages<'a> {
    pub(super) reader: &'a Reader,
    pub(super) partition: u32,
    pub(super) key: String,
    pub(super) newest_first: bool,
}

pub(super) fn is_newest_first(index: &Index) -> bool {
    matches!(index, Index::Roots | Index::Members { .. } | Index::Failed { .. })
}

impl Pages<'_> {
    pub(super) async fn first(&self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        if !self.newest_first {
            return self.range(0, limit).await;
        }
        self.entries(cmd("ZRANGE").arg(&self.key).arg(0).arg(limit as i64 - 1).arg("REV").arg("WITHSCORES")).await
    }

    pub(super) async fn after(&self, after: &Entry, limit: usize) -> Result<Vec<Entry>, StoreError> {
        for slack in EXTRA_ENTRIES {
            let rank = self.rank(after).await?;
            let start = if self.newest_first { rank.saturating_sub(limit + slack) } else { rank.saturating_sub(slack) };
            let end = if self.newest_first { rank + slack } else { rank + 1 + limit + slack };
            let entries = self.range(start, end).await?;
            let window = Window { from_start: start == 0, to_end: entries.len() < end - start, entries };
            let page = if self.newest_first { window.before(after, limit) } else { window.behind(after, limit) };
            if let Some(page) = page {
                return Ok(page);
            }
        }
        Err(StoreError::Unavailable(format!("the index `{}` changes faster than it can be read: try again", self.key)))
    }

    /// Number of entries before this one, which need not exist, at the time of the call.
    async fn rank(&self, entry: &Entry) -> Result<usize, StoreError> {
        let (key, id, seen_ms) = (&self.key, entry.id.as_str(), entry.seen_ms);
        let mut commands = pipe();
        commands.cmd("ZSCORE").arg(key).arg(id);
        commands.cmd("ZRANK").arg(key).arg(id);
        commands.cmd("ZCOUNT").arg(key).arg("-inf").arg(format!("({seen_ms}"));
        commands.cmd("ZCOUNT").arg(key).arg(seen_ms).arg(seen_ms);
        let answers = Value::Array(self.reader.query(self.partition, &commands).await?);
        let (score, rank, older, ties): (Option<f64>, Option<usize>, usize, usize) = read(key, answers)?;
        match rank {
            Some(rank) if score == Some(seen_ms as f64) => Ok(rank),
            _ => self.search(entry, older, older + ties).await,
        }
    }

    /// Binary search over the ranks at which the entry would be.
    async fn search(&self, entry: &Entry, mut low: usize, mut high: usize) -> Result<usize, StoreError> {
        while low < high {
            let middle = low + (high - low) / 2;
            match self.range(middle, middle + 1).await?.first() {
                Some(entry_at) if entry_at < entry => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Reads the entries with ranks `start..end`, oldest first.
    async fn range(&self, start: usize, end: usize) -> Result<Vec<Entry>, StoreError> {
        self.entries(cmd("ZRANGE").arg(&self.key).arg(start).arg(end as i64 - 1).arg("WITHSCORES")).await
    }

    async fn entries(&self, command: &mut Cmd) -> Result<Vec<Entry>, StoreError> {
        let mut commands = pipe();
        commands.add_command(command.take());
        let answer = self.reader.query(self.partition, &commands).await?.pop().unwrap_or(Value::Nil);
        read_entries(&self.key, answer)
    }
}

/// Neighbouring entries as of one moment, oldest first.
struct Window {
    entries: Vec<Entry>,
    /// The window starts at the first entry.
    from_start: bool,
    /// The window ends at the last entry.
    to_end: bool,
}

impl Window {
    /// Returns the page after `after`, oldest first; `None` if the window may be too small.
    fn behind(mut self, after: &Entry, limit: usize) -> Option<Vec<Entry>> {
        let split = self.entries.partition_point(|entry| entry <= after);
        let begins = split > 0 || self.from_start;
        let suffices = self.entries.len() - split >= limit || self.to_end;
        (begins && suffices).then(|| self.entries.drain(split..).take(limit).collect())
    }

    /// Returns the page before `after`, newest first; `None` if the window may be too small.
    fn before(mut self, after: &Entry, limit: usize) -> Option<Vec<Entry>> {
        let split = self.entries.partition_point(|entry| entry < after);
        let begins = split < self.entries.len() || self.to_end;
        let suffices = split >= limit || self.from_start;
        (begins && suffices).then(|| self.entries.drain(..split).rev().take(limit).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::task::id::TaskId;

    fn entry(n: i64) -> Entry {
        Entry { seen_ms: n, id: TaskId::parse("a").unwrap() }
    }

    fn window(range: std::ops::Range<i64>, from_start: bool, to_end: bool) -> Window {
        Window { entries: range.map(entry).collect(), from_start, to_end }
    }

    fn times(page: Option<Vec<Entry>>) -> Option<Vec<i64>> {
        page.map(|page| page.iter().map(|entry| entry.seen_ms).collect())
    }

    #[test]
    fn window_is_accepted_only_if_it_contains_the_position() {
        assert_eq!(times(window(2..9, false, false).behind(&entry(3), 2)), Some(vec![4, 5]));
        assert_eq!(times(window(4..9, false, false).behind(&entry(3), 2)), None, "something may lie between");
        assert_eq!(times(window(4..9, true, false).behind(&entry(3), 2)), Some(vec![4, 5]));
        assert_eq!(times(window(2..5, false, false).behind(&entry(3), 2)), None, "too short");
        assert_eq!(times(window(2..5, false, true).behind(&entry(3), 2)), Some(vec![4]));
        assert_eq!(times(window(0..0, true, true).behind(&entry(3), 2)), Some(vec![]));

        assert_eq!(times(window(2..9, false, false).before(&entry(5), 2)), Some(vec![4, 3]));
        assert_eq!(times(window(2..5, false, false).before(&entry(5), 2)), None, "something may lie between");
        assert_eq!(times(window(2..5, false, true).before(&entry(5), 2)), Some(vec![4, 3]));
        assert_eq!(times(window(4..9, false, false).before(&entry(5), 2)), None, "too short");
        assert_eq!(times(window(4..9, true, false).before(&entry(5), 2)), Some(vec![4]));
    }
}
