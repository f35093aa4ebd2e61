//! Status of copies for operators.

use super::super::ranges::permille;
use super::{CopySource, SwapAttempt, SwapCopy};
use crate::{CopyProgress, Node, NodeIndex};

/// The reason why a copy does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyObstacle {
    /// Threads of this node still use an older layout.
    Fence,
    /// This node is not read-eligible, because it is rebuilt.
    NotReadEligible,
    /// This node purges its earlier cells of the partitions.
    Purge,
    /// The disk of this node has no space for values.
    DiskFull,
    /// The store of this node cannot keep up with writes, or is short of disk space.
    Stalled,
    /// The store of this node has refused the cells. They are read again.
    Store,
    /// A source has refused, or has not answered. It is asked again.
    Source {
        /// The source.
        node: NodeIndex,
    },
}

impl CopyObstacle {
    /// Whether an operator is told: the others pass by themselves in moments.
    pub(super) const fn is_reported(self) -> bool {
        matches!(self, Self::DiskFull | Self::Store)
    }
}

/// A copy of this node as a gainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// The loser of the swap.
    pub loser: NodeIndex,
    /// The gainer of the swap: this node.
    pub gainer: NodeIndex,
    /// Progress in thousandths of all keys. All of them mean that the copy is complete.
    pub permille: u16,
    /// Number of cells that were read.
    pub cells: u64,
    /// Size of their keys and values, in bytes.
    pub bytes: u64,
    /// The reason why the copy does not go on.
    pub obstacle: Option<CopyObstacle>,
}

impl Node {
    /// The copies of this node.
    pub(in crate::node) fn copies_status(&self) -> Vec<CopyStatus> {
        self.copies.copies.iter().map(|(attempt, copy)| self.copy_status(*attempt, copy)).collect()
    }

    /// The progress of the copies of this node together, for its peers. `None`: it makes none.
    pub(in crate::node) fn copies_progress(&self) -> Option<CopyProgress> {
        if self.copies.copies.is_empty() {
            return None;
        }
        let copies = self.copies.copies.iter();
        let obstacles = copies.filter_map(|(attempt, copy)| self.reported_obstacle(*attempt, copy));
        Some(CopyProgress {
            bytes: self.copies.copies.values().map(|copy| copy.amount().1).sum(),
            // The gravest one: the others pass by themselves.
            obstacle: obstacles.max_by_key(|obstacle| obstacle.is_reported()),
        })
    }

    fn copy_status(&self, attempt: SwapAttempt, copy: &SwapCopy) -> CopyStatus {
        let reading = copy.sources.values().filter(|source| !source.is_done());
        let permille_of = |source: &CopySource| permille(source.position.after.as_ref());
        let furthest_behind = reading.map(permille_of).min().unwrap_or(0);
        let (cells, bytes) = copy.amount();
        CopyStatus {
            loser: copy.loser,
            gainer: self.member.me,
            permille: if copy.is_complete { 1_000 } else { furthest_behind.min(999) },
            cells,
            bytes,
            obstacle: self.reported_obstacle(attempt, copy),
        }
    }
}
