//! A version is greater than all that its node had observed of when it was issued. So a write through a node that has
//! observed of an earlier one wins over it, whatever their clocks show.
//!
//! A node hears of the versions of another by the clock that each frame carries. It does not believe a clock that is
//! too far ahead of its own.

use super::Violation;
use cluster::{HybridClock, Key, NodeIndex};
use std::collections::BTreeMap;
use stdx::{Hlc, Version, WallTime};

/// What each node has observed in this generation of its process.
#[derive(Debug, Default)]
pub struct ObservedClocks {
    by_node: BTreeMap<NodeIndex, Hlc>,
}

impl ObservedClocks {
    /// Takes note of the clock of a frame that reaches a node whose wall clock shows `wall`.
    pub fn note(&mut self, node: NodeIndex, clock: Hlc, wall: WallTime) {
        if !HybridClock::is_ahead(clock, wall) {
            let observed = self.by_node.entry(node).or_default();
            *observed = clock.max(*observed);
        }
    }

    /// The process of a node has ended.
    pub fn forget(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
    }

    /// Checks a version that a node issues for the first time.
    pub fn check(&self, node: NodeIndex, key: &Key, version: Version) -> Result<(), Violation> {
        match self.by_node.get(&node) {
            Some(observed) if version.hlc <= *observed => {
                let detail = format!(
                    "{node:?} issued {version} for {key:?}, and had observed of {observed:?} before that"
                );
                Err(Violation::new("observed_clocks", detail))
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
    fn a_version_behind_what_was_heard_is_caught() {
        let node = NodeIndex(1);
        let at = |ahead| Hlc::at(NOW.saturating_add(Duration::from_secs(ahead)));
        let version = |ahead| Version::new(at(ahead), NodeTag(1));
        let mut observed = ObservedClocks::default();
        assert!(observed.check(node, &key(), version(1)).is_ok());
        observed.note(node, at(3), NOW);
        observed.note(node, at(2), NOW);
        observed.note(node, at(3_600), NOW);
        assert!(observed.check(node, &key(), version(3)).is_err());
        assert!(observed.check(node, &key(), version(4)).is_ok(), "what is far ahead is not believed");
        assert!(observed.check(NodeIndex(0), &key(), version(1)).is_ok(), "another node");
        observed.forget(node);
        assert!(observed.check(node, &key(), version(1)).is_ok());
    }
}
