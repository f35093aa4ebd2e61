//! Medians and ranges of repeated measurements.

/// Median and extremes of the rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct RoundStats {
    /// Middle value; for an even number of rounds the mean of the two middle values.
    pub median: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
}

/// Summarises rounds. `None` if there are none.
pub fn rounds(values: &[f64]) -> Option<RoundStats> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median =
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(RoundStats { median, min, max })
}

/// Median of rounds; NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    rounds(values).map_or(f64::NAN, |rounds| rounds.median)
}

/// Summarises `a / b`, round by round: influences that both share in a round cancel out. `None` if
/// either has no rounds.
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
