//! Whether a node's answers to reads count, and what it remembers through restarts.

use crate::{Incarnation, NodeIndex, NodeSet, RefusedKeys};
use std::collections::BTreeMap;
use stdx::{Hlc, NodeTag, WallTime};

/// Whether a node's answers to reads count.
///
/// A node that lost its disk has acknowledged writes that it does not hold. It must find that out from its
/// peers, who remember the identity that was lost, before its "I have nothing" counts as an answer. Writes are
/// stored and count in every standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncState {
    /// The directory is new, and the node does not know yet whether it stands for a lost one. Does not count.
    #[default]
    Unsettled,
    /// It stands for a lost one and is being filled from the other replicas. Does not count.
    Rebuilding,
    /// It holds what it acknowledged. Counts.
    Settled,
}

impl SyncState {
    /// Whether answers to reads count.
    pub const fn is_read_eligible(self) -> bool {
        matches!(self, Self::Settled)
    }

    /// What a node says of itself in a handshake: that it is settled it says only to a peer whose word it has heard.
    #[must_use]
    pub const fn in_hello(self) -> Self {
        match self {
            Self::Unsettled | Self::Settled => Self::Unsettled,
            Self::Rebuilding => Self::Rebuilding,
        }
    }
}

/// One start of a node on its data directory, and how far the version clock was then.
///
/// The number grows by one with each start and is durable before the node speaks to a peer. Two processes that
/// start on two copies of one directory have equal numbers and different incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Number of the start, from 1 on.
    pub number: u64,
    /// The process.
    pub incarnation: Incarnation,
    /// Of a node's own life: where its version clock began. Of a peer's life: the greatest value of its version clock
    /// that the peer has reported in it, behind which none of its later lives begins.
    pub clock: Hlc,
}

/// The lives of a node on its data directory, oldest first, with consecutive numbers. Empty where starts are not
/// counted: a node without peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationHistory(Vec<Generation>);

impl GenerationHistory {
    /// Lives that are kept. A peer that remembers an older one is believed to remember the truth.
    pub const COUNT_MAX: usize = 32;

    /// The lives in this order; `None` when their numbers do not ascend by one, or there are too many.
    pub fn of(generations: Vec<Generation>) -> Option<Self> {
        let is_consecutive =
            generations.windows(2).all(|two| two[0].number.checked_add(1) == Some(two[1].number));
        (is_consecutive && generations.len() <= Self::COUNT_MAX).then_some(Self(generations))
    }

    /// Begins a life. Its number is 1 when there was none before.
    pub fn begin(&mut self, incarnation: Incarnation, clock: Hlc) {
        let number = self.current().map_or(0, |generation| generation.number) + 1;
        if self.0.len() == Self::COUNT_MAX {
            self.0.remove(0);
        }
        self.0.push(Generation { number, incarnation, clock });
    }

    /// The life under way.
    pub fn current(&self) -> Option<&Generation> {
        self.0.last()
    }

    /// All that are kept, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Generation> {
        self.0.iter()
    }

    /// Whether `remembered`, which a peer says of a node with this identity, is no life of this directory, or was
    /// further than the directory shows: then the directory is an older state or a copy.
    pub fn are_contradicted_by(&self, remembered: &Generation) -> bool {
        let Some(current) = self.current() else { return false };
        let Some(back) = current.number.checked_sub(remembered.number) else { return true };
        let Some(at) = (self.0.len() - 1).checked_sub(usize::try_from(back).unwrap_or(usize::MAX)) else {
            return false;
        };
        let is_further = self.0.get(at + 1).is_some_and(|next| remembered.clock > next.clock);
        self.0[at].incarnation != remembered.incarnation || is_further
    }

    /// Forgets what was before the life under way, and numbers that life above `remembered`: from here on the node
    /// is filled by its peers, and what they remember of before says nothing.
    pub fn renounce(&mut self, remembered: &Generation) {
        let Some(&current) = self.current() else { return };
        let number = current.number.max(remembered.number.saturating_add(1));
        self.0 = vec![Generation { number, ..current }];
    }
}

/// What a node remembers of itself and its peers; stored whole at each change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// Greater with each change.
    pub revision: u64,
    /// Its standing.
    pub sync_state: SyncState,
    /// The identities of its peers.
    pub peers: BTreeMap<NodeIndex, NodeTag>,
    /// When anti-entropy last went through all keys, by the wall clock.
    pub repaired_at: Option<WallTime>,
    /// Peers that hints were dropped for since: a repair is owed.
    pub repair_pending: NodeSet,
    /// Its own lives.
    pub own_generations: GenerationHistory,
    /// The newest life of each peer with the identity in `peers`, as far as the peer has reported one.
    pub peer_generations: BTreeMap<NodeIndex, Generation>,
    /// Peers that this node had not heard when it settled as a node of a new cluster. One of them that remembers
    /// another identity proves that the cluster was not new.
    pub unheard: NodeSet,
    /// Keys whose newest cell this node has refused.
    pub refused: RefusedKeys,
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
    fn a_life_of_this_directory_contradicts_nothing() {
        for remembered in
            [generation(1, 11, 100), generation(2, 12, 150), generation(2, 12, 200), generation(3, 13, 999)]
        {
            assert!(!generations().are_contradicted_by(&remembered), "{remembered:?}");
        }
        assert!(
            !GenerationHistory::default().are_contradicted_by(&generation(9, 9, 9)),
            "nothing was counted"
        );
    }

    #[test]
    fn a_life_that_the_directory_does_not_know_contradicts_it() {
        let (later, of_a_copy, further) =
            (generation(4, 14, 0), generation(3, 99, 0), generation(2, 12, 201));
        for remembered in [later, of_a_copy, further, generation(1, 99, 0)] {
            assert!(generations().are_contradicted_by(&remembered), "{remembered:?}");
        }
    }

    #[test]
    fn what_was_before_lives_were_renounced_contradicts_nothing() {
        let (later, copy) = (generation(9, 14, 300), generation(3, 99, 0));
        for remembered in [later, copy] {
            let mut generations = generations();
            generations.renounce(&remembered);
            assert!(!generations.are_contradicted_by(&remembered), "{remembered:?}");
            assert!(!generations.are_contradicted_by(&generation(2, 98, 999)));
            let current = *generations.current().expect("a life");
            assert_eq!((current.number, current.incarnation), (remembered.number + 1, Incarnation(13)));
            assert!(generations.are_contradicted_by(&generation(current.number, 97, 0)));
        }
    }

    #[test]
    fn as_many_lives_as_are_kept_are_the_newest() {
        let mut generations = GenerationHistory::default();
        (0..40).for_each(|n| generations.begin(Incarnation(n), Hlc::from_bits(n)));
        assert_eq!(generations.iter().len(), GenerationHistory::COUNT_MAX);
        assert_eq!(generations.iter().next().map(|generation| generation.number), Some(9));
        assert!(
            !generations.are_contradicted_by(&generation(8, 999, 999)),
            "nothing is known of it any more"
        );
        assert!(generations.are_contradicted_by(&generation(9, 999, 0)));
        let kept: Vec<Generation> = generations.iter().copied().collect();
        assert_eq!(GenerationHistory::of(kept.clone()), Some(generations));
        assert_eq!(GenerationHistory::of([&kept[..], &kept[..1]].concat()), None);
    }
}
