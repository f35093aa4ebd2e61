//! How long a run takes, told before it begins.
//!
//! Loads take as long as they are told to. How many trials a search takes, and how long data is stored and a disk left to
//! settle, is what it usually is.

use super::fairness::{self, FLOODS};
use super::flood::{CLOSED, OPEN};
use super::recovery::{AFTER, BEFORE};
use super::refusal::ROUNDS;
use super::{Arena, Subject, Which};
use crate::measure::WARMUP;
use bench::search::SETTLE_PART;
use std::time::Duration;

/// Of a search that begins near the knee.
pub(super) const TRIALS: u32 = 14;
/// Keys that a node stores in a second.
const STORED_PER_SECOND: u64 = 50_000;
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(20);

impl Arena<'_> {
    /// About how long all that is wanted takes.
    pub(super) fn estimate(&self) -> Duration {
        let asked = WARMUP + self.duration;
        let stored = Duration::from_secs(self.keys / STORED_PER_SECOND);
        let search = |of: &Subject| asked * 2 + (WARMUP + of.trial + of.trial / SETTLE_PART) * TRIALS;
        let (writes, reads) = (search(&self.writes()), search(&self.reads()));
        let floods = asked * (CLOSED.len() + OPEN.len()) as u32;
        let recovery = WARMUP + BEFORE + asked + AFTER;
        let half = self.duration / 2;
        let refusal = WARMUP + half + (half + (WARMUP + half) * 2) * ROUNDS as u32;
        let fairness = stored + asked + (fairness::HEAD_START + asked) * FLOODS.len() as u32;
        let silence = if self.is_last { WARMUP + self.flood } else { Duration::ZERO };
        let parts = [
            (Which::Write, writes + floods + recovery),
            (Which::Read, stored + reads + floods + recovery),
            (Which::Disk, self.slow_disk_estimate()),
            (Which::Refusal, refusal),
            (Which::Fairness, fairness),
            (Which::Silence, silence),
        ];
        parts.into_iter().filter(|(which, _)| self.wants(*which)).map(|(_, time)| time).sum()
    }
}
