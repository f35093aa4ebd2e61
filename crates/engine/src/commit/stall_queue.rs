//! Write stalls: writes that wait for space in the memtables.
//!
//! **Promise.** While few cells are stalled ([`FEW_CELLS`]), a write is not refused because a flush
//! is running: it waits. So does any write while the flush is expected to be done soon. Stalled
//! writes are admitted in the order of their arrival. A write that would wait longer is refused at
//! once, and no write waits longer than [`STALL_MAX`].
//!
//! **Mechanism.** A stalled write has no sequence and no memtable yet. Before each group the commit
//! thread checks whether there is space, and refuses writes that have waited too long. New writes
//! queue behind the stalled ones.
//!
//! **Caveats.** Stalled writes are held in memory beside the commit queue, under a common limit.

use super::outcome::Completion;
use crate::Batch;
use crate::disk::DiskDemand;
use crate::wal::record::Record;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// Longest time that a write is stalled.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(750);
/// Number of cells that may stall in any case: a client that writes sequentially is no overload.
pub(super) const FEW_CELLS: usize = 16;
/// Interval at which the commit thread checks for space while writes are stalled.
pub(super) const ADMISSION_RETRY: Duration = Duration::from_millis(2);

/// A batch that is not admitted yet.
pub(super) struct WriteRequest {
    pub(super) record: Record,
    demand: DiskDemand,
    pub(super) bypasses_stalls: bool,
    /// Callback of the writer. Only writes with a callback are stalled.
    pub(super) completion: Option<Completion>,
}

/// Resources that a batch needs.
#[derive(Clone, Copy)]
pub(super) struct Requirements {
    pub(super) bytes: u64,
    pub(super) demand: DiskDemand,
    /// The write is exempt from stalls and pacing.
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

/// Stalled writes, oldest first.
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

    /// Adds a write behind all others.
    pub(super) fn push(&mut self, request: WriteRequest, now: Instant) {
        self.cells += request.record.cells();
        self.bytes += request.record.bytes().len();
        self.waiting.push_back((request, now));
    }

    /// Requirements of the oldest stalled write, and the time since which it is stalled.
    pub(super) fn first(&self) -> Option<(Requirements, Instant)> {
        self.waiting.front().map(|(request, since)| (request.requirements(), *since))
    }

    /// Removes the oldest stalled write.
    pub(super) fn pop(&mut self) -> Option<WriteRequest> {
        let (request, _) = self.waiting.pop_front()?;
        self.cells -= request.record.cells();
        self.bytes -= request.record.bytes().len();
        Some(request)
    }
}
