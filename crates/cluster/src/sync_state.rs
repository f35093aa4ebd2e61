//! Sync state of a node, its generations, and the record that survives restarts.

use crate::{Incarnation, LayoutEpoch, NodeIndex, NodeSet, RefusedKeys};
use std::collections::BTreeMap;
use stdx::{Hlc, NodeTag, WallTime};

/// State of a node's data, which decides whether the node's answers to reads count.
///
/// A node that lost its disk has acknowledged writes that it does not hold. It must learn that from
/// its peers, who remember the lost identity, before its answer that a key is missing counts.
/// Writes are stored and count in every state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncState {
    /// The directory is new, and the node does not know yet whether it replaces a lost one. Not
    /// read-eligible.
    #[default]
    Unsettled,
    /// The directory replaces a lost one and is being filled from the other replicas. Not
    /// read-eligible.
    Rebuilding,
    /// The node holds all that it acknowledged. Read-eligible.
    Settled,
}

impl SyncState {
    /// Whether answers to reads count.
    pub const fn is_read_eligible(self) -> bool {
        matches!(self, Self::Settled)
    }

    /// The state that a node reports in a handshake. It reports that it is settled only in
    /// heartbeats, to a peer whose memory of it has been heard.
    #[must_use]
    pub const fn in_hello(self) -> Self {
        match self {
            Self::Unsettled | Self::Settled => Self::Unsettled,
            Self::Rebuilding => Self::Rebuilding,
        }
    }
}

/// One start of a node on its data directory, with the value of the version clock.
///
/// The number grows by one with each start and is durable before the node sends to a peer. Two
/// processes that start on two copies of one directory have equal numbers and different
/// incarnations. (Cassandra's gossip has generations, too.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Number of the start, from 1.
    pub number: u64,
    /// Incarnation of the process.
    pub incarnation: Incarnation,
    /// Of an own generation: the start value of its version clock. Of a peer's generation: the
    /// greatest value of its version clock that the peer has reported in it, behind which none of
    /// its later generations starts.
    pub clock: Hlc,
}

/// The generations of a node on its data directory, oldest first, with consecutive numbers. Empty
/// for a node without peers, which does not count its starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationHistory(Vec<Generation>);

impl GenerationHistory {
    /// Greatest number of generations kept. A peer that remembers an older one is trusted.
    pub const COUNT_MAX: usize = 32;

    /// Creates a history of these generations in this order. `None` if their numbers do not ascend
    /// by one, or there are too many.
    pub fn of(generations: Vec<Generation>) -> Option<Self> {
        let is_consecutive =
            generations.windows(2).all(|two| two[0].number.checked_add(1) == Some(two[1].number));
        (is_consecutive && generations.len() <= Self::COUNT_MAX).then_some(Self(generations))
    }

    /// Begins a generation. Its number is 1 if there is no earlier one.
    pub fn begin(&mut self, incarnation: Incarnation, clock: Hlc) {
        let number = self.current().map_or(0, |generation| generation.number) + 1;
        if self.0.len() == Self::COUNT_MAX {
            self.0.remove(0);
        }
        self.0.push(Generation { number, incarnation, clock });
    }

    /// The current generation.
    pub fn current(&self) -> Option<&Generation> {
        self.0.last()
    }

    /// All generations kept, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Generation> {
        self.0.iter()
    }

    /// Whether `remembered`, which a peer reports for a node with this identity, is no generation
    /// of this directory, or its clock was further than the directory shows. Either way the
    /// directory is an older state or a copy.
    pub fn are_contradicted_by(&self, remembered: &Generation) -> bool {
        let Some(current) = self.current() else { return false };
        let Some(back) = current.number.checked_sub(remembered.number) else { return true };
        let Some(at) = (self.0.len() - 1).checked_sub(usize::try_from(back).unwrap_or(usize::MAX)) else {
            return false;
        };
        let is_further = self.0.get(at + 1).is_some_and(|next| remembered.clock > next.clock);
        self.0[at].incarnation != remembered.incarnation || is_further
    }

    /// Drops the earlier generations, and numbers the current one above `remembered`. From here on
    /// the node is filled by its peers, and their memory of earlier generations proves nothing.
    pub fn renounce(&mut self, remembered: &Generation) {
        let Some(&current) = self.current() else { return };
        let number = current.number.max(remembered.number.saturating_add(1));
        self.0 = vec![Generation { number, ..current }];
    }
}

