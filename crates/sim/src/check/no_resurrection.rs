//! Invariant: a deleted or expired value does not return. After a delete was acknowledged or read,
//! no overlapping read finds a value with a smaller version. That holds even after the tombstone
//! was purged.

use super::InvariantViolation;
use super::facts::Facts;
use crate::history::{ClientOperation, ClientOutcome, IssuedCells};
use stdx::WallTime;

/// Checks a finished read against the deletes established before it began.
pub fn check(
    read: &ClientOperation,
    facts: &Facts,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> Result<(), InvariantViolation> {
    let is_dead =
        |version| issued_cells.get(&read.key, version).is_some_and(|issued| issued.is_dead_at(latest_wall));
    let Some(dead) = facts.floor(read, |fact| is_dead(fact.version)) else { return Ok(()) };
    match &read.outcome {
        Some((_, ClientOutcome::Found { version, .. })) if *version < dead => {
            let detail = format!("{dead} had deleted what this read finds: {read:?}");
            Err(InvariantViolation::new("no_resurrection", detail))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::SurvivalRule;
    use super::super::testing::{NOW, found, issued_cells, operation, version};
    use super::*;
    use crate::history::CommandKind;

    #[test]
    fn a_value_that_returns_after_its_delete_is_caught() {
        let issued_cells = issued_cells(&[1, 3], &[2]);
        let mut facts = Facts::new(SurvivalRule { survives_with: None });
        let deleted =
            operation(CommandKind::Delete, (2, 3), 0..10, ClientOutcome::Written { version: version(2) });
        facts.learn(&deleted, &issued_cells, NOW);
        assert!(check(&found(1, (2, 3), 11..20), &facts, &issued_cells, NOW).is_err());
        assert!(check(&found(3, (2, 3), 11..20), &facts, &issued_cells, NOW).is_ok(), "written again");
        assert!(
            check(&found(1, (2, 3), 5..20), &facts, &issued_cells, NOW).is_ok(),
            "the delete was in flight"
        );
    }
}
