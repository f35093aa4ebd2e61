//! Invariant: at most one layout record is decided for an epoch of a lineage, by all nodes that
//! ever ran. A ballot has one record.

use super::InvariantViolation;
use cluster::{LayoutEpoch, ProposalBallot, RecordHash};

/// Checks a record that is decided or held as decided, for an epoch for which a record is known to
/// be decided.
pub fn check(epoch: LayoutEpoch, known: RecordHash, hash: RecordHash) -> Result<(), InvariantViolation> {
    if known == hash {
        return Ok(());
    }
    let detail = format!("the records {known} and {hash} are decided for epoch {epoch}");
    Err(InvariantViolation::new("one_record", detail))
}

/// Checks the record of a vote, against that of another vote with the same ballot.
pub fn check_ballot(
    ballot: ProposalBallot,
    known: RecordHash,
    hash: RecordHash,
) -> Result<(), InvariantViolation> {
    if known == hash {
        return Ok(());
    }
    let detail = format!("{ballot:?} was used for the records {known} and {hash}");
    Err(InvariantViolation::new("one_record", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::ballot;
    use super::*;

    const HASHES: [RecordHash; 2] = [RecordHash([1; 32]), RecordHash([2; 32])];

    #[test]
    fn a_second_record_of_an_epoch_is_caught() {
        assert!(check(LayoutEpoch(2), HASHES[0], HASHES[0]).is_ok());
        assert!(check(LayoutEpoch(2), HASHES[0], HASHES[1]).is_err());
    }

    #[test]
    fn a_ballot_of_two_records_is_caught() {
        assert!(check_ballot(ballot(1), HASHES[0], HASHES[0]).is_ok());
        assert!(check_ballot(ballot(1), HASHES[0], HASHES[1]).is_err());
    }
}
