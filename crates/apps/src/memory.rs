//! Memory limit of the processes of an app: a process above it is replaced, and one far above it is killed.
//!
//! The limit applies to resident memory, not to reserved memory: a program with many threads reserves much more than it
//! uses.

use std::time::Duration;

use kafleet_model::units::bytes::Bytes;

/// Interval of the measurement.
pub(super) const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Memory limit of one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimit {
    limit: Bytes,
    /// Memory of the process when it was ready.
    at_start: u64,
}

/// Verdict on a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MemoryVerdict {
    Within,
    /// The process is replaced when its attempts have ended.
    Replace(String),
    /// The process is killed.
    Kill(String),
}

impl MemoryLimit {
    pub(super) fn new(limit: Bytes, at_start: u64) -> Self {
        Self { limit, at_start }
    }

    /// Judges a process that uses this many bytes. A process that has grown by less than 20 % since it was ready is not
    /// replaced: its successor would need as much.
    pub(super) fn judge(&self, bytes: u64) -> MemoryVerdict {
        let (limit, hard_limit) = (self.limit.0, self.limit.0.saturating_add(self.limit.0 / 2));
        let has_grown = bytes > self.at_start.saturating_add(self.at_start / 5);
        let used = Bytes::whole_mib(bytes);
        if bytes > hard_limit {
            return MemoryVerdict::Kill(format!(
                "it used {used} of memory, more than 1.5 times `memory` ({})",
                self.limit
            ));
        }
        if bytes > limit && has_grown {
            return MemoryVerdict::Replace(format!("it uses {used} of memory, more than `memory` ({})", self.limit));
        }
        MemoryVerdict::Within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn process_is_replaced_above_the_limit_and_killed_far_above_it() {
        let limit = MemoryLimit::new(Bytes(100 * MIB), 50 * MIB);
        assert_eq!(limit.judge(100 * MIB), MemoryVerdict::Within);
        let MemoryVerdict::Replace(error) = limit.judge(101 * MIB) else { panic!("it is above the limit") };
        assert_eq!(error, "it uses 101MiB of memory, more than `memory` (100MiB)");
        assert!(matches!(limit.judge(150 * MIB), MemoryVerdict::Replace(_)));
        assert!(
            matches!(limit.judge(151 * MIB), MemoryVerdict::Kill(error) if error.contains("1.5 times `memory` (100MiB)"))
        );
    }

    #[test]
    fn process_that_starts_above_the_limit_is_not_replaced_until_it_grows() {
        let limit = MemoryLimit::new(Bytes(100 * MIB), 120 * MIB);
        assert_eq!(limit.judge(144 * MIB), MemoryVerdict::Within);
        assert!(matches!(limit.judge(145 * MIB), MemoryVerdict::Replace(_)));
    }
}
