//! What must hold, one invariant a file. Each is a pure function of histories, so that each has a test which
//! feeds it a violation.

pub mod acks;
pub mod clock_bound;
pub mod complete_ranges;
pub mod convergence;
pub mod deadlines;
pub mod disk_recovery;
pub mod durability;
pub mod expiry;
pub mod facts;
pub mod floods;
pub mod handed_over;
pub mod monotonic_reads;
pub mod monotonic_writes;
pub mod no_resurrection;
pub mod nothing_stored;
pub mod observed_clocks;
pub mod one_reply;
pub mod one_snapshot;
pub mod quorum_reads;
pub mod ranges;
pub mod replica_sets;
pub mod slow_disk;
pub mod unique_versions;
pub mod validity;

#[cfg(test)]
mod testing;

use std::fmt;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the invariant: that of its file.
    pub invariant: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Violation {
    /// A violation of this invariant.
    pub fn new(invariant: &'static str, detail: impl Into<String>) -> Self {
        Self { invariant, detail: detail.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}
