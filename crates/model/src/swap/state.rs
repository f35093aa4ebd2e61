//! The state of a swap and of the operations beside it.

use super::config::{SwapConfig, SwapRule};
use super::record::{EPOCHS, NODES, Phase, SwapNode, SwapNodeSet, SwapRecord};

/// Greatest number of writes.
pub(super) const WRITES: usize = 2;
/// Greatest number of reads.
pub(super) const READS: usize = 3;

/// A state.
///
/// Messages are not kept. A request of an operation that was planned at an epoch can arrive at any
/// later time, or never. An operation begins at the first epoch and is planned anew at each epoch
/// up to its own, so its epoch alone says which requests are in flight. An operation that skips
/// epochs has fewer requests in flight, and every behaviour of it is one of this operation, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwapState {
    /// The decided records. The record of epoch `e` is at index `e - 1`.
    pub(super) records: [SwapRecord; EPOCHS],
    /// The newest epoch.
    pub(super) decided: u8,
    pub(super) hosts: [SwapHost; NODES],
    pub(super) writes: [SwapWrite; WRITES],
    pub(super) reads: [SwapRead; READS],
    /// The value that is on its way from the sources to the gaining node.
    pub(super) copy: Option<Copying>,
    /// Attempts whose copy was stated to be complete, as bits.
    pub(super) complete: u16,
    pub(super) swaps: u8,
    pub(super) cancels: u8,
    /// The node that has lost its disk.
    pub(super) lost: SwapNodeSet,
    /// The newest version that a read has returned.
    pub(super) returned: u8,
    pub(super) is_collected: bool,
    pub(super) broken: Option<Broken>,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A read misses a write that was acknowledged before it began.
    Missed,
    /// A read returns an older version than a read that ended before it began.
    WentBack,
}

/// A copy in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copying {
    pub(super) attempt: u8,
    pub(super) version: u8,
}

/// The state of a node as a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SwapHost {
    /// The version that it holds; 0 for none.
    pub(super) held: u8,
    /// The newest epoch whose record it holds; 0 after the loss of the disk.
    pub(super) epoch: u8,
    /// Whether it answers reads.
    pub(super) is_read_eligible: bool,
    /// Whether it may hold anything of the partition.
    pub(super) may_hold: bool,
    /// Whether it gains a place and has not purged what it holds from before.
    pub(super) is_purging: bool,
}

