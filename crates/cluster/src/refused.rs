//! Keys whose newest cell this node has refused, because its version lies too far in the future.
//!
//! **Promise.** A replica that was filled from its peers, and had to leave out a cell that one of
//! them holds, does not know the newest state of that key. Its answers for the key are failures,
//! never "no such key", also after a restart. All other keys are answered as usual.
//!
//! **Mechanism.** The node keeps these keys in its [record](crate::NodeRecord) and publishes them
//! to the coordinators in its [view](crate::ClusterView). The paths that read or write a key:
//!
//! | path | behaviour |
//! |---|---|
//! | a client's read, here or through a coordinator of a peer | the replica counts as failed: here it is not asked, a peer receives [`ReplicaFault::NotReadEligible`](crate::ReplicaFault) |
//! | a scan of this node | fails at the first page whose part of the range holds the key |
//! | a scan of the cluster | the replica loses its role in the scan from that page on; others take it |
//! | writes, hints, read repair to this node | stored as usual: they win or lose by their version |
//! | anti-entropy, pulls by peers | use the stored cells: they move cells, and claim nothing about a key |
//!
//! Digests of replicas that hold the same are therefore equal, whether one of them has refused a
//! cell or not.
//!
//! A key leaves the set (`node/refused_retries`) in three cases: its cell could be stored; no peer
//! that had the cell holds it any more; or this node holds a version issued after the refusal. Such
//! a write came later than the refused cell, whatever version that cell has. An older version that
//! arrives later proves nothing about the refused one.
//!
//! **Bounds.** [`RefusedKeys::COUNT_MAX`] keys and [`RefusedKeys::BYTES_MAX`] bytes of keys. A pull
//! that meets one more stays open for the range that holds it.
//!
//! **Caveats.** A peer that is filled from this node does not learn which keys are refused here. If
//! that peer loses its disk while it is the only holder of a refused cell, the cell is lost with
//! it.

use crate::{
    Cut, Key, KeyRange, NodeSet, PageRequest, PartitionSet, ReplicaFault, ReplicaOutcome, ReplicaResponse,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stdx::Hlc;

/// The refused keys of a node. Clones share them until one is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedKeys(Arc<BTreeMap<Key, RefusedKey>>);

/// A refused key's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    /// The version clock of this node at the first refusal of a cell of the key.
    pub since: Hlc,
    /// Peers that held such a cell when they were last asked.
    pub holders: NodeSet,
}

impl RefusedKeys {
    /// Greatest number of keys.
    pub const COUNT_MAX: usize = 1_024;
    /// Greatest sum of the keys' lengths, in bytes.
    pub const BYTES_MAX: usize = 64 << 10;

    /// Creates a set of these keys. `None` if they exceed a bound.
    pub fn of(keys: BTreeMap<Key, RefusedKey>) -> Option<Self> {
        let keys = Self(Arc::new(keys));
        (keys.len() <= Self::COUNT_MAX && keys.bytes() <= Self::BYTES_MAX).then_some(keys)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is refused.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this key is refused.
    #[inline]
    pub fn contains(&self, key: &Key) -> bool {
        !self.is_empty() && self.0.contains_key(key)
    }

    /// The state of this key, if it is refused.
    pub fn get(&self, key: &Key) -> Option<&RefusedKey> {
        self.0.get(key)
    }

    /// The keys in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &RefusedKey)> {
        self.0.iter()
    }

