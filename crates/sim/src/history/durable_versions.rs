//! Versions that each node has reported as durable.

use crate::Nanos;
use cluster::{Key, NodeIndex};
use std::collections::{BTreeMap, BTreeSet};
use stdx::Version;

/// Versions that were the newest durable ones of their keys, by node, with the time of each report.
#[derive(Debug, Default)]
pub struct DurableVersions {
    by_node: BTreeMap<NodeIndex, BTreeMap<Key, Vec<(Nanos, Version)>>>,
    /// All versions that each node has ever made durable, in any data directory.
    ever: BTreeMap<NodeIndex, BTreeSet<Version>>,
    /// Versions that a directory may have held before its node reported them, because the directory
    /// was restored or damaged.
    possibly_held: BTreeMap<NodeIndex, BTreeSet<Version>>,
}

impl DurableVersions {
    /// Records that a node has made a version durable.
    pub fn note(&mut self, node: NodeIndex, key: Key, at: Nanos, version: Version) {
        self.ever.entry(node).or_default().insert(version);
        let versions = self.by_node.entry(node).or_default().entry(key).or_default();
        if versions.last().is_none_or(|(_, newest)| *newest < version) {
            versions.push((at, version));
        }
    }

    /// Records that a node starts again with an empty directory.
    pub fn lose_all(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
        self.possibly_held.remove(&node);
    }

    /// Records that a node lost a part of its directory, or that its directory was restored to an
    /// earlier state.
    ///
    /// The node need not hold anything any more, but it may hold each version that it ever made
    /// durable.
    pub fn lose_some(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
        if let Some(ever) = self.ever.get(&node) {
            self.possibly_held.insert(node, ever.clone());
        }
    }

    /// Records that the directory of `to` becomes a copy of the directory of `of`. The copy may
    /// hold more than `of` has reported.
    pub fn copy(&mut self, of: NodeIndex, to: NodeIndex) {
        self.by_node.insert(to, self.by_node.get(&of).cloned().unwrap_or_default());
        self.ever.insert(to, self.ever.get(&of).cloned().unwrap_or_default());
        self.possibly_held.insert(to, self.possibly_held.get(&of).cloned().unwrap_or_default());
    }

    /// Whether a node may have held a version before the time at which
    /// [`DurableVersions::versions_at`] reports it.
    pub fn possibly_held(&self, node: NodeIndex, version: Version) -> bool {
        self.possibly_held.get(&node).is_some_and(|versions| versions.contains(&version))
    }

    /// Newest durable versions of each key over time, with the time of each report.
    pub fn versions_at(&self, node: NodeIndex) -> impl Iterator<Item = (&Key, &[(Nanos, Version)])> {
        let keys = self.by_node.get(&node).into_iter().flatten();
        keys.map(|(key, versions)| (key, &versions[..]))
    }

    /// Newest version of each key that a node had made durable before `at`.
    pub fn newest_before(&self, node: NodeIndex, at: Nanos) -> BTreeMap<Key, Version> {
        let newest = |versions: &[(Nanos, Version)]| {
            let older = versions.partition_point(|(since, _)| *since < at);
            Some(versions[..older].last()?.1)
        };
        self.versions_at(node).filter_map(|(key, versions)| Some((key.clone(), newest(versions)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    #[test]
    fn the_newest_version_at_a_time_is_independent_of_later_and_unordered_reports() {
        let version = |number| Version::new(Hlc::from_bits(number), NodeTag(1));
        let key = || Key::new("key".into()).unwrap();
        let mut durable = DurableVersions::default();
        for (at, number) in [(1, 5), (2, 3), (4, 7)] {
            durable.note(NodeIndex(0), key(), Nanos(at), version(number));
        }
        let newest = |at| durable.newest_before(NodeIndex(0), Nanos(at)).get(&key()).copied();
        assert_eq!(newest(1), None);
        assert_eq!(newest(4), Some(version(5)));
        assert_eq!(newest(5), Some(version(7)));
        assert_eq!(durable.newest_before(NodeIndex(1), Nanos(5)).len(), 0);
        durable.copy(NodeIndex(0), NodeIndex(1));
        durable.note(NodeIndex(0), key(), Nanos(6), version(8));
        assert_eq!(durable.newest_before(NodeIndex(1), Nanos(9)).get(&key()).copied(), Some(version(7)));
        durable.copy(NodeIndex(2), NodeIndex(1));
        assert_eq!(
            durable.newest_before(NodeIndex(1), Nanos(9)).len(),
            0,
            "the copy replaces the earlier versions"
        );
    }
}
