//! Invariant: a write has a greater version than every write that the same node acknowledged before
//! it began, as long as the node keeps its data directory.
//!
//! This is the session guarantee *monotonic writes* (Terry et al., 1994), for each node.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome};
use cluster::{NodeIndex, RequestId};
use std::collections::BTreeMap;
use stdx::Version;

/// Versions that the writes in flight must exceed.
#[derive(Debug, Default)]
pub struct MonotonicWrites {
    /// Greatest version that each node has acknowledged to a client.
    acknowledged: BTreeMap<NodeIndex, Version>,
    /// Value of `acknowledged` for the command's node when the command began, by command.
    floors: BTreeMap<RequestId, Version>,
}

impl MonotonicWrites {
    /// Records the beginning of a command.
    pub fn begin(&mut self, operation: &ClientOperation) {
        if let Some(floor) = self.acknowledged.get(&operation.node) {
            self.floors.insert(operation.id, *floor);
        }
    }

    /// Records the outcome of a command, and checks its version if it is an acknowledged write.
    pub fn end(&mut self, operation: &ClientOperation) -> Result<(), InvariantViolation> {
        let floor = self.floors.remove(&operation.id);
        let Some((_, ClientOutcome::Written { version })) = operation.outcome else { return Ok(()) };
        let greatest = self.acknowledged.entry(operation.node).or_insert(version);
        *greatest = (*greatest).max(version);
        match floor {
            Some(floor) if version <= floor => {
                let detail =
                    format!("{floor} was acknowledged by the same node before this began: {operation:?}");
                Err(InvariantViolation::new("monotonic_writes", detail))
            }
            _ => Ok(()),
        }
    }

    /// Forgets a node that lost its data directory: it has a new identity and may not know its
    /// earlier versions.
    pub fn forget(&mut self, node: NodeIndex) {
        self.acknowledged.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::write;
    use super::*;

    fn numbered(id: u64, version: u64, node: u8) -> ClientOperation {
        ClientOperation { id: RequestId(id), node: NodeIndex(node), ..write(version, (2, 3), 0..1) }
    }

    #[test]
    fn a_later_write_with_a_lesser_version_is_caught() {
        let mut writes = MonotonicWrites::default();
        let [first, later, elsewhere] = [numbered(0, 5, 0), numbered(1, 4, 0), numbered(2, 3, 1)];
        writes.begin(&first);
        assert!(writes.end(&first).is_ok());
        writes.begin(&later);
        writes.begin(&elsewhere);
        assert!(writes.end(&elsewhere).is_ok(), "another node");
        assert!(writes.end(&later).is_err());
        let same = numbered(3, 5, 0);
        writes.begin(&same);
        assert!(writes.end(&same).is_err(), "the same version twice");
    }

    #[test]
    fn concurrent_writes_and_writes_of_a_new_directory_are_unordered() {
        let mut writes = MonotonicWrites::default();
        let [first, concurrent, anew] = [numbered(0, 5, 0), numbered(1, 4, 0), numbered(2, 3, 0)];
        writes.begin(&first);
        writes.begin(&concurrent);
        assert!(writes.end(&first).is_ok());
        assert!(writes.end(&concurrent).is_ok());
        writes.forget(NodeIndex(0));
        writes.begin(&anew);
        assert!(writes.end(&anew).is_ok());
    }
}
