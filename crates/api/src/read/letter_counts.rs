//! Numbers of unresolved dead letters by the error of their task.

use std::collections::BTreeMap;

use kafleet_documents::Failures;
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::event::ErrorInfo;

/// Unresolved dead letters by type and error.
#[derive(Debug, Default)]
pub struct LetterCounts {
    /// Numbers by type, and by message and kind of the error.
    by_error: BTreeMap<String, BTreeMap<Fingerprint, u64>>,
    pub letters: u64,
    /// Letters that belong to no failed task.
    pub others: u64,
    /// There are older letters, which were not counted.
    pub is_cut: bool,
}

impl LetterCounts {
    /// Counts of no letter yet. `is_cut`: there are older letters than those that will be counted.
    pub(crate) fn of_newest(is_cut: bool) -> Self {
        Self { is_cut, ..Self::default() }
    }

    /// Number of letters of tasks of a type that failed with an error, or with an error of a kind.
    pub fn of(&self, task_type: &str, error: Fingerprint) -> u64 {
        self.by_error.get(task_type).and_then(|errors| errors.get(&error)).copied().unwrap_or_default()
    }

    /// Counts a letter. `error`: that of its task, while the task is failed.
    pub(crate) fn add(&mut self, task_type: &str, error: Option<&ErrorInfo>) {
        self.letters += 1;
        if error.is_none() {
            self.others += 1;
            return;
        }
        let message = Fingerprint::of(error);
        let errors = self.by_error.entry(task_type.to_owned()).or_default();
        for fingerprint in [message, message.kind()] {
            *errors.entry(fingerprint).or_default() += 1;
        }
    }

    /// Failures with the numbers of their letters.
    pub(crate) fn added_to(&self, mut failures: Failures) -> Failures {
        for group in &mut failures.groups {
            let error = group.error.parse::<Fingerprint>().ok();
            group.dead_letters = error.map(|error| self.of(&group.task_type, error));
        }
        Failures { dead_letters_at_least: self.is_cut, other_dead_letters: Some(self.others), ..failures }
    }

    /// Size in bytes, about.
    pub(crate) fn size(&self) -> usize {
        self.by_error.iter().map(|(name, errors)| 64 + name.len() + 32 * errors.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted_by_message_and_by_kind() {
        let mut counts = LetterCounts::default();
        for error in [
            Some(("Timeout", "no answer from 1")),
            Some(("Timeout", "no answer from 2")),
            Some(("Timeout", "slow")),
            None,
        ] {
            let error = error.map(|(kind, message)| ErrorInfo::new(kind, message, 1));
            counts.add("charge", error.as_ref());
        }
        let kind = Fingerprint::of_kind("Timeout");
        assert_eq!((counts.of("charge", kind), counts.of("charge", kind.with_message("no answer from 7"))), (3, 2));
        assert_eq!((counts.of("pack", kind), counts.letters, counts.others), (0, 4, 1));
    }
}
