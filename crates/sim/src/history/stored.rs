//! What each node has said that it made durable.

use crate::Nanos;
use cluster::{Key, NodeIndex};
use std::collections::BTreeMap;
use stdx::Version;

/// For each node and key, the versions that were the newest at some time, since when.
#[derive(Debug, Default)]
pub struct Stored {
    by_node: BTreeMap<NodeIndex, BTreeMap<Key, Vec<(Nanos, Version)>>>,
}

impl Stored {
    /// Takes note that a node has made a version durable.
    pub fn note(&mut self, node: NodeIndex, key: Key, at: Nanos, version: Version) {
        let versions = self.by_node.entry(node).or_default().entry(key).or_default();
        if versions.last().is_none_or(|(_, newest)| *newest < version) {
            versions.push((at, version));
        }
    }

    /// A node has lost its disk.
    pub fn forget(&mut self, node: NodeIndex) {
        self.by_node.remove(&node);
    }

    /// What a node has made durable: of each key the versions that were the newest, and since when.
    pub fn of(&self, node: NodeIndex) -> impl Iterator<Item = (&Key, &[(Nanos, Version)])> {
        let keys = self.by_node.get(&node).into_iter().flatten();
        keys.map(|(key, versions)| (key, &versions[..]))
    }

    /// The newest version of each key that a node had made durable before `at`.
    pub fn newest_before(&self, node: NodeIndex, at: Nanos) -> BTreeMap<Key, Version> {
        let newest = |versions: &[(Nanos, Version)]| {
            let older = versions.partition_point(|(since, _)| *since < at);
            Some(versions[..older].last()?.1)
        };
        self.of(node).filter_map(|(key, versions)| Some((key.clone(), newest(versions)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    #[test]
    fn the_newest_of_a_time_is_known_whatever_came_later_and_in_whatever_order() {
        let version = |number| Version::new(Hlc::from_bits(number), NodeTag(1));
        let key = || Key::new("key".into()).unwrap();
        let mut stored = Stored::default();
        for (at, number) in [(1, 5), (2, 3), (4, 7)] {
            stored.note(NodeIndex(0), key(), Nanos(at), version(number));
        }
        let newest = |at| stored.newest_before(NodeIndex(0), Nanos(at)).get(&key()).copied();
        assert_eq!(newest(1), None);
        assert_eq!(newest(4), Some(version(5)));
        assert_eq!(newest(5), Some(version(7)));
        assert_eq!(stored.newest_before(NodeIndex(1), Nanos(5)).len(), 0);
    }
}
