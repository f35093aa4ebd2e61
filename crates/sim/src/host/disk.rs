//! Faults of a host's disk, for one generation of its process.

use env::{Fault, FaultPlan, FsCall, OperationKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stdx::Rng;

/// Decides which file operations of a process fail. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct DiskFaults {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Number of the file operation at which the process ends.
    stop_at: AtomicU64,
    /// Number of the next file operation.
    next: AtomicU64,
    has_stopped: AtomicBool,
    /// Number of failing reads, and of reads with a flipped bit, among 1,000 reads each.
    bad_reads: AtomicU64,
    /// Whether the next write or sync fails.
    fails_write: AtomicBool,
    rng: Mutex<Rng>,
}

impl DiskFaults {
    /// Creates a disk without faults.
    pub(crate) fn new(rng: Rng) -> Self {
        let shared = Shared {
            stop_at: AtomicU64::new(u64::MAX),
            next: AtomicU64::new(0),
            has_stopped: AtomicBool::new(false),
            bad_reads: AtomicU64::new(0),
            fails_write: AtomicBool::new(false),
            rng: Mutex::new(rng),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Plan for the file system of the process.
    pub(crate) fn plan(&self) -> FaultPlan {
        let shared = Arc::clone(&self.shared);
        FaultPlan::on_operation(move |operation| shared.decide(operation))
    }

    /// Ends the process after `operations` more file operations.
    pub(crate) fn stop_after(&self, operations: u64) {
        let next = self.shared.next.load(Ordering::Relaxed);
        self.shared.stop_at.store(next + operations, Ordering::Relaxed);
    }

    /// Cancels the planned end of a process that has not reached it.
    pub(crate) fn cancel_stop(&self) {
        if !self.has_stopped() {
            self.shared.stop_at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Whether the process has reached its planned end.
    pub(crate) fn has_stopped(&self) -> bool {
        self.shared.has_stopped.load(Ordering::Relaxed)
    }

    /// Sets the number of failing reads, and of reads with a flipped bit, among 1,000 reads each.
    pub(crate) fn set_bad_reads(&self, of_thousand: u64) {
        self.shared.bad_reads.store(of_thousand, Ordering::Relaxed);
    }

    /// Sets whether the next write or sync fails.
    pub(crate) fn set_fails_write(&self, fails: bool) {
        self.shared.fails_write.store(fails, Ordering::Relaxed);
    }
}

impl Shared {
    fn decide(&self, operation: &FsCall<'_>) -> Option<Fault> {
        self.next.store(operation.number + 1, Ordering::Relaxed);
        if operation.number >= self.stop_at.load(Ordering::Relaxed) {
            return Some(self.stop(operation));
        }
        match operation.kind {
            OperationKind::Read => self.decide_read(),
            OperationKind::Write | OperationKind::SyncData
                if self.fails_write.swap(false, Ordering::Relaxed) =>
            {
                Some(Fault::DeviceError)
            }
            _ => None,
        }
    }

    fn stop(&self, operation: &FsCall<'_>) -> Fault {
        let is_first = !self.has_stopped.swap(true, Ordering::Relaxed);
        if is_first && operation.kind == OperationKind::Write && operation.len > 0 {
            return Fault::Tear { bytes: self.below(operation.len as u64 + 1) as usize };
        }
        Fault::Stop
    }

    fn decide_read(&self) -> Option<Fault> {
        let of_thousand = self.bad_reads.load(Ordering::Relaxed);
        if of_thousand == 0 {
            return None;
        }
        match self.below(1_000) {
            drawn if drawn < of_thousand => Some(Fault::DeviceError),
            drawn if drawn < of_thousand * 2 => Some(Fault::FlipBit { bit: self.below(1 << 20) }),
            _ => None,
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.lock().expect("no thread panics while it holds this lock").below(bound)
    }
}
