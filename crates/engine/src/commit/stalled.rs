//! Writes that wait for room in the memtables.
//!
//! **Promise.** Few who write one at a time are not refused because a flush is under way: they wait for it. So does
//! whoever comes while the flush is expected to be done soon. They are let in in the order in which they came. Who would
//! wait for longer is refused at once, and nobody waits for longer than [`STALL_MAX`].
//!
//! **Mechanism.** What waits has no sequence and no memtable yet. Whoever commits looks before each group whether there
//! is room, and refuses those that have waited for too long. A newcomer goes behind them.
//!
//! **Caveats.** What waits is held in memory beside the commit queue, under one bound with it.

use super::Completion;
use crate::Batch;
use crate::disk::Need;
use crate::wal::record::Record;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// The longest that a write waits for room.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(750);
/// So many cells may wait whatever is expected: whoever writes alone is no flood.
pub(super) const FEW_CELLS: usize = 16;
/// Whoever commits looks for room so often while writes wait for it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A batch that is not let in yet.
pub(super) struct Newcomer {
    pub(super) record: Record,
    need: Need,
    pub(super) precedes: bool,
    /// Whom to tell; nobody waits for room without.
    pub(super) completion: Option<Completion>,
}

/// What a batch asks for.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) bytes: u64,
    pub(super) need: Need,
    /// It waits for neither room nor turn.
    pub(super) precedes: bool,
}

impl Newcomer {
    pub(super) fn new(batch: Batch, completion: Option<Completion>) -> Self {
        let (need, precedes) = (batch.need(), batch.precedes());
        Self { record: batch.into_record().seal(), need, precedes, completion }
    }

    pub(super) fn claim(&self) -> Claim {
        Claim { bytes: self.record.bytes().len() as u64, need: self.need, precedes: self.precedes }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Stalled {
    waiting: VecDeque<(Newcomer, Instant)>,
    cells: usize,
    bytes: usize,
}

impl Stalled {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) const fn cells(&self) -> usize {
        self.cells
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in one more, behind all others.
    pub(super) fn push(&mut self, newcomer: Newcomer, now: Instant) {
        self.cells += newcomer.record.cells();
        self.bytes += newcomer.record.bytes().len();
        self.waiting.push_back((newcomer, now));
    }

    /// What the one that has waited longest asks for, and since when it waits.
    pub(super) fn first(&self) -> Option<(Claim, Instant)> {
        self.waiting.front().map(|(newcomer, since)| (newcomer.claim(), *since))
    }

    /// The one that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Newcomer> {
        let (newcomer, _) = self.waiting.pop_front()?;
        self.cells -= newcomer.record.cells();
        self.bytes -= newcomer.record.bytes().len();
        Some(newcomer)
    }
}
