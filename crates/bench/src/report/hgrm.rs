//! Percentile distribution in the text format of HdrHistogram (`.hgrm`), which its plotter reads.

use super::LatencyReport;
use std::fmt::Write;

/// Number of sub-buckets of a histogram with three digits, which the format states.
const SUB_BUCKETS: u32 = 2_048;

/// Formats the distribution, with values in milliseconds.
pub fn hgrm(latency: &LatencyReport) -> String {
    let mut out = String::new();
    write_to(&mut out, latency).expect("writing to a String cannot fail");
    out
}

pub(super) fn write_to(out: &mut String, latency: &LatencyReport) -> std::fmt::Result {
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let LatencyReport { mean_us, stdev_us, max_us, count, .. } = latency;
    for (percentile, us, total) in &latency.spectrum {
        let (value, quantile) = (us / 1_000.0, percentile / 100.0);
        if quantile < 1.0 {
            writeln!(out, "{value:>12.3} {quantile:>14.12} {total:>10} {:>14.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(out, "{value:>12.3} {quantile:>14.12} {total:>10}")?;
        }
    }
    let [mean, stdev, max] = [mean_us, stdev_us, max_us].map(|us| us / 1_000.0);
    // Buckets double in size, starting with sub-buckets of one nanosecond each.
    let buckets = (max_us * 1_000.0 / f64::from(SUB_BUCKETS)).max(1.0).log2().ceil() + 1.0;
    writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {stdev:>12.3}]")?;
    writeln!(out, "#[Max     = {max:>12.3}, Total count    = {count:>12}]")?;
    writeln!(out, "#[Buckets = {buckets:>12.0}, SubBuckets     = {SUB_BUCKETS:>12}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;

    #[test]
    fn the_file_is_as_the_plotter_reads_it() {
        let mut histogram = Histogram::<u64>::new_with_max(600_000_000_000, 3).unwrap();
        (1..=1_000).for_each(|i| histogram.record(i * 1_000_000).unwrap());
        let text = hgrm(&LatencyReport::new(&histogram));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        let rows: Vec<Vec<f64>> = lines[2..]
            .iter()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|field| field.parse().unwrap()).collect())
            .collect();
        let is_rising = |pair: &[Vec<f64>]| (0..3).all(|column| pair[0][column] <= pair[1][column]);
        assert!(rows.windows(2).all(is_rising));
        let half = rows.iter().find(|row| row[1] >= 0.5).unwrap();
        assert!((half[0] - 500.0).abs() < 1.0 && half[2] == 500.0 && half[3] == 2.0, "{half:?}");
        let last = rows.last().unwrap();
        assert!((last[0] - 1_000.0).abs() < 1.0 && last[1..] == [1.0, 1_000.0], "{last:?}");
        assert!(lines[lines.len() - 3].starts_with("#[Mean    =      500."), "{text}");
        assert!(lines[lines.len() - 2].ends_with("Total count    =         1000]"), "{text}");
    }
}
