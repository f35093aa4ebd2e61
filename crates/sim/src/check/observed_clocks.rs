//! Invariant: a version is greater than every version that its node had observed when it was
//! issued. So a write through a node that has observed an earlier write wins over it, independent
//! of wall clocks.
//!
//! A node observes the versions of a peer through the clock that each frame carries. It ignores a
//! clock that is too far ahead of its own.

use super::InvariantViolation;
use cluster::{HybridClock, Key, NodeIndex};
use std::collections::BTreeMap;
use stdx::{Hlc, Version, WallTime};

/// Greatest clock that each node has observed since its process started.
#[derive(Debug, Default)]
pub struct ObservedClocks {
    by_node: BTreeMap<NodeIndex, Hlc>,
}

impl ObservedClocks {
    /// Records the clock of a frame that reaches a node whose wall clock shows `wall`.
    pub fn note(&mut self, node: NodeIndex, clock: Hlc, wall: WallTime) {
        if !HybridClock::is_ahead(clock, wall) {
            let observed = self.by_node.entry(node).or_default();
            *observed = clock.max(*observed);
        }
    }

    /// Forgets the observations of a node whose process has ended.
    pub fn forget(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
    }

    /// Checks a version that a node issues for the first time.
    pub fn check(&self, node: NodeIndex, key: &Key, version: Version) -> Result<(), InvariantViolation> {
        match self.by_node.get(&node) {
            Some(observed) if version.hlc <= *observed => {
                let detail = format!(
                    "{node:?} issued {version} for {key:?}, and had observed of {observed:?} before that"
                );
                Err(InvariantViolation::new("observed_clocks", detail))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, key};
    use super::*;
    use std::time::Duration;
    use stdx::NodeTag;

    #[test]
    fn a_version_behind_an_observed_clock_is_caught() {
        let node = NodeIndex(1);
        let at = |ahead| Hlc::at(NOW.saturating_add(Duration::from_secs(ahead)));
        let version = |ahead| Version::new(at(ahead), NodeTag(1));
        let mut observed = ObservedClocks::default();
        assert!(observed.check(node, &key(), version(1)).is_ok());
        observed.note(node, at(3), NOW);
        observed.note(node, at(2), NOW);
        observed.note(node, at(3_600), NOW);
        assert!(observed.check(node, &key(), version(3)).is_err());
        assert!(observed.check(node, &key(), version(4)).is_ok(), "a clock that is far ahead is ignored");
        assert!(observed.check(NodeIndex(0), &key(), version(1)).is_ok(), "another node");
        observed.forget(node);
        assert!(observed.check(node, &key(), version(1)).is_ok());
    }
}
