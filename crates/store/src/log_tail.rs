//! The newest log lines of a task, bounded in lines and bytes. Lines keep their numbers when older ones are dropped.

use std::collections::VecDeque;

/// Maximum number of retained lines per task.
pub const MAX_LOG_LINES: usize = 1_000;
/// Maximum bytes of retained lines per task.
pub const MAX_LOG_BYTES: usize = 1 << 20;

/// Retained lines or, with `T = ()`, only their sizes.
#[derive(Clone, Debug)]
pub(super) struct LogTail<T> {
    lines: VecDeque<(T, usize)>,
    bytes: usize,
    /// Number of lines ever pushed.
    total: u64,
}

impl<T> Default for LogTail<T> {
    fn default() -> Self {
        Self { lines: VecDeque::new(), bytes: 0, total: 0 }
    }
}

impl<T> LogTail<T> {
    /// Restores a tail read from the store. `total` is raised to the number of retained lines if it is lower.
    pub(super) fn from_stored(lines: impl IntoIterator<Item = (T, usize)>, total: u64) -> Self {
        let mut tail = Self::default();
        lines.into_iter().for_each(|(line, size)| tail.push(line, size));
        tail.total = total.max(tail.lines.len() as u64);
        tail
    }

    pub(super) fn push(&mut self, line: T, size: usize) {
        self.lines.push_back((line, size));
        self.bytes += size;
        self.total += 1;
        while self.lines.len() > MAX_LOG_LINES || self.bytes > MAX_LOG_BYTES {
            let Some((_, dropped_bytes)) = self.lines.pop_front() else { return };
            self.bytes -= dropped_bytes;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns at most `limit` lines starting at line number `from`, and the number of the first.
    pub(super) fn page(&self, from: u64, limit: usize) -> (u64, impl Iterator<Item = &T>) {
        let first = self.total - self.lines.len() as u64;
        let start = from.clamp(first, self.total);
        let lines = self.lines.iter().skip((start - first) as usize).take(limit);
        (start, lines.map(|(line, _)| line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_lines_are_dropped_and_numbers_remain() {
        let mut tail = LogTail::default();
        (0..MAX_LOG_LINES + 5).for_each(|n| tail.push(n, 1));
        assert_eq!((tail.len(), tail.bytes(), tail.total()), (MAX_LOG_LINES, MAX_LOG_LINES, 1_005));
        let (start, lines) = tail.page(0, 2);
        assert_eq!((start, lines.copied().collect::<Vec<_>>()), (5, vec![5, 6]));
        let (start, lines) = tail.page(2_000, 2);
        assert_eq!((start, lines.count()), (1_005, 0));
    }

    #[test]
    fn bytes_stay_bounded_when_one_line_is_too_large() {
        let mut tail = LogTail::default();
        (0..3).for_each(|n| tail.push(n, MAX_LOG_BYTES / 2));
        assert_eq!((tail.len(), tail.bytes()), (2, MAX_LOG_BYTES));
        tail.push(3, MAX_LOG_BYTES + 1);
        assert_eq!((tail.len(), tail.bytes(), tail.total()), (0, 0, 4));
    }
}
