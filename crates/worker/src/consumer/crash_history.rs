//! Crashes of earlier owners of a partition, and the tasks that may have caused them.

use kafleet_model::offsets::{Claims, Mark, Metadata};

/// Number of unclean takeovers in a row after which the tasks of the window are suspects.
const SUSPECT_AFTER: u32 = 2;

/// Number of consecutive unclean takeovers of a partition, and the offsets that were in flight at the last one.
#[derive(Clone, Debug)]
pub(crate) struct CrashHistory {
    takeovers: u32,
    /// End of the offsets that were in flight; the history is cleared once all of them are complete.
    until: i64,
    /// Offsets that were in flight, if the earlier owner passed over records; `None`: all below `until`.
    claims: Option<Claims>,
}

impl CrashHistory {
    /// Reads the history at a takeover from the metadata of the last commit at `offset`. Unreadable metadata counts as
    /// a crash; a late release does not count as one, and clears nothing.
    pub(crate) fn at_takeover(has_commit: bool, offset: i64, metadata: Option<&Metadata>) -> Self {
        let takeovers = match metadata {
            _ if !has_commit => 0,
            None => 1,
            Some(metadata) => match metadata.mark {
                Mark::Clean => 0,
                Mark::Late => metadata.unclean_takeovers,
                Mark::Open => metadata.unclean_takeovers.saturating_add(1),
            },
        };
        let claims =
            metadata.and_then(|metadata| metadata.pass_over.as_ref()).map(|pass_over| pass_over.claims.clone());
        Self { takeovers, until: metadata.map_or(offset, |metadata| metadata.window_end), claims }
    }

    pub(crate) fn unclean_takeovers(&self) -> u32 {
        self.takeovers
    }

    /// Excludes offsets from `end` on: they were not in the log at the takeover.
    pub(crate) fn limit_to(&mut self, end: i64) {
        self.until = self.until.min(end);
    }

    /// Offset below which tasks that were in flight are suspects, if workers have crashed often enough.
    pub(crate) fn suspects_until(&self) -> Option<i64> {
        (self.takeovers >= SUSPECT_AFTER).then_some(self.until)
    }

    pub(crate) fn is_suspect(&self, offset: i64) -> bool {
        let was_in_flight = || self.claims.as_ref().is_none_or(|claims| claims.contains(offset));
        self.suspects_until().is_some_and(|until| offset < until && was_in_flight())
    }

    /// Clears the history once all offsets that were in flight are complete.
    pub(crate) fn clear_behind(&mut self, watermark: i64) {
        if watermark >= self.until {
            self.takeovers = 0;
        }
    }
}
