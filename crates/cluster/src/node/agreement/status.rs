//! Status of the agreement for operators.

use super::plan_step::{plan_wait, swap_waits};
use super::{PlanWait, SwapWait};
use crate::quorum::is_majority;
use crate::{CopyProgress, CopyStatus, LayoutEpoch, Node, NodeIndex, RecordHash, VoteHistory};
use stdx::{Instant, NodeTag};

/// The state of a node in the agreement on layout records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgreementStatus {
    /// Epoch of the adopted record.
    pub epoch: LayoutEpoch,
    /// Hash of the adopted record.
    pub hash: RecordHash,
    /// The voters of the adopted record.
    pub voters: Vec<VoterStatus>,
    /// Members that were last heard with a record of an older epoch.
    pub behind: Vec<NodeIndex>,
    /// The votes that the data directory knows.
    pub history: VoteHistory,
    /// Whether this node may vote on the next record: it is a voter and knows its votes.
    pub can_vote: bool,
    /// The events that the swaps of the running plan wait for, in their order, as far as this node
    /// hears.
    pub waits: Vec<SwapWait>,
    /// The copies of this node as the gainer of swaps.
    pub copies: Vec<CopyStatus>,
    /// The reason why the running plan begins no further swap and does not end.
    pub plan_wait: Option<PlanWait>,
    /// Time of the last progress of the running plan that this node has noticed. `None`: no plan
    /// runs.
    pub progressed_at: Option<Instant>,
    /// The members that copy as gainers, with their progress as they have stated it.
    pub copying: Vec<(NodeIndex, CopyProgress)>,
    /// The members that this node does not hear, without dead ones.
    pub unheard: Vec<NodeIndex>,
}

/// A voter as this node hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterStatus {
    /// Its slot.
    pub slot: NodeIndex,
    /// Whether it is this node or a node that answers, with the id that the record names.
    pub is_reachable: bool,
    /// Whether it has forgotten votes by its id, and votes no more.
    pub votes_forgotten: bool,
    /// The id that the record names. `None` in epoch 1.
    pub named_id: Option<NodeTag>,
    /// Id of another node than the named one that is linked in the slot, this node included: the
    /// named one was replaced, or has lost its disk.
    pub other_id: Option<NodeTag>,
}

impl AgreementStatus {
    /// Whether a majority of the voters is reachable and votes. Without it no record is decided.
    /// While ids of voters are not named, all voters are needed.
    pub fn has_majority(&self) -> bool {
        let is_able = |voter: &&VoterStatus| voter.is_reachable && !voter.votes_forgotten;
        is_majority(self.voters.iter().filter(is_able).count(), self.voters.len())
    }

    /// Whether a majority of the voters cannot come back as far as this node knows, because other
    /// nodes have taken the slots. No record is decided unless nodes with the named ids return, or
    /// the operator recovers the cluster:
    /// [`LayoutRecord::recovered`](crate::LayoutRecord::recovered).
    pub fn has_lost_majority(&self) -> bool {
        let is_left = |voter: &&VoterStatus| voter.is_reachable || voter.other_id.is_none();
        !is_majority(self.voters.iter().filter(is_left).count(), self.voters.len())
    }
}

impl Node {
    /// Status of the agreement. `None` while this node takes no part in it.
    pub fn agreement_status(&self) -> Option<AgreementStatus> {
        let agreement = self.agreement.as_ref()?;
        let adopted = &agreement.adopted;
        let reachable = self.reachable_voters(&adopted.record);
        let forgetful = self.forgetful_voters(&adopted.record);
        let voter = |slot: &NodeIndex| {
            let named_id = adopted.record.member(*slot).and_then(|member| member.node_id);
            let other_id = named_id.and_then(|named| self.other_id_in(*slot, named));
            let (is_reachable, votes_forgotten) = (reachable.contains(*slot), forgetful.contains(*slot));
            VoterStatus { slot: *slot, is_reachable, votes_forgotten, named_id, other_id }
        };
        Some(AgreementStatus {
            epoch: adopted.record.epoch,
            hash: adopted.hash,
            voters: adopted.record.voters.iter().map(voter).collect(),
            behind: agreement.fetch.behind(adopted.record.epoch).collect(),
            history: agreement.voter.history(),
            can_vote: agreement.is_voter() && self.can_vote(),
            waits: match adopted.record.plan {
                Some(_) => swap_waits(&adopted.record, &self.heard_cluster()),
                None => Vec::new(),
            },
            copies: self.copies_status(),
            plan_wait: match adopted.record.plan {
                Some(_) => plan_wait(&adopted.record, &self.heard_cluster()),
                None => None,
            },
            progressed_at: agreement.progress.progressed_at(),
            copying: self.copying_members(),
            unheard: self.unheard_members(),
        })
    }

    /// Id of a node in this slot that is linked and is not the `named` one.
    fn other_id_in(&self, slot: NodeIndex, named: NodeTag) -> Option<NodeTag> {
        self.linked_ids(slot).into_iter().find(|id| *id != named)
    }
}
