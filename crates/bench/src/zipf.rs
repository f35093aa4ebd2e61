//! Zipf-distributed ranks: a few are drawn often, most rarely.
//!
//! The algorithm is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases"
//! (1994): each draw takes one uniform number and one power, after the normalising sum was computed
//! once. The sum is exact for the first million terms. The rest is approximated by the
//! Euler-Maclaurin formula, whose error is far below anything measurable.

use stdx::Rng;

/// Skew; the default of YCSB.
pub const THETA: f64 = 0.99;

const EXACT_TERMS: u64 = 1_000_000;

/// Zipf distribution over the ranks `0..count`; rank 0 is the most frequent.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// Creates a distribution over the ranks below `count`, with the skew [`THETA`].
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(count: u64) -> Self {
        assert!(count > 0, "the number of ranks is at least 1");
        let zeta = zeta(count);
        let second = 1.0 + 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - second / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - THETA), eta, second }
    }

    /// Draws a rank.
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        let unit = rng.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second {
            return 1.min(self.count - 1);
        }
        let rank = self.count as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

/// Sum of `i^-THETA` for `i` in `1..=count`.
fn zeta(count: u64) -> f64 {
    let term = |i: u64| (i as f64).powf(-THETA);
    let integral = |x: f64| x.powf(1.0 - THETA) / (1.0 - THETA);
    let exact = count.min(EXACT_TERMS);
    let head: f64 = (1..=exact).map(term).sum();
    if count == exact {
        return head;
    }
    head + integral(count as f64) - integral(exact as f64) + (term(count) - term(exact)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_beyond_the_exact_terms_agrees_with_adding_them_up() {
        let count = EXACT_TERMS + 500_000;
        let summed: f64 = (1..=count).map(|i| (i as f64).powf(-THETA)).sum();
        assert!((zeta(count) - summed).abs() < 1e-6);
    }

    #[test]
    fn the_first_ranks_have_the_share_that_the_law_gives_them() {
        let (count, draws) = (1_000u64, 200_000u32);
        let zipf = Zipf::new(count);
        let mut rng = Rng::new(5);
        let mut seen = vec![0u32; count as usize];
        for _ in 0..draws {
            seen[zipf.rank(&mut rng) as usize] += 1;
        }
        for (rank, seen) in seen.iter().enumerate().take(2) {
            let expected = f64::from(draws) * ((rank + 1) as f64).powf(-THETA) / zeta(count);
            let off = (f64::from(*seen) - expected).abs() / expected;
            assert!(off < 0.05, "rank {rank}: {seen} draws, {expected:.0} expected");
        }
        let tenth: u32 = seen[..100].iter().sum();
        let expected = zeta(100) / zeta(count);
        assert!((f64::from(tenth) / f64::from(draws) - expected).abs() < 0.03);
        assert!(seen[900..].iter().sum::<u32>() > 0, "the tail is never asked for");
    }

    #[test]
    fn every_rank_is_in_range_also_for_the_smallest_counts() {
        let mut rng = Rng::new(6);
        for count in 1..5 {
            let zipf = Zipf::new(count);
            assert!((0..1_000).all(|_| zipf.rank(&mut rng) < count));
        }
    }
}
