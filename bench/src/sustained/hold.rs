//! One measurement: writes at a constant rate or in a closed loop, and whether the rate holds.

use super::minute::{Minute, NodeSample};
use super::{VALUE_BYTES, Writes};
use crate::BenchResult;
use crate::data::{RESERVE_BYTES, free_bytes};
use crate::measure::{BenchLoad, Sample, measure_with_hooks};
use crate::servers::{number_at, status};
use bench::timeline::{Gaps, Row};
use bench::{LiveSecond, Operation, Pacing, RunHooks};
use std::time::Duration;

const CONNECTIONS: usize = 64;
/// Minimum fraction of a constant rate that is answered.
const KEPT_MIN: f64 = 0.999;
/// Debt is bounded if its peak in the last quarter is at most this multiple of the peak in the
/// third quarter, plus [`DEBT_SLACK_BYTES`].
const DEBT_GROWTH_MAX: f64 = 1.25;
const DEBT_SLACK_BYTES: f64 = (256 << 20) as f64;
/// Path in the status of the bytes that the node's system calls wrote to files.
const WRITTEN: &str = "storage.io.written_bytes";

/// Result of a measurement.
pub(super) struct HoldResult {
    pacing: Pacing,
    pub(super) sample: Sample,
    pub(super) minutes: Vec<Minute>,
    pub(super) kept: Option<f64>,
    pub(super) not_ok: u64,
    pub(super) longest_silence_s: u64,
    pub(super) is_debt_bounded: bool,
    pub(super) accepted_bytes: f64,
    pub(super) written_bytes: [f64; 3],
    /// Bytes of all system calls of the node that write to files.
    pub(super) called_bytes: f64,
}

impl Writes<'_> {
    /// Writes for the duration of a measurement, and samples the node meanwhile.
    pub(super) fn hold(&self, pacing: Pacing) -> BenchResult<HoldResult> {
        let called = self.called_bytes()?;
        let mut is_full = false;
        let mut moments: Vec<NodeSample> = NodeSample::of(self.server, 0).into_iter().collect();
        println!("{}", Minute::head());
        let mut minute: Vec<Row> = Vec::new();
        let mut look = |second: &LiveSecond| {
            let Ok(at) = u64::try_from(second.second) else { return };
            moments.extend(NodeSample::of(self.server, at + 1));
            minute.push(second.row.clone());
            if (at + 1).is_multiple_of(self.minute_s) {
                let number = at / self.minute_s;
                println!("{}", Minute::new(&minute, &self.inside(&moments, number)).line(number + 1));
                minute.clear();
            }
            if free_bytes(self.work_dir.dir()).is_ok_and(|free| free < RESERVE_BYTES / 2) {
                is_full = true;
                self.interrupted.set();
            }
        };
        let hooks = RunHooks { stop: &self.interrupted, on_second: &mut look };
        let duration = Duration::from_secs(self.minute_s * self.minutes);
        let servers = std::slice::from_ref(self.server);
        let (sample, result) =
            measure_with_hooks(servers, self.layout, duration, &[self.load(pacing)], hooks)?;
        if is_full {
            return Err("the disk is nearly full: choose another --dir or fewer --write-keys".into());
        }
        if self.interrupted.is_set() {
            return Err("interrupted".into());
        }
        let timeline = result.recorder.timeline();
        let seconds = &timeline.rows()[..timeline.rows().len().min(duration.as_secs() as usize)];
        let minutes = self.minutes(seconds, &moments);
        if minutes.is_empty() {
            return Err("nothing was answered".into());
        }
        let (Some(first), Some(last)) = (moments.first(), moments.last()) else {
            return Err("the node answered no scrape".into());
        };
        Ok(HoldResult {
            pacing,
            sample,
            kept: match pacing {
                Pacing::Closed => None,
                Pacing::Rate(rate) => Some(result.arrived_per_second() / rate as f64),
            },
            not_ok: seconds.iter().map(Row::not_ok).sum(),
            longest_silence_s: Gaps::without_answers(seconds).longest,
            is_debt_bounded: is_bounded(&moments),
            accepted_bytes: last.accepted_bytes - first.accepted_bytes,
            written_bytes: difference(last.written_bytes, first.written_bytes),
            called_bytes: self.called_bytes()? - called,
            minutes,
        })
    }

    fn load(&self, pacing: Pacing) -> BenchLoad {
        BenchLoad {
            operation: Operation::Put,
            connections: CONNECTIONS,
            pacing,
            keys: self.keys,
            value_bytes: VALUE_BYTES,
            seed: if pacing == Pacing::Closed { 1 } else { 2 },
        }
    }

    fn called_bytes(&self) -> BenchResult<f64> {
        let written = number_at(&status(self.server)?, WRITTEN);
        written.ok_or_else(|| format!("status has no {WRITTEN}").into())
    }

    fn minutes(&self, seconds: &[Row], moments: &[NodeSample]) -> Vec<Minute> {
        let minute =
            |(number, seconds): (usize, &[Row])| Minute::new(seconds, &self.inside(moments, number as u64));
        seconds.chunks(self.minute_s as usize).enumerate().map(minute).collect()
    }

    /// Samples of a minute, from its beginning to its end.
    fn inside<'m>(&self, moments: &'m [NodeSample], number: u64) -> Vec<&'m NodeSample> {
        let (from, to) = (number * self.minute_s, (number + 1) * self.minute_s);
        moments.iter().filter(|moment| (from..=to).contains(&moment.second)).collect()
    }
}

impl HoldResult {
    /// Writes per second in the second half. In the first half, writes may have gone to empty
    /// memtables and levels.
    pub(super) fn reached_in_the_end(&self) -> f64 {
        let last = &self.minutes[self.minutes.len() / 2..];
        last.iter().map(|minute| minute.per_second).sum::<f64>() / last.len() as f64
    }

    /// Reason why the rate does not hold; `None` if it does.
    pub(super) fn broken(&self) -> Option<String> {
        if self.not_ok > 0 {
            return Some(format!("{} writes refused or failed", self.not_ok));
        }
        if let Some(kept) = self.kept.filter(|kept| *kept < KEPT_MIN) {
            return Some(format!("{:.2} % of {:?} kept", kept * 100.0, self.pacing));
        }
        (!self.is_debt_bounded).then(|| "the compaction debt grows".to_owned())
    }
}

fn difference(after: [f64; 3], before: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| after[i] - before[i])
}

/// Whether the debt has stopped growing. It rises and falls with every compaction, so peaks are
/// compared.
fn is_bounded(moments: &[NodeSample]) -> bool {
    let quarter = moments.len() / 4;
    let peak = |moments: &[NodeSample]| moments.iter().map(|moment| moment.debt_bytes).fold(0.0, f64::max);
    let (before, last) = moments[moments.len() / 2..].split_at(quarter);
    peak(last) <= peak(before) * DEBT_GROWTH_MAX + DEBT_SLACK_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::minute::tests::moments;
    use super::*;

    #[test]
    fn debt_that_comes_and_goes_is_bounded_and_debt_that_grows_is_not() {
        assert!(is_bounded(&moments((0..600).map(|second| f64::from(second % 40) / 10.0))));
        assert!(!is_bounded(&moments((0..600).map(|second| f64::from(second) / 50.0))));
        assert!(is_bounded(&moments([0.0])));
    }
}
