//! Medians of rounds, and how far the rounds lie apart.

/// The median and the extremes of some rounds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct RoundStats {
    /// The middle value; the mean of the two middle ones for an even number.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

/// Sums up rounds. `None` without any.
pub fn rounds(values: &[f64]) -> Option<RoundStats> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median =
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(RoundStats { median, min, max })
}

/// The median of some rounds; not a number without any.
pub fn median(values: &[f64]) -> f64 {
    rounds(values).map_or(f64::NAN, |rounds| rounds.median)
}

/// The median of `a / b`, round by round: what both had in common in a round cancels out. `None` when either
/// has no rounds.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<RoundStats> {
    let quotients: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    rounds(&quotients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_rounds() {
        assert_eq!(rounds(&[3.0, 1.0, 2.0]), Some(RoundStats { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(rounds(&[4.0, 1.0, 2.0, 3.0]).map(|rounds| rounds.median), Some(2.5));
        assert_eq!(rounds(&[]), None);
        assert!(median(&[3.0, 1.0, 2.0]) == 2.0 && median(&[]).is_nan());
    }

    #[test]
    fn a_ratio_pairs_the_rounds() {
        let paired = ratio(&[1.0, 10.0, 100.0], &[2.0, 20.0, 200.0]);
        assert_eq!(paired, Some(RoundStats { median: 0.5, min: 0.5, max: 0.5 }));
    }
}
