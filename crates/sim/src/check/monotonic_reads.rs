//! Reads that overlap do not go back: what one returned, the next returns, or something newer.
//!
//! Two reads overlap if their `ack` together are more than the larger `from`. Of one quorum that is `2 * ack > from`.

use super::Violation;
use super::facts::{FactSource, Facts, respects};
use crate::history::{IssuedCells, Operation};
use stdx::WallTime;

/// Checks a read that has ended against the reads that ended before it began.
pub fn check(
    read: &Operation,
    facts: &Facts,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> Result<(), Violation> {
    let Some(floor) = facts.floor(read, |fact| fact.source == FactSource::Read) else { return Ok(()) };
    if respects(read, floor, issued_cells, latest_wall) {
        return Ok(());
    }
    let detail = format!("a read had seen {floor} before this one began, which goes behind it: {read:?}");
    Err(Violation::new("monotonic_reads", detail))
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
    fn a_version_of_more_copies_binds_reads_of_fewer_replicas() {
        let mut issued_cells = issued_cells(&[1], &[]);
        let five_copies = stdx::Cell::value(super::super::testing::version(2), 5, "2".into());
        issued_cells.note(&super::super::testing::key(), &five_copies).unwrap();
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&found(2, (2, 3), 0..10), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_err());
    }

    #[test]
    fn a_read_binds_those_that_overlap_with_it_and_no_others() {
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
    fn what_was_seen_deleted_does_not_come_back() {
        let issued_cells = issued_cells(&[1], &[2]);
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&write(1, (2, 3), 0..10), &issued_cells, NOW);
        facts.learn(&missing((2, 3), 11..20), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 21..30), &facts, &issued_cells, NOW).is_err());
        assert!(check(&missing((2, 3), 21..30), &facts, &issued_cells, NOW).is_ok());
    }

    #[test]
    fn a_version_of_fewer_copies_binds_fewer_reads() {
        let mut issued_cells = issued_cells(&[1], &[]);
        let one_copy = stdx::Cell::value(super::super::testing::version(2), 1, "2".into());
        issued_cells.note(&super::super::testing::key(), &one_copy).unwrap();
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        facts.learn(&found(2, (2, 3), 0..10), &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_ok());
        assert!(check(&found(1, (3, 3), 11..20), &facts, &issued_cells, NOW).is_err());
    }
}
