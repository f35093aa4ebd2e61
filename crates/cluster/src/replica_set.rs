//! Sets of replicas of one key.
//!
//! A replica is named by its *replica index*: its index in the key's preference list.

use crate::NODES_MAX;
use std::fmt;

/// A set of replica indices.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplicaSet(u64);

impl ReplicaSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// The first `len` replica indices: the replicas of a key for `from == len`.
    pub(crate) const fn first(len: u8) -> Self {
        assert!(len as usize <= NODES_MAX);
        Self(if len as usize == NODES_MAX { u64::MAX } else { (1 << len) - 1 })
    }

    pub(crate) const fn one(replica_index: u8) -> Self {
        assert!((replica_index as usize) < NODES_MAX);
        Self(1 << replica_index)
    }

    pub(crate) const fn contains(self, replica_index: u8) -> bool {
        self.0 & Self::one(replica_index).0 != 0
    }

    /// Adds a replica, and returns whether it was absent.
    pub(crate) const fn insert(&mut self, replica_index: u8) -> bool {
        let is_new = !self.contains(replica_index);
        self.0 |= Self::one(replica_index).0;
        is_new
    }

    /// Removes a replica, and returns whether it was present.
    pub(crate) const fn remove(&mut self, replica_index: u8) -> bool {
        let was_in = self.contains(replica_index);
        self.0 &= !Self::one(replica_index).0;
        was_in
    }

    #[must_use]
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[must_use]
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The least replica index, which comes first in the preference list.
    pub(crate) const fn first_index(self) -> Option<u8> {
        if self.is_empty() { None } else { Some(self.0.trailing_zeros() as u8) }
    }

    /// The greatest replica index.
    pub(crate) const fn last_index(self) -> Option<u8> {
        if self.is_empty() { None } else { Some(self.0.ilog2() as u8) }
    }
}

impl Iterator for ReplicaSet {
    type Item = u8;

    /// Takes out the least replica index, so that a loop visits all in ascending order.
    fn next(&mut self) -> Option<u8> {
        let replica_index = self.first_index()?;
        self.0 &= self.0 - 1;
        Some(replica_index)
    }
}

impl FromIterator<u8> for ReplicaSet {
    fn from_iter<I: IntoIterator<Item = u8>>(indices: I) -> Self {
        indices.into_iter().fold(Self::EMPTY, |set, index| set.union(Self::one(index)))
    }
}

impl fmt::Debug for ReplicaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(*self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_every_index_of_the_longest_list() {
        let mut replicas = ReplicaSet::EMPTY;
        assert!(replicas.insert(63) && replicas.insert(0) && !replicas.insert(63));
        assert_eq!(replicas.collect::<Vec<_>>(), [0, 63]);
        assert_eq!((replicas.len(), replicas.first_index(), replicas.last_index()), (2, Some(0), Some(63)));
        assert_eq!(ReplicaSet::first(64).without(replicas).len(), 62);
        assert_eq!(replicas.intersection(ReplicaSet::first(63)), ReplicaSet::one(0));
        assert!(replicas.remove(0) && !replicas.remove(0) && replicas == ReplicaSet::one(63));
        assert_eq!(ReplicaSet::first(0).union(ReplicaSet::EMPTY).first_index(), None);
        assert_eq!(ReplicaSet::EMPTY.last_index(), None);
    }
}
