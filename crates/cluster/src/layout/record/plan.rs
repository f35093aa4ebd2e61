//! The running plan of a record: the swaps by which the placement changes while it serves.
//!
//! **Promise.** A record alone tells for each partition which nodes must hold a write and which are
//! read. A partition is in at most one swap. The swaps of a record follow from those of its parent
//! by the transitions below, which are those of the exhaustive model of changes.
//!
//! **Mechanism.** A *swap* exchanges two members of preference lists: the *loser*, which comes
//! first, and the *gainer*. For a `from` between the two the loser is no replica afterwards, and
//! the gainer is one. One [`PairSwap`] has all partitions that a pair of members exchanges at a
//! time. The lists of the record are those before the exchange until the phase is
//! [`SwapPhase::New`]. A partition without a swap is in the state OLD.
//!
//! | from | to | if |
//! |---|---|---|
//! | OLD | PREPARE | the partition is in no other swap |
//! | PREPARE | PREPARE, copied anew | always |
//! | PREPARE | READ-NEW | the copy is complete |
//! | PREPARE | OLD | the swap is cancelled, or a node of the pair has lost its disk |
//! | READ-NEW | NEW | the loser has fenced READ-NEW, or has lost its disk |
//! | READ-NEW | BACK | the swap is cancelled, or the gainer is dead |
//! | READ-NEW | PREPARE, copied anew | the gainer has lost its disk |
//! | BACK | OLD | the gainer has fenced BACK, or has lost its disk |
//! | NEW | OLD of the exchanged list | always |
//!
//! A transition, a death and a lost disk are a change of the partition: its epoch is that of the
//! record. So every node refuses requests that were planned before.
//!
//! A new node id in the slot of a member says that the member has lost its disk. A record that
//! names one takes the transition in the same step: [`LayoutRecord::replace_node`]. Likewise a
//! gainer that is declared dead, and a dead loser whose copy was not complete:
//! [`LayoutRecord::declare_dead`]. A swap whose loser is dead may be cancelled like any other one.
//!
//! **Target.** A plan has the holders that each partition is to have at its end. The driver derives
//! from them and from the lists which swaps are still to begin, so no node keeps anything about a
//! plan but the record. A plan that was cancelled has no target: no swap begins, and those that run
//! are taken back as far as they can. A paused plan begins no swap either, and those that run go
//! on. The limit of its rate may change in any record: it changes no replicas, so no operation is
//! planned anew.
//!
//! **Caveats.** A record does not contain the statements that a transition waits for, such as that
//! a node has fenced an epoch. They are the duty of the driver of the plan, which proposes the
//! record.

use super::{FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutMember, LayoutRecord, LayoutRecordError, MemberState};
use crate::layout::{NODES_MAX, NodeIndex, NodeSet, PartitionId};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use stdx::NodeTag;

/// Most swaps of a plan at a time. It bounds the size of a record.
pub const SWAPS_MAX: usize = 256;

/// A change of the cluster that is being carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPlan {
    /// Epoch of the record in which the change began. It identifies the change.
    pub began: LayoutEpoch,
    /// Whether no further swap begins until the plan is resumed.
    pub is_paused: bool,
    /// The rate at which its data moves. `None`: without a limit.
    pub rate_limit: Option<RateLimit>,
    /// The first `default_from` members of each list at the end of the plan, concatenated. Empty in
    /// a plan that was cancelled.
    pub target: Vec<NodeIndex>,
    /// The swaps of its pairs, in the order of losers, then gainers.
    pub swaps: Vec<PairSwap>,
}

/// A limit of the rate at which each node sends data of a plan, and of that at which it receives
/// data: bytes for each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RateLimit(NonZeroU64);

/// The exchange of two members in the preference lists of some partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSwap {
    /// The member that comes first in the lists before the exchange.
    pub loser: NodeIndex,
    /// The member that comes first in the lists after the exchange.
    pub gainer: NodeIndex,
    /// The phase of the exchange.
    pub phase: SwapPhase,
    /// Epoch of the PREPARE whose copy counts. Statements about the copy name it.
    pub attempt: LayoutEpoch,
    /// Epoch in which the phase began.
    pub since: LayoutEpoch,
    /// The partitions, in order.
    pub partitions: Vec<PartitionId>,
}

