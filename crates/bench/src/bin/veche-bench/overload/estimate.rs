//! Estimate of a run's duration, printed before it starts.
//!
//! Loads have a fixed duration. The number of trials of a search, and the times to store data and
//! to settle, are typical values.

use super::fairness::{self, FLOODS};
use super::flood::{CLOSED, OPEN};
use super::recovery::{AFTER, BEFORE};
use super::refusal::ROUNDS;
use super::{OverloadBench, Scenario, Section};
use crate::measure::WARMUP;
use bench::search::SETTLE_DIVISOR;
use std::time::Duration;

/// Typical number of trials of a search that starts near the knee.
pub(super) const TRIALS: u32 = 14;
/// Keys that a node stores per second.
const STORED_PER_SECOND: u64 = 50_000;
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(20);

impl OverloadBench<'_> {
    /// Approximate duration of the selected sections.
    pub(super) fn estimate(&self) -> Duration {
        let outcome = WARMUP + self.duration;
        let stored = Duration::from_secs(self.keys / STORED_PER_SECOND);
        let search = |of: &Scenario| outcome * 2 + (WARMUP + of.trial + of.trial / SETTLE_DIVISOR) * TRIALS;
        let (writes, reads) = (search(&self.writes()), search(&self.reads()));
        let floods = outcome * (CLOSED.len() + OPEN.len()) as u32;
        let recovery = WARMUP + BEFORE + outcome + AFTER;
        let half = self.duration / 2;
        let refusal = WARMUP + half + (half + (WARMUP + half) * 2) * ROUNDS as u32;
        let fairness = stored + outcome + (fairness::FLOOD_LEAD + outcome) * FLOODS.len() as u32;
        let silence = if self.is_last { WARMUP + self.flood } else { Duration::ZERO };
        let parts = [
            (Section::Write, writes + floods + recovery),
            (Section::Read, stored + reads + floods + recovery),
            (Section::Disk, self.slow_disk_estimate()),
            (Section::Refusal, refusal),
            (Section::Fairness, fairness),
            (Section::Silence, silence),
        ];
        parts.into_iter().filter(|(section, _)| self.is_selected(*section)).map(|(_, time)| time).sum()
    }
}
