//! Histograms of values, cheap enough for the path of every request.
//!
//! **Promise.** Recording costs a few nanoseconds, allocates nothing, never waits and never fails.
//! A recorded value is known with a relative error of at most one eighth: a bucket's upper bound is
//! at most 9/8 of its least value. Sums of histograms are exact, so each thread can have its own.
//!
//! **Mechanism.** Log-linear buckets, as in HdrHistogram. Each whole number up to 8 has its own
//! bucket. Each greater power of two is divided into eight buckets of equal width. A bucket holds
//! the values above the bound of the previous bucket, up to *and including* its own bound. So a
//! count of all values "at most `le`", as Prometheus requires, is exact for every bound in
//! [`HistogramSnapshot::bounds`]. Every power of two up to [`Histogram::TRACKED_MAX`] is a bound.
//! Values are whole numbers in a unit that the owner chooses: nanoseconds, bytes, items. Zero
//! counts in the bucket of one.
//!
//! There are two ways to record. [`Histogram::record`] is for histograms that threads share.
//! [`Histogram::record_alone`] is for histograms with a single writer: it avoids atomic
//! read-modify-write instructions. Any thread may read at any time.
//!
//! **Caveats.** A snapshot that is taken while other threads record may include a value in its sum
//! and not in its count, or the reverse. Values above [`Histogram::TRACKED_MAX`] are counted in one
//! bucket. The sum wraps at 2^64: for nanoseconds, that is 584 years. A histogram takes about 2.6
//! KB.

use std::sync::atomic::{AtomicU64, Ordering};

/// Binary logarithm of the number of buckets per power of two.
const PART_BITS: u32 = 3;
const PARTS: usize = 1 << PART_BITS;
/// Binary logarithm of [`Histogram::TRACKED_MAX`].
const TRACKED_BITS: u32 = 42;
/// The number of buckets: those of values up to `TRACKED_MAX`, and one for all greater values.
const BUCKETS: usize = (TRACKED_BITS - PART_BITS + 1) as usize * PARTS + 1;
const BUCKET_ABOVE: usize = BUCKETS - 1;

/// A histogram of recorded values.
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// The greatest value with a bucket of bounded width: 2^42, which is 73 minutes in nanoseconds,
    /// or 4 TiB in bytes.
    pub const TRACKED_MAX: u64 = 1 << TRACKED_BITS;

    /// Creates an empty histogram.
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    /// Records `value`. Threads may call it concurrently.
    #[inline]
    pub fn record(&self, value: u64) {
        self.counts[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records `value`; for histograms with a single writing thread. Concurrent writers would lose
    /// values, with no other harm.
    #[inline]
    pub fn record_alone(&self, value: u64) {
        add_alone(&self.counts[bucket_of(value)], 1);
        add_alone(&self.sum, value);
    }

    /// Returns the values recorded until now.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        self.add_to(&mut snapshot);
        snapshot
    }

    /// Adds the values recorded until now to `snapshot`. It sums many histograms without a snapshot
    /// of each.
    pub fn add_to(&self, snapshot: &mut HistogramSnapshot) {
        for (into, count) in snapshot.counts.iter_mut().zip(&self.counts) {
            *into += count.load(Ordering::Relaxed);
        }
        snapshot.sum = snapshot.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// The counts of one or more histograms at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: Box<[u64; BUCKETS]>,
    sum: u64,
}

impl HistogramSnapshot {
    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all recorded values, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (into, count) in self.counts.iter_mut().zip(other.counts.iter()) {
            *into += count;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The number of values that are at most `bound`. Exact if `bound` is one of
    /// [`HistogramSnapshot::bounds`]; otherwise the count up to the next lower bound.
    pub fn count_up_to(&self, bound: u64) -> u64 {
        let whole = BUCKET_ABOVE.min(bucket_of(bound.saturating_add(1)));
        self.counts[..whole].iter().sum()
    }

    /// A quantile: the least bound that at least this fraction of the values, from 0.0 to 1.0, does
    /// not exceed. It is the true quantile or up to one eighth more. [`u64::MAX`] if the quantile
    /// is above [`Histogram::TRACKED_MAX`], and 0 if no value was recorded.
    pub fn quantile(&self, part: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((count as f64 * part.clamp(0.0, 1.0)).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let holds_rank = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let bucket = self.counts.iter().position(holds_rank).expect("the rank is within the count");
        if bucket == BUCKET_ABOVE { u64::MAX } else { bound_of(bucket) }
    }

    /// The bounds of all buckets, ascending. The last is [`Histogram::TRACKED_MAX`].
    pub fn bounds() -> impl Iterator<Item = u64> {
        (0..BUCKET_ABOVE).map(bound_of)
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), sum: 0 }
    }
}

impl std::fmt::Debug for HistogramSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HistogramSnapshot")
            .field("count", &self.count())
            .field("sum", &self.sum)
            .field("median", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.quantile(1.0))
            .finish()
    }
}

