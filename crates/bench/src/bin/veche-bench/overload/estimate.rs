//! How long a run takes, told before it begins.
//!
//! Loads take as long as they are told to. How many trials a search takes, and how long data is stored and a disk left to
//! settle, is what it usually is.

use super::fairness::{self, FLOODS};
use super::flood::{CLOSED, OPEN};
use super::recovery::{AFTER, BEFORE};
use super::refusal::ROUNDS;
use super::{OverloadBench, Scenario, Section};
use crate::measure::WARMUP;
use bench::search::SETTLE_DIVISOR;
use std::time::Duration;

/// Of a search that begins near the knee.
pub(super) const TRIALS: u32 = 14;
/// Keys that a node stores in a second.
const STORED_PER_SECOND: u64 = 50_000;
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(20);

impl OverloadBench<'_> {
    /// About how long all that is wanted takes.
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
