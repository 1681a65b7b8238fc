//! Commonest errors and slowest attempts of a type in one hour of log time.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::encode_error::EncodeError;
use crate::error_fingerprint::Fingerprint;
use crate::task::id::TaskId;

/// Maximum number of errors in an aggregate.
pub const MAX_ERRORS: usize = 16;
/// Maximum number of attempts in an aggregate.
pub const MAX_SLOWEST: usize = 5;
/// Time for which aggregates are kept, in hours.
pub const KEPT_HOURS: i64 = 24;

/// Errors and slowest attempts of one hour.
///
/// The commonest errors are found with the Space-Saving algorithm: counts are exact while there are at most
/// [`MAX_ERRORS`] different ones; after that an error may have been counted less often than it occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSummary {
    pub errors: Vec<ErrorCount>,
    /// Commonest kinds of errors; fingerprints are those of kinds.
    pub kinds: Vec<ErrorCount>,
    /// An error or a kind was replaced by another one: counts are lower bounds.
    pub incomplete: bool,
    /// Slowest attempts, slowest first.
    pub slowest: Vec<SlowAttempt>,
}

/// Occurrences of similar errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    pub fingerprint: Fingerprint,
    /// Rank among the errors: `attempts`, plus the weight of the error that it has replaced in the list.
    weight: u64,
    /// Occurrences counted: failed attempts, and errors that ended a task outside of an attempt.
    pub attempts: u64,
    /// Tasks that the error ended.
    pub tasks: u64,
    /// Log time at which the error first ended a task.
    pub first_end_ms: Option<i64>,
    /// Text of the newest occurrence.
    pub text: Box<str>,
}

/// An attempt that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowAttempt {
    pub took_ms: u64,
    pub id: TaskId,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    /// End of the attempt by the worker's clock, epoch milliseconds.
    pub ended_at_ms: i64,
}

impl ErrorSummary {
    /// Counts an error. `ended_ms`: log time at which it ended its task.
    pub fn record(&mut self, fingerprint: Fingerprint, text: &str, ended_ms: Option<i64>) {
        let is_complete = count(&mut self.errors, fingerprint, text, ended_ms)
            & count(&mut self.kinds, fingerprint.kind(), text, ended_ms);
        self.incomplete |= !is_complete;
    }

    /// Returns true if an attempt of this duration belongs to the slowest.
    pub fn is_slow(&self, took_ms: u64) -> bool {
        self.slowest.len() < MAX_SLOWEST || self.slowest.last().is_some_and(|last| last.took_ms < took_ms)
    }

    /// Adds an attempt if it belongs to the slowest.
    pub fn record_attempt(&mut self, attempt: SlowAttempt) {
        let index = self.slowest.partition_point(|entry| entry.took_ms >= attempt.took_ms);
        self.slowest.insert(index, attempt);
        self.slowest.truncate(MAX_SLOWEST);
    }

    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads bytes of [`Self::encode`]. They carry no version: a change of the format raises the fold version. `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// Counts an error in a list. Returns false if it has replaced another one.
fn count(entries: &mut Vec<ErrorCount>, fingerprint: Fingerprint, text: &str, ended_ms: Option<i64>) -> bool {
    let tasks = u64::from(ended_ms.is_some());
    if let Some(entry) = entries.iter_mut().find(|entry| entry.fingerprint == fingerprint) {
        entry.weight += 1;
        entry.attempts += 1;
        entry.tasks += tasks;
        entry.first_end_ms = entry.first_end_ms.or(ended_ms);
        entry.text = text.into();
        return true;
    }
    let new = ErrorCount { fingerprint, weight: 1, attempts: 1, tasks, first_end_ms: ended_ms, text: text.into() };
    if entries.len() < MAX_ERRORS {
        entries.push(new);
        return true;
    }
    if let Some(rarest) = entries.iter_mut().min_by_key(|entry| entry.weight) {
        *rarest = ErrorCount { weight: rarest.weight + 1, ..new };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(aggregate: &mut ErrorSummary, number: u64, times: u64) {
        let ended_ms = |n: u64| n.is_multiple_of(2).then_some(n as i64);
        (0..times).for_each(|n| aggregate.record(Fingerprint(number), &format!("error {number}"), ended_ms(n)));
    }

    #[test]
    fn kind_is_counted_over_all_its_messages() {
        let mut aggregate = ErrorSummary::default();
        let kind = Fingerprint::of_kind("declined");
        for number in 0..1_000 {
            let error = kind.with_message(&format!("card of {}", "x".repeat(number % 90)));
            aggregate.record(error, "declined: card of Ada", (number % 2 == 1).then_some(number as i64));
        }
        assert!(aggregate.incomplete, "there are more messages than are kept");
        let [declined] = aggregate.kinds.as_slice() else { panic!("{:?}", aggregate.kinds) };
        assert_eq!((declined.fingerprint, declined.attempts, declined.tasks), (kind, 1_000, 500));
        assert_eq!(declined.first_end_ms, Some(1), "the first attempt ended no task");
    }

    #[test]
    fn counts_are_exact_up_to_sixteen_errors() {
        let mut aggregate = ErrorSummary::default();
        (0..16).for_each(|number| record(&mut aggregate, number, number + 1));
        assert!(!aggregate.incomplete && aggregate.errors.len() == 16);
        assert_eq!((aggregate.errors[7].attempts, aggregate.errors[7].tasks), (8, 4));
        assert_eq!(ErrorSummary::decode(&aggregate.encode().unwrap()), Some(aggregate));
    }

    #[test]
    fn common_error_stays_among_many_rare_ones() {
        let mut aggregate = ErrorSummary::default();
        for number in 0..1_000 {
            record(&mut aggregate, 1_000 + number, 1);
            record(&mut aggregate, 7, 1);
        }
        assert!(aggregate.incomplete && aggregate.errors.len() == MAX_ERRORS);
        let common = aggregate.errors.iter().find(|entry| entry.fingerprint == Fingerprint(7)).unwrap();
        assert_eq!(common.attempts, 1_000);
        assert!(aggregate.errors.iter().all(|entry| entry.attempts <= 1_000), "no count exceeds the occurrences");
    }

    #[test]
    fn slowest_attempts_are_kept_in_order() {
        let mut aggregate = ErrorSummary::default();
        for took_ms in [5, 90, 3, 40, 70, 60, 90, 1] {
            let id = TaskId::parse(&format!("a-{took_ms}")).unwrap();
            let attempt = SlowAttempt { took_ms, id, run: 1, attempt: 1, worker: None, ended_at_ms: 0 };
            if aggregate.is_slow(took_ms) {
                aggregate.record_attempt(attempt);
            }
        }
        let took: Vec<u64> = aggregate.slowest.iter().map(|attempt| attempt.took_ms).collect();
        assert_eq!(took, [90, 90, 70, 60, 40]);
    }
}
