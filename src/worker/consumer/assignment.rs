//! Which partitions of a topic this worker has: its part of what the whole fleet may do.

/// The owned partitions out of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub owned: Vec<i32>,
    /// Partitions of the topic; 0 as long as it is not known.
    pub of: u32,
    /// Of the owned ones those that are not worked on.
    pub refused: Vec<i32>,
}

impl Assignment {
    /// The part of a fleet-wide limit: partition p of P has ⌊limit/P⌋, one more when p < limit mod P.
    pub fn of_limit(&self, limit: u32) -> u32 {
        if self.of == 0 {
            return 0;
        }
        let (each, more) = (limit / self.of, limit % self.of);
        self.owned.iter().map(|partition| each + u32::from(u32::try_from(*partition).is_ok_and(|number| number < more))).sum()
    }

    /// How many times this part is in the whole; 1 while nothing is owned.
    pub fn parts(&self) -> f64 {
        if self.owned.is_empty() { 1.0 } else { f64::from(self.of.max(1)) / self.owned.len() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the partitions are divided, the parts make up the limit.
        #[test]
        fn the_parts_of_all_owners_are_the_limit(of in 1u32..64, more in 0u32..1000, owners in 1usize..8, seed in any::<u64>()) {
            let limit = of + more;
            let mut random = fastrand::Rng::with_seed(seed);
            let mut portions = vec![Assignment { of, ..Assignment::default() }; owners];
            (0..of as i32).for_each(|partition| portions[random.usize(..owners)].owned.push(partition));
            prop_assert_eq!(portions.iter().map(|portion| portion.of_limit(limit)).sum::<u32>(), limit);
            let each = portions.iter().filter(|portion| !portion.owned.is_empty()).map(|portion| 1.0 / portion.parts());
            prop_assert!((each.sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }
}
