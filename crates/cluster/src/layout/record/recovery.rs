//! A new lineage, for a cluster that has lost the majority of its voters for good.
//!
//! **Promise.** The nodes that remain compute the same record if they hold the same record before
//! and are given the same lost members. So no agreement is needed, which is what they have lost.
//! Nodes of the lineage before refuse those of the new one, and the reverse, because the cluster id
//! differs.
//!
//! **Mechanism.** The cluster id is a hash of the record before and of the slots of the lost
//! members. Lost members are marked as dead, and lose their votes to the remaining members with the
//! least slots. Preference lists stay.
//!
//! **Caveats.** If a decided record has reached lost nodes only, it is forgotten. If a lost member
//! still runs, the cluster splits in two: clients of both write, and neither knows of the other.

use super::first::voter_count;
use super::{ClusterId, LayoutRecord, LayoutRecordError, MemberState};
use crate::layout::{NodeIndex, NodeSet};
use crate::quorum::is_majority;
use sha2::{Digest, Sha256};

/// Separates this hash from other uses of SHA-256.
const LABEL: &[u8] = b"veche recovery 1";

impl LayoutRecord {
    /// Returns the first record of a new lineage, without the members `lost`.
    ///
    /// # Errors
    /// [`LayoutRecordError`] if a slot has no member, if no member remains, or if the majority of
    /// the voters remains: they can decide a record of this lineage.
    pub fn recovered(&self, lost: NodeSet) -> Result<Self, LayoutRecordError> {
        if let Some(slot) = lost.iter().find(|slot| self.member(*slot).is_none()) {
            return Err(LayoutRecordError::NoSuchMember { slot });
        }
        let is_lost = |slot: NodeIndex| lost.contains(slot);
        let voters_left = self.voters.iter().filter(|voter| !is_lost(**voter)).count();
        if is_majority(voters_left, self.voters.len()) {
            return Err(LayoutRecordError::MajorityRemains {
                remaining: voters_left,
                voters: self.voters.len(),
            });
        }
        let mut record = self.clone();
        record.epoch = self.epoch.next().ok_or(LayoutRecordError::NotTheChild)?;
        record.parent = self.hash();
        record.cluster = self.lineage_without(lost);
        record.declare_dead(lost);
        let alive = record.members.iter().filter(|member| member.state != MemberState::Dead);
        let alive: Vec<_> = alive.map(|member| member.slot).collect();
        if alive.is_empty() {
            return Err(LayoutRecordError::NoMemberRemains);
        }
        record.voters = alive[..voter_count(alive.len())].to_vec();
        record.check()?;
        Ok(record)
    }

    fn lineage_without(&self, lost: NodeSet) -> ClusterId {
        let mut hash = Sha256::new_with_prefix(LABEL);
        hash.update(self.hash().0);
        for slot in lost.iter() {
            hash.update([slot.0]);
        }
        ClusterId::of(hash)
    }
}
