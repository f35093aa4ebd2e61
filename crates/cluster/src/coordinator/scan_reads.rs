//! Reads of single keys that scans request and operations carry out, and their results.
//!
//! They are queued between the two sides: a scan is never called while an operation is, nor the
//! other way round.

use super::request_number::USES_MASK;
use crate::{Key, Quorum, Reply};
use std::collections::VecDeque;

/// Reads that scans have queued, and results that no scan has taken.
#[derive(Debug, Default)]
pub(super) struct ScanReads {
    pub(super) queued: VecDeque<QueuedRead>,
    pub(super) results: VecDeque<ScanReadResult>,
    /// Number of requests and reads of scans so far.
    begun: u64,
}

/// A read that a scan has queued, to be carried out like a client's read.
#[derive(Debug)]
pub(super) struct QueuedRead {
    /// Slot of the scan.
    pub(super) slot: u16,
    /// Number by which the scan identifies the read.
    pub(super) serial: u64,
    pub(super) key: Key,
    pub(super) quorum: Quorum,
}

/// The result of a read for a scan.
#[derive(Debug)]
pub(super) struct ScanReadResult {
    /// Slot of the scan.
    pub(super) slot: u16,
    /// Number by which the scan identifies the read.
    pub(super) serial: u64,
    pub(super) reply: Reply,
}

impl ScanReads {
    /// A new number for a request or a read of a scan; no other one has it.
    pub(super) const fn next_serial(&mut self) -> u64 {
        self.begun += 1;
        self.begun & USES_MASK
    }
}
