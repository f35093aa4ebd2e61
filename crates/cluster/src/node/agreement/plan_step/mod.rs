//! The driver of a running plan: the next record that the statements of the members permit.
//!
//! **Promise.**
//!
//! 1. A swap takes only the transitions of the exhaustive model of changes, and each of them only
//!    after the statements that it waits for.
//! 2. Nothing is kept between two records: any voter goes on with the plan of another one. Two
//!    voters that know different statements may propose different children of a record. Each of
//!    them is legal by itself, and the agreement decides one. The other is no child of that.
//! 3. A plan ends. While members that are not dead state what the swaps wait for, each record
//!    brings the lists nearer to the target of the plan.
//!
//! **Mechanism.** A pure function of the adopted record and of the members as one node hears them.
//! One record has all transitions that are permitted, because each record makes the operations of
//! the changed partitions be planned anew.
//!
//! | transition | waits for |
//! |---|---|
//! | PREPARE to READ-NEW | the gainer's copy is complete, and the loser has fenced PREPARE |
//! | READ-NEW to NEW | the loser has fenced READ-NEW |
//! | BACK to OLD | the gainer has fenced BACK |
//! | NEW to OLD | the loser has fenced NEW |
//!
//! In place of a dead node, enough of the other replicas fence the newest change of the partition:
//! for each number of replicas, every majority of them includes one. A cancelled plan takes
//! PREPARE to OLD and READ-NEW to BACK. Deaths and lost disks are in the records that state them.
//!
//! A gainer that is [silent](HeardCluster::silent) takes its PREPARE to OLD: writes do not wait for
//! it any longer. Its swap begins again, with another copy, once it is heard. In READ-NEW the swap
//! goes on, since only the loser is waited for.
//!
//! Then swaps begin, those that move data first: at most [`SWAPS_IN_FLIGHT_MAX`] with two sets of
//! replicas, and [`SWAPS_OF_NODE_MAX`] of a node on each side. The next swap of a partition is the
//! first one that leads its list to the target. It begins only if its loser and gainer are heard
//! with the adopted record and are settled, and the gainer has purged the places that it lost
//! before. No replica of the partition may be known to be rebuilt. A partition begins no swap in
//! the record that ends its swap with the same pair.
//!
//! When all lists are as the target says, the plan ends: members that were joining become active,
//! and those that leave, or are dead and not part of the target, are removed. A leaving voter is
//! replaced first.
//!
//! **Caveats.** A dead node that is part of the target gains nothing, so its plan does not end
//! until another node has its slot or the plan is cancelled. If fewer replicas are left than the
//! rule for a dead node asks for, all of those are waited for: data that only dead nodes hold is
//! lost. A gainer that holds an earlier copy of a partition purges it before it copies, which is
//! the duty of the gainer: no record knows the disk of a node.
//!
//! A node that leaves exchanges its places with nodes behind it, so those hold its data. At the
//! last place of a list there is no such node. A cell with as many replicas as there are nodes,
//! which only the leaving node has acknowledged, is lost with it unless anti-entropy has spread it
//! before. Majorities of all nodes lose nothing.