    /// The first key behind `after`.
    pub(crate) fn next_behind(&self, after: Option<&Key>) -> Option<&Key> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range::<Key, _>((after, Bound::Unbounded)).next().map(|(key, _)| key)
    }

    /// Records that a cell of a key, held by `holders`, was refused at `now`. Returns `false` if
    /// the set is full.
    pub(crate) fn try_insert(&mut self, key: &Key, holders: NodeSet, now: Hlc) -> bool {
        match self.0.get(key) {
            Some(known) if known.holders.union(holders) == known.holders => return true,
            Some(_) => {}
            None if self.len() == Self::COUNT_MAX => return false,
            None if self.bytes() + key.as_bytes().len() > Self::BYTES_MAX => return false,
            None => {}
        }
        let empty = RefusedKey { since: now, holders: NodeSet::EMPTY };
        let refusal = Arc::make_mut(&mut self.0).entry(key.clone()).or_insert(empty);
        refusal.holders = refusal.holders.union(holders);
        true
    }

    /// Records that these peers no longer hold the refused cell of a key. A key that no peer holds
    /// is removed.
    pub(crate) fn remove_holders(&mut self, key: &Key, holders: NodeSet) {
        let Some(refusal) = self.get(key) else { return };
        let left = refusal.holders.without(holders);
        let keys = Arc::make_mut(&mut self.0);
        match left.is_empty() {
            true => drop(keys.remove(key)),
            false => keys.get_mut(key).expect("the key was just found").holders = left,
        }
    }

    /// Records that these peers are gone for good, with all that they held.
    pub(crate) fn forget_holders(&mut self, holders: NodeSet) {
        let is_held = |refusal: &RefusedKey| !refusal.holders.intersection(holders).is_empty();
        let keys: Vec<Key> = self.iter().filter(|(_, it)| is_held(it)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove_holders(key, holders));
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        Arc::make_mut(&mut self.0).remove(key);
    }

    /// The keys that a page may show, to be compared with its answer; `None` while no key is
    /// refused.
    #[inline]
    pub(crate) fn scope_of(&self, request: &PageRequest) -> Option<Box<PageScope>> {
        let scope = || PageScope { range: request.range.clone(), partitions: request.partitions.clone() };
        (!self.is_empty()).then(|| Box::new(scope()))
    }

    /// The outcome of a request of this scope: a page that covers a refused key is a failure.
    pub(crate) fn judge(&self, scope: Option<&PageScope>, outcome: ReplicaOutcome) -> ReplicaOutcome {
        match (scope, &outcome) {
            (Some(scope), Ok(ReplicaResponse::Page { rest, .. }))
                if self.are_before(scope, rest.as_ref()) =>
            {
                Err(ReplicaFault::NotReadEligible)
            }
            _ => outcome,
        }
    }

    /// Whether a refused key of this scope lies before `rest`.
    fn are_before(&self, scope: &PageScope, rest: Option<&Cut>) -> bool {
        let begin = match &scope.range.from {
            None => Bound::Unbounded,
            Some(Cut::Before(key)) => Bound::Included(key),
            Some(Cut::After(key)) => Bound::Excluded(key),
        };
        let is_of_partitions =
            |key: &Key| scope.partitions.as_ref().is_none_or(|set| set.contains_key(key.as_bytes()));
        let is_passed = |key: &Key| {
            rest.is_some_and(|rest| rest.is_passed_by(key.as_bytes()))
                || scope.range.is_passed_by(key.as_bytes())
        };
        let behind = self.0.range::<Key, _>((begin, Bound::Unbounded)).map(|(key, _)| key);
        behind.take_while(|key| !is_passed(key)).any(is_of_partitions)
    }

    fn bytes(&self) -> usize {
        self.0.keys().map(|key| key.as_bytes().len()).sum()
    }
}

/// The keys that a page may show.
#[derive(Clone, Debug)]
pub(crate) struct PageScope {
    range: KeyRange,
    /// `None`: all partitions.
    partitions: Option<PartitionSet>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeIndex;
    use bytes::Bytes;

    fn key(name: &str) -> Key {
        Key::new(Bytes::copy_from_slice(name.as_bytes())).expect("a key")
    }

    fn nodes(nodes: &[u8]) -> NodeSet {
        nodes.iter().map(|node| NodeIndex(*node)).collect()
    }

    #[test]
    fn a_key_is_refused_until_no_peer_holds_the_cell() {
        let mut keys = RefusedKeys::default();
        let first = Hlc::from_bits(7);
        assert!(keys.try_insert(&key("k"), nodes(&[1]), first));
        assert!(keys.try_insert(&key("k"), nodes(&[2]), Hlc::from_bits(9)));
        assert_eq!(keys.get(&key("k")), Some(&RefusedKey { since: first, holders: nodes(&[1, 2]) }));
        keys.remove_holders(&key("k"), nodes(&[1]));
        assert!(keys.contains(&key("k")));
        keys.remove_holders(&key("k"), nodes(&[2]));
        assert!(keys.is_empty());
    }

    #[test]
    fn the_keys_are_bounded_in_count_and_in_bytes() {
        let mut keys = RefusedKeys::default();
        let now = Hlc::from_bits(1);
        let inserted = (0..2_000).filter(|i| keys.try_insert(&key(&format!("{i}")), nodes(&[1]), now));
        assert_eq!(inserted.count(), RefusedKeys::COUNT_MAX);
        assert!(keys.try_insert(&key("0"), nodes(&[2]), now), "a known key takes no space");
        let mut keys = RefusedKeys::default();
        let long = |i: u8| format!("{i}{}", "x".repeat(8_191));
        let inserted = (0..9_u8).filter(|i| keys.try_insert(&key(&long(*i)), nodes(&[1]), now));
        assert_eq!(inserted.count(), 8);
    }

    #[test]
    fn a_page_fails_for_the_refused_keys_that_it_covers() {
        let mut keys = RefusedKeys::default();
        keys.try_insert(&key("d"), nodes(&[1]), Hlc::from_bits(1));
        let scope = |from, to: Option<&'static str>| PageScope {
            range: KeyRange { from: Some(from), to: to.map(|to| Cut::Before(key(to))) },
            partitions: None,
        };
        let all = scope(Cut::Before(key("a")), None);
        assert!(keys.are_before(&all, None));
        assert!(keys.are_before(&all, Some(&Cut::After(key("d")))));
        assert!(!keys.are_before(&all, Some(&Cut::Before(key("d")))));
        assert!(!keys.are_before(&scope(Cut::After(key("d")), None), None));
        assert!(keys.are_before(&scope(Cut::Before(key("d")), Some("e")), None));
        assert!(!keys.are_before(&scope(Cut::Before(key("a")), Some("d")), None));
    }
}
