//! The constraints of a record, by itself and after its parent.

use super::plan::{SwapChange, exchanged};
use super::{
    FEATURE_LEVEL, FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutMember, LayoutRecord, LayoutRecordError,
    MemberState, RecordHash, URL_BYTES_MAX, VOTERS_MAX, WEIGHT_DEFAULT, ZONE_BYTES_MAX,
};
use crate::layout::{NODES_MAX, NodeIndex, NodeSet, PartitionId};
use std::collections::BTreeSet;
use stdx::NodeTag;

/// Most partitions.
pub(super) const PARTITIONS_MAX: usize = 1 << 16;

impl LayoutRecord {
    /// Checks the constraints that hold for every record.
    ///
    /// # Errors
    /// The first [`LayoutRecordError`] that is found.
    pub fn check(&self) -> Result<(), LayoutRecordError> {
        let level = self.feature_level;
        if level > FEATURE_LEVEL {
            return Err(LayoutRecordError::FeatureLevel { level, max: FEATURE_LEVEL });
        }
        let members = self.members.len();
        if !(1..=NODES_MAX).contains(&members) {
            return Err(LayoutRecordError::MemberCount { members });
        }
        if self.epoch.0 == 0 || (self.epoch == LayoutEpoch::FIRST) != (self.parent == RecordHash::NONE) {
            return Err(LayoutRecordError::EpochWithoutParent);
        }
        self.check_members()?;
        let from = self.default_from;
        if !(1..=members).contains(&usize::from(from)) {
            return Err(LayoutRecordError::DefaultFrom { from, members });
        }
        let is_voter_set = (1..=VOTERS_MAX).contains(&self.voters.len())
            && self.voters.is_sorted_by(|a, b| a < b)
            && self.voters.iter().all(|voter| self.member(*voter).is_some());
        if !is_voter_set {
            return Err(LayoutRecordError::Voters);
        }
        self.check_former_ids()?;
        self.check_lists()?;
        self.check_plan()
    }

    /// Checks that a node which carries out records up to the feature level `max` acts as this
    /// record demands. Otherwise it neither votes for the record nor adopts it.
    ///
    /// # Errors
    /// [`LayoutRecordError::FeatureLevel`].
    pub(crate) const fn check_supported(&self, max: u32) -> Result<(), LayoutRecordError> {
        let level = self.feature_level;
        if level > max { Err(LayoutRecordError::FeatureLevel { level, max }) } else { Ok(()) }
    }