use super::next_record::HeardCluster;
use crate::layout::next_swap;
use crate::quorum::sources_needed;
use crate::{
    LayoutEpoch, LayoutMember, LayoutRecord, MemberState, NodeIndex, NodeSet, PairSwap, PartitionId,
    SwapPhase,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most swaps that have two sets of replicas at a time.
const SWAPS_IN_FLIGHT_MAX: usize = 16;
/// Most swaps with two sets of replicas in which a node is the loser, and in which it is the
/// gainer.
const SWAPS_OF_NODE_MAX: usize = 4;

/// The child of `adopted` with the next steps of its plan. `None`: no plan runs, or it waits for
/// statements.
pub(super) fn next_plan_step(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<LayoutRecord> {
    adopted.plan.as_ref()?;
    let driver = PlanDriver { adopted, heard, leaving: leaving_members(adopted) };
    let mut record = LayoutRecord { epoch: adopted.epoch.next()?, ..adopted.clone() };
    let has_advanced = driver.advance(&mut record);
    let has_begun = driver.begin(&mut record);
    let has_ended = !has_advanced && !has_begun && driver.end(&mut record);
    // Asked at each heartbeat, so the parent is hashed only for a step.
    (has_advanced || has_begun || has_ended).then(|| LayoutRecord { parent: adopted.hash(), ..record })
}

/// The members that the plan removes at its end.
fn leaving_members(record: &LayoutRecord) -> NodeSet {
    let Some(plan) = record.plan.as_ref().filter(|plan| !plan.target.is_empty()) else {
        return NodeSet::EMPTY;
    };
    let holders: NodeSet = plan.target.iter().copied().collect();
    let leaves = |member: &&LayoutMember| match member.state {
        MemberState::Leaving => true,
        MemberState::Dead => !holders.contains(member.slot),
        MemberState::Active | MemberState::Joining => false,
    };
    record.members.iter().filter(leaves).map(|member| member.slot).collect()
}

/// The event that a swap waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapWait {
    /// The gainer copies.
    Copy {
        /// The gainer.
        gainer: NodeIndex,
    },
    /// A node of the pair has not fenced the phase.
    Fence {
        /// The node.
        node: NodeIndex,
    },
    /// Too few of the other replicas have fenced the death of a node of the pair.
    FenceOfOthers {
        /// The dead node.
        dead: NodeIndex,
    },
    /// A voter has to propose the next phase.
    Driver,
}

/// The reason why a plan begins no swap and does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanWait {
    /// An operator has paused the plan.
    Paused,
    /// A dead member is to hold data at the end of the plan.
    DeadHolder {
        /// The member.
        node: NodeIndex,
    },
    /// A member that loses or gains data is not heard with the adopted record.
    Unheard {
        /// The member.
        node: NodeIndex,
    },
    /// A member that loses, gains or keeps data is rebuilt, or does not know yet whether it has
    /// lost its disk.
    Unsettled {
        /// The member.
        node: NodeIndex,
    },
    /// A gainer purges what it has lost before.
    Purge {
        /// The gainer.
        node: NodeIndex,
    },
    /// No other member can become a voter in place of one that leaves.
    LeavingVoter {
        /// The voter.
        node: NodeIndex,
    },
}

/// The reason why the plan of `adopted` begins no further swap and does not end. `None`: no plan
/// runs, it was cancelled, or it waits for its running swaps or a voter alone.
pub(super) fn plan_wait(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<PlanWait> {
    let plan = adopted.plan.as_ref().filter(|plan| !plan.target.is_empty())?;
    if plan.is_paused {
        return Some(PlanWait::Paused);
    }
    let driver = PlanDriver { adopted, heard, leaving: leaving_members(adopted) };
    let swapped: BTreeSet<PartitionId> =
        plan.swaps.iter().flat_map(|swap| &swap.partitions).copied().collect();
    let mut free =
        (0..adopted.partitions()).map(PartitionId).filter(|partition| !swapped.contains(partition));
    let blocked = free.find_map(|partition| {
        let swap = driver.next_swap_of(partition)?;
        let list = adopted.preference_list(partition);
        driver.obstacle((swap.loses, swap.gains), &list[..=usize::from(swap.second)])
    });
    let leaving_voter = || {
        let mut voters = adopted.voters.iter().filter(|_| plan.swaps.is_empty());
        voters
            .find(|voter| driver.leaving.contains(**voter))
            .map(|voter| PlanWait::LeavingVoter { node: *voter })
    };
    blocked.or_else(leaving_voter)
}

/// The events that the swaps of `adopted` wait for, in their order.
pub(super) fn swap_waits(adopted: &LayoutRecord, heard: &HeardCluster) -> Vec<SwapWait> {
    let driver = PlanDriver { adopted, heard, leaving: NodeSet::EMPTY };
    let wait_of = |(index, swap)| driver.next_phase(index, swap).err().unwrap_or(SwapWait::Driver);
    adopted.swaps().iter().enumerate().map(wait_of).collect()
}

/// The facts that a step is made from.
struct PlanDriver<'a> {
    adopted: &'a LayoutRecord,
    heard: &'a HeardCluster,
    leaving: NodeSet,
}

/// The swaps that may begin, of one pair.
#[derive(Default)]
struct PairCandidate {
    partitions: Vec<PartitionId>,
    moves_data: bool,
}

