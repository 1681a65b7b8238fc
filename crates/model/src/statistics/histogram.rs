//! Histogram of durations with buckets of at most 12.5 % width: quantiles are at most 6.3 % off.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of buckets: up to 30 days, which longer durations count as.
pub const BUCKETS: usize = 234;
/// Durations below this have a bucket each, ms.
const EXACT_MS: u64 = 16;

/// Counts of durations by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts up to the last bucket that is not empty.
    counts: Vec<u64>,
    max_ms: u64,
}

impl Histogram {
    pub fn record(&mut self, ms: u64) {
        self.add(bucket_of(ms), 1);
        self.max_ms = self.max_ms.max(ms);
    }

    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.filled() {
            self.add(bucket, count);
        }
        self.max_ms = self.max_ms.max(other.max_ms);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Longest duration, exact; 0 without any.
    pub const fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// Duration below which `percent` of all lie, in ms; `None` without any.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut passed = 0;
        let (bucket, _) = self.filled().find(|(_, count)| {
            passed += count;
            passed >= rank
        })?;
        Some(middle_of(bucket).min(self.max_ms))
    }

    /// Buckets from the first to the last one that is not empty: lower bound, upper bound (exclusive), both in ms, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let first = self.counts.iter().position(|count| *count > 0).unwrap_or(self.counts.len());
        self.counts.iter().copied().enumerate().skip(first).map(|(bucket, count)| {
            let (low, high) = bounds_of(bucket);
            (low, high, count)
        })
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += count;
    }

    fn filled(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }
}

fn bucket_of(ms: u64) -> usize {
    if ms < EXACT_MS {
        return ms as usize;
    }
    let shift = ms.ilog2() - 3;
    (8 * u64::from(shift) + (ms >> shift)).min(BUCKETS as u64 - 1) as usize
}

/// Lower bound of a bucket, and that of the next one.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < EXACT_MS {
        return (bucket, bucket + 1);
    }
    let shift = bucket / 8 - 1;
    let low = (bucket - 8 * shift) << shift;
    (low, low + (1 << shift))
}

fn middle_of(bucket: usize) -> u64 {
    let (low, high) = bounds_of(bucket);
    low + (high - low) / 2
}

/// Stored form: the buckets that are not empty, and the maximum.
#[derive(Serialize, Deserialize)]
struct StoredHistogram(Vec<(u8, u64)>, u64);

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        StoredHistogram(self.filled().map(|(bucket, count)| (bucket as u8, count)).collect(), self.max_ms).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let StoredHistogram(filled, max_ms) = StoredHistogram::deserialize(from)?;
        let mut histogram = Self { counts: Vec::new(), max_ms };
        filled.into_iter().for_each(|(bucket, count)| histogram.add(usize::from(bucket), count));
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_up_to_thirty_days() {
        let mut last = 0;
        for ms in (0..100_000).chain((100_000..2_592_000_000).step_by(9_973)) {
            let bucket = bucket_of(ms);
            assert!(bucket == last || bucket == last + 1, "{ms} ms is in bucket {bucket} after {last}");
            last = bucket;
            let off = middle_of(bucket).abs_diff(ms) as f64 / ms.max(1) as f64;
            assert!(off <= 0.063, "{ms} ms is shown as {} ms", middle_of(bucket));
        }
        assert_eq!((last, bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(50), histogram.count()), (None, 0));
        (1..=100).for_each(|ms| histogram.record(ms * 1_000));
        for (percent, ms) in [(50, 50_000_u64), (95, 95_000), (99, 99_000), (100, 100_000)] {
            let percentile = histogram.percentile(percent).unwrap();
            assert!(percentile.abs_diff(ms) * 1_000 <= ms * 63, "p{percent} is {percentile}");
        }
        assert_eq!((histogram.count(), histogram.max_ms()), (100, 100_000));
        let mut single = Histogram::default();
        single.record(17);
        assert_eq!(single.percentile(99), Some(17), "a percentile does not exceed the maximum");
    }

    #[test]
    fn buckets_have_their_bounds_without_gaps() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.buckets().count(), 0);
        [7, 7, 16, 40].into_iter().for_each(|ms| histogram.record(ms));
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!((buckets[0], buckets[9], buckets.last().copied()), ((7, 8, 2), (16, 18, 1), Some((40, 44, 1))));
        assert!(buckets.windows(2).all(|two| two[0].1 == two[1].0), "{buckets:?}");
    }

    #[test]
    fn merged_histograms_equal_one_of_all_values() {
        let (mut histogram, mut other, mut all) = (Histogram::default(), Histogram::default(), Histogram::default());
        for ms in (0..5_000).step_by(7) {
            let part = if ms % 2 == 0 { &mut histogram } else { &mut other };
            part.record(ms);
            all.record(ms);
        }
        histogram.merge(&other);
        assert_eq!(histogram, all);
        let bytes = postcard::to_allocvec(&all).unwrap();
        assert_eq!(postcard::from_bytes::<Histogram>(&bytes).unwrap(), all);
    }
}
