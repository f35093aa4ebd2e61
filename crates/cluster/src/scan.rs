//! Types of scans: ranges of entries, streamed page by page.
//!
//! A client's range is a *scan* of a coordinator: one command begins it, and one command requests
//! each further page. A store keeps a *snapshot* between the pages that it returns. A scan of the
//! whole cluster assigns *roles* to nodes ([`ScanRoles`]): for each key one replica sends the cell,
//! and others report whether they hold the same.

use crate::{
    Cut, Incarnation, KeyRange, Layout, NodeIndex, NodeSet, PartitionId, Quorum, RangeDigest, Requester,
    ScanLimit,
};
use stdx::WallTime;

/// Limit of a comparison; more than sources send at once.
const CHECK_LIMIT: ScanLimit = ScanLimit { entries: 16 << 10, bytes: 1 << 20 };

/// Identifies a scan of a coordinator. Chosen by the submitter, unique among open scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanId(pub u64);

/// A client's request for a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Keys to read.
    pub range: KeyRange,
    /// Greatest number of entries; `None`: no limit.
    pub limit: Option<u64>,
    /// The nodes whose entries are read.
    pub scope: ScanScope,
}

/// The nodes whose entries a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanScope {
    /// This node only.
    Node,
    /// The cluster; for each key, `ack` of `from` replicas are consulted.
    Cluster(Quorum),
}

/// Identifies a snapshot that a store keeps for a scan. All stores use the same id for a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// Incarnation of the scanning process.
    pub incarnation: Incarnation,
    /// State machine that scans.
    pub requester: Requester,
    /// Number of the scan within that state machine.
    pub number: u64,
}

/// Requests the next entries of a range from a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The snapshot to read. One that the store does not hold, or has held for too long, is taken
    /// afresh.
    pub snapshot: SnapshotId,
    /// The remaining range.
    pub range: KeyRange,
    /// Restricts the page to keys of these partitions; `None`: all.
    pub partitions: Option<PartitionSet>,
    /// Limit of the page, except for one entry that alone is larger. A page also ends after many
    /// entries were passed over, so an empty page is not the end of a range.
    pub limit: ScanLimit,
    /// Selects the entries and the fields of them.
    pub content: PageContent,
}

impl PageRequest {
    /// Start of the next request for this snapshot after the end of this range. A scan is checked
    /// in parts, each of which is a range of its own; the snapshot is kept between them.
    pub const fn continues_at(&self) -> Option<&Cut> {
        match self.content {
            PageContent::Cells { versions_only: true, .. } => self.range.to.as_ref(),
            PageContent::Cells { .. } | PageContent::Live { .. } => None,
        }
    }
}

/// Selects the entries of a page, and the fields of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// Entries that are live at `at`, with their values.
    Live {
        /// Time by the requester's wall clock.
        at: WallTime,
    },
    /// All entries except those that have been dead since before `dead_since`. Entries live at `at`
    /// have their values, unless `versions_only`.
    Cells {
        /// Time by the requester's wall clock.
        at: WallTime,
        /// Cells that have been dead for longer may have been purged by some replicas.
        dead_since: WallTime,
        /// Whether all values are left out.
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
    /// The partitions of the layout that satisfy `is_in`.
    pub fn of(layout: &Layout, is_in: impl Fn(PartitionId) -> bool) -> Self {
        let partitions = layout.partitions();
        let mut bits = vec![0_u64; partitions.div_ceil(64) as usize];
        for partition in (0..partitions).filter(|partition| is_in(PartitionId(*partition))) {
            bits[partition as usize / 64] |= 1 << (partition % 64);
        }
        Self { partitions, bits: bits.into() }
    }

    /// Whether the set contains a partition.
    #[inline]
    pub fn contains(&self, partition: PartitionId) -> bool {
        self.bits[partition.0 as usize / 64] & (1 << (partition.0 % 64)) != 0
    }

    /// Whether the set contains the partition of `key`.
    #[inline]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.contains(PartitionId::of(key, self.partitions))
    }

    /// Whether the set contains no partition.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }
}

