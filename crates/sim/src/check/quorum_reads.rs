//! Invariant: a read whose quorum overlaps with the quorum of a write acknowledged before it began
//! returns that write or a newer one.
//!
//! It returns nothing only if that write or a newer one is dead.

use super::InvariantViolation;
use super::facts::{FactSource, Facts};
use crate::history::{ClientOperation, IssuedCells};
use stdx::WallTime;

/// Checks a finished read against the writes acknowledged before it began.
pub fn check(
    read: &ClientOperation,
    facts: &Facts,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> Result<(), InvariantViolation> {
    let Some(floor) = facts.missed(read, FactSource::Write, issued_cells, latest_wall) else { return Ok(()) };
    let detail =
        format!("{floor} was acknowledged before this read began, and the read does not return it: {read:?}");
    Err(InvariantViolation::new("quorum_reads", detail))
}

#[cfg(test)]
mod tests {
    use super::super::facts::SurvivalRule;
    use super::super::testing::{NOW, found, issued_cells, missing, write};
    use super::*;

    fn after(write: &ClientOperation, issued_cells: &IssuedCells) -> Facts {
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(write, issued_cells, NOW);
        facts
    }

    #[test]
    fn a_read_that_misses_an_acknowledged_write_is_caught() {
        let issued_cells = issued_cells(&[1, 2], &[]);
        let facts = after(&write(2, (2, 3), 0..10), &issued_cells);
        let check = |read: &ClientOperation| check(read, &facts, &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20)).is_err());
        assert!(check(&missing((2, 3), 11..20)).is_err());
        assert!(check(&found(2, (2, 3), 11..20)).is_ok());
    }

    #[test]
    fn a_read_without_overlap_and_a_concurrent_read_are_not_bound() {
        let issued_cells = issued_cells(&[1, 2], &[]);
        let facts = after(&write(2, (2, 3), 0..10), &issued_cells);
        let check = |read: &ClientOperation| check(read, &facts, &issued_cells, NOW);
        assert!(check(&found(1, (1, 3), 11..20)).is_ok(), "1 + 2 replicas of 3 need not overlap");
        assert!(check(&found(1, (2, 5), 11..20)).is_ok(), "2 + 2 replicas of 5 need not overlap");
        assert!(check(&found(1, (2, 3), 9..20)).is_ok(), "it began before the write was acknowledged");
    }

    #[test]
    fn only_a_newer_delete_explains_a_missing_key() {
        let older = issued_cells(&[2], &[1]);
        assert!(
            check(&missing((2, 3), 11..20), &after(&write(2, (2, 3), 0..10), &older), &older, NOW).is_err()
        );
        let newer = issued_cells(&[2], &[3]);
        assert!(
            check(&missing((2, 3), 11..20), &after(&write(2, (2, 3), 0..10), &newer), &newer, NOW).is_ok()
        );
    }
}