/// The state that a node remembers of itself and its peers; stored as a whole at each change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// Number of the revision, which grows with each change.
    pub revision: u64,
    /// Sync state of the node.
    pub sync_state: SyncState,
    /// Identities of its peers.
    pub peers: BTreeMap<NodeIndex, NodeTag>,
    /// Start of the last complete round of anti-entropy, by the wall clock at that time. In a new
    /// cluster, first the time at which the node settled.
    pub repaired_at: Option<WallTime>,
    /// Peers that hints were dropped for since then: a repair with them is pending.
    pub repair_pending: NodeSet,
    /// The node's own generations.
    pub own_generations: GenerationHistory,
    /// The newest generation that each peer has reported with the identity in `peers`.
    pub peer_generations: BTreeMap<NodeIndex, Generation>,
    /// Peers that this node had not heard when it settled as a node of a new cluster. If one of
    /// them remembers another identity, the cluster was not new.
    pub unheard: NodeSet,
    /// Keys whose newest cell this node has refused.
    pub refused: RefusedKeys,
    /// Epoch up to which this node has disowned what it lost by a change of the layout. `None`: no
    /// partition had changed.
    pub disowned_to: Option<LayoutEpoch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u64, incarnation: u64, clock: u64) -> Generation {
        let incarnation = Incarnation(incarnation);
        Generation { number, incarnation, clock: Hlc::from_bits(clock) }
    }

    fn generations() -> GenerationHistory {
        let mut generations = GenerationHistory::default();
        for (incarnation, bound) in [(11, 0), (12, 100), (13, 200)] {
            generations.begin(Incarnation(incarnation), Hlc::from_bits(bound));
        }
        generations
    }

    #[test]
    fn a_generation_of_this_directory_contradicts_nothing() {
        for remembered in
            [generation(1, 11, 100), generation(2, 12, 150), generation(2, 12, 200), generation(3, 13, 999)]
        {
            assert!(!generations().are_contradicted_by(&remembered), "{remembered:?}");
        }
        assert!(
            !GenerationHistory::default().are_contradicted_by(&generation(9, 9, 9)),
            "no starts were counted"
        );
    }

    #[test]
    fn a_generation_unknown_to_the_directory_contradicts_it() {
        let (later, of_a_copy, further) =
            (generation(4, 14, 0), generation(3, 99, 0), generation(2, 12, 201));
        for remembered in [later, of_a_copy, further, generation(1, 99, 0)] {
            assert!(generations().are_contradicted_by(&remembered), "{remembered:?}");
        }
    }

    #[test]
    fn generations_before_a_renunciation_contradict_nothing() {
        let (later, copy) = (generation(9, 14, 300), generation(3, 99, 0));
        for remembered in [later, copy] {
            let mut generations = generations();
            generations.renounce(&remembered);
            assert!(!generations.are_contradicted_by(&remembered), "{remembered:?}");
            assert!(!generations.are_contradicted_by(&generation(2, 98, 999)));
            let current = *generations.current().expect("a generation");
            assert_eq!((current.number, current.incarnation), (remembered.number + 1, Incarnation(13)));
            assert!(generations.are_contradicted_by(&generation(current.number, 97, 0)));
        }
    }

    #[test]
    fn the_newest_generations_are_kept() {
        let mut generations = GenerationHistory::default();
        (0..40).for_each(|n| generations.begin(Incarnation(n), Hlc::from_bits(n)));
        assert_eq!(generations.iter().len(), GenerationHistory::COUNT_MAX);
        assert_eq!(generations.iter().next().map(|generation| generation.number), Some(9));
        assert!(!generations.are_contradicted_by(&generation(8, 999, 999)), "it is no longer in the history");
        assert!(generations.are_contradicted_by(&generation(9, 999, 0)));
        let kept: Vec<Generation> = generations.iter().copied().collect();
        assert_eq!(GenerationHistory::of(kept.clone()), Some(generations));
        assert_eq!(GenerationHistory::of([&kept[..], &kept[..1]].concat()), None);
    }
}
