//! The open batches of a thread. Together they leave capacity for single requests.

use std::cell::Cell;
use std::rc::Rc;

/// Maximum number of entries of a batch in flight.
const ENTRIES_IN_FLIGHT_MAX: usize = 4_096;
/// Maximum number of entries of all batches of a thread in flight: half of the coordinator's limit.
const THREAD_ENTRIES_MAX: usize = 8_192;
/// Number of entries that each batch may have in flight, for any number of batches.
pub(super) const ENTRIES_IN_FLIGHT_MIN: usize = 8;

/// The number of open batches of a thread.
#[derive(Debug, Default)]
pub(crate) struct OpenBatches(Cell<usize>);

/// An open batch; dropping it closes the batch.
pub(super) struct OpenBatch(Rc<OpenBatches>);

impl OpenBatches {
    pub(super) fn enter(self: &Rc<Self>) -> OpenBatch {
        self.0.set(self.0.get() + 1);
        OpenBatch(Rc::clone(self))
    }
}

impl OpenBatch {
    /// Maximum number of entries in flight for this batch.
    pub(super) fn entries_max(&self) -> usize {
        (THREAD_ENTRIES_MAX / self.0.0.get()).clamp(ENTRIES_IN_FLIGHT_MIN, ENTRIES_IN_FLIGHT_MAX)
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}