impl PlanDriver<'_> {
    /// Has each swap take its next transition. Returns whether there was one.
    fn advance(&self, record: &mut LayoutRecord) -> bool {
        let mut has_advanced = false;
        for (index, swap) in self.adopted.swaps().iter().enumerate() {
            if let Ok(next) = self.next_phase(index, swap) {
                record.enter_phase(swap.pair(), next);
                has_advanced = true;
            }
        }
        has_advanced
    }

    /// The phase that the swap enters; `None` is OLD.
    ///
    /// # Errors
    /// The event that it waits for in its phase.
    fn next_phase(&self, index: usize, swap: &PairSwap) -> Result<Option<SwapPhase>, SwapWait> {
        let is_cancelled = self.adopted.plan.as_ref().is_none_or(|plan| plan.target.is_empty());
        let (fences, next) = match swap.phase {
            SwapPhase::Prepare if is_cancelled || self.heard.silent.contains(swap.gainer) => {
                return Ok(None);
            }
            SwapPhase::ReadNew if is_cancelled => return Ok(Some(SwapPhase::Back)),
            SwapPhase::Prepare if !self.has_copy(index, swap.gainer) => {
                return Err(SwapWait::Copy { gainer: swap.gainer });
            }
            SwapPhase::Prepare => (swap.loser, Some(SwapPhase::ReadNew)),
            SwapPhase::ReadNew => (swap.loser, Some(SwapPhase::New)),
            SwapPhase::Back => (swap.gainer, None),
            SwapPhase::New => (swap.loser, None),
        };
        match self.is_fenced(swap, fences) {
            true => Ok(next),
            false if self.is_dead(fences) => Err(SwapWait::FenceOfOthers { dead: fences }),
            false => Err(SwapWait::Fence { node: fences }),
        }
    }

    /// Whether the gainer has stated that its copy of the swap with this index is complete.
    fn has_copy(&self, index: usize, gainer: NodeIndex) -> bool {
        self.heard.statements(self.adopted, gainer).is_some_and(|stated| stated.complete.contains(index))
    }

    fn has_fenced(&self, slot: NodeIndex, epoch: LayoutEpoch) -> bool {
        self.heard.statements(self.adopted, slot).is_some_and(|stated| stated.has_fenced(epoch))
    }

    /// Whether `slot`, the loser or gainer, serves no request that was planned before the phase of
    /// the swap: it has fenced the phase, or enough others have fenced its death.
    fn is_fenced(&self, swap: &PairSwap, slot: NodeIndex) -> bool {
        match self.is_dead(slot) {
            // Nothing depends on what a dead node serves once the lists are exchanged.
            true if swap.phase == SwapPhase::New => true,
            true => swap.partitions.iter().all(|partition| self.is_fenced_by_others(swap, *partition)),
            false => self.has_fenced(slot, swap.since),
        }
    }

    /// Whether enough replicas that keep the partition have fenced its newest change, which is not
    /// before the death of a node. For each number of replicas by which the loser is one and the
    /// gainer is not, each majority of the replicas includes one of them.
    fn is_fenced_by_others(&self, swap: &PairSwap, partition: PartitionId) -> bool {
        let epoch = self.adopted.changed[partition.0 as usize];
        has_enough_others(self.adopted, swap, partition, |slot| self.has_fenced(slot, epoch))
    }

    fn is_dead(&self, slot: NodeIndex) -> bool {
        is_dead(self.adopted, slot)
    }

    /// Begins swaps. Returns whether there was one.
    fn begin(&self, record: &mut LayoutRecord) -> bool {
        let Some(plan) = self.adopted.plan.as_ref().filter(|plan| !plan.is_paused) else { return false };
        let in_flight = record.swaps().iter().filter(|swap| swap.phase.has_two_sets());
        let mut pairs: Vec<(NodeIndex, NodeIndex)> = in_flight.map(PairSwap::pair).collect();
        if plan.target.is_empty() || pairs.len() >= SWAPS_IN_FLIGHT_MAX {
            return false;
        }
        let mut candidates: Vec<_> = self.candidates(record).into_iter().collect();
        candidates.sort_by_key(|(pair, candidate)| (!candidate.moves_data, *pair));
        let mut has_begun = false;
        for (pair, PairCandidate { partitions, .. }) in candidates {
            let of_loser = pairs.iter().filter(|(loser, _)| *loser == pair.0).count();
            let of_gainer = pairs.iter().filter(|(_, gainer)| *gainer == pair.1).count();
            let is_possible = pairs.len() < SWAPS_IN_FLIGHT_MAX
                && of_loser.max(of_gainer) < SWAPS_OF_NODE_MAX
                && record.swaps().len() < crate::SWAPS_MAX;
            if is_possible {
                record.begin_swap(pair, partitions);
                pairs.push(pair);
                has_begun = true;
            }
        }
        has_begun
    }

    /// The partitions that may begin a swap, by pair.
    fn candidates(&self, record: &LayoutRecord) -> BTreeMap<(NodeIndex, NodeIndex), PairCandidate> {
        let mut is_swapped = vec![false; self.adopted.changed.len()];
        let of_parent = self.adopted.swaps().iter().filter(|swap| swap.phase.has_two_sets());
        for partition in of_parent.chain(record.swaps()).flat_map(|swap| &swap.partitions) {
            is_swapped[partition.0 as usize] = true;
        }
        let mut candidates: BTreeMap<_, PairCandidate> = BTreeMap::new();
        let free = (0..self.adopted.partitions()).filter(|partition| !is_swapped[*partition as usize]);
        for partition in free.map(PartitionId) {
            let Some(swap) = self.next_swap_of(partition) else { continue };
            let pair = (swap.loses, swap.gains);
            let list = self.adopted.preference_list(partition);
            if self.can_begin(pair, &list[..=usize::from(swap.second)]) {
                let candidate = candidates.entry(pair).or_default();
                candidate.partitions.push(partition);
                candidate.moves_data |= swap.moves_data(self.adopted.default_from);
            }
        }
        candidates
    }

    fn next_swap_of(&self, partition: PartitionId) -> Option<crate::PlacementSwap> {
        let from = usize::from(self.adopted.default_from);
        let target = &self.adopted.plan.as_ref()?.target;
        let holders = target.get(partition.0 as usize * from..)?.get(..from)?;
        next_swap(partition, self.adopted.preference_list(partition), holders, self.leaving)
    }

    /// Whether the swap of this pair may begin in a partition. `replicas`: its list up to the
    /// gainer.
    fn can_begin(&self, (loser, gainer): (NodeIndex, NodeIndex), replicas: &[NodeIndex]) -> bool {
        let runs = self.adopted.swaps().iter().any(|swap| swap.pair() == (loser, gainer));
        !runs && self.obstacle((loser, gainer), replicas).is_none()
    }

    /// The reason why no swap of this pair may begin in a partition, as for
    /// [`can_begin`](Self::can_begin).
    fn obstacle(&self, (loser, gainer): (NodeIndex, NodeIndex), replicas: &[NodeIndex]) -> Option<PlanWait> {
        let is_settled = |slot| self.heard.members.get(&slot).map(|heard| heard.is_settled);
        let unready = |slot: NodeIndex| match self.heard.statements(self.adopted, slot) {
            None => Some(PlanWait::Unheard { node: slot }),
            Some(_) => (is_settled(slot) != Some(true)).then_some(PlanWait::Unsettled { node: slot }),
        };
        let is_rebuilt = |slot: &&NodeIndex| !self.is_dead(**slot) && is_settled(**slot) == Some(false);
        if self.is_dead(gainer) {
            return Some(PlanWait::DeadHolder { node: gainer });
        }
        let of_pair = unready(gainer).or_else(|| if self.is_dead(loser) { None } else { unready(loser) });
        let of_purge = || self.is_purging(gainer).then_some(PlanWait::Purge { node: gainer });
        let of_others = || replicas.iter().find(is_rebuilt).map(|slot| PlanWait::Unsettled { node: *slot });
        of_pair.or_else(of_purge).or_else(of_others)
    }

    fn is_purging(&self, slot: NodeIndex) -> bool {
        self.heard.statements(self.adopted, slot).is_some_and(|stated| stated.is_purging)
    }

    /// Ends the plan if nothing is left of it. Returns whether that is so.
    fn end(&self, record: &mut LayoutRecord) -> bool {
        let Some(plan) = &self.adopted.plan else { return false };
        let is_reached = || {
            let mut partitions = (0..self.adopted.partitions()).map(PartitionId);
            partitions.all(|partition| self.next_swap_of(partition).is_none())
        };
        let is_over = plan.swaps.is_empty() && (plan.target.is_empty() || is_reached());
        let has_leaving_voter = self.adopted.voters.iter().any(|voter| self.leaving.contains(*voter));
        if is_over && !has_leaving_voter {
            record.end_plan(self.adopted, self.leaving);
        }
        is_over && !has_leaving_voter
    }
}

