//! Invariant: a decided layout record is not forgotten. A majority of the voters that may decide
//! its epoch has it durably, accepted or as decided, or has a later one. Voters that lost their
//! directory since they voted do not count as having forgotten it.

use super::InvariantViolation;
use crate::history::{DecidedRecord, HostVoter};
use cluster::{NodeIndex, majority};

/// Checks the newest decided record of a lineage. `voters` are the durable states of all hosts;
/// `was_lost` says whether a slot has voted for it and lost its directory since.
pub fn check<'a>(
    decided: &DecidedRecord,
    voters: impl Iterator<Item = &'a HostVoter>,
    was_lost: impl Fn(NodeIndex) -> bool,
) -> Result<(), InvariantViolation> {
    let having: Vec<NodeIndex> =
        voters.filter(|voter| decided.is_held_by(voter)).map(|voter| voter.node.slot).collect();
    let of = &decided.parent.voters;
    let count = of.iter().filter(|slot| having.contains(slot) || was_lost(**slot)).count();
    if count as u32 >= majority(of.len() as u32) {
        return Ok(());
    }
    let detail = format!(
        "the record {} of epoch {} was decided by {of:?}, and only {having:?} have it",
        decided.hash, decided.record.epoch
    );
    Err(InvariantViolation::new("remembered_records", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ballot, child, first_record};
    use super::*;
    use cluster::{AcceptorState, ChainNode, ChainVote, LayoutRecord, VoteHistory, VoterState};
    use std::sync::Arc;
    use stdx::NodeTag;

    fn voter(slot: u8, decided: LayoutRecord, accepted: Option<LayoutRecord>) -> HostVoter {
        let accepted = accepted.map(|record| ChainVote { ballot: ballot(1), record: Arc::new(record) });
        let acceptor = AcceptorState { decided: Arc::new(decided), promised: Some(ballot(1)), accepted };
        let node = ChainNode { slot: NodeIndex(slot), id: NodeTag(u64::from(slot) + 1) };
        HostVoter { node, state: VoterState { history: VoteHistory::Complete, acceptor } }
    }

    #[test]
    fn a_record_that_a_majority_has_forgotten_is_caught() {
        let (parent, record) = (first_record(), child(&first_record()));
        let decided = DecidedRecord::new(record.clone(), parent.clone());
        let accepted = |slot| voter(slot, parent.clone(), Some(record.clone()));
        let adopted = |slot| voter(slot, record.clone(), None);
        let forgotten = |slot| voter(slot, parent.clone(), None);
        let check = |voters: &[HostVoter], lost: Option<u8>| {
            check(&decided, voters.iter(), |slot| Some(slot.0) == lost)
        };
        assert!(check(&[accepted(0), adopted(1), forgotten(2)], None).is_ok());
        assert!(check(&[accepted(0), forgotten(1), forgotten(2)], None).is_err());
        assert!(check(&[accepted(0), forgotten(1), adopted(3)], None).is_err(), "the last is no voter");
        assert!(check(&[accepted(0), forgotten(1), forgotten(2)], Some(1)).is_ok());
        assert!(check(&[accepted(0), forgotten(1), forgotten(2)], Some(0)).is_err());
    }
}