    fn check_members(&self) -> Result<(), LayoutRecordError> {
        let (mut urls, mut ids) = (BTreeSet::new(), BTreeSet::new());
        let mut slots_from = 0;
        for member in &self.members {
            let LayoutMember { slot, node_id, url, zone, weight, state: _ } = member;
            if slot.as_usize() < slots_from || slot.as_usize() >= NODES_MAX {
                return Err(LayoutRecordError::SlotOrder { slot: *slot });
            }
            slots_from = slot.as_usize() + 1;
            let has_url = !url.is_empty() || self.members.len() == 1;
            let is_bounded = url.len() <= URL_BYTES_MAX && zone.len() <= ZONE_BYTES_MAX;
            // The format has no byte string for an absent node id but zero.
            let is_encodable = *node_id != Some(NodeTag(0));
            if !has_url || !is_bounded || !is_encodable || *weight < WEIGHT_DEFAULT {
                return Err(LayoutRecordError::MemberBounds { slot: *slot });
            }
            let is_new = urls.insert(url) && node_id.is_none_or(|node_id| ids.insert(node_id));
            if !is_new {
                return Err(LayoutRecordError::DuplicateMember { slot: *slot });
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), LayoutRecordError> {
        let (partitions, members) = (self.changed.len(), self.slots());
        let len = self.members.len();
        if !partitions.is_power_of_two()
            || partitions > PARTITIONS_MAX
            || self.lists.len() != partitions * len
        {
            return Err(LayoutRecordError::Partitions { partitions });
        }
        let lists = (0..).map(PartitionId).zip(self.lists.chunks_exact(len)).zip(&self.changed);
        for ((partition, list), changed) in lists {
            let mut missing = members;
            if !list.iter().all(|slot| slot.as_usize() < NODES_MAX && missing.remove(*slot)) {
                return Err(LayoutRecordError::NotAPermutation { partition });
            }
            if !(LayoutEpoch::FIRST..=self.epoch).contains(changed) {
                return Err(LayoutRecordError::ChangedEpoch { partition });
            }
        }
        Ok(())
    }

    /// Checks this record as the child of `parent`, which is checked itself.
    ///
    /// # Errors
    /// The first [`LayoutRecordError`] that is found.
    pub fn verify(&self, parent: &Self) -> Result<(), LayoutRecordError> {
        self.check()?;
        let is_next = self.cluster == parent.cluster && Some(self.epoch) == parent.epoch.next();
        if !is_next || self.parent != parent.hash() {
            return Err(LayoutRecordError::NotTheChild);
        }
        let is_fixed = self.changed.len() == parent.changed.len()
            && self.hash_version == parent.hash_version
            && self.default_from == parent.default_from
            && self.feature_level >= parent.feature_level;
        if !is_fixed {
            return Err(LayoutRecordError::FixedProperty);
        }
        self.members.iter().try_for_each(|member| member.verify(parent))?;
        self.verify_removed(parent)?;
        self.verify_former_ids(parent)?;
        let (voters, before) = (slots(&self.voters), slots(&parent.voters));
        let id_in = |record: &Self, slot| record.member(slot).and_then(|member| member.node_id);
        // A voter that has no id yet is named, not replaced.
        let is_replaced =
            |slot: &NodeIndex| id_in(parent, *slot).is_some_and(|id| id_in(self, *slot) != Some(id));
        let replaced = voters.intersection(before).iter().filter(is_replaced).count() as u8;
        if voters.without(before).len() + replaced > 1 || before.without(voters).len() + replaced > 1 {
            return Err(LayoutRecordError::SeveralVoters);
        }
        let changes = self.verify_plan(parent)?;
        let all_change = self.changes_all_partitions(parent);
        (0..self.partitions()).map(PartitionId).try_for_each(|partition| {
            let is_changed = all_change || changes.of(partition).is_some();
            self.verify_list(parent, partition, changes.of(partition), is_changed)
        })
    }

    /// Checks that the members of `parent` that this record lacks may be removed.
    fn verify_removed(&self, parent: &Self) -> Result<(), LayoutRecordError> {
        let may_go = |member: &LayoutMember| {
            self.feature_level < FEATURE_LEVEL_PLANS
                || matches!(member.state, MemberState::Leaving | MemberState::Dead)
        };
        let removed = parent.members.iter().filter(|member| self.member(member.slot).is_none());
        match removed.into_iter().find(|member| !may_go(member)) {
            Some(member) => Err(LayoutRecordError::MemberRemoved { slot: member.slot }),
            None => Ok(()),
        }
    }

    /// Checks this record as a later one than `current` of the same cluster: as its child, or, if
    /// records between the two are unknown, by itself.
    ///
    /// # Errors
    /// The first [`LayoutRecordError`] that is found.
    pub fn verify_newer(&self, current: &Self) -> Result<(), LayoutRecordError> {
        if self.cluster != current.cluster || self.epoch <= current.epoch {
            return Err(LayoutRecordError::NotNewer);
        }
        if Some(self.epoch) == current.epoch.next() {
            return self.verify(current);
        }
        self.check()?;
        match self.hash_version == current.hash_version && self.changed.len() == current.changed.len() {
            true => Ok(()),
            false => Err(LayoutRecordError::FixedProperty),
        }
    }

    /// Whether this record is the child of another epoch 1 than `held`, which was built from the
    /// same list and differs in `default_from` only. A node is started with another default than
    /// its cluster has if its operator does not pass it.
    ///
    /// A node that holds `held` and has given no vote may adopt this decided record: see
    /// `epoch_chain`.
    pub fn follows_other_first(&self, held: &Self) -> bool {
        let is_other = held.epoch == LayoutEpoch::FIRST && self.default_from != held.default_from;
        is_other && self.verify(&Self { default_from: self.default_from, ..held.clone() }).is_ok()
    }

    /// Checks the preference list of `partition` after that in `parent`: members were added and
    /// removed at its end only, and of the others at most two changed places. In a record that may
    /// have a plan, these are the two of a swap. `is_changed`: the partition changes, whether or
    /// not its list does.
    fn verify_list(
        &self,
        parent: &Self,
        partition: PartitionId,
        swap: Option<SwapChange>,
        is_changed: bool,
    ) -> Result<(), LayoutRecordError> {
        let (list, before) = (self.preference_list(partition), parent.preference_list(partition));
        let kept = self.slots().intersection(parent.slots());
        let kept_len = usize::from(kept.len());
        let (head, head_before) = (&list[..kept_len], &before[..kept_len]);
        let is_kept = |list: &[NodeIndex]| list.iter().all(|slot| kept.contains(*slot));
        let differing = head.iter().zip(head_before).filter(|(slot, former)| slot != former).count();
        let is_legal = match swap {
            Some(SwapChange::Exchange(loser, gainer)) => {
                head_before.iter().map(|slot| exchanged((loser, gainer), *slot)).eq(head.iter().copied())
            }
            _ if self.feature_level >= FEATURE_LEVEL_PLANS => differing == 0,
            // Both are permutations of the same members, so two differences are one exchange.
            _ => differing <= 2,
        };
        if !is_kept(head) || !is_kept(head_before) || !is_legal {
            return Err(LayoutRecordError::ListChange { partition });
        }
        let (changed, former) = (self.changed[partition.0 as usize], parent.changed[partition.0 as usize]);
        match changed == self.epoch || (differing == 0 && !is_changed && changed == former) {
            true => Ok(()),
            false => Err(LayoutRecordError::ChangedEpoch { partition }),
        }
    }

    /// The slots of all members.
    pub fn slots(&self) -> NodeSet {
        self.members.iter().map(|member| member.slot).collect()
    }
}

impl LayoutMember {
    /// Checks this member of a record after the record `parent`.
    fn verify(&self, parent: &LayoutRecord) -> Result<(), LayoutRecordError> {
        let slot = self.slot;
        let Some(former) = parent.member(slot) else {
            return self.verify_added(parent);
        };
        let is_same_id = self.node_id.is_some() && self.node_id == former.node_id;
        if !is_same_id && self.url != former.url {
            return Err(LayoutRecordError::SlotReused { slot });
        }
        if former.node_id.is_some() && self.node_id.is_none() {
            return Err(LayoutRecordError::NodeIdRemoved { slot });
        }
        match (former.state, self.state) {
            (MemberState::Dead, state) if is_same_id && state != MemberState::Dead => {
                Err(LayoutRecordError::StateChange { slot, state })
            }
            (former, state @ MemberState::Joining) if former != MemberState::Joining => {
                Err(LayoutRecordError::StateChange { slot, state })
            }
            _ => Ok(()),
        }
    }

    /// A member that was added is joining, and a node that no other slot stands for.
    fn verify_added(&self, parent: &LayoutRecord) -> Result<(), LayoutRecordError> {
        let (slot, state) = (self.slot, self.state);
        if state != MemberState::Joining || self.node_id.is_none() {
            return Err(LayoutRecordError::StateChange { slot, state });
        }
        match parent.members.iter().any(|member| member.node_id == self.node_id) {
            true => Err(LayoutRecordError::SlotReused { slot }),
            false => Ok(()),
        }
    }
}

/// A set of slots that are within the limit.
fn slots(list: &[NodeIndex]) -> NodeSet {
    list.iter().copied().collect()
}
