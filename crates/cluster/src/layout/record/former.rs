//! Former node ids: nodes that a cluster refuses for ever.
//!
//! **Promise.** From feature level 3 on, a record knows the ids of the nodes that were removed from
//! the cluster, and of those whose slots other nodes have taken. No later record names one of them.
//! So a removed node, and the former disk of a member, can be told that they do not come back. So
//! can a node that is declared dead, which stays a member until it is removed or replaced.
//!
//! **Mechanism.** A record has the former ids of its parent, and behind them the ids that it no
//! longer names itself, in the order of their slots. [`LayoutRecord::verify`] computes the list and
//! compares it.
//!
//! **Caveats.** A record has the newest [`FORMER_IDS_MAX`] ids: 2 KiB. Beyond that the oldest is
//! forgotten. A node with a forgotten id is treated like any node that is not a member: it holds
//! nothing by the record, and may ask to join. Its directory names the slot that it had, which
//! another node has now. Ids that were replaced before level 3 are not known.

use super::{FEATURE_LEVEL_PLANS, LayoutRecord, LayoutRecordError, MemberState};
use std::collections::BTreeSet;
use stdx::NodeTag;

/// Most former ids of a record.
pub const FORMER_IDS_MAX: usize = 256;

impl LayoutRecord {
    /// Whether `id` is that of a node that was removed, or whose slot another node has taken. It is
    /// refused for ever.
    pub fn is_former_id(&self, id: NodeTag) -> bool {
        self.former_ids.contains(&id)
    }

    /// The ids of the nodes that are refused for ever: the former ones, and those that are declared
    /// dead.
    pub fn removed_ids(&self) -> impl Iterator<Item = NodeTag> + '_ {
        let dead = self.members.iter().filter(|member| member.state == MemberState::Dead);
        self.former_ids.iter().copied().chain(dead.filter_map(|member| member.node_id))
    }

    /// Whether the node with this id is refused for ever.
    pub fn has_removed(&self, id: NodeTag) -> bool {
        self.removed_ids().any(|removed| removed == id)
    }

    /// Records the ids that `parent` names and this record does not. Called last on a record that
    /// was made from `parent`.
    pub fn record_former_ids(&mut self, parent: &Self) {
        self.former_ids = self.former_ids_after(parent);
    }

    /// Records the id of a node whose slot another node takes.
    pub(super) fn add_former_id(&mut self, id: NodeTag) {
        if self.feature_level >= FEATURE_LEVEL_PLANS {
            self.former_ids.push(id);
            self.former_ids.drain(..self.former_ids.len().saturating_sub(FORMER_IDS_MAX));
        }
    }

    fn former_ids_after(&self, parent: &Self) -> Vec<NodeTag> {
        if self.feature_level < FEATURE_LEVEL_PLANS {
            return Vec::new();
        }
        let id_here = |slot| self.member(slot).and_then(|member| member.node_id);
        let named = parent.members.iter().filter_map(|member| Some((member.slot, member.node_id?)));
        let dropped = named.filter(|(slot, id)| id_here(*slot) != Some(*id)).map(|(_, id)| id);
        let mut ids: Vec<NodeTag> = parent.former_ids.iter().copied().chain(dropped).collect();
        ids.drain(..ids.len().saturating_sub(FORMER_IDS_MAX));
        ids
    }

    /// Checks the constraints of former ids that hold for every record.
    pub(super) fn check_former_ids(&self) -> Result<(), LayoutRecordError> {
        let ids: BTreeSet<NodeTag> = self.former_ids.iter().copied().collect();
        let is_bounded = self.former_ids.len() <= FORMER_IDS_MAX;
        let has_plans = self.feature_level >= FEATURE_LEVEL_PLANS;
        let is_valid = ids.len() == self.former_ids.len() && !ids.contains(&NodeTag(0));
        if !is_bounded || !is_valid || !(has_plans || ids.is_empty()) {
            return Err(LayoutRecordError::FormerIds);
        }
        let is_former = |id: Option<NodeTag>| id.is_some_and(|id| ids.contains(&id));
        match self.members.iter().find(|member| is_former(member.node_id)) {
            Some(member) => Err(LayoutRecordError::FormerMember { slot: member.slot }),
            None => Ok(()),
        }
    }

    /// Checks that the former ids are those of `parent` and the ones that this record drops.
    pub(super) fn verify_former_ids(&self, parent: &Self) -> Result<(), LayoutRecordError> {
        match self.former_ids == self.former_ids_after(parent) {
            true => Ok(()),
            false => Err(LayoutRecordError::FormerIds),
        }
    }
}
