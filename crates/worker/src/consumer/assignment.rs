//! Partitions owned by this worker, and the worker's part of fleet-wide limits, which follows from them.

/// Partitions of one topic that the group has assigned to this worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub owned: Vec<i32>,
    /// Number of partitions of the topic; 0 until it is known.
    pub of: u32,
    /// Owned partitions that are not processed until an operator chooses their start offset.
    pub refused: Vec<i32>,
}

impl Assignment {
    /// Returns this worker's part of a fleet-wide limit: the sum over its partitions. Partition p of P counts for
    /// ⌊limit/P⌋, and for one more if p < limit mod P.
    pub(crate) fn of_limit(&self, limit: u32) -> u32 {
        if self.of == 0 {
            return 0;
        }
        let each = limit / self.of;
        let remainder = limit % self.of;
        let of_partition =
            |partition: &i32| each + u32::from(u32::try_from(*partition).is_ok_and(|number| number < remainder));
        self.owned.iter().map(of_partition).sum()
    }

    /// Returns the number of partitions divided by the number of owned ones; 1 if none is owned. A fleet-wide rate is
    /// kept if each worker multiplies the interval between starts by this factor.
    pub(crate) fn parts(&self) -> f64 {
        if self.owned.is_empty() { 1.0 } else { f64::from(self.of.max(1)) / self.owned.len() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tests that the parts of all workers add up to the limit, for any division of the partitions among them.
        #[test]
        fn parts_of_all_owners_add_up_to_the_limit(of in 1u32..64, more in 0u32..1000, owners in 1usize..8, seed in any::<u64>()) {
            let limit = of + more;
            let mut random = fastrand::Rng::with_seed(seed);
            let mut assignments = vec![Assignment { of, ..Assignment::default() }; owners];
            (0..of as i32).for_each(|partition| assignments[random.usize(..owners)].owned.push(partition));
            prop_assert_eq!(assignments.iter().map(|assignment| assignment.of_limit(limit)).sum::<u32>(), limit);
            let owning = assignments.iter().filter(|assignment| !assignment.owned.is_empty());
            prop_assert!((owning.map(|assignment| 1.0 / assignment.parts()).sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }
}