/// The roles of nodes in a scan of the cluster. Both sides compute the partitions alike.
///
/// For each partition, the participants are the first `ack` nodes in `order` among the first `from`
/// nodes of its preference list. The first participant is the *source* of its cells, the others are
/// *checkers* of their versions.
///
/// While a swap changes these `from` nodes, `ack` of them before the swap and `ack` after it
/// participate. Nodes of both sets come first; if they are too few, so do the two that are
/// exchanged, and first the one that reads ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRoles {
    /// The nodes that may participate, the best first; each once.
    pub order: Vec<NodeIndex>,
    /// Number of participants of each partition.
    pub ack: u8,
    /// Number of replicas from which they are chosen.
    pub from: u8,
}

impl ScanRoles {
    /// The participants of `partition`, the source first; too few if too few replicas are in the
    /// order.
    pub fn participants<'a>(
        &'a self,
        layout: &'a Layout,
        partition: PartitionId,
    ) -> impl Iterator<Item = NodeIndex> + 'a {
        let replicas = layout.replicas_of_partition(partition, self.from);
        let swapped = layout.swapped_nodes(partition, self.from);
        let ack = usize::from(self.ack);
        let is_kept = move |node: &NodeIndex| {
            replicas.contains(node) && swapped.is_none_or(|swapped| !swapped.contains(node))
        };
        let kept = self.order.iter().copied().filter(is_kept).take(ack);
        let exchanged = swapped.filter(|_| kept.clone().count() < ack).into_iter().flatten();
        kept.chain(exchanged.filter(move |node| self.order.contains(node)))
    }

    /// Number of participants of `partition`; while a swap changes its replicas, the lesser one of
    /// those before it and those after it.
    pub(crate) fn participant_count(&self, layout: &Layout, partition: PartitionId) -> u8 {
        let swapped = layout.swapped_nodes(partition, self.from).into_iter().flatten();
        let exchanged: NodeSet = swapped.collect();
        let participants: NodeSet = self.participants(layout, partition).collect();
        let has_both = !exchanged.is_empty() && exchanged.without(participants).is_empty();
        participants.without(exchanged).len() + u8::from(has_both)
    }

    /// The partitions of which `node` is the source.
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

/// Requests a node's part of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// Identifies the scan, and its snapshot.
    pub snapshot: SnapshotId,
    /// The remaining range; for checks, the range to check.
    pub range: KeyRange,
    /// Roles of all nodes in the scan.
    pub roles: ScanRoles,
    /// Time by the scanning node's wall clock: cells expired by then are dead.
    pub at: WallTime,
    /// Time as in [`PageContent::Cells`].
    pub dead_since: WallTime,
    /// The part of the scan that is requested.
    pub task: ScanTask,
}

impl ScanRequest {
    /// The request to the store of a node for its part, which is in these partitions.
    pub(crate) fn into_page(self, partitions: PartitionSet) -> PageRequest {
        let Self { snapshot, range, at, dead_since, task, .. } = self;
        let (limit, versions_only) = match task {
            ScanTask::Cells { limit } => (limit, false),
            ScanTask::Check { .. } => (CHECK_LIMIT, true),
        };
        let content = PageContent::Cells { at, dead_since, versions_only };
        PageRequest { snapshot, range, partitions: Some(partitions), limit, content }
    }
}

/// The part of a scan that a node is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanTask {
    /// The cells of the partitions of which it is the source.
    Cells {
        /// Limit of one answer.
        limit: ScanLimit,
    },
    /// Whether its cells in the partitions that it checks have this digest. If they do not, it
    /// sends the versions.
    Check {
        /// Digest of the sources' cells of which the checker is a replica, by each cell's own
        /// `from`.
        digest: RangeDigest,
    },
}
