//! The open batches of a thread. Together they leave capacity for single requests.

use crate::counters::Refusal;
use crate::memory_holders::MemoryHolders;
use crate::refusals::Refusals;
use api::Problem;
use limits::{MemoryCategory, Reservation};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of entries of a batch in flight.
const ENTRIES_IN_FLIGHT_MAX: usize = 4_096;
/// Maximum number of entries of all batches of a thread in flight: half of the coordinator's limit.
const THREAD_ENTRIES_MAX: usize = 8_192;
/// Number of entries that each batch may have in flight, for any number of batches.
pub(super) const ENTRIES_IN_FLIGHT_MIN: usize = 8;

/// Limits of the configuration that apply to batches.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimits {
    pub(crate) value_bytes_max: usize,
    /// Memory of the store, in bytes.
    pub(crate) store_bytes: u64,
    pub(crate) request_timeout: Duration,
}

/// The open batches of a thread.
pub(crate) struct OpenBatches {
    limits: BatchLimits,
    memory_holders: Arc<MemoryHolders>,
    refusals: Arc<Refusals>,
    count: Cell<usize>,
}

/// An open batch; dropping it closes the batch.
pub(super) struct OpenBatch(Rc<OpenBatches>);

impl OpenBatches {
    /// No batches, of a process with these limits and this memory.
    pub(crate) fn new(
        limits: BatchLimits,
        memory_holders: &Arc<MemoryHolders>,
        refusals: &Arc<Refusals>,
    ) -> Self {
        let (memory_holders, refusals) = (Arc::clone(memory_holders), Arc::clone(refusals));
        Self { limits, memory_holders, refusals, count: Cell::new(0) }
    }

    pub(super) fn enter(self: &Rc<Self>) -> OpenBatch {
        self.count.set(self.count.get() + 1);
        OpenBatch(Rc::clone(self))
    }
}

impl OpenBatch {
    pub(super) fn limits(&self) -> &BatchLimits {
        &self.0.limits
    }

    /// A reservation of 0 bytes for the batch.
    pub(super) fn empty_reservation(&self) -> Reservation {
        self.0.memory_holders.budget().empty_reservation(MemoryCategory::Batches)
    }

    /// Counts a refusal for lack of memory, and returns the response for it.
    pub(super) fn refuse(&self) -> Problem {
        self.0.refusals.refuse(Refusal::Batches)
    }

    /// Maximum number of entries in flight for this batch.
    pub(super) fn entries_max(&self) -> usize {
        (THREAD_ENTRIES_MAX / self.0.count.get()).clamp(ENTRIES_IN_FLIGHT_MIN, ENTRIES_IN_FLIGHT_MAX)
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
    }
}
