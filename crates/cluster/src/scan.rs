//! The words of scans: ranges of entries, streamed page by page.
//!
//! A user's range is a *scan* of a coordinator: begun by one command, continued by one command a page. The pages of
//! one node come out of a *snapshot* that its store keeps between them. A scan of the whole cluster gathers from nodes
//! in *roles* ([`ScanRoles`]): of each key one replica sends the cell, others say whether they hold the same.

use crate::{
    Cut, Incarnation, KeyRange, Layout, NodeIndex, Page, Partition, Quorum, RangeDigest, Requester, ScanLimit,
};
use stdx::WallTime;

/// Names a scan of a coordinator; chosen by whoever begins it, unique among those that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanId(pub u64);

/// What a user wants of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Which keys.
    pub range: KeyRange,
    /// So many entries at most.
    pub limit: Option<u64>,
    /// Whose entries.
    pub scope: ScanScope,
}

/// Whose entries a scan is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanScope {
    /// Those that this node holds.
    Node,
    /// Those of the cluster; of each key, `ack` of `from` replicas must have a say.
    Cluster(Quorum),
}

/// Names a snapshot that a store keeps for a scan: the same scan names it alike in all stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The life of the process that scans.
    pub incarnation: Incarnation,
    /// Which of its machines.
    pub requester: Requester,
    /// Counts the scans of that machine.
    pub number: u64,
}

/// Asks a store for the next entries of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Which snapshot to read. One that the store does not keep, or has kept for too long, is taken afresh.
    pub snapshot: SnapshotId,
    /// What is left of the range.
    pub range: KeyRange,
    /// Only keys of these partitions; `None`: of all.
    pub partitions: Option<PartitionSet>,
    /// How much: the page has no more, but for one entry that alone is larger. Looking at many entries that are not for
    /// the page also ends it: an empty page is not the end of a range.
    pub limit: ScanLimit,
    /// Which entries, and how much of them.
    pub content: PageContent,
}

impl PageRequest {
    /// Where the next request for this snapshot will begin when this range has come to its end. A scan is checked
    /// part by part, each a range of its own; the snapshot is kept between them.
    pub const fn continues_at(&self) -> Option<&Cut> {
        match self.content {
            PageContent::Cells { versions_only: true, .. } => self.range.to.as_ref(),
            PageContent::Cells { .. } | PageContent::Live { .. } => None,
        }
    }
}

/// Which entries a page has, and how much of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// Those that live at `at`, with their values.
    Live {
        /// By the asker's wall clock.
        at: WallTime,
    },
    /// All that have not been dead since before `dead_since`; those that live at `at` with their values, unless
    /// only versions are wanted.
    Cells {
        /// By the asker's wall clock.
        at: WallTime,
        /// What has been dead for longer, some replicas may have purged.
        dead_since: WallTime,
        /// No values at all: the entries of the page have none.
        versions_only: bool,
    },
}

/// A set of partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSet {
    partitions: u32,
    bits: std::sync::Arc<[u64]>,
}

impl PartitionSet {
    /// Those of the layout for which `is_in` says so.
    pub fn of(layout: &Layout, is_in: impl Fn(Partition) -> bool) -> Self {
        let partitions = layout.partitions();
        let mut bits = vec![0_u64; partitions.div_ceil(64) as usize];
        for partition in (0..partitions).filter(|partition| is_in(Partition(*partition))) {
            bits[partition as usize / 64] |= 1 << (partition % 64);
        }
        Self { partitions, bits: bits.into() }
    }

    /// Whether a partition is in it.
    #[inline]
    pub fn contains(&self, partition: Partition) -> bool {
        self.bits[partition.0 as usize / 64] & (1 << (partition.0 % 64)) != 0
    }

    /// Whether the partition of `key` is in it.
    #[inline]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.contains(Partition::of(key, self.partitions))
    }

    /// Whether no partition is in it.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }
}

/// Which replica has which part in a scan of the cluster. Both sides compute it alike.
///
/// Of the first `from` nodes of a partition's preference list, the `ack` that come first in `order` have a part: the
/// very first is the *source* of its cells, the others are *checkers* of their versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRoles {
    /// The nodes that may have a part, the best first; each once.
    pub order: Vec<NodeIndex>,
    /// How many must have a part.
    pub ack: u8,
    /// Of how many replicas.
    pub from: u8,
}

impl ScanRoles {
    /// Those that have a part in `partition`, the source first; fewer than `ack` when too few nodes are in the order.
    pub fn participants<'a>(
        &'a self,
        layout: &'a Layout,
        partition: Partition,
    ) -> impl Iterator<Item = NodeIndex> + 'a {
        let replicas = &layout.preference_list(partition)[..usize::from(self.from.min(layout.len()))];
        self.order.iter().copied().filter(|node| replicas.contains(node)).take(usize::from(self.ack))
    }

    /// The partitions that `node` is the source of.
    pub(crate) fn sourced_by(&self, layout: &Layout, node: NodeIndex) -> PartitionSet {
        PartitionSet::of(layout, |partition| self.participants(layout, partition).next() == Some(node))
    }

    /// The partitions that `node` checks.
    pub(crate) fn checked_by(&self, layout: &Layout, node: NodeIndex) -> PartitionSet {
        PartitionSet::of(layout, |partition| {
            self.participants(layout, partition).skip(1).any(|checker| checker == node)
        })
    }
}

/// Asks another node for its part in a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// Names the scan, and the snapshot of it.
    pub snapshot: SnapshotId,
    /// What is left of the range; for checks, the part that is checked.
    pub range: KeyRange,
    /// Who has which part.
    pub roles: ScanRoles,
    /// By the scanning node's wall clock: what has expired by then is dead.
    pub at: WallTime,
    /// See [`PageContent::Cells`].
    pub dead_since: WallTime,
    /// What is asked.
    pub task: ScanTask,
}

/// Which part of a scan a node is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanTask {
    /// The cells of the partitions that it is the source of.
    Cells {
        /// How much at once.
        limit: ScanLimit,
    },
    /// Whether what it holds of the partitions that it checks amounts to this; else, the versions.
    Check {
        /// What the sources sent of it, but for cells that the checker is not to hold, by their own `from`.
        digest: RangeDigest,
    },
}

/// The answer to a [`ScanRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanAnswer {
    /// To `Cells`, or to a `Check` that failed: then without values, of all that the node holds there.
    Page {
        /// Entries.
        page: Page,
        /// Where what was looked at ends; `None`: at the end of the range.
        rest: Option<Cut>,
    },
    /// To `Check`: what it holds amounts to the same, and is nothing else.
    Same,
}
