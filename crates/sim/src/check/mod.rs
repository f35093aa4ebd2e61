//! The invariants, one in each file. Each is a pure function of histories, and has a test that
//! shows that it catches a violation.

pub mod acks;
pub mod adopted_epochs;
pub mod child_records;
pub mod clock_bound;
pub mod complete_ranges;
pub mod convergence;
pub mod deadlines;
pub mod decided_records;
pub mod disk_recovery;
pub mod durability;
pub mod durable_votes;
pub mod expiry;
pub mod facts;
pub mod floods;
pub mod handed_over;
pub mod kept_votes;
pub mod layout_conflicts;
pub mod layout_convergence;
pub mod monotonic_reads;
pub mod monotonic_writes;
pub mod no_resurrection;
pub mod nothing_stored;
pub mod observed_clocks;
pub mod one_record;
pub mod one_reply;
pub mod one_snapshot;
pub mod quorum_reads;
pub mod ranges;
pub mod remembered_records;
pub mod removed_nodes;
pub mod replica_sets;
pub mod slow_disk;
pub mod unique_versions;
pub mod validity;

#[cfg(test)]
pub(crate) mod testing;

use std::fmt;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvariantViolation {
    /// Name of the invariant: the name of its file.
    pub invariant: &'static str,
    /// The operations, versions and cells that violate the invariant.
    pub detail: String,
}

impl InvariantViolation {
    /// Creates a violation of the invariant of this name.
    pub fn new(invariant: &'static str, detail: impl Into<String>) -> Self {
        Self { invariant, detail: detail.into() }
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}
