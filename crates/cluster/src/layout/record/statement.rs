//! Statements of nodes about the swaps of a running plan.
//!
//! **Promise.** A statement names everything that it depends on: the record, and by it the plan,
//! the pair, the PREPARE whose copy counts, and the ids of both nodes. A statement about an earlier
//! attempt, another plan or the lost disk of a node never counts for the swap of a later record.
//!
//! **Mechanism.** There are two statements:
//!
//! - *Fenced*: the node holds the record of an epoch durably, all its threads use it, and it has
//!   ended all requests that were planned before. It is true for ever, also for earlier epochs, so
//!   a node states the greatest epoch only.
//! - *Complete*: the gainer of a swap durably holds all that it is to copy in an attempt. Its copy
//!   began after the loser had fenced the PREPARE of the attempt, or, if the loser is dead, after
//!   enough of the other replicas had.
//!
//! A node keeps its complete copies as [`SwapAttempt`]s. It sends them as the [`SwapSet`] of the
//! swaps in the record that it has adopted, beside the stamp of that record. The receiver knows the
//! node id of the sender from the link. It counts the statement only if the stamp is that of the
//! record that it extends itself.
//!
//! **Caveats.** A node repeats its statements in each heartbeat, and after a restart its host makes
//! them anew. A statement that reaches a driver before the record does is not kept: the next
//! heartbeat repeats it.

use super::{LayoutEpoch, LayoutRecord, PairSwap, SWAPS_MAX};
use crate::CopyObstacle;
use std::collections::BTreeSet;
use stdx::NodeTag;

const WORDS: usize = SWAPS_MAX / u64::BITS as usize;

/// One copy of a swap. Durable positions of the copy are bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapAttempt {
    /// Epoch in which the plan began.
    pub plan: LayoutEpoch,
    /// Epoch of the PREPARE whose copy counts.
    pub attempt: LayoutEpoch,
    /// Id of the losing node. `None`: a dead member whose id was never named.
    pub loser: Option<NodeTag>,
    /// Id of the gaining node.
    pub gainer: NodeTag,
}

/// A set of swaps of one record, by their indexes in the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapSet([u64; WORDS]);

/// The statements of a node about the plan of the record that it has adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanStatements {
    /// The greatest epoch that the node has fenced since it started.
    pub fenced: Option<LayoutEpoch>,
    /// The swaps of which the node is the gainer and holds its copy.
    pub complete: SwapSet,
    /// Whether the node still purges keys that it has lost. No swap by which it gains a place
    /// begins.
    pub is_purging: bool,
    /// The copies that the node makes as a gainer. `None`: it makes none. Nothing is decided by
    /// this: it tells operators of all members what a plan waits for.
    pub copying: Option<CopyProgress>,
}

/// The progress of the copies that a node makes as the gainer of swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// Bytes of keys and values that it has read for the swaps of its record.
    pub bytes: u64,
    /// The reason why one of the copies does not go on.
    pub obstacle: Option<CopyObstacle>,
}

impl PlanStatements {
    /// Whether the node has fenced `epoch`.
    pub fn has_fenced(&self, epoch: LayoutEpoch) -> bool {
        self.fenced.is_some_and(|fenced| fenced >= epoch)
    }
}

impl SwapSet {
    /// No swaps.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The set with these bits: bit `i` of word `w` is swap `64 * w + i`. `None` if there are more
    /// words than a plan has swaps.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let mut set = Self::EMPTY;
        set.0.get_mut(..words.len())?.copy_from_slice(words);
        Some(set)
    }

    /// The bits, without zero words at the end.
    pub fn words(&self) -> &[u64] {
        let len = self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        &self.0[..len]
    }

    /// Whether the swap with this index is in the set.
    pub const fn contains(&self, index: usize) -> bool {
        index < SWAPS_MAX && self.0[index / 64] & 1 << (index % 64) != 0
    }

    /// Number of swaps in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are no swaps in the set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a swap.
    ///
    /// # Panics
    /// If the index is not below [`SWAPS_MAX`].
    pub const fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }
}

impl LayoutRecord {
    /// The present copy of a swap of this record. `None` if the gainer has no id.
    pub fn attempt_of(&self, swap: &PairSwap) -> Option<SwapAttempt> {
        let id = |slot| self.member(slot).and_then(|member| member.node_id);
        let (loser, gainer) = (id(swap.loser), id(swap.gainer)?);
        Some(SwapAttempt { plan: self.plan.as_ref()?.began, attempt: swap.attempt, loser, gainer })
    }

    /// The swaps of this record whose present copies are among `complete`.
    pub fn swaps_with_copies(&self, complete: &BTreeSet<SwapAttempt>) -> SwapSet {
        let mut set = SwapSet::EMPTY;
        for (index, swap) in self.swaps().iter().enumerate() {
            if self.attempt_of(swap).is_some_and(|attempt| complete.contains(&attempt)) {
                set.insert(index);
            }
        }
        set
    }
}