/// A write of version `index + 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SwapWrite {
    /// Epoch of its plan.
    pub(super) plan: u8,
    /// Epoch of its coordinator's links: the same, unless [`SwapRule::EpochOfPlan`] is left out.
    pub(super) link: u8,
    pub(super) acked: SwapNodeSet,
    pub(super) is_done: bool,
    /// Epoch of the request that each node has admitted and not executed; 0 for none.
    pub(super) open: [u8; NODES],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SwapStep {
    #[default]
    Waiting,
    Asking,
    /// The result is stored on enough nodes.
    Storing,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SwapRead {
    pub(super) step: SwapStep,
    pub(super) plan: u8,
    pub(super) link: u8,
    /// The newest version that was acknowledged before the read began.
    pub(super) acked_before: u8,
    /// The newest version that another read returned before this one began.
    pub(super) returned_before: u8,
    pub(super) newest: u8,
    pub(super) answered: SwapNodeSet,
    /// Nodes known to hold `newest`.
    pub(super) holders: SwapNodeSet,
    /// The version whose storing was requested at each epoch; 0 for none.
    pub(super) stored: [u8; EPOCHS + 1],
    pub(super) open: [u8; NODES],
}

impl SwapState {
    pub(super) fn new(config: &SwapConfig) -> Self {
        let mut state = Self { decided: 1, ..Self::default() };
        state.records[0] = SwapRecord::stable(config.start, 1, SwapNodeSet::EMPTY);
        for node in SwapNode::all() {
            let may_hold = config.start.contains(node);
            state.hosts[node.index()] =
                SwapHost { epoch: 1, is_read_eligible: true, may_hold, ..SwapHost::default() };
        }
        for write in &mut state.writes[..config.writes] {
            (write.plan, write.link) = (1, 1);
        }
        state
    }

    pub(super) const fn record(&self, epoch: u8) -> &SwapRecord {
        &self.records[epoch as usize - 1]
    }

    pub(super) const fn newest(&self) -> &SwapRecord {
        self.record(self.decided)
    }

    pub(super) const fn host(&self, node: SwapNode) -> &SwapHost {
        &self.hosts[node.index()]
    }

    /// Whether `node` holds the record of `epoch` and has ended all older requests.
    pub(super) fn is_fenced(&self, config: &SwapConfig, node: SwapNode, epoch: u8) -> bool {
        let index = node.index();
        let writes = self.writes.iter().map(|write| write.open[index]);
        let mut open = writes.chain(self.reads.iter().map(|read| read.open[index]));
        self.hosts[index].epoch >= epoch
            && (config.omits(SwapRule::Drain) || open.all(|open| open == 0 || open >= epoch))
    }

    /// The first epoch that names the new id of a node that lost its disk.
    pub(super) fn named_at(&self, node: SwapNode) -> Option<u8> {
        (1..=self.decided).find(|epoch| self.record(*epoch).replaced.contains(node))
    }

    /// Nodes that cannot act.
    pub(super) fn off(&self, config: &SwapConfig) -> SwapNodeSet {
        let mut off = SwapNodeSet::EMPTY;
        if config.dead_is_off {
            (1..=self.decided).for_each(|epoch| off = off.union(self.record(epoch).dead));
        }
        off
    }

    /// The newest version that was acknowledged.
    pub(super) fn acknowledged(&self) -> u8 {
        (self.writes.iter().zip(1..))
            .filter(|(write, _)| write.is_done)
            .map(|(_, version)| version)
            .max()
            .unwrap_or(0)
    }

    /// Whether the requests of write `index` at `epoch` have an effect at `node`.
    pub(super) fn write_matters(&self, index: usize, node: SwapNode, epoch: u8) -> bool {
        let write = &self.writes[index];
        if epoch == 0 || epoch > write.link || !self.record(epoch.min(write.plan)).targets().contains(node) {
            return false;
        }
        let is_counted = epoch >= write.plan && !write.is_done && !write.acked.contains(node);
        is_counted || self.host(node).held < version_of(index)
    }

    /// Whether the question of read `index` at `epoch` has an effect at `node`.
    pub(super) fn question_matters(
        &self,
        config: &SwapConfig,
        index: usize,
        node: SwapNode,
        epoch: u8,
    ) -> bool {
        let read = &self.reads[index];
        let plan = if read.plan == 0 { epoch } else { read.plan };
        read.step == SwapStep::Asking
            && epoch > 0
            && (read.plan == 0 || (read.plan..=read.link).contains(&epoch))
            && read.answered.len() < config.read_ack
            && self.record(plan).readers().contains(node)
            && !read.answered.contains(node)
            && self.host(node).is_read_eligible
    }

    /// Whether storing the result of read `index` at `epoch` has an effect at `node`.
    pub(super) fn storing_matters(&self, index: usize, node: SwapNode, epoch: u8) -> bool {
        let read = &self.reads[index];
        if epoch == 0 || epoch > self.decided {
            return false;
        }
        let is_current = read.step == SwapStep::Storing && (read.plan..=read.link).contains(&epoch);
        let plan = if is_current { read.plan } else { epoch };
        let version = read.stored[usize::from(plan)];
        version > 0
            && self.record(plan).targets().contains(node)
            && (self.host(node).held < version || (is_current && !read.holders.contains(node)))
    }

    /// Whether `nodes` are `ack` of each set that must hold a write.
    pub(super) fn suffice_for_write(&self, config: &SwapConfig, plan: u8, nodes: SwapNodeSet) -> bool {
        let record = self.record(plan);
        let skips = match record.phase {
            Phase::Stable => None,
            Phase::Prepare => config.omits(SwapRule::WriteBothInPrepare).then_some(1),
            Phase::ReadNew => config.omits(SwapRule::WriteBothInReadNew).then_some(0),
            Phase::Back => config.omits(SwapRule::WriteBothInBack).then_some(1),
        };
        self.suffice(plan, nodes, config.write_ack, skips)
    }

    /// Whether `nodes` are `ack` of each set that must hold the result of a read.
    pub(super) fn suffice_for_read(&self, config: &SwapConfig, plan: u8, nodes: SwapNodeSet) -> bool {
        let reads_new = self.record(plan).phase == Phase::ReadNew;
        let skips = config.omits(SwapRule::WriteBackToBoth).then_some(usize::from(!reads_new));
        self.suffice(plan, nodes, config.read_ack, skips)
    }

    fn suffice(&self, plan: u8, nodes: SwapNodeSet, ack: u8, skips: Option<usize>) -> bool {
        let sets = self.record(plan).sets();
        (0..2).all(|set| skips == Some(set) || nodes.intersection(sets[set]).len() >= ack)
    }

    /// Whether read `index` has its answers.
    pub(super) fn is_answered(&self, config: &SwapConfig, index: usize) -> bool {
        let read = &self.reads[index];
        match read.step {
            SwapStep::Asking => read.answered.len() >= config.read_ack,
            SwapStep::Storing => self.suffice_for_read(config, read.plan, read.holders),
            SwapStep::Waiting | SwapStep::Done => false,
        }
    }
}

pub(super) const fn version_of(write: usize) -> u8 {
    write as u8 + 1
}
