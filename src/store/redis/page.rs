//! Pages of a sorted set that are exact while it is being written, however many entries share a score.
//!
//! Ranks shift under writes, so they only say where to look: a window of neighbouring entries is fetched in one
//! command, and it counts if the place to go on from lies inside of it. If not, the next window is wider.

use ::redis::{Cmd, Value, cmd, pipe};

use super::reader::Reader;
use super::values::{read, read_entries};
use crate::store::{Entry, Index, StoreError};

/// How many entries a window holds on either side of the page, attempt by attempt.
const SLACK: [usize; 5] = [4, 32, 256, 1_024, 4_096];

pub(super) struct Pages<'a> {
    pub(super) reader: &'a Reader,
    pub(super) partition: u32,
    pub(super) key: String,
    pub(super) newest_first: bool,
}

pub(super) fn is_newest_first(index: &Index) -> bool {
    matches!(index, Index::Roots | Index::Members { .. })
}

impl Pages<'_> {
    pub(super) async fn first(&self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        if !self.newest_first {
            return self.range(0, limit).await;
        }
        self.entries(cmd("ZRANGE").arg(&self.key).arg(0).arg(limit as i64 - 1).arg("REV").arg("WITHSCORES")).await
    }

    pub(super) async fn after(&self, after: &Entry, limit: usize) -> Result<Vec<Entry>, StoreError> {
        for slack in SLACK {
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

    /// How many entries lie before this one (itself there or not), a moment ago.
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

    /// Halves the range of ranks in which the entry would lie.
    async fn search(&self, entry: &Entry, mut low: usize, mut high: usize) -> Result<usize, StoreError> {
        while low < high {
            let middle = low + (high - low) / 2;
            match self.range(middle, middle + 1).await?.first() {
                Some(found) if found < entry => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The entries with these ranks, `end` excluded, oldest first.
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

/// Neighbouring entries as they were at one moment, oldest first.
struct Window {
    entries: Vec<Entry>,
    /// Nothing lies before it.
    from_start: bool,
    /// Nothing lies behind it.
    to_end: bool,
}

impl Window {
    /// The page of entries that follow `after`, oldest first; None if the window may not hold it all.
    fn behind(mut self, after: &Entry, limit: usize) -> Option<Vec<Entry>> {
        let split = self.entries.partition_point(|entry| entry <= after);
        let begins = split > 0 || self.from_start;
        let suffices = self.entries.len() - split >= limit || self.to_end;
        (begins && suffices).then(|| self.entries.drain(split..).take(limit).collect())
    }

    /// The page of entries that precede `after`, newest first; None if the window may not hold it all.
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
    use crate::model::task::id::TaskId;

    fn entry(n: i64) -> Entry {
        Entry { seen_ms: n, id: TaskId::parse("a").unwrap() }
    }

    fn window(range: std::ops::Range<i64>, from_start: bool, to_end: bool) -> Window {
        Window { entries: range.map(entry).collect(), from_start, to_end }
    }

    fn told(page: Option<Vec<Entry>>) -> Option<Vec<i64>> {
        page.map(|page| page.iter().map(|entry| entry.seen_ms).collect())
    }

    #[test]
    fn a_window_counts_only_if_the_place_lies_inside() {
        assert_eq!(told(window(2..9, false, false).behind(&entry(3), 2)), Some(vec![4, 5]));
        assert_eq!(told(window(4..9, false, false).behind(&entry(3), 2)), None, "something may lie between");
        assert_eq!(told(window(4..9, true, false).behind(&entry(3), 2)), Some(vec![4, 5]));
        assert_eq!(told(window(2..5, false, false).behind(&entry(3), 2)), None, "too short");
        assert_eq!(told(window(2..5, false, true).behind(&entry(3), 2)), Some(vec![4]));
        assert_eq!(told(window(0..0, true, true).behind(&entry(3), 2)), Some(vec![]));

        assert_eq!(told(window(2..9, false, false).before(&entry(5), 2)), Some(vec![4, 3]));
        assert_eq!(told(window(2..5, false, false).before(&entry(5), 2)), None, "something may lie between");
        assert_eq!(told(window(2..5, false, true).before(&entry(5), 2)), Some(vec![4, 3]));
        assert_eq!(told(window(4..9, false, false).before(&entry(5), 2)), None, "too short");
        assert_eq!(told(window(4..9, true, false).before(&entry(5), 2)), Some(vec![4]));
    }
}
