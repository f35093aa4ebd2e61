//! The state of scrubbing, and the rate of a round.

use crate::sstable::{Inspection, TableId};
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stdx::Instant;

/// Upper bound of the scrub rate, in bytes per second.
const RATE_MAX: f64 = 4.0 * (1 << 20) as f64;
/// Lower bound of the scrub rate, in bytes per second: a small engine is checked completely even if
/// it restarts often.
const RATE_MIN: f64 = 64.0 * 1024.0;
/// Fraction of the period after which a round is planned to end. The rest compensates for pauses.
const PLANNED_FRACTION: f64 = 0.8;

/// State and results of scrubbing.
#[derive(Default)]
pub(crate) struct Scrub {
    pub(super) state: Mutex<ScrubState>,
    pub(super) bytes: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) tables_damaged: AtomicU64,
    pub(super) rounds: AtomicU64,
    /// In microseconds since the Unix epoch; 0 while no round is complete.
    pub(super) last_round: AtomicU64,
}

/// The running round.
#[derive(Default)]
pub(super) struct ScrubState {
    pub(super) round: Option<ScrubRound>,
    /// Earliest time of the next read.
    pub(super) next: Instant,
}

/// One round over all tables.
pub(super) struct ScrubRound {
    pub(super) began: Instant,
    /// Tables that are still to be read, with their sizes in bytes; the next one is last.
    pub(super) remaining: Vec<(TableId, u64)>,
    pub(super) inspection: Option<Inspection>,
}

impl ScrubRound {
    fn left_bytes(&self) -> u64 {
        let of_this = self.inspection.as_ref().map_or(0, |inspection| {
            inspection.table().meta().file_bytes.saturating_sub(inspection.done_bytes())
        });
        self.remaining.iter().map(|(_, bytes)| bytes).sum::<u64>() + of_this
    }

    /// The rate that completes the round in time, in bytes per second.
    pub(super) fn rate(&self, period: Duration, now: Instant) -> f64 {
        let planned = period.mul_f64(PLANNED_FRACTION);
        let left = planned.saturating_sub(now.saturating_since(self.began)).as_secs_f64();
        // Without time left, the rate is `RATE_MAX`.
        (self.left_bytes() as f64 / left.max(1e-3)).clamp(RATE_MIN, RATE_MAX)
    }
}

impl std::fmt::Debug for Scrub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrub").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}
