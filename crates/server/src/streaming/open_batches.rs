//! The open batches of a thread. Together they leave capacity for single requests.

use crate::config::Config;
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
/// Maximum size of the entries of a batch in flight, in bytes. A single entry may exceed it.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;
/// The entries of a batch in flight are at most the store's memory divided by this number: half of
/// the bytes that may wait for its log.
const STORE_DIVISOR: u64 = 16;
/// Maximum number of entries of all batches of a thread in flight: half of the coordinator's limit.
const THREAD_ENTRIES_MAX: usize = 8_192;
/// Number of entries that each batch may have in flight, for any number of batches.
pub(super) const ENTRIES_IN_FLIGHT_MIN: usize = 8;

/// The open batches of a thread.
pub(crate) struct OpenBatches {
    pub(super) value_bytes_max: usize,
    /// Maximum size of the entries of a batch in flight, in bytes. A single entry may exceed it.
    pub(super) in_flight_bytes_max: usize,
    pub(super) request_timeout: Duration,
    memory_holders: Arc<MemoryHolders>,
    refusals: Arc<Refusals>,
    count: Cell<usize>,
}

/// An open batch; dropping it closes the batch.
pub(super) struct OpenBatch(Rc<OpenBatches>);

impl OpenBatches {
    /// No batches, of a process with this configuration and this memory.
    pub(crate) fn new(
        config: &Config,
        memory_holders: &Arc<MemoryHolders>,
        refusals: &Arc<Refusals>,
    ) -> Self {
        Self {
            value_bytes_max: config.value_bytes_max,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX
                .min((config.engine.memory_bytes / STORE_DIVISOR) as usize),
            request_timeout: config.request_timeout,
            memory_holders: Arc::clone(memory_holders),
            refusals: Arc::clone(refusals),
            count: Cell::new(0),
        }
    }

    pub(super) fn enter(self: &Rc<Self>) -> OpenBatch {
        self.count.set(self.count.get() + 1);
        OpenBatch(Rc::clone(self))
    }
}

impl OpenBatch {
    /// The batches of the thread, with their limits.
    pub(super) fn batches(&self) -> &OpenBatches {
        &self.0
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