/// The phase of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwapPhase {
    /// The gainer copies. Writes go to both sets of replicas, reads use the old one.
    Prepare,
    /// The gainer has its copy. Writes go to both sets, reads use the new one.
    ReadNew,
    /// The swap was cancelled after reads used the new set. Writes go to both sets, reads use the
    /// old one.
    Back,
    /// The lists are exchanged. The loser drops its copy.
    New,
}

/// The changes of swaps from one record to the next, by partition.
#[derive(Debug, Default)]
pub(super) struct SwapChanges(BTreeMap<PartitionId, SwapChange>);

/// The change of the swap of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwapChange {
    /// Its sets of replicas change.
    Phase,
    /// These members exchange their positions in the list.
    Exchange(NodeIndex, NodeIndex),
}

impl RunningPlan {
    /// A plan that began in this epoch, without a target and swaps.
    pub const fn new(began: LayoutEpoch) -> Self {
        Self { began, is_paused: false, rate_limit: None, target: Vec::new(), swaps: Vec::new() }
    }
}

impl RateLimit {
    /// The limit of this number of bytes for each second. `None`: it is zero.
    pub const fn new(bytes_per_second: u64) -> Option<Self> {
        match NonZeroU64::new(bytes_per_second) {
            Some(limit) => Some(Self(limit)),
            None => None,
        }
    }

    /// Bytes for each second, at least 1.
    pub const fn bytes_per_second(self) -> u64 {
        self.0.get()
    }
}

impl SwapPhase {
    /// Whether writes go to both sets of replicas.
    pub const fn has_two_sets(self) -> bool {
        match self {
            Self::Prepare | Self::ReadNew | Self::Back => true,
            Self::New => false,
        }
    }

    /// Name of the phase, for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::ReadNew => "read-new",
            Self::Back => "back",
            Self::New => "new",
        }
    }
}

impl PairSwap {
    /// The loser and the gainer.
    pub const fn pair(&self) -> (NodeIndex, NodeIndex) {
        (self.loser, self.gainer)
    }

    fn restart(&mut self, epoch: LayoutEpoch) {
        (self.phase, self.attempt, self.since) = (SwapPhase::Prepare, epoch, epoch);
    }

    const fn enter(&mut self, phase: SwapPhase, epoch: LayoutEpoch) {
        (self.phase, self.since) = (phase, epoch);
    }
}

impl SwapChanges {
    pub(super) fn of(&self, partition: PartitionId) -> Option<SwapChange> {
        self.0.get(&partition).copied()
    }

    fn record(&mut self, swap: &PairSwap, change: SwapChange) {
        self.0.extend(swap.partitions.iter().map(|partition| (*partition, change)));
    }
}

impl LayoutRecord {
    /// The swaps of the running plan.
    pub fn swaps(&self) -> &[PairSwap] {
        self.plan.as_ref().map_or(&[], |plan| &plan.swaps)
    }

    /// Number of copies of partitions that are still to be moved: holders in the target of the
    /// running plan that are no holders in the lists.
    pub fn copies_left(&self) -> u32 {
        let (from, len) = (usize::from(self.default_from), self.members.len());
        let target = self.plan.as_ref().map_or(&[][..], |plan| &plan.target);
        let heads = self.lists.chunks_exact(len.max(1)).map(|list| &list[..from.min(len)]);
        let missing = |(holders, head): (&[NodeIndex], &[NodeIndex])| {
            holders.iter().filter(|slot| !head.contains(slot)).count() as u32
        };
        target.chunks_exact(from.max(1)).zip(heads).map(missing).sum()
    }

