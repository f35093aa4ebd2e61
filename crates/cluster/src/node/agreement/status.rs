//! Status of the agreement for operators.

use crate::{LayoutEpoch, Node, NodeIndex, RecordHash, VoteHistory};

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
}

/// A voter as this node hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterStatus {
    /// Its slot.
    pub slot: NodeIndex,
    /// Whether it is this node or a node that answers, with the id that the record names. Whether
    /// it may vote is not known here.
    pub is_reachable: bool,
}

impl Node {
    /// Status of the agreement. `None` while this node takes no part in it.
    pub fn agreement_status(&self) -> Option<AgreementStatus> {
        let agreement = self.agreement.as_ref()?;
        let adopted = &agreement.adopted;
        let reachable = self.reachable_voters(&adopted.record);
        let voter = |slot: &NodeIndex| VoterStatus { slot: *slot, is_reachable: reachable.contains(*slot) };
        Some(AgreementStatus {
            epoch: adopted.record.epoch,
            hash: adopted.hash,
            voters: adopted.record.voters.iter().map(voter).collect(),
            behind: agreement.fetch.behind(adopted.record.epoch).collect(),
            history: agreement.voter.history(),
            can_vote: agreement.is_voter() && self.can_vote(),
        })
    }
}