/// Whether enough of the replicas of `partition` that keep it are `ready` to stand in for the dead
/// loser of its swap. For each number of replicas by which the loser is one and the gainer is not,
/// each majority of the replicas includes one of them. If fewer are left, all of those are needed.
pub(in crate::node) fn has_enough_others(
    record: &LayoutRecord,
    swap: &PairSwap,
    partition: PartitionId,
    is_ready: impl Fn(NodeIndex) -> bool,
) -> bool {
    let list = record.preference_list(partition);
    let position = |slot| list.iter().position(|other| *other == slot);
    let (Some(loses), Some(gains)) = (position(swap.loser), position(swap.gainer)) else { return false };
    let (mut left, mut ready) = (0, 0);
    list[..gains].iter().zip(1..).all(|(slot, from)| {
        if *slot != swap.loser && !is_dead(record, *slot) {
            left += 1;
            ready += u8::from(is_ready(*slot));
        }
        let needed = sources_needed(from).min(left);
        usize::from(from) <= loses || ready >= needed
    })
}

/// Whether a slot of `record` has no node that serves.
pub(in crate::node) fn is_dead(record: &LayoutRecord, slot: NodeIndex) -> bool {
    record.member(slot).is_none_or(|member| member.state == MemberState::Dead)
}

#[cfg(test)]
mod tests;
