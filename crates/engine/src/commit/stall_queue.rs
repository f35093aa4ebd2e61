//! Writes that wait for room in the memtables.
//!
//! **Promise.** Few who write one at a time are not refused because a flush is under way: they wait for it. So does
//! whoever comes while the flush is expected to be done soon. They are let in in the order in which they came. Who would
//! wait for longer is refused at once, and nobody waits for longer than [`STALL_MAX`].
//!
//! **Mechanism.** What waits has no sequence and no memtable yet. Whoever commits looks before each group whether there
//! is room, and refuses those that have waited for too long. A request goes behind them.
//!
//! **Caveats.** What waits is held in memory beside the commit queue, under one bound with it.

use super::Completion;
use crate::Batch;
use crate::disk::DiskDemand;
use crate::wal::record::Record;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// The longest that a write waits for room.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(750);
/// So many cells may wait whatever is expected: whoever writes alone is no flood.
pub(super) const FEW_CELLS: usize = 16;
/// Whoever commits looks for room so often while writes wait for it.
pub(super) const ADMISSION_RETRY: Duration = Duration::from_millis(2);

/// A batch that is not let in yet.
pub(super) struct WriteRequest {
    pub(super) record: Record,
    demand: DiskDemand,
    pub(super) bypasses_stalls: bool,
    /// Whom to tell; nobody waits for room without.
    pub(super) completion: Option<Completion>,
}

/// What a batch asks for.
#[derive(Clone, Copy)]
pub(super) struct Requirements {
    pub(super) bytes: u64,
    pub(super) demand: DiskDemand,
    /// It waits for neither room nor turn.
    pub(super) bypasses_stalls: bool,
}

impl WriteRequest {
    pub(super) fn new(batch: Batch, completion: Option<Completion>) -> Self {
        let (demand, bypasses_stalls) = (batch.demand(), batch.bypasses_stalls());
        Self { record: batch.into_record().seal(), demand, bypasses_stalls, completion }
    }

    pub(super) fn requirements(&self) -> Requirements {
        Requirements {
            bytes: self.record.bytes().len() as u64,
            demand: self.demand,
            bypasses_stalls: self.bypasses_stalls,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct StallQueue {
    waiting: VecDeque<(WriteRequest, Instant)>,
    cells: usize,
    bytes: usize,
}

impl StallQueue {
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
    pub(super) fn push(&mut self, request: WriteRequest, now: Instant) {
        self.cells += request.record.cells();
        self.bytes += request.record.bytes().len();
        self.waiting.push_back((request, now));
    }

    /// What the one that has waited longest asks for, and since when it waits.
    pub(super) fn first(&self) -> Option<(Requirements, Instant)> {
        self.waiting.front().map(|(request, since)| (request.requirements(), *since))
    }

    /// The one that has waited longest.
    pub(super) fn pop(&mut self) -> Option<WriteRequest> {
        let (request, _) = self.waiting.pop_front()?;
        self.cells -= request.record.cells();
        self.bytes -= request.record.bytes().len();
        Some(request)
    }
}
