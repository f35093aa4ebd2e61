//! A version is greater than all that its node had heard of when it was issued. So a write through a node that has
//! heard of an earlier one wins over it, whatever their clocks show.
//!
//! A node hears of the versions of another by the clock that each frame carries. It does not believe a clock that is
//! too far ahead of its own.

use super::Violation;
use cluster::{HybridClock, Key, NodeIndex};
use std::collections::BTreeMap;
use stdx::{Hlc, Version, WallTime};

/// What each node has heard in this life of its process.
#[derive(Debug, Default)]
pub struct Heard {
    by_node: BTreeMap<NodeIndex, Hlc>,
}

impl Heard {
    /// Takes note of the clock of a frame that reaches a node whose wall clock shows `wall`.
    pub fn note(&mut self, node: NodeIndex, clock: Hlc, wall: WallTime) {
        if !HybridClock::is_ahead(clock, wall) {
            let heard = self.by_node.entry(node).or_default();
            *heard = clock.max(*heard);
        }
    }

    /// The process of a node has ended.
    pub fn forget(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
    }

    /// Checks a version that a node issues for the first time.
    pub fn check(&self, node: NodeIndex, key: &Key, version: Version) -> Result<(), Violation> {
        match self.by_node.get(&node) {
            Some(heard) if version.hlc <= *heard => {
                let detail =
                    format!("{node:?} issued {version} for {key:?}, and had heard of {heard:?} before that");
                Err(Violation::new("heard_versions", detail))
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
        let mut heard = Heard::default();
        assert!(heard.check(node, &key(), version(1)).is_ok());
        heard.note(node, at(3), NOW);
        heard.note(node, at(2), NOW);
        heard.note(node, at(3_600), NOW);
        assert!(heard.check(node, &key(), version(3)).is_err());
        assert!(heard.check(node, &key(), version(4)).is_ok(), "what is far ahead is not believed");
        assert!(heard.check(NodeIndex(0), &key(), version(1)).is_ok(), "another node");
        heard.forget(node);
        assert!(heard.check(node, &key(), version(1)).is_ok());
    }
}
