//! The Prometheus text format, version 0.0.4.
//!
//! **Promise.** The output is well formed. A family of samples is contiguous, with its `HELP` and
//! its `TYPE` once before the first sample. Label values are escaped. The buckets of a histogram
//! are cumulative and end with `+Inf`, which equals the count.

use std::collections::BTreeSet;
use std::fmt::Write;
use stdx::WallTime;
use stdx::histogram::HistogramSnapshot;

/// A label and its value.
pub(super) type Label<'a> = (&'static str, &'a str);

/// The bucket bounds and the unit of a histogram.
pub(super) struct HistogramScale {
    /// Ascending; each is the bound of a recorded bucket, so that counts are exact.
    bounds: &'static [u64],
    /// Recorded values are divided by this number.
    divisor: f64,
}

/// Durations, recorded in nanoseconds and shown in seconds: two bounds for each power of two
/// between 32 us and half a second, one outside of that.
pub(super) const SECONDS: HistogramScale = HistogramScale { bounds: &TIME_BOUNDS, divisor: 1e9 };
/// Counts: powers of two.
pub(super) const COUNTS: HistogramScale = HistogramScale { bounds: &powers::<14>(0, 1), divisor: 1.0 };
/// Sizes in bytes: powers of four from 64 bytes to 64 MiB.
pub(super) const BYTES: HistogramScale = HistogramScale { bounds: &powers::<11>(6, 2), divisor: 1.0 };

const TIME_BOUNDS: [u64; 40] = {
    let mut bounds = [0; 40];
    let (mut at, mut bit) = (0, 10);
    while bit <= 34 {
        bounds[at] = 1 << bit;
        at += 1;
        if bit >= 15 && bit < 30 {
            bounds[at] = 3 << (bit - 1);
            at += 1;
        }
        bit += 1;
    }
    assert!(at == 40, "all bounds are set");
    bounds
};

/// `N` powers of two from `1 << first_bit`, `step` bits apart.
const fn powers<const N: usize>(first_bit: u32, step: u32) -> [u64; N] {
    let mut bounds = [0; N];
    let mut at = 0;
    while at < N {
        bounds[at] = 1 << (first_bit + step * at as u32);
        at += 1;
    }
    bounds
}

/// An exposition that is built family by family.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
    names: BTreeSet<&'static str>,
}

/// A family to which samples are added.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Exposition {
    /// Begins a counter: a number of events since the start of the process.
    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        debug_assert!(name.ends_with("_total"), "{name} is a counter");
        self.family(name, "counter", help)
    }

    /// Begins a gauge: a current value.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    /// Begins a histogram: the distribution of values since the start of the process.
    pub(super) fn histogram(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "histogram", help)
    }

    /// Returns the whole text.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        assert!(self.names.insert(name), "{name} is there twice");
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { text: &mut self.text, name }
    }

    fn push(&mut self, what: std::fmt::Arguments<'_>) {
        self.text.write_fmt(what).expect("a text takes all that is written");
    }
}

impl Family<'_> {
    /// Adds an integer sample.
    pub(super) fn count(&mut self, labels: &[Label<'_>], value: u64) -> &mut Self {
        self.sample("", labels, None, value)
    }

    /// Adds a floating-point sample.
    pub(super) fn value(&mut self, labels: &[Label<'_>], value: f64) -> &mut Self {
        self.sample("", labels, None, Float(value))
    }

    /// Adds a time in seconds since the Unix epoch; 0 if there is none.
    pub(super) fn time(&mut self, at: Option<WallTime>) -> &mut Self {
        self.value(&[], at.map_or(0.0, |at| at.micros_since_unix_epoch() as f64 / 1e6))
    }

    /// Adds all samples of a histogram.
    pub(super) fn distribution(
        &mut self,
        labels: &[Label<'_>],
        snapshot: &HistogramSnapshot,
        scale: &HistogramScale,
    ) -> &mut Self {
        for &bound in scale.bounds {
            let le = Float(bound as f64 / scale.divisor).to_string();
            self.sample("_bucket", labels, Some(&le), snapshot.count_up_to(bound));
        }
        let count = snapshot.count();
        self.sample("_bucket", labels, Some("+Inf"), count);
        self.sample("_sum", labels, None, Float(snapshot.sum() as f64 / scale.divisor));
        self.sample("_count", labels, None, count)
    }

    fn sample(
        &mut self,
        suffix: &str,
        labels: &[Label<'_>],
        le: Option<&str>,
        value: impl std::fmt::Display,
    ) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let labels = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut separator = '{';
        for (label, value) in labels {
            self.text.push(separator);
            self.text.push_str(label);
            self.text.push_str("=\"");
            push_escaped(self.text, value);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        writeln!(self.text, " {value}").expect("a text takes all that is written");
        self
    }
}

fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

/// A floating-point number in the notation of the format.
struct Float(f64);

impl std::fmt::Display for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            value if value.is_finite() => value.fmt(f),
            value if value.is_nan() => f.write_str("NaN"),
            value if value > 0.0 => f.write_str("+Inf"),
            _ => f.write_str("-Inf"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::histogram::Histogram;

    #[test]
    fn every_bound_is_the_bound_of_a_recorded_bucket() {
        let recorded: BTreeSet<u64> = HistogramSnapshot::bounds().collect();
        for scale in [SECONDS, COUNTS, BYTES] {
            assert!(scale.bounds.is_sorted_by(|below, above| below < above));
            assert!(scale.bounds.iter().all(|bound| recorded.contains(bound)), "{:?}", scale.bounds);
        }
        assert_eq!((SECONDS.bounds[0], SECONDS.bounds[39]), (1 << 10, 1 << 34));
        assert_eq!((COUNTS.bounds[13], BYTES.bounds[10]), (1 << 13, 64 << 20));
    }

    #[test]
    fn samples_have_the_text_format() {
        let mut out = Exposition::default();
        out.counter("a_total", "One\nline \\ of help.").count(&[], 3).count(&[("x", "\"\\\n")], u64::MAX);
        out.gauge("b", "Another.").value(&[("y", "1"), ("z", "2")], 0.25).value(&[], f64::INFINITY);
        let expected = "# HELP a_total One\\nline \\\\ of help.\n# TYPE a_total counter\n\
                        a_total 3\na_total{x=\"\\\"\\\\\\n\"} 18446744073709551615\n\
                        # HELP b Another.\n# TYPE b gauge\nb{y=\"1\",z=\"2\"} 0.25\nb +Inf\n";
        assert_eq!(out.into_text(), expected);
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_the_count() {
        let histogram = Histogram::new();
        [1, 2, 2, 9_000, 1 << 40].into_iter().for_each(|value| histogram.record(value));
        let mut out = Exposition::default();
        out.histogram("h", "A histogram.").distribution(&[("k", "v")], &histogram.snapshot(), &COUNTS);
        let text = out.into_text();
        let of = |le: &str| {
            let start = format!("h_bucket{{k=\"v\",le=\"{le}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned).expect("a bucket")
        };
        assert_eq!([of("1"), of("2"), of("8192"), of("+Inf")], ["1", "3", "3", "5"]);
        assert!(text.ends_with("h_sum{k=\"v\"} 1099511636781\nh_count{k=\"v\"} 5\n"), "{text}");
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_family_cannot_be_begun_twice() {
        let mut out = Exposition::default();
        out.gauge("a", "One.");
        out.gauge("a", "Two.");
    }
}
