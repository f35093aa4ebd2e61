//! Invariant: a voter keeps the votes that it has told to proposers, as the proof of Paxos needs.
//! It ignores ballots that are smaller than a promised one, and a promise reports the record of the
//! greatest ballot that the voter has accepted.
//!
//! A voter is a slot and an identity that the parent of the epoch names, or any process in the slot
//! if the parent names none. Processes on copies of a directory count as the same voter. After the
//! directory of a slot without an id was lost, the next process in the slot is another voter.

use super::InvariantViolation;
use crate::history::ToldVotes;
use cluster::{LayoutEpoch, NodeIndex, ProposalBallot};

/// An answer to a proposer that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The voter ignores smaller ballots.
    Promise {
        /// The ballot.
        ballot: ProposalBallot,
        /// Ballot of the record that the voter accepted last.
        accepted: Option<ProposalBallot>,
    },
    /// The voter has accepted the record of this ballot.
    Vote {
        /// The ballot.
        ballot: ProposalBallot,
    },
}

/// Checks an answer of the voter on a host, after all answers before.
pub fn check(
    host: NodeIndex,
    epoch: LayoutEpoch,
    before: ToldVotes,
    told: Told,
) -> Result<(), InvariantViolation> {
    let is_kept = match told {
        Told::Promise { ballot, accepted } => before.promised <= Some(ballot) && before.accepted <= accepted,
        Told::Vote { ballot } => before.promised <= Some(ballot),
    };
    if is_kept {
        return Ok(());
    }
    let detail = format!("for epoch {epoch} the voter at {host:?} has told {before:?}, and tells {told:?}");
    Err(InvariantViolation::new("kept_votes", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::ballot;
    use super::*;

    fn check_told(promised: u64, accepted: u64, told: Told) -> Result<(), InvariantViolation> {
        let some = |round: u64| (round > 0).then(|| ballot(round));
        let before = ToldVotes { promised: some(promised), accepted: some(accepted) };
        check(NodeIndex(0), LayoutEpoch(2), before, told)
    }

    #[test]
    fn a_smaller_ballot_than_a_promised_one_is_caught() {
        let promise = |round| Told::Promise { ballot: ballot(round), accepted: None };
        assert!(check_told(0, 0, promise(1)).is_ok());
        assert!(check_told(2, 0, promise(2)).is_ok() && check_told(2, 0, promise(3)).is_ok());
        assert!(check_told(2, 0, promise(1)).is_err());
        assert!(check_told(2, 0, Told::Vote { ballot: ballot(2) }).is_ok());
        assert!(check_told(2, 0, Told::Vote { ballot: ballot(1) }).is_err());
    }

    #[test]
    fn a_promise_without_the_accepted_record_is_caught() {
        let promise =
            |accepted: Option<u64>| Told::Promise { ballot: ballot(3), accepted: accepted.map(ballot) };
        assert!(check_told(2, 2, promise(Some(2))).is_ok());
        assert!(check_told(2, 2, promise(None)).is_err());
        assert!(check_told(2, 2, promise(Some(1))).is_err());
    }
}
