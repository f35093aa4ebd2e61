//! Faults of one host's disk, for one generation of its process.

use env::{Fault, FaultPlan, Operation, OperationKind};
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
    /// The process ends at its file operation of this number.
    stop_at: AtomicU64,
    /// The number of the next file operation.
    next: AtomicU64,
    has_stopped: AtomicBool,
    /// Of 1,000 reads, so many fail and so many bring a wrong bit.
    bad_reads: AtomicU64,
    /// The next write or sync fails.
    fails_write: AtomicBool,
    rng: Mutex<Rng>,
}

impl DiskFaults {
    /// No faults.
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

    /// The plan for the file system of the process.
    pub(crate) fn plan(&self) -> FaultPlan {
        let shared = Arc::clone(&self.shared);
        FaultPlan::on_operation(move |operation| shared.decide(operation))
    }

    /// Ends the process after so many file operations more.
    pub(crate) fn stop_after(&self, operations: u64) {
        let next = self.shared.next.load(Ordering::Relaxed);
        self.shared.stop_at.store(next + operations, Ordering::Relaxed);
    }

    /// Lets a process that has not come to where it ends live on.
    pub(crate) fn cancel_stop(&self) {
        if !self.has_stopped() {
            self.shared.stop_at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Whether the process has come to where it ends.
    pub(crate) fn has_stopped(&self) -> bool {
        self.shared.has_stopped.load(Ordering::Relaxed)
    }

    /// Of 1,000 reads, so many fail and so many bring a wrong bit.
    pub(crate) fn set_bad_reads(&self, of_thousand: u64) {
        self.shared.bad_reads.store(of_thousand, Ordering::Relaxed);
    }

    /// The next write or sync fails, or none.
    pub(crate) fn set_fails_write(&self, fails: bool) {
        self.shared.fails_write.store(fails, Ordering::Relaxed);
    }
}

impl Shared {
    fn decide(&self, operation: &Operation<'_>) -> Option<Fault> {
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

    fn stop(&self, operation: &Operation<'_>) -> Fault {
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
        self.rng.lock().expect("nobody panics with it").below(bound)
    }
}
