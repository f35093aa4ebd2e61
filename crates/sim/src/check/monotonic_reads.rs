//! Invariant: reads that overlap do not go back. The later read returns the version of the earlier
//! one or a newer version.
//!
//! Two reads overlap if the sum of their `ack` is greater than the larger `from`. For equal quorums
//! that is `2 * ack > from`. This is the session guarantee *monotonic reads* (Terry et al., 1994).

use super::InvariantViolation;
use super::facts::{FactSource, Facts};
use crate::history::{ClientOperation, IssuedCells};
use stdx::WallTime;

/// Checks a finished read against the reads that ended before it began.
pub fn check(
    read: &ClientOperation,
    facts: &Facts,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> Result<(), InvariantViolation> {
    let Some(floor) = facts.missed(read, FactSource::Read, issued_cells, latest_wall) else { return Ok(()) };
    let detail = format!("a read had seen {floor} before this one began, which goes behind it: {read:?}");
    Err(InvariantViolation::new("monotonic_reads", detail))
}

#[cfg(test)]
mod tests {
    use super::super::facts::SurvivalRule;
    use super::super::testing::{NOW, found, issued_cells, missing, write};
    use super::*;

    #[test]
    fn a_read_that_goes_back_is_caught() {
        let issued_cells = issued_cells(&[1, 2], &[]);
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&found(2, (2, 3), 0..10), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_err());
        assert!(check(&missing((2, 3), 11..20), &facts, &issued_cells, NOW).is_err());
        assert!(check(&found(2, (2, 3), 11..20), &facts, &issued_cells, NOW).is_ok());
        assert!(check(&found(1, (1, 3), 11..20), &facts, &issued_cells, NOW).is_ok(), "no overlap");
        assert!(
            check(&found(1, (2, 4), 11..20), &facts, &issued_cells, NOW).is_ok(),
            "2 of 3 and 2 of 4 need not meet"
        );
        assert!(
            check(&found(1, (3, 5), 11..20), &facts, &issued_cells, NOW).is_ok(),
            "2 of 3 and 3 of 5 need not meet"
        );
        assert!(check(&found(1, (4, 5), 11..20), &facts, &issued_cells, NOW).is_err());
    }

    #[test]
    fn a_version_with_a_larger_from_binds_reads_with_a_smaller_from() {
        let mut issued_cells = issued_cells(&[1], &[]);
        let five_copies = stdx::Cell::value(super::super::testing::version(2), 5, "2".into());
        issued_cells.note(&super::super::testing::key(), &five_copies).unwrap();
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&found(2, (2, 3), 0..10), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_err());
    }

    #[test]
    fn a_read_binds_exactly_the_reads_that_overlap_with_it() {
        let quorums = (1..=3).flat_map(|first| (1..=3).map(move |later| (first, later)));
        for (first, later) in quorums {
            let issued_cells = issued_cells(&[1, 2], &[]);
            let mut facts = Facts::new(SurvivalRule { survives_with: None });
            facts.learn(&found(2, (first, 3), 0..10), &issued_cells, NOW);
            let may_go_back = check(&found(1, (later, 3), 11..20), &facts, &issued_cells, NOW).is_ok();
            assert_eq!(may_go_back, first + later <= 3, "{first}/3, then {later}/3");
        }
    }

    #[test]
    fn a_key_that_was_read_as_deleted_stays_deleted() {
        let issued_cells = issued_cells(&[1], &[2]);
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&write(1, (2, 3), 0..10), &issued_cells, NOW);
        facts.learn(&missing((2, 3), 11..20), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 21..30), &facts, &issued_cells, NOW).is_err());
        assert!(check(&missing((2, 3), 21..30), &facts, &issued_cells, NOW).is_ok());
    }

    #[test]
    fn a_version_with_a_smaller_from_binds_fewer_reads() {
        let mut issued_cells = issued_cells(&[1], &[]);
        let one_copy = stdx::Cell::value(super::super::testing::version(2), 1, "2".into());
        issued_cells.note(&super::super::testing::key(), &one_copy).unwrap();
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&found(2, (2, 3), 0..10), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_ok());
        assert!(check(&found(1, (3, 3), 11..20), &facts, &issued_cells, NOW).is_err());
    }
}
