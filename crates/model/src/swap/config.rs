//! Bounds of a model, and the rules that it can leave out.

use super::record::{SwapNode, SwapNodeSet};

/// A rule of the design. A model without it must break a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapRule {
    /// A node refuses requests that were planned at an epoch older than its own.
    Fence,
    /// `fenced` is stated after older requests have ended.
    Drain,
    /// The record is durable before anything else is done at its epoch.
    DurableRecord,
    /// The fence judges the epoch of the plan, not the epoch that the link last said.
    EpochOfPlan,
    /// Acknowledgements begin at zero when an operation is planned anew.
    FreshAcknowledgements,
    /// In PREPARE, writes need both sets.
    WriteBothInPrepare,
    /// In READ-NEW, writes need both sets.
    WriteBothInReadNew,
    /// In BACK, writes need both sets.
    WriteBothInBack,
    /// While a swap runs, both sets hold what a read returns.
    WriteBackToBoth,
    /// While a swap runs, this is so for equal answers, too.
    WriteBackEqualAnswers,
    /// The copy begins after the losing node has fenced PREPARE.
    FenceBeforeCopy,
    /// READ-NEW is decided after the copy is complete.
    CompleteBeforeReadNew,
    /// A statement that the copy is complete counts for its attempt only.
    CompleteNamesAttempt,
    /// A copy is stored by the attempt that read it only.
    CopyNamesAttempt,
    /// NEW is decided after the losing node has fenced READ-NEW.
    FenceBeforeNew,
    /// The losing node keeps its copy until it has fenced NEW.
    KeepUntilNew,
    /// A swap in READ-NEW is cancelled by BACK, then OLD.
    BackBeforeOld,
    /// OLD follows BACK after the gaining node has fenced BACK.
    FenceBeforeOld,
    /// A node drops a partition by the newest record that it holds only.
    DropByNewest,
    /// A node that gains a partition purges what it holds of it from before.
    PurgeBeforeGain,
    /// The gaining node stores no request before that purge.
    PurgeBeforeStore,
    /// The gaining node copies after that purge.
    PurgeBeforeCopy,
    /// No plan counts a dead node.
    DeadIsNotCounted,
    /// Enough kept replicas fence the epoch that declares a node dead before they replace it.
    SourcesFence,
    /// The sources of a rebuilt replica fence the epoch of its new id before they are read.
    FenceBeforeRebuild,
    /// `from - majority + 1` nodes are read in place of a lost one.
    EnoughSources,
    /// A node that lost its disk accepts nothing before it holds a record that names its new id.
    NewIdRefuses,
    /// A gaining node that lost its disk copies anew.
    CopyAnewAfterLoss,
    /// A replica that lost its disk answers no reads before it is rebuilt.
    RebuildBeforeReads,
}

/// Bounds of a model.
#[derive(Clone, Debug)]
pub struct SwapConfig {
    /// Replicas at the start. Their number is `from`.
    pub start: SwapNodeSet,
    /// `ack` of writes.
    pub write_ack: u8,
    /// `ack` of reads.
    pub read_ack: u8,
    /// Number of writes, at most 2. Write `i` has version `i + 1`.
    pub writes: usize,
    /// Number of reads, at most 3.
    pub reads: usize,
    /// Number of records, with the first.
    pub epochs: usize,
    /// Pairs that may be swapped: the losing node, then the gaining one.
    pub swaps: Vec<(SwapNode, SwapNode)>,
    /// Number of swaps that may be started.
    pub swaps_max: u8,
    /// Number of swaps that may be cancelled.
    pub cancels_max: u8,
    /// Nodes that may be declared dead.
    pub mortal: SwapNodeSet,
    /// Whether a dead node is off. Otherwise it is alive and cut off from the driver.
    pub dead_is_off: bool,
    /// Nodes of which one may lose its disk.
    pub lossy: SwapNodeSet,
    /// Whether write 2 is a delete whose tombstone may be collected.
    pub collects: bool,
    /// The rule that is left out.
    pub without: Option<SwapRule>,
}

/// The losing node of the first swap.
pub const X: SwapNode = SwapNode(0);
/// The gaining node of the first swap.
pub const G: SwapNode = SwapNode(1);
/// The gaining node of another swap.
pub const H: SwapNode = SwapNode(2);
/// A replica that the first swap keeps.
pub const A: SwapNode = SwapNode(3);

impl SwapConfig {
    /// One swap of x and g, with one write and two reads of `write_ack` and `read_ack` of `from`.
    pub fn swap(write_ack: u8, read_ack: u8, from: u8) -> Self {
        let kept = SwapNode::all().filter(|node| *node >= A).take(usize::from(from) - 1);
        let start = kept.fold(X.set(), |set, node| set.union(node.set()));
        Self {
            start,
            write_ack,
            read_ack,
            writes: 1,
            reads: 2,
            epochs: 4,
            swaps: vec![(X, G)],
            swaps_max: 1,
            cancels_max: 0,
            mortal: SwapNodeSet::EMPTY,
            dead_is_off: false,
            lossy: SwapNodeSet::EMPTY,
            collects: false,
            without: None,
        }
    }

    /// Number of replicas.
    pub const fn from(&self) -> u8 {
        self.start.len()
    }

    /// Number of nodes that meet every majority of a set of which one replica is lost.
    pub const fn sources(&self) -> u8 {
        if self.omits(SwapRule::EnoughSources) { 1 } else { self.from() - (self.from() / 2 + 1) + 1 }
    }

    /// Whether reads return acknowledged writes.
    pub const fn reads_see_writes(&self) -> bool {
        self.write_ack + self.read_ack > self.from()
    }

    /// Whether reads do not go back.
    pub const fn reads_see_reads(&self) -> bool {
        2 * self.read_ack > self.from()
    }

    /// Whether `rule` is left out.
    pub const fn omits(&self, rule: SwapRule) -> bool {
        matches!(self.without, Some(omitted) if omitted as u8 == rule as u8)
    }

    /// Whether a node may drop its copy later than it could. Otherwise it does so at once,
    /// because the
    /// copy has no further effect.
    pub const fn drops_late(&self) -> bool {
        matches!(
            self.without,
            Some(
                SwapRule::DropByNewest
                    | SwapRule::KeepUntilNew
                    | SwapRule::Fence
                    | SwapRule::PurgeBeforeGain
                    | SwapRule::PurgeBeforeStore
                    | SwapRule::PurgeBeforeCopy
            )
        )
    }

    /// Whether a swap may give `node` a place.
    pub fn may_gain(&self, node: SwapNode) -> bool {
        self.swaps.iter().any(|(_, gainer)| *gainer == node)
    }

    /// Replicas, and nodes that may become replicas.
    pub fn members(&self) -> SwapNodeSet {
        self.swaps.iter().fold(self.start, |set, (_, gainer)| set.union(gainer.set()))
    }

    /// Replicas that no event of the model names, and that are interchangeable.
    pub fn symmetric(&self) -> SwapNodeSet {
        let swapped = self.swaps.iter().map(|(loser, gainer)| loser.set().union(gainer.set()));
        let named = swapped.fold(self.mortal.union(self.lossy), SwapNodeSet::union);
        self.start.without(named)
    }
}
