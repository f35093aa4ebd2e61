//! The figures of a change under load, with their bounds, and its picture.

use super::load::LoadedRun;
use super::phases::{Phase, PhaseLatency, Second, replanning_delay_ms};
use super::watch::{POLL, Watched};
use crate::picture::Panel;
use crate::table::{ResultTable, Threshold};
use bench::units::{bytes, micros, span};
use lab::stats::rounds;

/// Maximum p99 and p99.9 of the operations during a change, by those before it.
const P99_GROWTH_MAX: f64 = 1.5;
const P999_GROWTH_MAX: f64 = 2.0;
/// Maximum bytes that move, by the least possible number.
pub(super) const MOVED_MAX: f64 = 1.05;
/// Maximum time from PREPARE to its fence, and maximum delay of operations that are planned again,
/// in milliseconds.
const FENCE_MS_MAX: f64 = 100.0;
const REPLANNING_MS_MAX: f64 = 100.0;

/// Lines of the picture. The change is grey.
pub(super) const PANELS: [Panel<Second>; 6] = [
    Panel { title: "operations, thousands per second", color: "#080", of: |s| s.served as f64 / 1e3 },
    Panel { title: "p99 of the seconds, ms", color: "#a50", of: |s| s.p99_us / 1e3 },
    Panel { title: "failed operations per second", color: "#c33", of: |s| s.not_ok as f64 },
    Panel { title: "bytes moved, GB", color: "#06c", of: |s| s.progress.moved_bytes as f64 / 1e9 },
    Panel { title: "copies of partitions left", color: "#639", of: |s| s.progress.copies_left as f64 },
    Panel { title: "steps that run", color: "#666", of: |s| s.progress.steps as f64 },
];

/// Whether a second has a grey background.
pub(super) fn is_grey(second: &Second) -> bool {
    second.progress.phase == Phase::During
}

/// Adds the rows of a run.
pub(super) fn add_load_rows(run: &LoadedRun, table: &mut ResultTable) {
    let (took, note) = match &run.changed {
        Ok(took) => (rounds(&[took.as_secs_f64()]), span(*took)),
        Err(reason) => (None, format!("it did not end: {reason}")),
    };
    table.row("duration, s", Threshold::None, took, note);
    let failures = &run.failures;
    let count = rounds(&[failures.count as f64]);
    table.row("failed quorum operations", Threshold::AtMost(0.0), count, failures.summary());
    let of = |phase| PhaseLatency::of(&run.seconds, phase);
    let latencies = [Phase::Before, Phase::During, Phase::After].map(of);
    add_growth_row(
        "p99 during / before",
        P99_GROWTH_MAX,
        latencies.map(|its| its.map(|its| its.p99_us)),
        table,
    );
    let p999 = latencies.map(|its| its.map(|its| its.p999_us));
    add_growth_row("p99.9 during / before", P999_GROWTH_MAX, p999, table);
    let title = "greatest delay of operations planned again, at most, ms";
    let delay = replanning_delay_ms(&run.seconds).and_then(|delay| rounds(&[delay]));
    let note = match delay {
        Some(_) => "greatest latency of the seconds around a new record, without the p99.9 before",
        None => "no record was decided",
    };
    table.row(title, Threshold::AtMost(REPLANNING_MS_MAX), delay, note.to_owned());
}

/// Adds the growth of a percentile, which has these values in microseconds before, during and after
/// a change.
fn add_growth_row(title: &str, most: f64, percentile_us: [Option<f64>; 3], table: &mut ResultTable) {
    let [before, during, after] = percentile_us;
    let growth = during.zip(before).and_then(|(during, before)| rounds(&[during / before]));
    let [before, during, after] = [before, during, after].map(|us| us.map_or_else(|| "-".to_owned(), micros));
    let note = format!("{during} / {before}; after: {after}");
    table.row(title, Threshold::AtMost(most), growth, note);
}

/// Adds the time from PREPARE to its fence, of a change that moves data.
pub(super) fn add_fence_row(watched: &Watched, table: &mut ResultTable) {
    let times = &watched.fences_ms;
    let greatest = times.iter().copied().max_by(f64::total_cmp);
    let note = format!(
        "of {} in PREPARE, polled every {} ms, which are added; {} more were not seen to be fenced",
        times.len(),
        POLL.as_millis(),
        watched.fences_unseen
    );
    let greatest = greatest.and_then(|time| rounds(&[time]));
    table.row("PREPARE decided to fenced, greatest, ms", Threshold::AtMost(FENCE_MS_MAX), greatest, note);
}

/// Adds the bytes that moved by the least possible number. `None` as `least`: the change has not
/// ended.
pub(super) fn add_moved_row(moved: u64, least: Option<u64>, table: &mut ResultTable) {
    let value = least.and_then(|least| rounds(&[moved as f64 / least as f64]));
    let least = least.map_or_else(|| "-".to_owned(), |least| bytes(least as f64));
    let note = format!("{} / {least}", bytes(moved as f64));
    table.row("bytes moved / least possible", Threshold::AtMost(MOVED_MAX), value, note);
}