    /// Declares members dead, in a record whose epoch is that of the declaration. Swaps take the
    /// transitions that follow from it.
    pub fn declare_dead(&mut self, dead: NodeSet) {
        let epoch = self.epoch;
        for member in self.members.iter_mut().filter(|member| dead.contains(member.slot)) {
            member.state = MemberState::Dead;
        }
        if let Some(plan) = &mut self.plan {
            plan.swaps.retain(|swap| !(dead.contains(swap.gainer) && swap.phase == SwapPhase::Prepare));
            for swap in &mut plan.swaps {
                match swap.phase {
                    SwapPhase::ReadNew if dead.contains(swap.gainer) => {
                        swap.enter(SwapPhase::Back, epoch);
                    }
                    SwapPhase::Prepare if dead.contains(swap.loser) => swap.restart(epoch),
                    _ => {}
                }
            }
        }
        self.change_all_partitions();
    }

    /// Names another node in the slot of a member that has lost its disk, in a record whose epoch
    /// is that of the change. Swaps take the transitions that follow from it.
    pub fn replace_node(&mut self, slot: NodeIndex, id: NodeTag) {
        let epoch = self.epoch;
        if let Some(member) = self.members.iter_mut().find(|member| member.slot == slot) {
            let former = member.node_id.replace(id);
            if member.state == MemberState::Dead {
                member.state = MemberState::Active;
            }
            former.into_iter().for_each(|former| self.add_former_id(former));
        }
        let mut exchanged = Vec::new();
        if let Some(plan) = &mut self.plan {
            plan.swaps.retain(|swap| {
                let is_copy_lost = swap.gainer == slot && swap.phase == SwapPhase::Back;
                let is_source_lost = swap.loser == slot && swap.phase == SwapPhase::Prepare;
                !is_copy_lost && !is_source_lost
            });
            for swap in &mut plan.swaps {
                match swap.phase {
                    SwapPhase::Prepare | SwapPhase::ReadNew if swap.gainer == slot => {
                        swap.restart(epoch);
                    }
                    SwapPhase::ReadNew if swap.loser == slot => {
                        swap.enter(SwapPhase::New, epoch);
                        exchanged.push(swap.clone());
                    }
                    _ => {}
                }
            }
        }
        exchanged.iter().for_each(|swap| self.exchange(swap));
        self.change_all_partitions();
    }

    /// The record that follows this one, before its changes.
    pub(crate) fn next(&self) -> Option<Self> {
        Some(Self { epoch: self.epoch.next()?, parent: self.hash(), ..self.clone() })
    }

    /// Has the swap of a pair enter a phase, in a record whose epoch is that of the change. `None`
    /// is OLD.
    pub(crate) fn enter_phase(&mut self, pair: (NodeIndex, NodeIndex), phase: Option<SwapPhase>) {
        let epoch = self.epoch;
        let Some(plan) = &mut self.plan else { return };
        let Some(at) = plan.swaps.iter().position(|swap| swap.pair() == pair) else { return };
        let swap = match phase {
            Some(phase) => {
                plan.swaps[at].enter(phase, epoch);
                plan.swaps[at].clone()
            }
            None => plan.swaps.remove(at),
        };
        match phase {
            Some(SwapPhase::New) => self.exchange(&swap),
            // The lists are exchanged already.
            None if swap.phase == SwapPhase::New => return,
            _ => {}
        }
        self.change(&swap.partitions);
    }

    /// Begins the swap of a pair, in a record whose epoch is that of the change. `partitions`: in
    /// order, and each of them in no other swap.
    pub(crate) fn begin_swap(
        &mut self,
        (loser, gainer): (NodeIndex, NodeIndex),
        partitions: Vec<PartitionId>,
    ) {
        let epoch = self.epoch;
        let Some(plan) = &mut self.plan else { return };
        let at = plan.swaps.partition_point(|swap| swap.pair() < (loser, gainer));
        let phase = SwapPhase::Prepare;
        let swap = PairSwap { loser, gainer, phase, attempt: epoch, since: epoch, partitions };
        plan.swaps.insert(at, swap);
        let partitions = plan.swaps[at].partitions.clone();
        self.change(&partitions);
    }

