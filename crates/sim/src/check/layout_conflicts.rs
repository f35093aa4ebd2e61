//! Invariant: no node reports a conflict of layout records in a run without a cause of one. Causes
//! are first records that nodes have built with different defaults, and nodes that were restored
//! together from directories of different epochs.

use super::InvariantViolation;
use cluster::{LayoutConflict, NodeIndex};

/// Checks a conflict that a host reports.
pub fn check(host: NodeIndex, conflict: &LayoutConflict, has_cause: bool) -> Result<(), InvariantViolation> {
    if has_cause {
        return Ok(());
    }
    let detail = format!("{host:?} reports {conflict:?}, and no fault can cause a conflict");
    Err(InvariantViolation::new("layout_conflicts", detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::LayoutConflictReason;

    #[test]
    fn a_conflict_without_a_cause_is_caught() {
        let reason = LayoutConflictReason::AnotherRecord;
        let conflict = LayoutConflict { node: NodeIndex(1), epoch: None, reason };
        assert!(check(NodeIndex(0), &conflict, true).is_ok());
        assert!(check(NodeIndex(0), &conflict, false).is_err());
    }
}