/// The bucket of a value. Buckets include their upper bound. So it is the bucket of `value - 1`
/// among buckets that include their lower bound, which the leading bit and the next three bits
/// select.
#[inline]
fn bucket_of(value: u64) -> usize {
    let below = value.saturating_sub(1).min(Histogram::TRACKED_MAX);
    let shift = (u64::BITS - 1 - (below | 1).leading_zeros()).saturating_sub(PART_BITS);
    shift as usize * PARTS + (below >> shift) as usize
}

/// The greatest value of a bucket, except of the last one.
fn bound_of(bucket: usize) -> u64 {
    let next = bucket + 1;
    if next < 2 * PARTS {
        return next as u64;
    }
    let shift = next / PARTS - 1;
    ((PARTS + next % PARTS) as u64) << shift
}

#[inline]
fn add_alone(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> HistogramSnapshot {
        let histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        histogram.snapshot()
    }

    /// Values with uniformly distributed magnitudes, including values above `TRACKED_MAX`.
    fn value() -> impl Strategy<Value = u64> {
        (0..64u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
    }

    fn tracked() -> impl Strategy<Value = u64> {
        value().prop_map(|value| value % (Histogram::TRACKED_MAX + 1))
    }

    #[test]
    fn bounds_ascend_and_have_the_powers_of_two() {
        let bounds: Vec<u64> = HistogramSnapshot::bounds().collect();
        assert_eq!(bounds.len(), BUCKET_ABOVE);
        assert_eq!(bounds[..20], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24]);
        assert!(bounds.is_sorted_by(|below, above| below < above));
        assert!((0..=TRACKED_BITS).all(|bit| bounds.contains(&(1 << bit))));
        assert_eq!(bounds.last(), Some(&Histogram::TRACKED_MAX));
    }

    #[test]
    fn a_bound_is_in_its_bucket_and_the_next_value_is_not() {
        for bucket in 0..BUCKET_ABOVE {
            let bound = bound_of(bucket);
            assert_eq!((bucket_of(bound), bucket_of(bound + 1)), (bucket, bucket + 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKET_ABOVE));
    }

    #[test]
    fn nothing_recorded_is_zero_everywhere() {
        let empty = Histogram::new().snapshot();
        assert_eq!((empty.count(), empty.sum(), empty.quantile(0.5)), (0, 0, 0));
        assert_eq!(empty.count_up_to(u64::MAX), 0);
    }

    #[test]
    fn a_value_above_the_tracked_maximum_is_counted_above_every_bound() {
        let snapshot = of(&[5, Histogram::TRACKED_MAX + 1, u64::MAX / 2]);
        assert_eq!(snapshot.count(), 3);
        assert_eq!(snapshot.count_up_to(Histogram::TRACKED_MAX), 1);
        assert_eq!((snapshot.quantile(0.3), snapshot.quantile(1.0)), (5, u64::MAX));
    }

    #[test]
    fn many_threads_lose_nothing() {
        let histogram = Histogram::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (1..=10_000).for_each(|value| histogram.record(value)));
            }
        });
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.sum()), (40_000, 4 * 10_000 * 10_001 / 2));
    }

    proptest! {
        #[test]
        fn a_count_up_to_a_bound_is_exact(values in vec(value(), 0..50), bucket in 0..BUCKET_ABOVE) {
            let bound = bound_of(bucket);
            let expected = values.iter().filter(|&&value| value <= bound).count() as u64;
            prop_assert_eq!(of(&values).count_up_to(bound), expected);
        }

        #[test]
        fn a_count_up_to_any_value_is_that_of_the_bound_below(values in vec(value(), 0..50), at in tracked()) {
            let below = HistogramSnapshot::bounds().take_while(|&bound| bound <= at).last().unwrap_or(0);
            let expected = if below == 0 { 0 } else { of(&values).count_up_to(below) };
            prop_assert_eq!(of(&values).count_up_to(at), expected);
        }

        #[test]
        fn a_quantile_is_at_most_an_eighth_too_great(
            mut values in vec(tracked(), 1..200),
            part in 0.0..=1.0f64,
        ) {
            let found = of(&values).quantile(part);
            values.sort_unstable();
            let rank = ((values.len() as f64 * part).ceil() as usize).max(1);
            // Zero counts with one.
            let exact = values[rank - 1].max(1);
            prop_assert!(found >= exact, "{found} is below {exact}");
            prop_assert!(found - exact <= exact / 8, "{found} is too far above {exact}");
        }

        #[test]
        fn parts_add_up_to_the_whole(left in vec(value(), 0..50), right in vec(value(), 0..50)) {
            let mut merged = of(&left);
            merged.merge(&of(&right));
            let whole = of(&[left, right].concat());
            prop_assert_eq!(merged, whole);
        }

        #[test]
        fn both_ways_to_record_count_alike(values in vec(value(), 0..50)) {
            let alone = Histogram::new();
            values.iter().for_each(|&value| alone.record_alone(value));
            let mut snapshot = HistogramSnapshot::default();
            alone.add_to(&mut snapshot);
            prop_assert_eq!(snapshot.count(), values.len() as u64);
            prop_assert_eq!(snapshot.sum(), values.iter().fold(0, |sum: u64, &value| sum.wrapping_add(value)));
            prop_assert_eq!(snapshot, of(&values));
        }
    }
}