    /// Ends the plan, which has no swaps: members that hold data by its target become active, and
    /// `removed`, which are last in every list, are removed.
    pub(crate) fn end_plan(&mut self, parent: &Self, removed: NodeSet) {
        let Some(plan) = self.plan.take() else { return };
        let holders: NodeSet = plan.target.iter().copied().collect();
        let is_joining = |member: &&mut LayoutMember| member.state == MemberState::Joining;
        for member in self.members.iter_mut().filter(is_joining) {
            if holders.contains(member.slot) {
                member.state = MemberState::Active;
            }
        }
        self.members.retain(|member| !removed.contains(member.slot));
        self.lists.retain(|slot| !removed.contains(*slot));
        self.record_former_ids(parent);
    }

    fn change(&mut self, partitions: &[PartitionId]) {
        for partition in partitions {
            self.changed[partition.0 as usize] = self.epoch;
        }
    }

    /// Exchanges the members of a swap in the lists of its partitions.
    fn exchange(&mut self, swap: &PairSwap) {
        let len = self.members.len();
        for partition in &swap.partitions {
            for slot in &mut self.lists[partition.0 as usize * len..][..len] {
                *slot = exchanged(swap.pair(), *slot);
            }
        }
    }

    /// Records that the replicas of every partition change in this epoch. Records that have no
    /// plans do not say this.
    fn change_all_partitions(&mut self) {
        if self.feature_level >= FEATURE_LEVEL_PLANS {
            self.changed.fill(self.epoch);
        }
    }

    /// Whether a member has died since the parent or has another node id, in a record that may have
    /// a plan.
    pub(super) fn changes_all_partitions(&self, parent: &Self) -> bool {
        let differs = |member: &LayoutMember| {
            parent.member(member.slot).is_some_and(|former| {
                let has_died = member.state == MemberState::Dead && former.state != MemberState::Dead;
                has_died || (former.node_id.is_some() && former.node_id != member.node_id)
            })
        };
        self.feature_level >= FEATURE_LEVEL_PLANS && self.members.iter().any(differs)
    }

