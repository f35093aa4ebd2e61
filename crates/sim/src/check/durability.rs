//! Invariant: an acknowledged write is not lost. Some replica holds it or a newer version, over all
//! disks that were not replaced.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome, IssuedCells};
use cluster::NodeIndex;
use stdx::{CellMeta, WallTime};

/// Checks an acknowledged write against the cells that the replicas hold of its key.
///
/// No replica needs to hold anything if a dead cell of this or a newer version may have been
/// purged.
pub fn check(
    write: &ClientOperation,
    held: &[(NodeIndex, Option<CellMeta>)],
    issued_cells: &IssuedCells,
    purged: Option<WallTime>,
) -> Result<(), InvariantViolation> {
    let Some((_, ClientOutcome::Written { version })) = write.outcome else { return Ok(()) };
    let newest = held.iter().filter_map(|(_, meta)| meta.as_ref()).map(|meta| meta.version).max();
    if newest.is_some_and(|newest| newest >= version)
        || issued_cells.may_be_purged(&write.key, version, purged)
    {
        return Ok(());
    }
    Err(InvariantViolation::new(
        "durability",
        format!("replicas hold {held:?}, and this was acknowledged: {write:?}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, issued_cells, version, write};
    use super::*;

    #[test]
    fn an_acknowledged_write_that_no_replica_holds_is_caught() {
        let held = |number| [(NodeIndex(0), None), (NodeIndex(1), Some(CellMeta::value(version(number), 3)))];
        let write = write(2, (2, 3), 0..1);
        let without_deletes = issued_cells(&[1, 2, 3], &[]);
        assert!(check(&write, &held(1), &without_deletes, Some(NOW)).is_err());
        assert!(check(&write, &held(2), &without_deletes, None).is_ok());
        assert!(check(&write, &held(3), &without_deletes, None).is_ok());
        let deleted = issued_cells(&[2], &[3]);
        assert!(check(&write, &[], &deleted, Some(NOW)).is_ok());
        assert!(check(&write, &[], &deleted, None).is_err(), "nothing is purged in this run");
    }
}