    /// Checks the constraints of the plan that hold for every record.
    pub(super) fn check_plan(&self) -> Result<(), LayoutRecordError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        if self.feature_level < FEATURE_LEVEL_PLANS {
            return Err(LayoutRecordError::PlanLevel);
        }
        self.check_target(plan)?;
        let is_possible = LayoutEpoch::FIRST < plan.began && plan.began <= self.epoch;
        let is_ordered = plan.swaps.is_sorted_by(|a, b| a.pair() < b.pair());
        if !is_possible || !is_ordered || plan.swaps.len() > SWAPS_MAX {
            return Err(LayoutRecordError::PlanBounds);
        }
        let mut swapped = BTreeSet::new();
        for swap in &plan.swaps {
            let PairSwap { loser, gainer, .. } = *swap;
            if loser == gainer || swap.partitions.is_empty() || !self.has_possible_epochs(plan, swap) {
                return Err(LayoutRecordError::Swap { loser, gainer });
            }
            let [Some(_), Some(gaining)] = [loser, gainer].map(|slot| self.member(slot)) else {
                return Err(LayoutRecordError::Swap { loser, gainer });
            };
            let is_live = gaining.state != MemberState::Dead;
            if !is_live && matches!(swap.phase, SwapPhase::Prepare | SwapPhase::ReadNew) {
                return Err(LayoutRecordError::Swap { loser, gainer });
            }
            let mut partitions_from = 0;
            for &partition in &swap.partitions {
                let is_next = partition.0 >= partitions_from && partition.0 < self.partitions();
                if !is_next || !swapped.insert(partition) || !self.has_swap_order(swap, partition) {
                    return Err(LayoutRecordError::SwapPartition { partition });
                }
                partitions_from = partition.0 + 1;
            }
        }
        Ok(())
    }

    /// Checks that the target names different members for each partition, or that there is none.
    fn check_target(&self, plan: &RunningPlan) -> Result<(), LayoutRecordError> {
        let from = usize::from(self.default_from);
        let members = self.slots();
        let names_holders = |holders: &[NodeIndex]| {
            let named: NodeSet = holders.iter().copied().filter(|slot| slot.as_usize() < NODES_MAX).collect();
            usize::from(named.len()) == from && named.without(members).is_empty()
        };
        let is_complete = plan.target.len() == self.changed.len() * from
            && plan.target.chunks_exact(from).all(names_holders);
        match plan.target.is_empty() || is_complete {
            true => Ok(()),
            false => Err(LayoutRecordError::PlanTarget),
        }
    }

    /// Checks the target of a plan after that of the plan in `parent`: it stays, or the plan is
    /// cancelled. The members in a new one are to hold data.
    fn verify_target(&self, parent: &Self) -> Result<(), LayoutRecordError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let may_gain = |slot: &NodeIndex| {
            let state = self.member(*slot).map(|member| member.state);
            matches!(state, Some(MemberState::Active | MemberState::Joining))
        };
        let is_legal = match &parent.plan {
            Some(former) => plan.target == former.target || plan.target.is_empty(),
            None => plan.target.iter().all(may_gain),
        };
        if is_legal { Ok(()) } else { Err(LayoutRecordError::PlanTarget) }
    }

    fn has_possible_epochs(&self, plan: &RunningPlan, swap: &PairSwap) -> bool {
        let PairSwap { attempt, since, .. } = *swap;
        let follows = match swap.phase {
            SwapPhase::Prepare => attempt == since,
            SwapPhase::ReadNew | SwapPhase::Back | SwapPhase::New => attempt < since,
        };
        follows && plan.began <= attempt && since <= self.epoch
    }

    /// Whether the members of `swap` are in the order of its phase in the list of `partition`, and
    /// the partition has changed since the phase began.
    fn has_swap_order(&self, swap: &PairSwap, partition: PartitionId) -> bool {
        let (first, second) = match swap.phase.has_two_sets() {
            true => (swap.loser, swap.gainer),
            false => (swap.gainer, swap.loser),
        };
        let mut members =
            self.preference_list(partition).iter().filter(|slot| [first, second].contains(slot));
        members.next() == Some(&first)
            && members.next() == Some(&second)
            && self.changed[partition.0 as usize] >= swap.since
    }

    /// Checks the plan of this record after that of `parent`. Returns the changes of partitions
    /// that follow from it.
    pub(super) fn verify_plan(&self, parent: &Self) -> Result<SwapChanges, LayoutRecordError> {
        let mut changes = SwapChanges::default();
        if self.plan.is_none() && parent.plan.is_none() {
            return Ok(changes);
        }
        let began = |record: &Self| record.plan.as_ref().map(|plan| plan.began);
        if began(self).is_some_and(|began_here| began_here != began(parent).unwrap_or(self.epoch)) {
            return Err(LayoutRecordError::PlanBounds);
        }
        self.verify_target(parent)?;
        let by_pair =
            |record: &Self| record.swaps().iter().cloned().map(|swap| (swap.pair(), swap)).collect();
        let (former, next): (BTreeMap<_, PairSwap>, BTreeMap<_, PairSwap>) = (by_pair(parent), by_pair(self));
        for (pair, swap) in &former {
            self.verify_swap(parent, Some(swap), next.get(pair), &mut changes)?;
        }
        for (_, swap) in next.iter().filter(|(pair, _)| !former.contains_key(*pair)) {
            self.verify_swap(parent, None, Some(swap), &mut changes)?;
        }
        Ok(changes)
    }

    fn verify_swap(
        &self,
        parent: &Self,
        former: Option<&PairSwap>,
        next: Option<&PairSwap>,
        changes: &mut SwapChanges,
    ) -> Result<(), LayoutRecordError> {
        let Some(swap) = next.or(former) else { return Ok(()) };
        let PairSwap { loser, gainer, .. } = *swap;
        if !self.is_legal(parent, former, next) {
            return Err(LayoutRecordError::SwapTransition { loser, gainer });
        }
        match (former, next) {
            (Some(former), Some(next)) if former == next => {}
            (Some(PairSwap { phase: SwapPhase::New, .. }), None) => {}
            (Some(_), Some(PairSwap { phase: SwapPhase::New, .. })) => {
                changes.record(swap, SwapChange::Exchange(loser, gainer));
            }
            _ => changes.record(swap, SwapChange::Phase),
        }
        Ok(())
    }

    /// Whether the swap of a pair may follow from that in the parent. An absent one is OLD.
    fn is_legal(&self, parent: &Self, former: Option<&PairSwap>, next: Option<&PairSwap>) -> bool {
        use SwapPhase::{Back, New, Prepare, ReadNew};
        let Some(former) = former else {
            return next.is_none_or(|next| self.begins(parent, next));
        };
        let [loser, gainer] = [former.loser, former.gainer].map(|slot| self.fate(parent, slot));
        let Some(next) = next else {
            return match former.phase {
                Prepare | New => true,
                Back => !loser.is_hit() && !gainer.has_died,
                ReadNew => false,
            };
        };
        let is_same = former == next;
        let is_restarted = next.attempt == self.epoch;
        let enters = next.attempt == former.attempt && next.since == self.epoch;
        let is_calm = !loser.is_hit() && !gainer.is_hit();
        let follows = match (former.phase, next.phase) {
            (Prepare, Prepare) => !loser.is_replaced && (is_restarted || (is_same && is_calm)),
            (Prepare, ReadNew) => enters && is_calm,
            (ReadNew, ReadNew) => is_same && !loser.is_replaced && !gainer.is_replaced,
            (ReadNew, New) => enters && !gainer.is_hit() && !loser.has_died,
            // The death of the loser alone is no reason to take back its swap.
            (ReadNew, Back) => {
                enters && !loser.is_replaced && !gainer.is_replaced && (gainer.has_died || !loser.has_died)
            }
            (ReadNew, Prepare) => is_restarted && gainer.is_replaced && !loser.is_hit(),
            (Back, Back) => is_same && !gainer.is_replaced,
            (New, New) => is_same,
            _ => false,
        };
        follows && former.partitions == next.partitions
    }

    /// Whether a swap begins in this record as it may.
    fn begins(&self, parent: &Self, swap: &PairSwap) -> bool {
        let is_in_swap = |other: &PairSwap| {
            other.phase.has_two_sets()
                && swap.partitions.iter().any(|partition| other.partitions.binary_search(partition).is_ok())
        };
        let is_replaced = |slot| self.fate(parent, slot).is_replaced;
        swap.phase == SwapPhase::Prepare
            && swap.attempt == self.epoch
            && !is_replaced(swap.loser)
            && !is_replaced(swap.gainer)
            && !parent.swaps().iter().any(is_in_swap)
    }

    /// What has happened to the member in a slot since the parent.
    fn fate(&self, parent: &Self, slot: NodeIndex) -> MemberFate {
        let (Some(former), Some(member)) = (parent.member(slot), self.member(slot)) else {
            return MemberFate::default();
        };
        MemberFate {
            has_died: member.state == MemberState::Dead && former.state != MemberState::Dead,
            is_replaced: former.node_id.is_some() && member.node_id != former.node_id,
        }
    }
}

/// Losses of a member between two records.
#[derive(Clone, Copy, Debug, Default)]
struct MemberFate {
    has_died: bool,
    /// Whether another node has its slot: its disk is lost.
    is_replaced: bool,
}

impl MemberFate {
    const fn is_hit(self) -> bool {
        self.has_died || self.is_replaced
    }
}

/// The slot that a list has in place of `slot` after the exchange of a pair.
pub(super) fn exchanged((loser, gainer): (NodeIndex, NodeIndex), slot: NodeIndex) -> NodeIndex {
    match slot {
        slot if slot == loser => gainer,
        slot if slot == gainer => loser,
        slot => slot,
    }
}
